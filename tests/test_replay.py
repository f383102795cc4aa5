"""The compiled kernel makes of every workload what the plain reference makes of it."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace

import numpy as np
import pytest

import plain_simulator
import replay_cases
from kvplan.errors import BadInput
from kvplan.serve import simulation
from plain_simulator import Engine, Policy, Result, Times
from random_workloads import Case, Workload, case

SEEDS = 6000
PARTS = 6  # so that a failure says where, and the parts may run side by side


def both(c: Case) -> tuple[Result, simulation.Outcome]:
    plain = plain_simulator.simulate(c.workload, c.engine, c.policy, c.times)
    return plain, simulation.simulate(*replay_cases.taken(c))


def disagreement(c: Case) -> list[str]:
    return replay_cases.differences(*both(c), c.times.request_seconds)


def is_simulated(c: Case) -> bool:
    return c.policy.order != "static" or c.engine.positions == 1


@pytest.mark.parametrize("part", range(PARTS))
def test_every_small_case_goes_as_in_the_reference(part):
    bad = {}
    for seed in range(part, SEEDS, PARTS):
        c = case(seed)
        if is_simulated(c) and (found := disagreement(c)):
            bad[seed] = found
    assert bad == {}


def test_the_small_cases_reach_every_rule():
    """Otherwise that they agree would say less than it seems."""
    cases = [c for c in map(case, range(400)) if is_simulated(c)]
    seen = [(c, simulation.simulate(*replay_cases.taken(c))) for c in cases]
    for order, admit in itertools.product(("decode-first", "prefill-first"), ("step", "prompt", "ratio")):
        assert any(o.steps and (c.policy.order, c.policy.admit) == (order, admit) for c, o in seen)
    for victim, order in itertools.product(("last", "least-made"), ("decode-first", "prefill-first")):
        of_it = [o for c, o in seen if (c.policy.victim, c.policy.order) == (victim, order)]
        assert sum(o.preemptions for o in of_it) > 20
    for kind in ("stream", "prefix_ids"):
        assert sum(o.hit for c, o in seen if getattr(c.workload, kind) is not None) > 100
    assert any(c.workload.users and o.steps > 10 for c, o in seen)
    assert any(c.policy.lead and c.engine.positions > 1 and o.steps > 10 for c, o in seen)
    assert any(o.rejected.any() for _, o in seen)


# Longer cases, in which many decode steps are one leap. Times and gaps are irrational: no two things happen
# at once, so that no order depends on the last bit of a sum.


def irrational_times() -> Times:
    grids = {
        "token_grid": [0.0, 16.0, 64.0, 512.0],
        "row_grid": [0.0, 8.0, 64.0],
        "decode_n_grid": [1.0, 4.0, 16.0, 64.0],
        "decode_context_grid": [0.0, 50.0, 110.0, 300.0, 1000.0],
        "chunk_grid": [1.0, 64.0, 512.0],
        "end_grid": [1.0, 128.0, 1024.0],
    }
    roots = {name: [math.sqrt(2 + x) * 1e-3 for x in grid] for name, grid in grids.items()}
    return Times(
        **grids,
        token_seconds=roots["token_grid"],
        row_seconds=roots["row_grid"],
        decode_seconds=[
            [a * (1 + 90 * b) for b in roots["decode_context_grid"]] for a in roots["decode_n_grid"]
        ],
        prefill_seconds=[[a * (1 + 50 * b) for b in roots["end_grid"]] for a in roots["chunk_grid"]],
        prompt_launch_seconds=math.pi * 1e-3,
    )


def long_workload(rng: random.Random, n: int, rate: float, streams: bool) -> Workload:
    arrival = np.cumsum([rng.expovariate(rate) for _ in range(n)])
    prompt = np.array([rng.randint(1, 200) for _ in range(n)], np.int32)
    output = np.array([rng.choice([1, rng.randint(2, 40), rng.randint(50, 400)]) for _ in range(n)], np.int32)
    if not streams:
        return Workload(arrival, prompt, output)
    stream = np.array([rng.randrange(-1, 12) for _ in range(n)], np.int32)
    return Workload(
        arrival,
        prompt,
        output,
        stream=stream,
        stream_tokens=(prompt + output // 2).astype(np.int32),
        stream_parent=np.array([-1, 0, 0, *[-1] * 9], np.int32),
        parent_tokens=np.array([0, 30, 75, *[0] * 9], np.int32),
    )


POLICIES = {
    "vllm": Policy("decode-first", True, "step", "last", 1),
    "no chunks": Policy("decode-first", False, "prompt", "last", 0),
    "whole": Policy("decode-first", True, "whole", "least-made", 0),
    "sglang": Policy("prefill-first", True, "ratio", "least-made", 1, 0.7, 0.1, 60, 64),
    "prompts first": Policy("prefill-first", False, "prompt", "last", 0),
    "static": Policy("static", True, "whole", "last", 0),
}
ROOMY = Engine(blocks=4000, block_tokens=4, budget=256, max_running=48, max_model_len=1000)
TIGHT = replace(ROOMY, blocks=600)
CACHED = replace(TIGHT, caching=True, cache_block_tokens=8)
WINDOWED = replace(TIGHT, full=1, window_blocks=1, window_cap=8, fixed=2)


@pytest.mark.parametrize(
    "engine", [ROOMY, TIGHT, CACHED, WINDOWED], ids=["roomy", "tight", "cached", "windows"]
)
@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_leaps_over_many_steps_change_nothing(engine, policy):
    rng = random.Random(7)  # noqa: S311
    workload = long_workload(rng, 250, rate=3.0, streams=engine.caching)
    c = Case(0, workload, engine, policy, irrational_times())
    plain, outcome = both(c)
    assert replay_cases.differences(plain, outcome, 0.0) == []
    assert outcome.steps > 500


@pytest.mark.parametrize("users", [3, 20])
def test_leaps_change_nothing_in_a_closed_loop(users):
    rng = random.Random(11)  # noqa: S311
    workload = long_workload(rng, 150, rate=5.0, streams=False)
    workload.users = users
    workload.arrival_seconds[users:] = np.nan
    workload.think_seconds = np.array([rng.expovariate(2.0) for _ in range(150)])
    assert disagreement(Case(0, workload, ROOMY, POLICIES["vllm"], irrational_times())) == []


def test_a_head_that_others_rob_of_what_it_would_find_may_join_sooner():
    """Its first chunk from the start needs one block; the one that goes on from a cached unit needs more."""
    c = case(24589)
    kept = [2, 5, 8]
    fields = ("arrival_seconds", "prompt_tokens", "output_tokens", "stream", "stream_tokens")
    few = replace(c.workload, **{name: getattr(c.workload, name)[kept] for name in fields})
    plain, outcome = both(replace(c, workload=few))
    assert plain.preemptions > 2
    assert replay_cases.differences(plain, outcome, c.times.request_seconds) == []


def test_sessions_whose_turns_follow_one_another_go_as_in_the_reference():
    rng = random.Random(13)  # noqa: S311
    workload = long_workload(rng, 160, rate=4.0, streams=True)
    workload.stream = np.arange(160, dtype=np.int32) // 4
    workload.stream_parent, workload.parent_tokens = np.full(40, -1, np.int32), np.zeros(40, np.int32)
    workload.after = np.array([i - 1 if i % 4 else -1 for i in range(160)], np.int32)
    workload.arrival_seconds[workload.after >= 0] = np.nan
    workload.arrival_seconds[::4] = np.sort(workload.arrival_seconds[::4])
    workload.think_seconds = np.array([rng.expovariate(1.0) for _ in range(160)])
    workload.prompt_tokens = (
        np.cumsum(workload.prompt_tokens.reshape(40, 4), axis=1).reshape(-1).astype(np.int32)
    )
    workload.output_tokens = np.minimum(workload.output_tokens, 120)
    workload.stream_tokens = workload.prompt_tokens + workload.output_tokens
    c = Case(0, workload, replace(CACHED, blocks=900), POLICIES["vllm"], irrational_times())
    plain, outcome = both(c)
    assert replay_cases.differences(plain, outcome, 0.0) == []
    assert outcome.hit > outcome.looked_up / 4


def test_a_static_batch_with_drafts_is_refused():
    c = case(0)
    _, pool, scheduling, times = replay_cases.taken(c)
    with pytest.raises(BadInput, match="drafts"):
        simulation.simulate(
            replay_cases.workload(c.workload),
            replace(pool, positions=2, budget=64),
            replace(scheduling, order="static"),
            times,
        )
