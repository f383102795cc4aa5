"""Which batch: the curve of latency and throughput over it, what bounds it, and the largest within goals."""

from __future__ import annotations

from typing import Any

from kvplan.cost.estimate import Clock
from kvplan.figure import Leaf, Source, Trust, named, whole
from kvplan.serve import goal
from kvplan.serve.load import Load, Policy, plain
from kvplan.serve.steady import closed_loop
from kvplan.verbs.asked import Asked
from kvplan.verbs.phases import compute_bound_batch

POINTS = 12
_UNBOUNDED = 4096  # the curve's end where nothing known limits what runs at once
_SEARCHED = Source(Trust.STATED, "the most users that meet the goals, found by trying")
_WEIGHTS = Source(
    Trust.ENGINE_RULE,
    "the first batch whose weights compute for longer than they take to read, as kernels run",
)
_GOAL = Source(Trust.STATED, "the goal asked for")


def batches_part(
    clock: Clock, load: Load, policy: Policy, asked: Asked, replicas: int, leaf: Leaf
) -> dict[str, Any]:
    """Sequences that run at once, where decode turns to compute, the goals' answer, a curve over users.

    All counts are the whole deployment's; users ask again as soon as they are answered.
    """
    rule = plain(policy)
    capacity = None
    if goal.capacity_batch(rule) is not None:
        capacity = named("capacity_batch", "sequence", _all(whole(policy.running), replicas))
    crossing = compute_bound_batch(clock, load, policy, leaf)
    if crossing is not None:
        crossing = named("compute_bound_batch", "sequence", _all(crossing, replicas))
    turned = goal.compute_bound_batch(clock, plain(load), rule)
    if turned is not None:
        turned = leaf("weights_compute_bound_batch", turned * replicas, "sequence", _WEIGHTS)
    return {
        "capacity_batch": capacity,
        "compute_bound_batch": crossing,
        "weights_compute_bound_batch": turned,
        "goal": _goal(clock, load, policy, asked, replicas, leaf),
        "curve": curve_rows(clock, plain(load), rule, replicas),
    }


def _all(count: Any, replicas: int) -> Any:
    return count * replicas if replicas > 1 else count


def curve_rows(clock: Clock, load: Load, policy: Policy, replicas: int) -> list[dict[str, Any]]:
    """Means of a closed loop over so many users, and whether all of them run at once."""
    top = goal.capacity_batch(policy)
    if top == 0:
        return []
    points = goal.curve(clock, load, policy, curve_batches(top))
    return [
        {
            "batch": int(p.concurrency) * replicas,
            "tpot_seconds": p.tpot_seconds,
            "ttft_seconds": p.ttft_seconds,
            "output_tokens_per_second": p.output_tokens_per_second * replicas,
            "fits": top is None or p.concurrency <= top,
        }
        for p in points
    ]


def curve_batches(top: int | None) -> list[int]:
    """About a dozen batches from one to what runs at once, evenly by ratio, and one of twice that."""
    last = min(top or _UNBOUNDED, 1 << 20)
    inner = {round(last ** (i / (POINTS - 2))) for i in range(POINTS - 1)}
    return sorted(inner | ({2 * last} if top else set()))


def _goal(
    clock: Clock, load: Load, policy: Policy, asked: Asked, replicas: int, leaf: Leaf
) -> dict[str, Any] | None:
    """The largest batch within the goals and what it yields; of one request where none is."""
    if asked.ttft is None and asked.tpot is None:
        return None
    goals = {
        f"{name}_goal_seconds": None if value is None else leaf(f"{name}_goal_seconds", value, "s", _GOAL)
        for name, value in (("ttft", asked.ttft), ("tpot", asked.tpot))
    }
    rule = plain(policy)
    empty = dict.fromkeys(("ttft_seconds", "tpot_seconds", "output_tokens_per_second"))
    if goal.capacity_batch(rule) == 0:
        return {**goals, "batch": None, "limit": "capacity", **empty}
    found = goal.largest(clock, plain(load), rule, asked.tpot, asked.ttft)
    each = leaf("users", found.concurrency or 1, "sequence", _SEARCHED)
    s = closed_loop(clock, load, policy, each, leaf)
    rate = named("output_tokens_per_second", "token/s", _all(s.output_tokens_per_second, replicas))
    batch = None if found.concurrency is None else named("batch", "sequence", _all(each, replicas))
    return {
        **goals,
        "batch": batch,
        "limit": found.limit,
        "ttft_seconds": s.ttft_seconds,
        "tpot_seconds": s.tpot_seconds,
        "output_tokens_per_second": rate,
    }
