"""Every published figure, put back into a whole log in its engine's lines, is read out of it again."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from typing import Any

import pytest

from kvplan.observe.forms import Said
from kvplan.observe.observed import Observed
from verifying import LOGS, observed, records
from written_llama_cpp import llama_cpp_log
from written_logs import Written, vllm_log
from written_sglang import sglang_log
from written_tensorrt_llm import tensorrt_llm_log

WRITERS: dict[str, Callable[[dict[str, Any]], Written]] = {
    "vllm": vllm_log,
    "sglang": sglang_log,
    "tensorrt_llm": tensorrt_llm_log,
    "llama_cpp": llama_cpp_log,
}
ENGINES = {"tensorrt_llm": "tensorrt-llm", "llama_cpp": "llama.cpp"}
UNWRITTEN = tomllib.loads((LOGS / "unwritten.toml").read_text("utf-8"))
ROWS = [(name, row) for name in WRITERS for row in records(name)]


def ids(case: Any) -> str:
    return str(case["id"]) if isinstance(case, dict) else str(case)


def near(said: Said | None, value: float) -> bool:
    return said is not None and abs(said.value - value) <= said.half * 1.01 + 1e-6


def failed(o: Observed, name: str) -> Said | None:
    return o.failure.figures.get(name) if o.failure else None


@pytest.mark.parametrize(("name", "row"), ROWS, ids=ids)
def test_every_figure_of_a_record_is_read_from_its_log(name: str, row: dict[str, Any]) -> None:
    written = WRITERS[name](row)
    o = observed(written.text)
    assert o.engine == ENGINES.get(name, name)
    wrong = {n: (v, o.figures.get(n)) for n, v in written.figures.items() if not near(o.figures.get(n), v)}
    assert wrong == {}
    wrong = {n: (v, failed(o, n)) for n, v in written.failure.items() if not near(failed(o, n), v)}
    assert wrong == {}
    for setting, value in written.settings.items():
        assert value in (o.flags.get(setting), *o.split.values(), *o.named.values()), setting


@pytest.mark.parametrize(("name", "row"), ROWS, ids=ids)
def test_what_is_not_written_of_a_record_is_named_with_its_reason(name: str, row: dict[str, Any]) -> None:
    stated = {key for key, value in row["reported"].items() if value is not None}
    assert stated - WRITERS[name](row).written - set(UNWRITTEN[name]) == set()


def test_nearly_all_figures_are_written_and_every_reason_is_of_use() -> None:
    written = sum(
        len(writer(row).written & set(row["reported"]))
        for name, writer in WRITERS.items()
        for row in records(name)
    )
    stated = sum(value is not None for _, row in ROWS for value in row["reported"].values())
    assert len(ROWS) >= 240
    assert written >= 0.85 * stated
    for name, reasons in UNWRITTEN.items():
        quoted = {key for row in records(name) for key in row["reported"]}
        assert set(reasons) <= quoted
        assert all(reasons.values())
