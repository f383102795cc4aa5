"""The series that pictures draw: rows of plain numbers, computed where the answers are."""

from __future__ import annotations

from typing import Any

from kvplan.cost import cache
from kvplan.cost.cache import Stored
from kvplan.cost.estimate import Clock
from kvplan.cost.growth import Growth, Slope, growth_of
from kvplan.cost.step import Step
from kvplan.engines.deployment import Deployment
from kvplan.figure import bare
from kvplan.model.model import Model
from kvplan.serve.load import Load, Policy
from kvplan.verbs import phases

POINTS = 160


def growth_by_kind(model: Model, stored: Stored, tokens: int) -> list[dict[str, Any]]:
    """Bytes that one sequence holds at lengths up to `tokens`, by kind of cache."""
    whole = growth_of(model, stored)
    kinds: dict[str, list[Slope]] = {}
    slopes = iter(whole.slopes)
    for group in cache.groups_of(model):
        kinds.setdefault(group.attention.kind, []).append(next(slopes))
        if group.attention.index_width:
            kinds.setdefault("index keys", []).append(next(slopes))
    parts = {kind: Growth(0, tuple(found)) for kind, found in kinds.items()}
    if whole.state_bytes:
        parts["state"] = Growth(whole.state_bytes, ())
    bends = {1, *(s.window * s.stride for s in whole.slopes if s.window is not None)}
    xs = sorted({round(tokens * i / POINTS) for i in range(POINTS + 1)} | {x for x in bends if x <= tokens})
    return [{"x": x, "kind": kind, "bytes": part.held(x)} for kind, part in parts.items() for x in xs]


def held_by_step(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Bytes held after each step, from its start to its end, by runs of steps in which the same ran.

    Long runs are thinned inside, so that a run is as wide as its steps.
    """
    every = max(1, len(steps) // (4 * POINTS))
    rows: list[dict[str, Any]] = []
    run = 0
    for i, step in enumerate(steps):
        starts = i == 0 or step["phase"] != steps[i - 1]["phase"]
        ends = i + 1 == len(steps) or step["phase"] != steps[i + 1]["phase"]
        run += starts
        row = {"x": i, "run": run, "kind": step["phase"], "bytes": step["held_bytes"]}
        if starts or ends or i % every == 0:
            rows.append(row)
        if ends:
            rows.append({**row, "x": i + 1})
    return rows


def memory_parts(memory: dict[str, Any]) -> list[dict[str, Any]]:
    """The budget's parts in order and what is left of the device, where they are known."""
    names = ("weight", "activation", "graph", "overhead", "kv_pool")
    rows = [{"part": name, "bytes": memory[f"{name}_bytes"]} for name in names]
    if memory["headroom_bytes"] is not None:
        rows.append({"part": "unused", "bytes": max(0, memory["headroom_bytes"])})
    return [row for row in rows if row["bytes"] is not None]


def decode_over_batch(
    d: Deployment, clock: Clock, load: Load, policy: Policy, pool_bytes: int
) -> list[dict[str, Any]]:
    """The floor of a decode step at batches of powers of two and at the largest that the pool holds."""
    length = load.depth + load.prompt_tokens + load.output_tokens
    each = cache.bytes_per_sequence(d.model, d.stored, length, bare)
    batches = {2**power for power in range(13)}
    full = pool_bytes // each if each else 0
    rows = []
    for batch in sorted(batches | {full} if 0 < full < max(batches) else batches):
        step = Step(policy.stage_share(batch), load.middle_context, load.drafts + 1)
        compute, memory = phases.floor_parts(clock, step)
        rows.append(
            {
                "batch": batch,
                "compute_seconds": compute,
                "memory_seconds": memory,
                "fits": batch * each <= pool_bytes,
            }
        )
    return rows


def deployed(d: Deployment) -> str:
    """Model, accelerators, engine: what a picture is of, in a line."""
    on = f" on {d.tp} × {d.accelerator.name}" if d.accelerator else f", tp {d.tp}"
    return f"{d.model.id}{on}, {d.setup.engine} {d.setup.version}"


def roofline_points(latency: dict[str, Any]) -> list[dict[str, Any]]:
    """Where prefill and decode stand: their arithmetic intensity."""
    return [
        {"phase": phase, "intensity": latency[phase]["arithmetic_intensity"]}
        for phase in ("prefill", "decode")
    ]
