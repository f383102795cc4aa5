"""Write docs/agreement.md: what engines printed or answered, and how much of it kvplan says too.

Runs the golden tests and counts records, by engine, version and architecture. A record agrees when all
its tests pass and it is not in its module's list of misses. `--check` exits 1 when the page is stale.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
PAGE = ROOT / "docs/agreement.md"
# Test module, golden file, engine, and what its records are.
SETS = (
    ("test_vllm_oracle", "vllm_oracle_0_32.jsonl", "vLLM", "answers of its own start-up code"),
    ("test_vllm_oracle", "vllm_oracle_versions.jsonl", "vLLM", "answers of its own planning code"),
    ("test_vllm_logs", "vllm_logs.jsonl", "vLLM", "start-up logs"),
    ("test_sglang_logs", "sglang_logs.jsonl", "SGLang", "start-up logs"),
    ("test_tensorrt_llm_logs", "tensorrt_llm_logs.jsonl", "TensorRT-LLM", "start-up logs"),
    ("test_llama_cpp_logs", "llama_cpp_logs.jsonl", "llama.cpp", "load logs"),
)


class Outcomes:
    """Collects, for every parametrised id of a test module, whether all its tests passed."""

    def __init__(self) -> None:
        self.passed: dict[tuple[str, str], bool] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Called by pytest for every phase of every test."""
        module, _, rest = report.nodeid.partition("::")
        if "[" in rest and (report.when == "call" or report.failed):
            key = (Path(module).stem, rest.partition("[")[2].removesuffix("]"))
            self.passed[key] = self.passed.get(key, True) and not report.failed


def outcomes() -> dict[tuple[str, str], bool]:
    """Every record's outcome by test module and id."""
    found = Outcomes()
    names = sorted({f"{ROOT}/tests/{name}.py" for name, *_ in SETS})
    pytest.main(
        [*names, "-q", "-p", "no:cacheprovider", "--no-header", "--no-summary", "-o", "addopts="], [found]
    )
    return found.passed


def misses_of(module: str) -> dict[str, str]:
    """A module's records that do not agree, each with its reason."""
    return dict(getattr(__import__(module), "MISSES", {}))


def architecture(row: dict[str, Any]) -> str:
    """The model type of a record, or what is known of it."""
    from kvplan.errors import KvplanError
    from kvplan.facts.catalogue import find_model

    if isinstance(row.get("config"), dict):
        return str(row["config"].get("model_type", "config given"))
    for name in (row.get("config"), row.get("config_file"), row.get("model")):
        path = ROOT / "src/kvplan/facts/models" / str(name)
        if name and path.is_file():
            return str(json.loads(path.read_text("utf-8")).get("model_type", "not stated"))
        try:
            entry = find_model(str(name)) if name else None
        except KvplanError:
            entry = None
        if entry:
            return str(entry.model_type)
    return "printed geometry" if row.get("gguf") or row.get("shape") else "not stated"


def version(row: dict[str, Any]) -> str:
    """The minor version of a record, a llama.cpp build as it is."""
    found = str(row.get("version") or row.get("ask", {}).get("version") or row.get("build") or "not stated")
    parts = found.split(".")
    return ".".join(parts[:2]) if len(parts) > 1 else ("builds b…" if found.startswith("b") else found)


def table(title: str, counts: dict[tuple[str, ...], list[bool]]) -> Iterator[str]:
    """A table of records and of those that agree."""
    yield f"| {title} | records | agree |"
    yield "|---|---:|---:|"
    for key in sorted(counts, key=lambda k: tuple(_order(part) for part in k)):
        yield f"| {' · '.join(key)} | {len(counts[key]):,} | {sum(counts[key]):,} |"
    yield ""


def _order(text: str) -> tuple[Any, ...]:
    return tuple((0, int(p)) if p.isdigit() else (1, p) for p in text.replace(".", " ").split())


def page() -> str:
    """The whole page."""
    passed = outcomes()
    kinds: dict[tuple[str, ...], list[bool]] = defaultdict(list)
    versions: dict[tuple[str, ...], list[bool]] = defaultdict(list)
    types: dict[tuple[str, ...], list[bool]] = defaultdict(list)
    reasons: list[str] = []
    for module, golden, engine, what in SETS:
        misses = misses_of(module)
        for line in (ROOT / "tests/golden" / golden).read_text("utf-8").splitlines():
            row = json.loads(line)
            if (module, row["id"]) not in passed:
                continue
            agrees = passed[module, row["id"]] and row["id"] not in misses
            kinds[engine, what].append(agrees)
            versions[engine, version(row)].append(agrees)
            types[engine, architecture(row)].append(agrees)
            if row["id"] in misses:
                reasons.append(f"- `{row['id']}`: {misses[row['id']]}")
    lines = [
        "# How much of what engines print is predicted",
        "",
        "Generated by `tools/agreement.py` from the golden tests. With the cache's bytes given (or, for",
        "llama.cpp, context and slots), every figure a record holds is compared: exactly where the",
        "engine's own code answered, to the last printed digit where a log rounded.",
        "",
        *table("engine · records", kinds),
        "Records that do not agree, each with its reason:",
        "",
        *(reasons or ["- none"]),
        "",
        *pools_part(),
        "## By version",
        "",
        *table("engine · version", versions),
        "## By architecture",
        "",
        *table("engine · model type", types),
    ]
    return "\n".join(lines).rstrip() + "\n"


def pools_part() -> Iterator[str]:
    """The pool end to end: GPU and flags in, nothing measured."""
    from logged_pools import OUTSIDE, pools

    found = pools()
    known = [pool for pool in found if pool.predicted is not None]
    inside = sum(pool.inside for pool in known)
    low, high = wilson(inside, len(known))
    median = statistics.median(abs(pool.error) for pool in known)
    yield "## The pool end to end"
    yield ""
    yield f"From GPU, version and flags alone, {len(known)} vLLM logs that state them: the median error of"
    yield f"the pool is {median:.1%}; the stated interval holds {inside} of them, {inside / len(known):.0%}"
    yield f"(80 % is stated; 95 % interval of that share: {low:.0%} to {high:.0%}). The same logs taught"
    yield "the ranges, so other logs may be met less well."
    yield ""
    yield "| log | model | device | vLLM | printed GiB | predicted | error | interval |"
    yield "|---|---|---|---|---:|---:|---:|---|"
    for pool in known:
        span = f"{pool.low:.2f} to {pool.high:.2f}{'' if pool.inside else ' (outside)'}"
        yield (
            f"| {pool.id} | {pool.model} | {pool.gpu} | {pool.version} | {pool.reported:.2f} | "
            f"{pool.predicted:.2f} | {pool.error:+.1%} | {span} |"
        )
    yield ""
    yield from (f"- `{name}` lies outside: {why}" for name, why in OUTSIDE.items())
    yield ""
    reasons: dict[str, int] = defaultdict(int)
    for pool in found:
        if pool.predicted is None:
            reasons[pool.why.split(";")[0]] += 1
    yield "Not compared: " + "; ".join(f"{count} × {why}" for why, count in sorted(reasons.items())) + "."
    yield ""


def wilson(hits: int, count: int) -> tuple[float, float]:
    """The 95 % binomial interval of a share (Wilson's)."""
    z, share = 1.96, hits / count
    middle = share + z * z / (2 * count)
    half = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return (middle - half) / (1 + z * z / count), (middle + half) / (1 + z * z / count)


def main() -> None:
    """Write the page, or compare it."""
    fresh = page()
    if "--check" not in sys.argv:
        PAGE.write_text(fresh, "utf-8")
    elif PAGE.read_text("utf-8") != fresh:
        print("docs/agreement.md is stale: run python tools/agreement.py", file=sys.stderr)
        raise SystemExit(1)


if __name__ == "__main__":
    main()
