"""The series that pictures draw: rows of plain numbers, computed where the answers are."""

from __future__ import annotations

from typing import Any

from kvplan.cost import cache, roofline
from kvplan.cost.cache import Stored
from kvplan.cost.growth import Growth, Slope, growth_of
from kvplan.engines.deployment import Deployment
from kvplan.figure import Source, Trust, bare
from kvplan.model.model import Model
from kvplan.verbs import floor

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
    xs = sorted({round(tokens * i / POINTS) for i in range(POINTS + 1)})
    return [
        {"x": x, "x_title": "tokens of one sequence", "kind": kind, "bytes": part.held(x)}
        for kind, part in parts.items()
        for x in xs
    ]


def held_by_step(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Bytes held after each step, thinned, coloured by what ran."""
    every = max(1, len(steps) // (4 * POINTS))
    kept = [i for i in range(len(steps)) if i % every == 0 or i == len(steps) - 1]
    return [
        {"x": i + 1, "x_title": "step", "kind": steps[i]["phase"], "bytes": steps[i]["held_bytes"]}
        for i in kept
    ]


def memory_parts(memory: dict[str, Any]) -> list[dict[str, Any]]:
    """The budget's parts in order, and what is left of the device."""
    names = ("weight", "activation", "graph", "overhead", "kv_pool")
    rows = [{"part": name.replace("_", " "), "bytes": memory[f"{name}_bytes"]} for name in names]
    return [*rows, {"part": "unused", "bytes": max(0, memory["headroom_bytes"])}]


def decode_over_batch(d: Deployment, prompt: int, output: int, pool_bytes: int) -> list[dict[str, Any]]:
    """The floor of a decode step at batches of powers of two, and whether the pool holds each."""
    rows = []
    each = cache.bytes_per_sequence(d.model, d.stored, prompt + output, bare)
    for power in range(13):
        batch = 2**power
        part = floor.latency_part(d, prompt, output, batch, Source(Trust.STATED, "--batch"), bare)["decode"]
        peak, rate = floor.peaks(d, bare)
        rows.append(
            {
                "batch": batch,
                "compute_seconds": roofline.compute_seconds(part["flops"], peak),
                "memory_seconds": roofline.memory_seconds(part["bytes_read"], rate),
                "fits": batch * each <= pool_bytes,
            }
        )
    return rows


def roofline_points(latency: dict[str, Any]) -> list[dict[str, Any]]:
    """Where prefill and decode stand: their arithmetic intensity."""
    return [
        {"phase": phase, "intensity": latency[phase]["arithmetic_intensity"]}
        for phase in ("prefill", "decode")
    ]
