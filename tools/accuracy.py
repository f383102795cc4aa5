"""Write docs/accuracy.md: how far estimates lie from published measurements, cross-validated.

    python tools/accuracy.py [--check]

Errors are those of tests/data/cross_validated.json, which tools/fit_serving.py writes: every row predicted
with parameters fitted without any row of its architecture. Coverage is of intervals taken from the errors of
other architectures alone. `--check` fails where the page is stale.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from serving_rows import DATA, Row, read_rows
from spreads import ratios, widened

from kvplan.verbs.latency import phase

PAGE = Path(__file__).parents[1] / "docs" / "accuracy.md"
WORDS = {
    "tpot-loaded": "TPOT under load",
    "ttft-loaded": "TTFT under load",
    "batch1-decode": "decode, batch 1",
    "prefill-bound": "prefill",
    "saturated": "saturated throughput",
    "mixed": "end to end, mixed",
}
FLOOR_SLACK = 1.02


def errors_of(rows: list[Row]) -> dict[str, float]:
    """Each row's cross-validated log error, by id."""
    stored = json.loads((DATA / "cross_validated.json").read_text("utf-8"))
    known = {row.raw["id"] for row in rows}
    return {key: value for key, value in stored["architecture"].items() if key in known}


class Score:
    """Rows with their errors, and whether an interval of other architectures holds them."""

    def __init__(self, rows: list[Row]) -> None:
        self.rows = rows
        self.errors = errors_of(rows)
        self.held = self._held()

    def _held(self) -> dict[str, bool]:
        by_kind: dict[str, list[Row]] = defaultdict(list)
        for row in self.rows:
            if row.raw["id"] in self.errors:
                by_kind[row.figure].append(row)
        found: dict[str, bool] = {}
        for group in by_kind.values():
            values = ratios(group, self.errors)
            tail = widened(values)
            for fold in {row.raw["arch"] for row in group}:
                others = [v for a, _, v in values if a != fold]
                low, high = (
                    (np.quantile(others, q) for q in (tail, 1 - tail)) if others else (-math.inf, math.inf)
                )
                found |= {key: bool(low <= v <= high) for a, key, v in values if a == fold}
        return found

    def line(self, rows: Iterable[Row]) -> str:
        """Rows, answered, median, mean and bias of the error, coverage."""
        listed = list(rows)
        answered = [row for row in listed if row.raw["id"] in self.errors]
        if not answered:
            return f"{len(listed)} | 0 | | | | "
        logs = np.array([self.errors[row.raw["id"]] for row in answered])
        size = np.abs(np.expm1(logs))
        held = np.mean([self.held[row.raw["id"]] for row in answered])
        return (
            f"{len(listed):,} | {len(answered):,} | {np.median(size):.1%} | {size.mean():.1%} | "
            f"{math.exp(np.median(logs)):.2f} | {held:.0%}"
        )


HEAD = "| rows | answered | median | mean | predicted ÷ measured | interval holds |"
RULE = "|---:|---:|---:|---:|---:|---:|"


def table(score: Score, name: str, key: Callable[[Row], Any], rows: list[Row]) -> list[str]:
    """One line for each group."""
    groups: dict[Any, list[Row]] = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    lines = [f"| {name} {HEAD}", f"|---{RULE}"]
    return [*lines, *(f"| {group} | {score.line(groups[group])} |" for group in sorted(groups, key=str))]


def floors(rows: list[Row]) -> list[str]:
    """Rows measured faster than the floor allows, with what is known of each."""
    found = []
    for row in rows:
        floor = floor_of(row)
        if floor is not None and floor > FLOOR_SLACK * time_of(row):
            raw = row.raw
            over = floor / time_of(row) - 1
            why = row.odd or "not explained"
            found.append(
                f"| {raw['id']} | {raw['model']} | {raw['gpu_key']} × {raw['n_gpus']} | +{over:.0%} | {why} |"
            )
    return found


def time_of(row: Row) -> float:
    """The seconds a row's value stands for: those that a floor is under."""
    raw, case = row.raw, row.case
    value = float(raw["value_si"])
    assert case is not None  # noqa: S101
    amount = case.amount or 1
    metric = str(raw["metric"])
    if metric == "decode_throughput":
        return amount / value
    if metric == "prefill_throughput":
        return float(raw["isl"]) * amount / value
    if metric == "output_throughput_per_gpu":
        value *= raw["n_gpus"]
    if metric.startswith("output_throughput"):
        return amount * float(raw["osl"]) / value
    return value


def floor_of(row: Row) -> float | None:
    """The least time of what a row measured; None where the load leaves it open."""
    case, metric = row.case, str(row.raw["metric"])
    if case is None or case.mode in ("rate", "saturated"):
        return None
    clock, load, policy = case.clock, case.load, case.policy
    batch = case.amount or 1
    running = min(batch, policy.running)
    if metric.startswith(("tpot", "itl")) or metric == "decode_throughput":
        return float(phase(clock, load, policy, 1 if case.mode == "concurrency" else running, "decode")[1])
    one = 1 if case.mode == "concurrency" else batch
    first = float(phase(clock, load, policy, one, "prefill")[1]) if load.prompt_tokens else 0.0
    if metric.startswith("ttft") or metric == "prefill_throughput":
        return first
    step = float(phase(clock, load, policy, one, "decode")[1])
    return first + (float(load.output_tokens) - 1) * step


def page() -> str:
    """The whole page."""
    rows = read_rows()
    score = Score(rows)
    reach = [row for row in rows if not row.beyond]
    answered = sum(row.raw["id"] in score.errors for row in rows)
    lines = [
        "# How far estimates lie from measurements",
        "",
        "Generated by `make accuracy` (tools/fit_serving.py, tools/accuracy.py) from 4,039 published",
        "measurements with their sources (tests/data/measured.jsonl). Every row is predicted with",
        "parameters fitted **without any row of its architecture**; kernels' own parameters come from",
        "timings and see none of these rows. Left out are percentiles (for `simulate`), disaggregated",
        "rows, and MLPerf's, which state no lengths.",
        f"Of the {len(rows):,} rows left, {answered:,} ({answered / len(rows):.1%}) are answered; the others",
        "state a deployment that no engine starts, or a load that outruns it. `interval holds`: how many",
        "measurements lie in the stated 80 % interval, drawn from the errors of other architectures alone.",
        "",
        "## By what is measured",
        "",
        *table(score, "all rows", lambda row: WORDS[row.raw["regime"]], rows),
        "",
        "The same without the rows that no input of a case explains (each with its reason below):",
        "",
        *table(score, "rows in reach", lambda row: WORDS[row.raw["regime"]], reach),
        "",
        "The best peer, a database of 12.6 million kernel timings, reaches 22.0 % mean and 13.4 % median",
        "on TPOT, 53.8 % and 44.6 % on TTFT, on the 287 of 367 cases of one of these sources (aic) that it",
        "answers. On that source the mean on TTFT here is no better: a few rows are off many times over.",
        "",
        "Outside the folds stand three things: the overlap of llama.cpp's stages (two numbers, set by a",
        "scan of all rows), the weights of odd rows, and the fit's priors, the same for every fold.",
        "",
        "## By source",
        "",
        *table(
            score, "source · measured", lambda row: f"{row.raw['src']} · {WORDS[row.raw['regime']]}", rows
        ),
        "",
        "## By accelerator",
        "",
        *table(score, "accelerator", lambda row: row.raw["gpu_key"], rows),
        "",
        "## By engine",
        "",
        *table(
            score,
            "engine · measured",
            lambda row: f"{row.raw['engine_name']} · {WORDS[row.raw['regime']]}",
            rows,
        ),
        "",
        "## Rows that no input explains",
        "",
        "They are scored above in `all rows`. What is missing, and how many rows it concerns:",
        "",
    ]
    reasons: dict[str, int] = defaultdict(int)
    for row in rows:
        if row.beyond:
            reasons[row.beyond] += 1
    lines += [f"- {count} rows: {why}." for why, count in sorted(reasons.items(), key=lambda item: -item[1])]
    lines += ["", "## Faster than the floor", ""]
    over = floors(rows)
    lines += (
        [f"Of {answered:,} rows, {len(over)} are measured more than 2 % faster than the floor:", ""]
        if over
        else ["None by more than 2 %, where the floor is of one sequence if a row states users, not a batch."]
    )
    lines += (
        ["| row | model | accelerators | floor above | why |", "|---|---|---|---:|---|", *over]
        if over
        else []
    )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the page, or say that it is stale."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    text = page()
    if parser.parse_args().check:
        if not PAGE.exists() or PAGE.read_text("utf-8") != text:
            raise SystemExit("docs/accuracy.md is stale: make accuracy")
        return
    PAGE.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
