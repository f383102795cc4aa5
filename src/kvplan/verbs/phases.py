"""Prefill and decode of a deployment: time, floor and interval, the work behind them, and what binds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvplan.cost import roofline
from kvplan.cost.estimate import COLLECTIVES, Clock, peak_of
from kvplan.cost.step import Item, Step, items_of
from kvplan.facts import store
from kvplan.facts.efficiency import Spread, is_measured, spread
from kvplan.figure import Leaf, Number, Source, Trust, bare, formula, most, named, total, value_of, whole
from kvplan.serve.draft import drafting
from kvplan.serve.load import Load, Policy
from kvplan.serve.prompt import prompt_floor_seconds, prompt_steps, prompts_seconds, staged
from kvplan.serve.steady import decode_seconds, decode_step

_WEIGHTS = ("matmul", "experts")


@formula("s")
def low_seconds(seconds: Number, low: Number, lower_bound_seconds: Number) -> Number:
    """The short end of the 80 % interval; nothing is quicker than the floor."""
    return most(seconds * low, lower_bound_seconds)


@formula("s")
def high_seconds(seconds: Number, high: Number) -> Number:
    """The long end of the 80 % interval."""
    return seconds * high


@formula("s", "an estimate is never below its floor")
def estimated_seconds(model_seconds: Number, lower_bound_seconds: Number) -> Number:
    """What the model says, or the floor."""
    return most(model_seconds, lower_bound_seconds)


@formula("", "stages work on other sequences meanwhile")
def rank_share(batch: Number, sequences_a_step: Number, stages: Number) -> Number:
    """The part of all layers' work that one rank does while one token of every sequence is made."""
    return batch / (sequences_a_step * stages)


@formula("sequence", "experts spread evenly")
def first_compute_bound(
    weight_bytes: Number,
    sequence_bytes: Number,
    sequence_compute_seconds: Number,
    bytes_per_second: Number,
    stages: Number,
) -> Number:
    """The first batch that computes for longer than its weights and caches take to read."""
    each = sequence_compute_seconds * bytes_per_second - sequence_bytes
    return whole(weight_bytes / each * stages) + 1


def spread_of(clock: Clock, kind: str) -> Spread | None:
    """The spread of measurements around an estimate of that kind; None where none was fitted.

    Where the engine was not measured on the accelerator, never narrower than where it was.
    """
    reached = clock.accelerator.reached
    if reached is not None and kind in reached.spreads:
        return Spread(*reached.spreads[kind], f"{kind}, {reached.words}")
    try:
        found = spread(kind, clock.engine, clock.accelerator.key)
    except KeyError:
        return None
    if is_measured(clock.engine, clock.accelerator.key):
        return found
    near = store.json_file("efficiency/serving.json")["spreads"][kind]["measured"]
    return replace(found, low=min(found.low, near["low"]), high=max(found.high, near["high"]))


def interval(clock: Clock, kind: str, leaf: Leaf = bare) -> tuple[Any, Any] | None:
    """Factors between which 80 % of measurements lie, as inputs of formulas; None where not known."""
    found = spread_of(clock, kind)
    if found is None:
        return None
    where = f"80 % interval of cross-validated errors ({found.where}, {found.rows} rows, docs/accuracy.md)"
    source = Source(Trust.MEASURED if "measured" in found.where else Trust.ASSUMED, where)
    reached = clock.accelerator.reached
    if reached is not None and kind in reached.spreads:
        source = Source(Trust.MEASURED, f"80 % of {found.rows} steps kept apart; {reached.source.where}")
    low, high = min(1.0, found.low), max(1.0, found.high)  # the estimate is always within
    return leaf(f"{kind}_low", low, "", source), leaf(f"{kind}_high", high, "", source)


def phase(
    clock: Clock, load: Load, policy: Policy, batch: Any, name: str, leaf: Leaf = bare
) -> tuple[Any, Any, Step]:
    """(estimate, floor, step) of prefill or of one decode step of `batch` sequences, drafting included."""
    if name == "prefill":
        step = Step(prompts=batch, chunk=load.new_tokens, depth=load.cached)
        seconds = prompts_seconds(clock, load, policy, batch, leaf)
        return seconds, prompt_floor_seconds(clock, load, batch, policy.pp, leaf), step
    step = decode_step(load, policy, batch)
    return decode_seconds(clock, load, policy, batch, leaf), clock.floor(step, leaf), step


def phase_times(clock: Clock, name: str, seconds: Any, floor: Any, leaf: Leaf = bare) -> dict[str, Any]:
    """The contract's times of a phase: estimate, floor and interval, in seconds."""
    key = "seconds" if name == "prefill" else "step_seconds"
    floor = named("lower_bound_seconds", "s", floor)
    seconds = estimated_seconds(named(f"{name}_model_seconds", "s", seconds), floor)
    known = interval(clock, name, leaf)
    return {
        key: seconds,
        "lower_bound_seconds": floor,
        "low_seconds": low_seconds(seconds, known[0], floor) if known else None,
        "high_seconds": high_seconds(seconds, known[1]) if known else None,
    }


def phase_part(
    clock: Clock, load: Load, policy: Policy, batch: Any, name: str, leaf: Leaf = bare
) -> dict[str, Any]:
    """The contract's `prefill` or `decode`: times, bound, operations and bytes of one rank."""
    seconds, floor, step = phase(clock, load, policy, batch, name, leaf)
    share: Any = 1 / policy.pp if name == "prefill" else 1
    if name == "decode" and policy.pp > 1:
        share = rank_share(batch, step.decoding, policy.pp)
    items = _counted(clock, step, leaf)
    flops = _whole("flops", "FLOP", [i.layers * i.flops for i in items], share)
    moved = _whole("bytes_read", "B", [i.layers * i.least_bytes for i in items], share)
    expected = _whole("expected_bytes_read", "B", [i.layers * i.expected for i in items], share)
    return {
        **phase_times(clock, name, seconds, floor, leaf),
        "bound": bound_of(clock, step),
        "flops": flops,
        "bytes_read": moved,
        "expected_bytes_read": expected,
        "arithmetic_intensity": roofline.arithmetic_intensity(flops, expected)
        if value_of(expected)
        else None,
    }


def _whole(name: str, unit: str, parts: list[Any], share: Any) -> Any:
    found = total(parts)
    return named(name, unit, whole(found if share == 1 else found * share))


def _counted(clock: Clock, step: Step, leaf: Leaf) -> list[Item]:
    """The operations that a floor counts."""
    skipped = (*COLLECTIVES, "pointwise")
    return [i for i in items_of(clock.ops, step, leaf) if i.kind not in skipped]


def floor_parts(clock: Clock, step: Step) -> tuple[float, float]:
    """(compute, memory) seconds of a step's least work at the accelerator's full rates."""
    items = _counted(clock, step, bare)
    compute = sum(float(i.layers * i.least_flops) / clock.constants(i).floor_peak for i in items)
    return compute, sum(float(i.layers * i.least_bytes) for i in items) / clock.bandwidth


def bound_of(clock: Clock, step: Step) -> str:
    """Whether arithmetic or bytes take longer at the accelerator's full rates, experts spread evenly."""
    items = _counted(clock, step, bare)
    compute = sum(float(i.layers * i.flops) / clock.constants(i).peak for i in items)
    memory = sum(float(i.layers * i.expected) for i in items) / clock.bandwidth
    return roofline.binds(compute, memory)


def compute_bound_batch(clock: Clock, load: Load, policy: Policy, leaf: Leaf = bare) -> Any:
    """The batch from which a decode step waits for compute at that context; None where none does."""
    context, positions = value_of(load.middle_context), value_of(load.drafts) + 1

    def bound(batch: int) -> bool:
        return bound_of(clock, Step(policy.stage_share(batch), context, positions)) == "compute"

    first = roofline.first_compute_bound(bound)
    if first is None:
        return None
    why = Source(Trust.STATED, "the first batch that computes for longer")
    share = policy.stage_share(leaf("batch_tried", first, "sequence", why))
    tried = Step(share, load.middle_context, load.drafts + 1)
    weights = total([i.layers * i.expected for i in _counted(clock, tried, leaf) if i.kind in _WEIGHTS])
    one = _counted(clock, Step(1, load.middle_context, load.drafts + 1), leaf)
    held = total([i.layers * i.expected for i in one if i.kind not in _WEIGHTS])
    peaks = clock.accelerator.source("peak")
    spent = total(
        [
            i.layers * i.flops / leaf(f"{i.compute}_peak", clock.constants(i).peak, "FLOP/s", peaks)
            for i in one
            if value_of(i.flops)
        ]
    )
    stages = policy.pp if policy.microbatches else 1
    rate = leaf("bytes_per_second", clock.bandwidth, "B/s", clock.accelerator.source("bandwidth"))
    found = first_compute_bound(
        named("expected_weight_bytes", "B", weights),
        named("sequence_bytes", "B", held),
        named("sequence_compute_seconds", "s", spent),
        rate,
        stages,
    )
    return named("compute_bound_batch", "sequence", found)


def ridge(clock: Clock, compute: str, leaf: Leaf = bare) -> Any:
    """The intensity at which arithmetic of that format and bandwidth are both full."""
    peak, rate = peaks(clock, compute, leaf)
    return named("ridge_point", "FLOP/B", roofline.ridge_point(peak, rate))


def peaks(clock: Clock, compute: str, leaf: Leaf = bare) -> tuple[Any, Any]:
    """The accelerator's dense peak for arithmetic of that format, and its bandwidth."""
    a = clock.accelerator
    found, taken = peak_of(a, compute)
    why = f"dense {taken}" + (f" ({a.name} has no {compute} peak of its own)" if taken != compute else "")
    source = a.source("peak")
    peak = leaf("peak_flops_per_second", found, "FLOP/s", Source(source.trust, f"{why}, {source.where}"))
    return peak, leaf("bytes_per_second", a.bytes_per_second, "B/s", a.source("bandwidth"))


def operations_part(clock: Clock, load: Load, policy: Policy, batch: Any, name: str) -> list[dict[str, Any]]:
    """A phase by operation: seconds, floor, share of the whole, and what binds it; plain numbers."""
    if name == "prefill":
        steps, middle = prompt_steps(load, policy, batch)
        whole_step, stages = Step(prompts=batch, chunk=load.new_tokens, depth=load.cached), policy.pp
        scale, drafts = staged(policy, steps, steps), 0.0
    else:
        middle = whole_step = decode_step(load, policy, batch)
        stages, scale, drafts = 1, 1, drafting(clock, load, middle)
    timed, floors = clock.timed(middle), [part.floor / stages for part in clock.timed(whole_step)]
    rows = [
        _row(part.name, part.seconds * scale, floor, part.bound)
        for part, floor in zip(timed, floors, strict=True)
    ]
    if drafts:
        rows.append(_row("drafting", drafts, 0.0, "memory"))
    rows.append(_row("engine", clock.overhead_seconds(middle) * scale, 0.0, "host"))
    sum_of = sum(row["seconds"] for row in rows)
    return [{**row, "share": row["seconds"] / sum_of} for row in rows]


def _row(name: str, seconds: Any, floor: Any, bound: str) -> dict[str, Any]:
    return {"name": name, "seconds": seconds, "lower_bound_seconds": floor, "share": 0.0, "bound": bound}
