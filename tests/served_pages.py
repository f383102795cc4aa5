"""The stored pages of engines that were run, as a server would answer them."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fake_server as fake

DATA = Path(__file__).parent / "data"
RUNS, PAGES = DATA / "engine-runs", DATA / "engine-pages"
_LINE = re.compile(r"(?P<kind>Counter|Gauge|Histogram)\((?P<inner>.*)\)$")


def text_of(printed: str) -> str:
    """A /metrics page of what vLLM's `get_metrics()` gave: one object a line."""
    lines = []
    for line in printed.splitlines():
        match = _LINE.match(line)
        if match is None:
            lines.append(line)  # a page as it was served
            continue
        call = ast.parse(f"f({match['inner']})", mode="eval").body
        assert isinstance(call, ast.Call)
        row = {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
        lines += _samples(match["kind"], row)
    return "\n".join(lines) + "\n"


def _samples(kind: str, row: dict[str, Any]) -> Iterator[str]:
    name, labels = row["name"], row["labels"]
    if kind != "Histogram":
        yield f"{name}{'_total' if kind == 'Counter' else ''}{_labels(labels)} {row['value']}"
        return
    for bound, count in row["buckets"].items():
        yield f"{name}_bucket{_labels({**labels, 'le': bound})} {count}"
    yield f"{name}_sum{_labels(labels)} {row['sum']}"
    yield f"{name}_count{_labels(labels)} {row['count']}"


def _labels(labels: dict[str, str]) -> str:
    return "{" + ",".join(f"{n}={json.dumps(v)}" for n, v in labels.items()) + "}"


@contextmanager
def vllm(name: str, length: int | None = None, version: str = "0.32.0") -> Iterator[fake.FakeServer]:
    """A server with a stored page of vLLM."""
    text = text_of((PAGES / "vllm" / f"{name}.metrics").read_text("utf-8"))
    with fake.serving(metrics=text, version=fake.json_page({"version": version})) as server:
        entry = {"id": "m", "root": "models/m", "parent": None, "max_model_len": length}
        server.answers["/v1/models"] = fake.json_page({"object": "list", "data": [entry]})
        yield server


@contextmanager
def llama_cpp(name: str) -> Iterator[fake.FakeServer]:
    """A server with the stored pages of llama-server; the first of each path."""
    text = (PAGES / "llama_cpp" / f"{name}.metrics").read_text("utf-8")
    with fake.serving() as server:
        for path, body in re.findall(
            r"^### (/\S+)\n(.*?)(?=^###|^# maxrss|\Z)", text, re.MULTILINE | re.DOTALL
        ):
            server.answers.setdefault(path, body)
        yield server
