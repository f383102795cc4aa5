"""The largest batch that meets its goals, what stands in the way of more, and where compute binds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvplan.cost.step import Step
from kvplan.serve.goal import capacity_batch, compute_bound_batch, curve, largest, weights_seconds
from kvplan.serve.load import Load
from kvplan.serve.steady import closed_loop
from latency_cases import POLICY, clock

LOAD = Load(1000, 200)
MODELS = ("llama-3.1-8b", "qwen3-30b-a3b", "gemma-3-27b-it", "deepseek-v3")


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("times", [1.05, 1.5, 3.0])
def test_the_largest_meets_its_goal_and_one_more_does_not(model: str, times: float) -> None:
    c = clock(model, "b200")
    goal = times * closed_loop(c, LOAD, POLICY, 1).tpot_seconds
    found = largest(c, LOAD, POLICY, tpot_seconds=goal)
    assert found.concurrency is not None
    assert found.served.tpot_seconds <= goal
    assert found.served == closed_loop(c, LOAD, POLICY, found.concurrency)
    if found.concurrency == capacity_batch(POLICY):
        assert (found.limit, found.misses) == ("capacity", {})
    else:
        more = closed_loop(c, LOAD, POLICY, found.concurrency + 1).tpot_seconds
        assert more > goal
        assert found.limit == "tpot"
        assert found.misses == {"tpot": pytest.approx(more / goal)}


def test_of_two_goals_the_one_missed_by_more_is_the_limit() -> None:
    c = clock("llama-3.1-8b")
    first = closed_loop(c, LOAD, POLICY, 64).ttft_seconds
    found = largest(c, LOAD, POLICY, tpot_seconds=9.0, ttft_seconds=first)
    assert found.limit == "ttft"
    assert found.concurrency is not None
    assert found.concurrency >= 64


def test_a_goal_that_not_even_one_request_meets_is_answered_with_the_miss() -> None:
    c = clock("llama-3.1-8b")
    one = closed_loop(c, LOAD, POLICY, 1)
    found = largest(c, LOAD, POLICY, tpot_seconds=one.tpot_seconds / 2, ttft_seconds=10.0)
    assert found.concurrency is None
    assert found.served == one
    assert found.limit == "tpot"
    assert found.misses == {"tpot": pytest.approx(2.0)}


def test_without_goals_the_cache_is_the_limit() -> None:
    found = largest(clock("llama-3.1-8b"), LOAD, replace(POLICY, running=37.9))
    assert (found.concurrency, found.limit) == (37, "capacity")


def test_a_curve_has_a_point_for_every_batch_asked_for() -> None:
    c = clock("llama-3.1-8b")
    points = curve(c, LOAD, POLICY, (1, 8, 64))
    assert [p.concurrency for p in points] == [1, 8, 64]
    assert [p.tpot_seconds for p in points] == [
        closed_loop(c, LOAD, POLICY, n).tpot_seconds for n in (1, 8, 64)
    ]
    assert points[0].output_tokens_per_second < points[1].output_tokens_per_second


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("drafts", [0, 3])
def test_from_the_compute_bound_batch_on_weights_take_longer_to_multiply_than_to_read(
    model: str, drafts: int
) -> None:
    c, load = clock(model, "h200"), replace(LOAD, drafts=drafts, acceptance=0.5)
    n = compute_bound_batch(c, load, POLICY)
    assert n is not None
    for batch in (1, n - 1, n, 2 * n):
        compute, memory = weights_seconds(c, Step(batch, load.middle_context, drafts + 1))
        assert (compute > memory) == (batch >= n)


def test_drafts_reach_the_compute_bound_at_a_smaller_batch() -> None:
    c = clock("llama-3.1-8b")
    plain = compute_bound_batch(c, LOAD, POLICY)
    drafted = compute_bound_batch(c, replace(LOAD, drafts=3, acceptance=0.5), POLICY)
    assert plain is not None
    assert drafted is not None
    assert drafted == pytest.approx(plain / 4, abs=1)


def test_what_nothing_limits_has_no_capacity() -> None:
    assert capacity_batch(POLICY) == 256
    assert capacity_batch(replace(POLICY, running=float(1 << 30))) is None
