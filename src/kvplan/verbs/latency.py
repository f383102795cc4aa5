"""`latency`: how long prefill and decode take, what binds them, and what users see at a load."""

from __future__ import annotations

from typing import Any

from kvplan.cost.estimate import Clock
from kvplan.cost.step import Step
from kvplan.facts.efficiency import Spread, spread
from kvplan.figure import Leaf, Number, bare, formula, most
from kvplan.serve import steady
from kvplan.serve.load import Load, Policy
from kvplan.serve.prompt import prompt_floor_seconds, prompts_seconds
from kvplan.serve.steady import Served

FIGURES = (
    "ttft_seconds",
    "tpot_seconds",
    "e2e_seconds",
    "output_tokens_per_second",
    "total_tokens_per_second",
    "decode_tokens_per_second",
    "requests_per_second",
)


@formula("s")
def low_seconds(seconds: Number, low: Number, lower_bound_seconds: Number) -> Number:
    """The short end of the 80 % interval; nothing is quicker than the floor."""
    return most(seconds * low, lower_bound_seconds)


def served(clock: Clock, load: Load, policy: Policy, mode: str, amount: Any) -> Served:
    """What a load sees: `mode` is concurrency, rate, batch, saturated, prefill or decode."""
    if mode == "concurrency":
        return steady.closed_loop(clock, load, policy, amount)
    if mode == "rate":
        return steady.open_loop(clock, load, policy, amount)
    if mode == "saturated":
        return steady.saturated(clock, load, policy)
    return steady.together(clock, load, policy, amount)


def phase(
    clock: Clock, load: Load, policy: Policy, batch: Any, name: str, leaf: Leaf = bare
) -> tuple[Any, Any, Step]:
    """(estimate, floor, step) of prefill or of one decode step of `batch` sequences."""
    if name == "prefill":
        step = Step(prompts=batch, chunk=load.new_tokens, depth=load.cached)
        seconds = prompts_seconds(clock, load, policy, batch, leaf)
        return seconds, prompt_floor_seconds(clock, load, batch, policy.pp, leaf), step
    each = policy.stage_share(batch)
    step = Step(each, load.middle_context, load.drafts + 1)
    return clock.seconds(step, leaf), clock.floor(step, leaf), step


def case_answer(clock: Clock, load: Load, policy: Policy, mode: str, amount: float | None) -> dict[str, Any]:
    """One case's `latency` document, bare numbers."""
    batch = 1.0 if mode in ("concurrency", "rate") or amount is None else amount
    found = served(clock, load, policy, mode, amount)
    running = found.concurrency if mode in ("concurrency", "rate", "saturated") else batch
    running = min(running, policy.running)
    prefill = {}
    if load.prompt_tokens:
        seconds, floor, _ = phase(clock, load, policy, batch, "prefill")
        prefill = _phase_part(clock, "prefill", seconds, floor)
    seconds, floor, _ = phase(clock, load, policy, running, "decode")
    decode = _phase_part(clock, "decode", seconds, floor)
    return {
        "prefill": prefill
        or dict.fromkeys(("seconds", "lower_bound_seconds", "low_seconds", "high_seconds")),
        "decode": decode,
        "serving": serving_part(clock, found, mode),
    }


def _phase_part(clock: Clock, name: str, seconds: Any, floor: Any) -> dict[str, Any]:
    s = spread("prefill" if name == "prefill" else "decode", clock.engine, clock.accelerator.key)
    key = "seconds" if name == "prefill" else "step_seconds"
    seconds = max(seconds, floor)
    return {
        key: seconds,
        "lower_bound_seconds": floor,
        "low_seconds": max(floor, seconds * s.low),
        "high_seconds": seconds * s.high,
    }


def serving_part(clock: Clock, found: Served, mode: str) -> dict[str, Any]:
    """The contract's `serving` with its 80 % interval."""
    values = {name: getattr(found, name) for name in FIGURES}
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    for name, value in values.items():
        if value is None:
            low[name] = high[name] = None
            continue
        s = spread_of(clock, name, mode)
        low[name], high[name] = value * s.low, value * s.high
    return {"concurrency": found.concurrency, **values, "low": low, "high": high}


def spread_of(clock: Clock, figure: str, mode: str) -> Spread:
    """The spread that belongs to a figure under a load."""
    batch = mode in ("batch", "prefill", "decode")
    kind = "throughput"
    if figure == "ttft_seconds":
        kind = "prefill" if batch else "ttft"
    elif figure == "tpot_seconds":
        kind = "decode" if batch else "tpot"
    elif figure == "e2e_seconds":
        kind = "batch" if batch else "tpot"
    elif batch:
        kind = "batch"
    elif mode == "concurrency":
        kind = "tpot"
    return spread(kind, clock.engine, clock.accelerator.key)
