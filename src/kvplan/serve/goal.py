"""Which batch: the curve over concurrency, the largest that meets its goals, where compute binds decode."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kvplan.cost.estimate import Clock
from kvplan.cost.step import Step, items_of
from kvplan.serve.load import Load, Policy
from kvplan.serve.steady import Served, closed_loop

_MOST = 1 << 20  # sequences: what runs at once beyond that is without a limit
_OF_WEIGHTS = ("matmul", "experts")


@dataclass(frozen=True, slots=True)
class Point:
    """One concurrency of the curve: seconds, and output tokens a second of the whole deployment."""

    concurrency: float
    output_tokens_per_second: float
    tpot_seconds: float
    ttft_seconds: float


@dataclass(frozen=True, slots=True)
class Reached:
    """The largest concurrency that meets the goals; None where not even one request does.

    `limit` is what stands in the way of one more: tpot, ttft, or capacity (what runs at once). `served`
    is what that concurrency yields, of one request where none is met. `misses` are the goals missed at one
    more, each with how many times its goal it is there (at one request where none is met).
    """

    concurrency: int | None
    limit: str
    served: Served
    misses: Mapping[str, float]


def curve(clock: Clock, load: Load, policy: Policy, batches: Iterable[float]) -> tuple[Point, ...]:
    """Throughput and latency of a closed loop over so many users, in the order given."""
    found = []
    for n in batches:
        s = closed_loop(clock, load, policy, n)
        found.append(Point(n, s.output_tokens_per_second, s.tpot_seconds, s.ttft_seconds))
    return tuple(found)


def capacity_batch(policy: Policy) -> int | None:
    """Sequences that run at once at most; None where nothing known limits them."""
    return None if policy.running >= _MOST else int(policy.running)


def largest(
    clock: Clock,
    load: Load,
    policy: Policy,
    tpot_seconds: float | None = None,
    ttft_seconds: float | None = None,
) -> Reached:
    """The most users of a closed loop whose mean TPOT and TTFT are within the goals, none of them waiting.

    Goals in seconds, None for none. Only what runs at once is searched: more users wait for a place.
    """
    goals = {"tpot": tpot_seconds, "ttft": ttft_seconds}
    top = max(1, capacity_batch(policy) or _MOST)

    def at(n: int) -> tuple[Served, dict[str, float]]:
        s = closed_loop(clock, load, policy, n)
        reached = {"tpot": s.tpot_seconds, "ttft": s.ttft_seconds}
        return s, {k: reached[k] / goal for k, goal in goals.items() if goal and reached[k] > goal}

    best = _last(lambda n: not at(n)[1], top)
    served, misses = at(best or 1)
    if best:
        misses = at(best + 1)[1] if best < top else {}
    limit = max(misses, key=misses.__getitem__) if misses else "capacity"
    return Reached(best, limit, served, misses)


def _last(meets: Callable[[int], bool], top: int) -> int | None:
    """The largest number up to `top` that meets: steps of a quarter from above, then halving."""
    above = top + 1
    n = top
    while not meets(n):
        if n == 1:
            return None
        above, n = n, max(1, n * 4 // 5)
    while above - n > 1:
        middle = (above + n) // 2
        n, above = (middle, above) if meets(middle) else (n, middle)
    return n


def weights_seconds(clock: Clock, step: Step) -> tuple[Any, Any]:
    """(compute, memory) seconds of a step's operations that read weights, at the rates kernels reach."""
    compute = memory = 0.0
    for item in items_of(clock.ops, step):
        if item.kind in _OF_WEIGHTS:
            c = clock.constants(item)
            compute = compute + item.layers * item.flops / (c.peak * c.kernel.compute * c.compute)
            memory = memory + item.layers * item.bytes / (clock.bandwidth * c.kernel.memory * c.memory)
    return compute, memory


def compute_bound_batch(clock: Clock, load: Load, policy: Policy) -> int | None:
    """The first batch whose decode step computes its weights for longer than it reads them.

    None where no batch does (up to a million sequences): each token's own traffic outweighs its arithmetic.
    """

    def computes(n: int) -> bool:
        step = Step(policy.stage_share(n), load.middle_context, load.drafts + 1)
        compute, memory = weights_seconds(clock, step)
        return bool(compute > memory)

    if not computes(_MOST):
        return None
    below, n = 0, _MOST
    while n - below > 1:
        middle = (n + below) // 2
        below, n = (below, middle) if computes(middle) else (middle, n)
    return n
