"""A real Prometheus (make test-prometheus): a day of traffic put into it, and one that it scrapes itself."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fake_server as fake
import kvplan
import synthetic_traffic as synthetic
from kvplan.serve.traces import read_trace
from test_learned_workload import INFO

pytestmark = pytest.mark.prometheus
DAY, SCRAPE = 86400, 30
OWN = {"engine": "0", "instance": "a:8000", "job": "vllm", "model_name": "m"}


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextmanager
def prometheus(folder: Path, targets: str = "", scrape: str = "1s") -> Iterator[str]:
    """A Prometheus on this machine alone, its data in a folder."""
    program = shutil.which("prometheus")
    assert program, "apt-get install prometheus"
    config = folder / "prometheus.yml"
    jobs = f"[{{job_name: vllm, static_configs: [{{targets: ['{targets}']}}]}}]" if targets else "[]"
    config.write_text(f"global: {{scrape_interval: {scrape}}}\nscrape_configs: {jobs}\n")
    port = free_port()
    words = [
        program, f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}", "--storage.tsdb.retention.time=30d", "--log.level=error",
    ]  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    with (folder / "log").open("wb") as log, subprocess.Popen(words, stdout=log, stderr=log) as process:
        try:
            assert fake.wait_until(lambda: ready(url), 60), (folder / "log").read_text()[-2000:]
            yield url
        finally:
            process.terminate()
            process.wait(30)


def ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/-/ready", timeout=2) as answer:  # noqa: S310 - of this machine
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def line(key: str, value: float, when: float | None = None) -> str:
    """A sample, with what tells this engine from others."""
    name, _, inner = key.partition("{")
    labels = {**OWN, **dict(re.findall(r'(\w+)="([^"]*)"', inner))}
    text = ",".join(f'{n}="{v}"' for n, v in labels.items())
    return f"{name}{{{text}}} {value:.17g}" + (f" {when:.3f}" if when is not None else "") + "\n"


def page(sums: dict[str, Any], place: int, when: float | None = None) -> Iterator[str]:
    """What had been counted by the `place`-th request."""
    for key, values in sums.items():
        yield line(key, float(values[place]), when)
    yield line("vllm:num_requests_running", 5.0, when)
    inner = ",".join(f'{n}="{v}"' for n, v in INFO.items())
    yield line(f"vllm:cache_config_info{{{inner}}}", 1.0, when)


def filled(folder: Path, t: synthetic.Traffic, start: float, seconds: float, every: int) -> None:
    """Blocks of that traffic, as if it had been scraped."""
    sums = synthetic.cumulative(t)
    with (folder / "day.om").open("w") as file:
        for when in np.arange(start, start + seconds + 1, every):
            place = int(np.searchsorted(t.ends, when - start, side="right"))
            file.writelines(page(sums, place, float(when)))
        file.write("# EOF\n")
    tool = shutil.which("promtool")
    assert tool
    words = [tool, "tsdb", "create-blocks-from", "openmetrics", str(folder / "day.om"), str(folder / "data")]
    subprocess.run(words, check=True, capture_output=True, timeout=600)


def test_a_day_in_a_real_prometheus_gives_back_rate_lengths_and_hits(tmp_path: Path) -> None:
    t = synthetic.traffic(DAY)
    start = float(int(time.time()) - DAY)
    filled(tmp_path, t, start, DAY, SCRAPE)
    out = tmp_path / "day.jsonl"
    with prometheus(tmp_path) as url:
        begun = time.monotonic()
        answer = kvplan.workload(prometheus=url, since="24h", out=str(out))
        seconds = time.monotonic() - begun
        verified = kvplan.verify("llama-3.1-8b-instruct", prometheus=url, gpu="h100", engine_version="0.32")
    rates = np.array([rate if rate is not None else np.nan for _, rate in answer["rate"]])
    span = answer["source"]
    edges = np.linspace(span["from"] - start, span["to"] - start, len(rates) + 1)
    true = np.histogram(t.ends, bins=edges)[0] / span["step_seconds"]
    off = {
        "requests": answer["requests"] / len(t) - 1,
        "rate, mean of steps": float(np.nanmean(np.abs(rates - true)) / true.mean()),
        "prefix hits": answer["prefix_hit_rate"] / (t.hits.sum() / t.prompt.sum()) - 1,
    }
    for name, lengths in (("prompt_tokens", t.prompt), ("output_tokens", t.output)):
        off[f"{name} mean"] = answer[name]["mean"] / lengths.mean() - 1
        off |= {f"{name} p{q}": answer[name][f"p{q}"] / np.percentile(lengths, q) - 1 for q in (50, 90, 99)}
    print(f"\nasked for {seconds:.1f} s; off by", {name: f"{value:+.2%}" for name, value in off.items()})  # noqa: T201
    assert abs(off["requests"]) < 0.01
    assert off["rate, mean of steps"] < 0.05
    assert abs(off["prefix hits"]) < 0.01
    assert all(abs(value) < 0.01 for name, value in off.items() if name.endswith("mean"))
    assert all(abs(value) < 0.05 for value in off.values())
    written = read_trace(out, answer["shared_prefix_tokens"])
    assert len(written) == answer["requests"]
    rows = {row["name"]: row for row in verified["checks"]}
    assert rows["kv_tokens"]["predicted"] == rows["kv_tokens"]["reported"] == 491520
    assert rows["tpot_seconds"]["reported"] == pytest.approx(t.tpot.mean(), rel=0.01)


def test_a_real_prometheus_that_scrapes_a_server_is_learned_from(tmp_path: Path) -> None:
    seconds = 40.0
    t = synthetic.traffic(seconds * 2, scale=2.0)
    sums, begun = synthetic.cumulative(t), time.time()

    def metrics(handler: fake.Handler) -> None:
        place = int(np.searchsorted(t.ends, time.time() - begun, side="right"))
        handler.send(200, "".join(page(sums, place)).encode())

    with fake.serving(metrics=metrics) as server:
        place = server.url.removeprefix("http://")
        with prometheus(tmp_path, place) as url:
            time.sleep(seconds)
            answer = kvplan.workload(prometheus=url, since="30s", selector='{job="vllm"}')
            until = answer["source"]["to"] - begun
        alone = kvplan.verify("llama-3.1-8b-instruct", url=server.url, gpu="h100", engine_version="0.32")
    counted = int(((t.ends > until - 30) & (t.ends <= until)).sum())
    print(f"\n{answer['requests']} learned, {counted} sent in those 30 s")  # noqa: T201
    assert answer["requests"] == pytest.approx(counted, rel=0.15)
    assert answer["prompt_tokens"]["mean"] == pytest.approx(t.prompt.mean(), rel=0.25)
    assert {r["name"]: r["agrees"] for r in alone["checks"]}["kv_tokens"]
