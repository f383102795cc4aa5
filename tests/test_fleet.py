"""Several replicas: requests are dealt, prompts may be computed apart, and no replica knows the future."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import plain_simulator
import replay_cases
from kvplan.errors import BadInput
from kvplan.facts.scheduling import Scheduling
from kvplan.serve.simulation import Fleet, Outcome, Pool, simulate
from kvplan.serve.workload import Workload, workload_of
from random_workloads import Case, case, constant

POOL = Pool(blocks=64, block_tokens=4, budget=64, max_running=8, max_model_len=400, unit_tokens=4)
FCFS = Scheduling("decode-first", True, "step", "last", 0)
SECOND = replay_cases.step_times(constant(1.0))
APART = Fleet(replicas=1, prefill=1, move_seconds=0.25, move_seconds_per_token=0.125)

seeds = st.integers(0, 1 << 40).map(case)
batched = seeds.filter(lambda c: c.policy.order != "static")
fleets = st.builds(
    Fleet,
    replicas=st.integers(1, 3),
    routing=st.sampled_from(["round-robin", "least-loaded", "prefix"]),
    prefill=st.integers(0, 2),
    move_seconds=st.sampled_from([0.0, 0.25, 2.0]),
    move_seconds_per_token=st.sampled_from([0.0, 0.01]),
)


def small(*requests: tuple[float, int, int], **more: object) -> Workload:
    arrival, prompt, output = np.array(requests, float).T
    return workload_of(arrival, prompt, output, **more)


# Replicas that take whole requests


@settings(max_examples=200)
@given(batched)
def test_one_replica_is_the_plain_case_however_requests_are_dealt(c):
    taken = replay_cases.taken(c)
    alone = simulate(*taken)
    for routing in ("round-robin", "least-loaded", "prefix"):
        dealt = simulate(*taken, fleet=Fleet(routing=routing))
        for name in Outcome.__slots__:
            a, b = getattr(alone, name), getattr(dealt, name)
            assert np.asarray(a).tobytes() == np.asarray(b).tobytes(), name


@pytest.mark.parametrize("replicas", [2, 3])
@settings(max_examples=200)
@given(seeds.filter(lambda c: not c.workload.users and c.workload.after is None and c.engine.positions == 1))
def test_round_robin_is_every_replica_alone_with_its_requests(replicas, c):
    workload, pool, scheduling, times = replay_cases.taken(c)
    fleet = simulate(workload, pool, scheduling, times, Fleet(replicas=replicas))
    served = np.flatnonzero(~fleet.rejected)
    for v in range(replicas):
        mine = served[v::replicas]
        assert (fleet.replica[mine] == v).all()
        if len(mine):
            plain = plain_simulator.simulate(only(c, mine), c.engine, c.policy, c.times)
            finish = np.array(plain.finish) - c.times.request_seconds
            np.testing.assert_allclose(fleet.finish[mine], finish, rtol=1e-9)
            assert fleet.hit_tokens[mine].tolist() == plain.hit_tokens


def only(c: Case, mine: np.ndarray) -> object:
    """Some requests of a case's workload."""
    w = c.workload
    fields = ("arrival_seconds", "prompt_tokens", "output_tokens", "stream", "stream_tokens", "think_seconds")
    chosen = {name: getattr(w, name)[mine] for name in fields if getattr(w, name) is not None}
    if w.prefix_ids is not None:
        parts = [w.prefix_ids[w.prefix_start[i] : w.prefix_start[i + 1]] for i in mine]
        chosen["prefix_ids"] = np.concatenate(parts)
        chosen["prefix_start"] = np.cumsum([0, *map(len, parts)])
    return replace(w, **chosen)


def test_the_least_loaded_replica_is_taken_and_the_first_of_equals():
    outcome = simulate(
        small((0, 8, 9), (0.5, 8, 2), (0.75, 8, 9), (3.5, 8, 2), (4.0, 8, 2)),
        POOL,
        FCFS,
        SECOND,
        Fleet(replicas=2, routing="least-loaded"),
    )
    assert outcome.replica.tolist() == [0, 1, 0, 1, 1]


def sessions(count: int, turns: int, gap: float) -> Workload:
    """Sessions side by side: every turn's prompt is all that was said before, and 40 tokens more."""
    rng = np.random.default_rng(5)
    n = count * turns
    turn, session = np.repeat(np.arange(turns), count), np.tile(np.arange(count), turns)
    prompt = 40 + turn * 60
    return workload_of(
        np.cumsum(rng.exponential(gap, n)),
        prompt,
        np.full(n, 20),
        stream=session,
        stream_tokens=prompt + 20,
        stream_parent=np.full(count, -1),
        parent_tokens=np.zeros(count),
    )


def test_routing_by_prefix_finds_more_than_round_robin():
    workload = sessions(count=25, turns=6, gap=4.0)
    pool = replace(POOL, blocks=1000, budget=512, caching=True)
    by = {
        routing: simulate(workload, pool, FCFS, SECOND, Fleet(replicas=4, routing=routing))
        for routing in ("round-robin", "prefix")
    }
    assert by["prefix"].hit > 1.5 * by["round-robin"].hit
    homes = by["prefix"].replica.reshape(6, 25)
    assert (homes[1:] == homes[0]).all()


def test_routing_by_prefix_gives_way_where_one_replica_is_overloaded():
    n = 400
    workload = workload_of(
        np.zeros(n),
        np.full(n, 40),
        np.full(n, 20),
        stream=np.zeros(n),
        stream_tokens=np.full(n, 40),
        stream_parent=[-1],
        parent_tokens=[0],
    )
    pool = replace(POOL, blocks=1000, budget=512, caching=True)
    outcome = simulate(workload, pool, FCFS, SECOND, Fleet(replicas=2, routing="prefix"))
    assert np.bincount(outcome.replica).min() > n / 4


# Whatever the fleet


@settings(max_examples=400)
@given(batched, fleets)
def test_every_request_is_served_and_every_block_comes_back(c, fleet):
    taken = replay_cases.taken(c)
    for state in replay_cases.moments(*taken, fleet):
        replay_cases.audit(state)
    requests, replicas, *_ = state
    assert (replicas["free"] == c.engine.blocks).all()
    o = simulate(*taken, fleet=fleet)
    served = ~o.rejected
    assert o.finish.tobytes() == requests["finish"].tobytes()
    assert not np.isnan(o.finish[served]).any()
    assert (o.arrived[served] <= o.admitted[served]).all()
    assert (o.admitted[served] <= o.first_token[served]).all()
    assert (o.first_token[served] <= o.finish[served]).all()
    later = served & (taken[0].output_tokens > 1) & (fleet.prefill > 0)
    moving = fleet.move_seconds
    assert (o.finish[later] - o.first_token[later] >= moving - 1e-9).all()
    assert (o.replica[later] >= fleet.prefill).all()


@settings(max_examples=400)
@given(batched.filter(lambda c: c.engine.positions == 1), fleets)
def test_leaps_on_one_replica_miss_nothing_that_another_does(c, fleet):
    """A gain just above one forbids leaps and changes nothing else.

    Arrivals, thinking and moves are no round numbers of steps: what comes exactly as a step ends comes before
    or after it by the rounding of sums.
    """
    workload, pool, scheduling, times = replay_cases.taken(c)
    workload = replace(
        workload,
        arrival_seconds=workload.arrival_seconds * 1.0123456789,
        think_seconds=workload.think_seconds * 1.0314159265,
    )
    fleet = replace(fleet, move_seconds=fleet.move_seconds + 0.0271828182)
    leaping = simulate(workload, pool, scheduling, times, fleet)
    stepping = simulate(workload, replace(pool, gain=1 + 1e-12), scheduling, times, fleet)
    assert leaping.steps == stepping.steps
    np.testing.assert_allclose(leaping.finish, stepping.finish, rtol=1e-9)
    assert (leaping.replica == stepping.replica).all()


# Prompts apart


def test_a_prompt_is_computed_here_moved_and_decoded_there():
    o = simulate(small((0, 8, 3), (0, 8, 3), (20, 8, 1)), POOL, FCFS, SECOND, APART)
    assert o.first_token.tolist() == [1.0, 1.0, 21.0]
    # the first moves until 2.25, the second, behind it, until 3.5: it joins when the step then made is over
    assert o.finish.tolist() == [4.25, 6.25, 21.0]
    assert o.replica.tolist() == [1, 1, 0]


def test_what_the_decoding_replica_has_is_not_moved_again():
    workload = small(
        (0, 16, 3),
        (20, 16, 3),
        stream=[0, 0],
        stream_tokens=[16, 16],
        stream_parent=[-1],
        parent_tokens=[0],
    )
    o = simulate(workload, replace(POOL, caching=True), FCFS, SECOND, APART)
    assert o.hit_tokens.tolist() == [0, 12]
    assert o.first_token.tolist() == [1.0, 21.0]
    assert o.finish.tolist() == [1 + 0.25 + 16 * 0.125 + 2, 21 + 0.25 + 0 * 0.125 + 2]


def test_blocks_are_held_where_a_prompt_was_computed_until_it_is_moved():
    """Room for two prompts: the third waits for the first one to be moved, and all for the decoding one."""
    pool = replace(POOL, blocks=4, max_running=1)
    fleet = replace(APART, move_seconds=1.5, move_seconds_per_token=0.0)
    o = simulate(small((0, 8, 5), (0, 8, 5), (0, 8, 5)), pool, FCFS, SECOND, fleet)
    assert o.first_token.tolist() == [1.0, 2.0, 3.5]
    assert o.finish.tolist() == [6.5, 12.0, 17.5]


def test_each_decoding_replica_has_a_link_of_its_own():
    fleet = replace(APART, replicas=2)
    o = simulate(small((0, 8, 3), (0, 8, 3)), POOL, FCFS, SECOND, fleet)
    assert o.finish.tolist() == [4.25, 4.25]
    assert o.replica.tolist() == [1, 2]


def test_one_preempted_where_it_decodes_is_computed_again_there():
    pool = replace(POOL, blocks=6, max_running=2)
    o = simulate(small((0, 8, 12), (0, 8, 12)), pool, FCFS, SECOND, APART)
    assert o.preemptions > 0
    assert (o.finish > 12).all()
    assert o.first_token.tolist() == [1.0, 1.0]


def test_prompts_apart_from_a_static_batch_are_refused():
    with pytest.raises(BadInput, match="static"):
        simulate(small((0, 8, 3)), POOL, replace(FCFS, order="static"), SECOND, APART)


def test_a_fleet_of_no_replica_is_refused():
    for fleet in (Fleet(replicas=0), Fleet(replicas=0, prefill=1)):
        with pytest.raises(BadInput, match="replicas"):
            simulate(small((0, 8, 3)), POOL, FCFS, SECOND, fleet)


def test_a_routing_that_is_not_known_is_refused_by_name():
    with pytest.raises(BadInput, match="least-loaded"):
        simulate(small((0, 8, 3)), POOL, FCFS, SECOND, Fleet(routing="random"))
