"""Published serving measurements as cases: read, weighed, and predicted with scaled clocks."""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvplan.cost.estimate import Clock
from kvplan.errors import KvplanError
from kvplan.facts.kernels import find_kernel
from kvplan.verbs.cases import Case, read_case
from kvplan.verbs.latency import phase, served

DATA = Path(__file__).parents[1] / "tests" / "data"
STATISTICS = ("_p90", "_p95", "_p99")  # percentiles are for `simulate`


@dataclass(frozen=True)
class Row:
    """A measurement, its case, and how far it counts in the fit."""

    raw: Mapping[str, Any]
    case: Case | None
    error: str
    weight: float
    beyond: str  # why no input of a case explains it, or nothing
    odd: str

    @property
    def figure(self) -> str:
        """What is measured, as the spreads name it."""
        return figure_of(self.raw)


def figure_of(raw: Mapping[str, Any]) -> str:
    """The kind of figure a metric is, with its load: what shares one spread of errors."""
    metric, mode = str(raw["metric"]), str(raw["mode"])
    alone = mode in ("fixed-batch", "llama-bench-pp", "llama-bench-tg")
    if metric.startswith("ttft"):
        return "prefill" if alone else "ttft"
    if metric == "prefill_throughput":
        return "prefill"
    if metric == "decode_throughput" or metric.startswith(("tpot", "itl")):
        return "decode" if alone else "tpot"
    if alone:
        return "batch"
    return "throughput" if mode == "offline-throughput" else "tpot"


def read_rows() -> list[Row]:
    """Every row that states a config, a known accelerator, lengths and a load."""
    rules = tomllib.loads((DATA / "measured.toml").read_text("utf-8"))["odd"]
    found = []
    lines = (DATA / "measured.jsonl").read_text("utf-8").splitlines()
    raws = [raw for raw in map(json.loads, lines) if _in_scope(raw)]
    counts = Counter((raw["group"], raw["gpu_key"], raw["regime"]) for raw in raws)
    for raw in raws:
        odd = [rule for rule in rules if _holds(rule, raw)]
        weight = (counts[raw["group"], raw["gpu_key"], raw["regime"]] / 10) ** -0.5
        for rule in odd:
            weight *= rule.get("weight", 1.0) if rule.get("fit", True) else 0.0
        beyond = next((rule["why"] for rule in odd if rule.get("beyond")), "")
        try:
            case, error = read_case(raw), ""
        except KvplanError as problem:
            case, error = None, str(problem)
        found.append(Row(raw, case, error, weight, beyond, odd[0]["why"] if odd else ""))
    return found


def _in_scope(raw: Mapping[str, Any]) -> bool:
    if raw.get("disagg") or raw["src"] == "mlperf" or raw["metric"].endswith(STATISTICS):
        return False
    lengths = raw.get("isl") is not None and raw.get("osl") is not None
    load = raw.get("request_rate") or raw["mode"] != "open-loop-rate"
    return bool(raw.get("config") and raw.get("gpu_key") and raw.get("n_gpus") and lengths and load)


def _holds(rule: Mapping[str, Any], raw: Mapping[str, Any]) -> bool:
    date = str(raw.get("date") or "")
    if date < rule.get("from", "") or ("until" in rule and (not date or date > rule["until"])):
        return False
    for name, wanted in rule["where"].items():
        value = raw.get(name)
        if value not in wanted if isinstance(wanted, list) else value != wanted:
            return False
    return True


def predicted(row: Row, scales: Mapping[str, float] | None = None) -> float | None:
    """The row's figure under the fitted parameters in force, each scaled by name where `scales` says so."""
    c, raw = row.case, row.raw
    if c is None:
        return None
    clock = Clock(c.clock.ops, c.clock.accelerator, c.engine, c.clock.version, scales)
    metric = str(raw["metric"])
    if metric == "prefill_throughput":
        batch = c.amount or 1
        return float(raw["isl"] * batch / phase(clock, c.load, c.policy, batch, "prefill")[0])
    found = served(clock, c.load, c.policy, c.mode, c.amount)
    if metric.startswith("ttft"):
        value = found.ttft_seconds
    elif metric.startswith(("tpot", "itl")):
        value = found.tpot_seconds
    elif metric.startswith("e2e"):
        value = found.e2e_seconds
    elif metric == "decode_throughput":
        value = found.decode_tokens_per_second
    elif metric == "request_throughput":
        value = found.requests_per_second
    else:
        value = found.output_tokens_per_second
        value = value / raw["n_gpus"] if value is not None and metric.endswith("per_gpu") else value
    return None if value is None else float(value)


def is_timed(engine: str, accelerator: str) -> bool:
    """Whether kernels were timed on this generation, under engines that use them."""
    return (
        engine in ("vllm", "sglang", "tensorrt-llm") and find_kernel("matmul", "bf16", accelerator).known <= 1
    )
