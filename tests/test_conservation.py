"""Nothing is lost in the simulation and nothing comes before its time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import replay_cases
from kvplan.errors import BadInput
from kvplan.facts.scheduling import Scheduling
from kvplan.serve.outcome import timeline
from kvplan.serve.simulation import Fleet, Outcome, Pool, simulate
from kvplan.serve.workload import Workload, workload_of
from random_workloads import Case, case, constant

POOL = Pool(blocks=64, block_tokens=4, budget=32, max_running=8, max_model_len=400, unit_tokens=4)
FCFS = Scheduling("decode-first", True, "step", "last", 0)
SECOND = replay_cases.step_times(constant(1.0))


def is_simulated(c: Case) -> bool:
    return c.policy.order != "static" or c.engine.positions == 1


seeds = st.integers(0, 1 << 40).map(case).filter(is_simulated)


def went(c: Case) -> tuple[Workload, Pool, Outcome]:
    workload, pool, scheduling, times = replay_cases.taken(c)
    return workload, pool, simulate(workload, pool, scheduling, times)


def small(*requests: tuple[float, int, int]) -> Workload:
    arrival, prompt, output = np.array(requests, float).reshape(-1, 3).T
    return workload_of(arrival, prompt, output)


@settings(max_examples=300, deadline=None)
@given(seeds)
def test_at_every_arrival_blocks_held_and_free_make_the_pool_and_no_request_is_lost(c):
    for state in replay_cases.moments(*replay_cases.taken(c)):
        replay_cases.audit(state)
    requests, replicas, *_ = state
    assert (replicas["free"] == c.engine.blocks).all()
    assert not requests["held"].any()
    assert not requests["units"].any()


@settings(max_examples=300, deadline=None)
@given(seeds.filter(lambda c: c.policy.order != "static"))  # there the finished keep their place
def test_at_every_step_those_in_the_system_are_those_who_came_and_have_not_gone(c):
    _, pool, outcome = went(c)
    time, running, waiting, held = outcome.samples[0].T
    assert (np.diff(time) >= 0).all()
    assert (running <= pool.max_running).all()
    assert ((held > 0) == (running > 0)).all()
    assert (held <= pool.blocks).all()
    assert outcome.peak_blocks == held.max(initial=0)
    came = np.sort(outcome.arrived[~np.isnan(outcome.arrived) & ~outcome.rejected])
    left = np.sort(outcome.finish[~np.isnan(outcome.finish)])
    inside = running + waiting  # one who leaves just then is inside or gone
    assert (
        np.searchsorted(came, time, side="left") <= inside + np.searchsorted(left, time, side="right")
    ).all()
    assert (
        inside + np.searchsorted(left, time, side="left") <= np.searchsorted(came, time, side="right")
    ).all()


@settings(max_examples=300, deadline=None)
@given(seeds)
def test_no_request_is_ahead_of_its_time(c):
    workload, _, o = went(c)
    served = ~o.rejected
    assert not np.isnan(o.arrived).any()
    assert not np.isnan(o.finish[served]).any()
    assert np.isnan(o.finish[o.rejected]).all()
    assert (o.arrived[served] <= o.admitted[served]).all()
    assert (o.admitted[served] <= o.first_token[served]).all()
    assert (o.first_token[served] <= o.finish[served]).all()
    assert (o.hit_tokens[served] < workload.prompt_tokens[served]).all()
    assert o.end == o.finish[served].max(initial=o.end if not served.any() else -1)


@settings(max_examples=300, deadline=None)
@given(seeds)
def test_none_overtakes_another_on_its_way_in(c):
    _, _, o = went(c)
    served = np.flatnonzero(~o.rejected)
    in_order = served[np.lexsort((served, o.arrived[served]))]
    assert (np.diff(o.admitted[in_order]) >= 0).all()


@settings(max_examples=100, deadline=None)
@given(seeds)
def test_the_same_inputs_give_the_same_bytes(c):
    one, other = went(c)[2], went(c)[2]
    for name in Outcome.__slots__:
        a, b = getattr(one, name), getattr(other, name)
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes(), name


@settings(max_examples=100, deadline=None)
@given(seeds)
def test_progress_is_told_and_changes_nothing(c):
    told = []
    one = went(c)[2]
    other = simulate(*replay_cases.taken(c), report=lambda done, of: told.append((done, of)))
    assert one.finish.tobytes() == other.finish.tobytes()
    n = len(c.workload.prompt_tokens)
    assert told[-1] == (n, n)
    assert told == sorted(told)


def test_no_request_at_all_is_bad_input():
    with pytest.raises(BadInput, match="no request"):
        small()


def test_one_token_takes_one_step():
    o = simulate(small((2.5, 1, 1)), POOL, FCFS, SECOND)
    assert (o.first_token[0], o.finish[0], o.steps) == (3.5, 3.5, 1)


def test_a_prompt_larger_than_the_pool_is_refused_and_the_others_go_on():
    o = simulate(small((0, 300, 5), (0, 5, 1), (0, 401, 1)), POOL, FCFS, SECOND)
    assert o.rejected.tolist() == [True, False, True]
    assert o.finish[1] == 1.0
    assert np.isnan(o.finish[0])


def test_a_request_that_just_fits_is_served_and_one_token_more_is_refused():
    o = simulate(small((0, 200, 57), (0, 200, 58)), POOL, FCFS, SECOND)
    assert o.rejected.tolist() == [False, True]
    assert o.peak_blocks == POOL.blocks


def test_more_requests_than_blocks_may_run_where_they_share_all_they_hold():
    n = 40
    alike = workload_of(
        np.zeros(n),
        np.full(n, 4),
        np.ones(n),
        stream=np.zeros(n),
        stream_tokens=np.full(n, 4),
        stream_parent=[-1],
        parent_tokens=[0],
    )
    pool = replace(POOL, blocks=2, budget=400, max_running=100, caching=True)
    o = simulate(alike, pool, FCFS, SECOND)
    assert (o.finish == 1.0).all()
    assert o.samples[0][:, 1].max() == n


def test_a_request_preempted_again_and_again_is_served():
    many = workload_of(np.zeros(2), [30, 30], [200, 200])
    pool = replace(POOL, blocks=230, block_tokens=1, unit_tokens=16, budget=8, caching=True)
    o = simulate(many, pool, FCFS, SECOND)
    assert o.preemptions >= 1
    assert (o.finish > 200).all()


@pytest.mark.parametrize("order", ["decode-first", "prefill-first", "static"])
def test_everything_at_once_is_served(order):
    many = small(*[(0.0, 1 + i % 50, 1 + i % 30) for i in range(500)])
    o = simulate(many, POOL, Scheduling(order, True, "whole", "last", 0), SECOND)
    assert (o.finish > 0).all()
    assert o.samples[0][:, 1].max() == POOL.max_running


def test_samples_of_a_long_run_are_thinned_evenly():
    many = small(*[(float(i), 40, 3) for i in range(4000)])
    o = simulate(many, POOL, FCFS, SECOND)
    time = o.samples[0][:, 0]
    assert o.steps > 4000
    assert 1000 <= len(time) <= 2048
    assert np.diff(time).max() < 10
    assert time[-1] > 0.99 * o.end


def test_a_timeline_rises_evenly_while_one_answers_and_is_empty_between():
    two = small((0.0, 8, 64), (200.0, 8, 8))
    o = simulate(two, POOL, FCFS, SECOND)
    line = timeline(o, POOL.blocks)
    at = np.array(line["seconds"])
    held, running = np.array(line["kv_fraction"]) * POOL.blocks, np.array(line["running"])
    first = (at > 1) & (at < 63)
    np.testing.assert_allclose(held[first], (8 + at[first]) / POOL.block_tokens, atol=1.5)
    assert (running[(at > 65) & (at < 199)] == 0).all()
    assert (held[(at > 65) & (at < 199)] == 0).all()


def test_an_idle_replica_counts_for_nothing_in_a_timeline():
    one = small((0.0, 8, 64))
    o = simulate(one, POOL, FCFS, SECOND, Fleet(replicas=2))
    assert max(timeline(o, POOL.blocks)["running"]) == 1
