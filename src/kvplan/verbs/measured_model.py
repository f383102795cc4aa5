"""A model that was run here beside what kvplan says: bytes of its caches, times of its prompts and steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kvplan.cost.estimate import Clock
from kvplan.cost.operations import Ranks, operations_of
from kvplan.cost.step import Step
from kvplan.engines.engine import Setup
from kvplan.engines.transformers import capacity
from kvplan.facts.accelerators import Accelerator
from kvplan.facts.formats import find_format
from kvplan.facts.reached import Reached
from kvplan.measured.calibrate import FITTED, OVERHEADS, calibrated, checkerboard, spread
from kvplan.measured.model_run import Ran
from kvplan.model.model import Model

TOLERANCE = 0.25  # how far a step that was kept apart may lie from the calibrated estimate


def step_of(row: Mapping[str, Any]) -> Step:
    """The step that a timed row ran."""
    if "prompt_tokens" in row:
        return Step(prompts=row["batch"], chunk=row["prompt_tokens"])
    return Step(decoding=row["batch"], context=row["context"])


def clock_with(model: Model, dtype: str, machine: Accelerator, reached: Reached) -> Clock:
    """The clock of that model in transformers on the machine."""
    format = find_format(dtype, "--dtype", "weights")
    ops = operations_of(model, Ranks(), format.block_bytes / format.block_values, format.compute)
    return Clock(ops, replace(machine, reached=reached), "transformers")


def cache_rows(model: Model, dtype: str, ran: Ran) -> list[dict[str, Any]]:
    """Bytes held beside bytes predicted, of every shape."""
    rows = []
    for row in ran.cache:
        flags = {
            "max_cache_len": row["tokens"],
            "prompt_tokens": row["prompt_tokens"],
            "batch_size": row["batch"],
        }
        found = capacity(model, Setup("transformers", "", flags=flags, dtype=dtype), None)
        mine = (found.kv_bytes or 0) + (found.state_bytes or 0)
        held = row["kv_bytes"] + row["state_bytes"]
        rows.append(
            {
                "batch": row["batch"],
                "tokens": row["tokens"],
                "prompt_tokens": row["prompt_tokens"],
                "predicted_bytes": int(mine),
                "held_bytes": held,
                "agrees": int(mine) == held,
            }
        )
    return rows


def marked(ran: Ran) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(prompts, decode steps), each with whether the calibration may see it: every other one."""
    prompts = [{**row, "fitted": i % 2 == 0} for i, row in enumerate(ran.prefill)]
    batches = sorted({row["batch"] for row in ran.decode})
    contexts = sorted({row["context"] for row in ran.decode})
    board = checkerboard(len(batches), len(contexts))
    steps = [
        {**row, "fitted": board[batches.index(row["batch"])][contexts.index(row["context"])]}
        for row in ran.decode
    ]
    return prompts, steps


def with_values(reached: Reached, values: Mapping[str, float]) -> Reached:
    """The same machine with fitted shares and overheads; a step adds nothing of its own."""
    named: dict[str, Any] = dict(values)
    return replace(reached, step_seconds=1e-9, **named)


def fit(
    clock_of: Callable[[Reached], Clock], start: Reached, rows: Sequence[Mapping[str, Any]]
) -> dict[str, float]:
    """The shares and overheads that meet the rows which the fit may see."""
    seen = [row for row in rows if row["fitted"]]
    first = {name: getattr(start, name) for name in FITTED} | OVERHEADS
    first = {name: min(value, 0.9) for name, value in first.items()}

    def predict(values: Mapping[str, float]) -> list[float]:
        clock = clock_of(with_values(start, values))
        return [float(clock.seconds(step_of(row))) for row in seen]

    return calibrated(first, predict, [row["seconds"] for row in seen])


def beside(rows: Sequence[dict[str, Any]], machine: Clock, after: Clock) -> list[dict[str, Any]]:
    """Every row with its floor, what the machine's rates alone say, and the calibrated estimate."""
    found = []
    for row in rows:
        step = step_of(row)
        floor = float(after.floor(step))
        told = max(floor, float(after.seconds(step)))
        found.append(
            {
                **row,
                "lower_bound_seconds": floor,
                "from_machine_seconds": max(floor, float(machine.seconds(step))),
                "predicted_seconds": told,
                "relative_error": told / row["seconds"] - 1,
            }
        )
    return found


def verdict(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """How the rows that were kept apart came out; None, `agrees` too, where there are none."""
    apart = [row for row in rows if not row["fitted"]]
    errors = [abs(row["relative_error"]) for row in apart]
    return {
        "points": len(apart),
        "worst_relative_error": max(errors, default=None),
        "mean_relative_error": sum(errors) / len(errors) if errors else None,
        "above_floor": all(row["seconds"] >= row["lower_bound_seconds"] for row in rows),
        "tolerance": TOLERANCE,
        "agrees": all(error <= TOLERANCE for error in errors) if errors else None,
    }


def spreads_of(prompts: Sequence[Any], steps: Sequence[Any]) -> dict[str, Any]:
    """Measured over predicted of the rows that were kept apart, by figure."""
    found = {}
    for name, rows in (("prefill", prompts), ("decode", steps)):
        known = spread([row["seconds"] / row["predicted_seconds"] for row in rows if not row["fitted"]])
        if known is not None:
            found[name] = known
    return found
