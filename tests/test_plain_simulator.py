"""The plain simulator against timelines written out by hand, and against what is true of every run."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from plain_simulator import Engine, Policy, Result, Times, along, simulate
from random_workloads import Workload, cases, constant

ROOMY = Engine(
    blocks=1000, block_tokens=1, budget=100, max_running=8, max_model_len=1000, cache_block_tokens=1
)
PREFILL_FIRST = Policy(order="prefill-first", admit="prompt")


def requests(*rows: tuple[float, int, int], **more: object) -> Workload:
    """A workload of (arrival, prompt, output)."""
    arrivals, prompts, outputs = zip(*rows, strict=True)
    return Workload(np.array(arrivals, float), np.array(prompts), np.array(outputs), **more)  # type: ignore[arg-type]


def ran(
    workload: Workload, engine: Engine = ROOMY, policy: Policy | None = None, times: Times | None = None
) -> Result:
    """A run at one second a step, if nothing else is said."""
    return simulate(workload, engine, policy or Policy(), times or constant(), log=True)


def tokens(result: Result) -> list[int]:
    return [step.tokens for step in result.log]


def with_(engine: Engine = ROOMY, **changes: object) -> Engine:
    return dataclasses.replace(engine, **changes)  # type: ignore[arg-type]


def test_prompts_fill_what_decodes_leave_of_the_budget() -> None:
    """Budget 4. A: 6 prompt, 3 output; B: 3 prompt, 2 output.

    0–1: A's first 4. 1–2: A's last 2, B's first 2. 2–3: A decodes, B's last 1. 3–4: both decode and are over.
    """
    result = ran(requests((0, 6, 3), (0, 3, 2)), with_(budget=4))
    assert tokens(result) == [4, 4, 2, 2]
    assert (result.admitted, result.first_token, result.finish) == ([0, 1], [2, 3], [4, 4])


def test_prompts_that_may_not_be_split_wait_for_the_whole_budget_or_exceed_it_alone() -> None:
    """Budget 4. A's 6 tokens go alone in 0–1; B's 4 do not fit beside a decode, wait till A is over at 3."""
    result = ran(requests((0, 6, 3), (0, 4, 1)), with_(budget=4), Policy(chunked=False))
    assert tokens(result) == [6, 1, 1, 4]
    assert (result.admitted, result.finish) == ([0, 3], [3, 4])


@pytest.mark.parametrize(("policy", "finish"), [(Policy(), [3, 4]), (PREFILL_FIRST, [4, 4])])
def test_a_prompt_delays_decodes_only_where_prompts_go_first(policy: Policy, finish: list[float]) -> None:
    """A: 4 prompt, 3 output. B comes at 1.5, in A's first decode; 2–3 is B's prompt, alone or not."""
    result = ran(requests((0, 4, 3), (1.5, 4, 2)), policy=policy)
    assert result.first_token == [1, 3]
    assert result.finish == finish


def test_the_last_is_preempted_and_computes_all_it_had_again() -> None:
    """Six blocks of one token; A and B: 2 prompt, 3 output.

    0–1: both prompts (4 blocks). 1–2: both decode (6). 2–3: A needs a seventh: B goes, A is over. 3–4: B's
    2 + 2 tokens at once make its third.
    """
    result = ran(requests((0, 2, 3), (0, 2, 3)), with_(blocks=6))
    assert tokens(result) == [4, 2, 1, 4]
    assert [step.held for step in result.log] == [4, 6, 4, 4]
    assert (result.first_token, result.finish, result.preempted) == ([1, 1], [3, 4], [0, 1])


def test_a_preempted_request_finds_its_leading_blocks_until_they_are_taken() -> None:
    """As before with caching: A takes the last of B's three blocks, B finds two and computes 2 of 4."""
    result = ran(requests((0, 2, 3), (0, 2, 3)), with_(blocks=6, caching=True))
    assert tokens(result) == [4, 2, 1, 2]
    assert result.total_hit_tokens == 0


@pytest.mark.parametrize(("victim", "preempted"), [("last", [0, 1]), ("least-made", [1, 0])])
def test_of_equally_far_ones_the_longest_prompt_gives_way_or_the_last(
    victim: str, preempted: list[int]
) -> None:
    """Six blocks; prompts of 3 and 2 leave one free, the decode needs two. Whoever goes comes back at 2."""
    policy = dataclasses.replace(PREFILL_FIRST, victim=victim)
    result = ran(requests((0, 3, 2), (0, 2, 2)), with_(blocks=6), policy)
    assert result.preempted == preempted
    assert sorted(result.finish) == [2, 3]


@pytest.mark.parametrize(("victim", "preempted"), [("last", [0, 0, 1]), ("least-made", [0, 1, 0])])
def test_who_shares_a_step_with_prompts_gives_way_by_the_same_rule(victim: str, preempted: list[int]) -> None:
    """Seven blocks, held by prompts of 2, 3 and 2; A's decode needs one: the last goes, or the longest."""
    policy = Policy(victim=victim)
    result = ran(requests((0, 2, 2), (0, 3, 2), (0, 2, 2)), with_(blocks=7), policy)
    assert result.preempted == preempted
    assert sorted(result.finish) == [2, 2, 3]


def test_a_later_request_finds_the_blocks_of_the_same_tokens_but_computes_at_least_one() -> None:
    """Units of 2. A's 4 tokens have two ids. B's 5 find 4; C's 4 find 2, as one token must be computed."""
    prefix = {
        "prefix_start": np.array([0, 2, 5, 7]),
        "prefix_ids": np.array([0, 1, 0, 1, 2, 0, 1]),
        "prefix_block_tokens": 2,
    }
    workload = requests((0, 4, 1), (5, 5, 1), (9, 4, 1), **prefix)
    result = ran(workload, with_(block_tokens=2, cache_block_tokens=2, caching=True))
    assert result.hit_tokens == [0, 4, 2]
    assert tokens(result) == [4, 1, 2]
    assert (result.total_hit_tokens, result.looked_up_tokens) == (6, 13)


def test_a_prompt_is_found_by_the_next_of_the_same_step() -> None:
    """Both have stream 0's first 6 tokens: the second computes one of them, whose block it then shares."""
    workload = requests((0, 6, 1), (0, 6, 1), stream=[0, 0], stream_tokens=[6, 6])
    result = ran(workload, with_(caching=True))
    assert tokens(result) == [7]
    assert result.log[0].held == 6


def test_a_stream_begins_as_its_parent_does() -> None:
    """Stream 1 has stream 0's first 4 tokens; units of 1."""
    workload = requests(
        (0, 8, 1),
        (3, 8, 1),
        stream=[0, 1],
        stream_tokens=[8, 8],
        stream_parent=[-1, 0],
        parent_tokens=[0, 4],
    )
    assert ran(workload, with_(caching=True)).hit_tokens == [0, 4]


def test_the_oldest_freed_blocks_are_taken_first() -> None:
    """Pool of 8. A leaves 4 with content, never used are 4; B of other tokens takes those, C finds A's 3.

    With B of 6 tokens two of A's are taken, its last ones, and C finds the two that are left.
    """
    for length, found in ((4, 3), (6, 2)):
        workload = requests(
            (0, 4, 1), (2, length, 1), (4, 4, 1), stream=[0, 1, 0], stream_tokens=[4, length, 4]
        )
        assert ran(workload, with_(blocks=8, caching=True)).hit_tokens[2] == found


@pytest.mark.parametrize(("length", "found"), [(2, 4), (3, 2)])
def test_a_unit_of_which_one_block_is_taken_is_forgotten(length: int, found: int) -> None:
    """Units of two blocks, six blocks: A leaves two units, two are unused; B takes those, or one more."""
    workload = requests((0, 4, 1), (2, length, 1), (4, 5, 1), stream=[0, -1, 0], stream_tokens=[4, 0, 4])
    result = ran(workload, with_(blocks=6, caching=True, cache_block_tokens=2))
    assert result.hit_tokens == [0, 0, found]


@pytest.mark.parametrize(("lead", "admitted"), [(0, [0, 2, 10]), (1, [0, 3, 10])])
def test_an_engine_a_step_ahead_takes_who_came_a_step_before(lead: int, admitted: list[float]) -> None:
    """B comes at 1.5: before the step at 2, after the start of the one before it; C finds an idle engine."""
    result = ran(requests((0, 2, 4), (1.5, 2, 1), (10, 2, 1)), policy=Policy(lead=lead))
    assert result.admitted == admitted


def test_drafts_make_what_is_expected_of_them() -> None:
    """1.5 tokens a step: 1 after the prompt, then 2, 4 and 5; a step carries 2 tokens."""
    result = ran(requests((0, 3, 5)), with_(positions=2, gain=1.5))
    assert tokens(result) == [3, 2, 2, 2]
    assert result.finish == [4]


def test_a_static_batch_stays_until_its_last_is_over() -> None:
    """Two places. A (2 tokens) is over at 2, B (4) at 4, and only then comes C."""
    policy = Policy(order="static", admit="whole")
    result = ran(requests((0, 2, 2), (0, 2, 4), (0, 2, 1)), with_(max_running=2), policy)
    assert tokens(result) == [4, 2, 2, 2, 2]
    assert (result.admitted, result.finish) == ([0, 0, 4], [2, 4, 5])


@pytest.mark.parametrize(("blocks", "admitted"), [(20, [0, 0]), (19, [0, 8])])
def test_a_ratio_of_what_runs_is_set_aside(blocks: int, admitted: list[float]) -> None:
    """Prompts of 4, outputs of 8, ratio ½: B needs 4 + 8 of the 16 free less ½·8. One less: it waits for A.

    While A decodes, free falls by 1 a step and what is set aside by ½.
    """
    policy = Policy(order="prefill-first", admit="ratio", ratio_start=0.5, ratio_least=0.5)
    assert ran(requests((0, 4, 8), (0, 4, 8)), with_(blocks=blocks), policy).admitted == admitted


@pytest.mark.parametrize(("admit", "admitted"), [("step", 0), ("prompt", 0), ("whole", 5)])
def test_the_whole_of_all_is_set_aside_where_nobody_is_evicted(admit: str, admitted: float) -> None:
    """Twelve blocks, each needs 4 + 5 − 1 = 8 in the end: both fit now, not to their ends."""
    result = ran(requests((0, 4, 5), (0, 4, 5)), with_(blocks=12), Policy(admit=admit))
    assert result.admitted[1] == admitted
    assert (result.preemptions == 0) == (admit == "whole")


def test_a_prompt_of_which_only_the_first_chunk_fits_comes_only_where_that_is_enough() -> None:
    """Ten blocks, budget 4; A holds 4 when B's 7 tokens want to come: 3 of them have room."""
    workload, engine = requests((0, 4, 2), (0.5, 7, 1)), with_(blocks=10, budget=4)
    assert ran(workload, engine, Policy(admit="step")).admitted == [0, 1]
    assert ran(workload, engine, Policy(admit="prompt")).admitted == [0, 2]


def test_windows_hold_no_more_than_their_cap_and_state_is_fixed() -> None:
    """20 tokens in blocks of 4: 5 × 2 that keep everything, 3 × 2 of windows, 1 of state."""
    engine = with_(block_tokens=4, full=2, window_blocks=3, window_cap=2, fixed=1, cache_block_tokens=4)
    assert engine.held(20) == 17
    assert [step.held for step in ran(requests((0, 20, 1)), engine).log] == [17]


def test_a_request_that_never_fits_is_refused_and_its_follower_comes() -> None:
    """B is longer than the model allows, C than the pool; D waits for B and comes when B is refused."""
    workload = requests(
        (0, 2, 1), (0, 60, 60), (0, 40, 1), (math.nan, 2, 1), after=[-1, -1, -1, 1], think_seconds=[0] * 4
    )
    result = ran(workload, with_(blocks=30, max_model_len=100))
    assert result.rejected == [False, True, True, False]
    assert result.admitted[3] == 0


def test_users_send_the_next_when_theirs_is_over_and_they_have_thought() -> None:
    """Two users, four requests of 1 + 1 tokens: the third comes at 1 + 0.5, the fourth at 1 + 3."""
    workload = requests(*[(0, 1, 1)] * 2, *[(math.nan, 1, 1)] * 2, users=2, think_seconds=[0, 0, 0.5, 3])
    assert ran(workload).admitted == [0, 0, 1.5, 4]


def test_the_front_end_delays_what_users_see_and_nobody_else() -> None:
    workload = requests((0, 1, 2), (math.nan, 1, 1), after=[-1, 0], think_seconds=[0, 0])
    result = ran(workload, times=constant(1, request_seconds=0.5))
    assert (result.first_token, result.finish) == ([1.5, 3.5], [2.5, 3.5])
    assert result.end == 3


def test_a_step_takes_what_its_tokens_rows_decodes_and_chunks_take() -> None:
    """A's prompt: 3 tokens, 1 row, chunk (3, 3), the launch. Then 1 token, 1 row, 1 decode at context 3."""
    times = Times(
        token_grid=[0, 1],
        token_seconds=[1, 3],
        row_grid=[1],
        row_seconds=[10],
        decode_n_grid=[1, 2],
        decode_context_grid=[0, 1],
        decode_seconds=[[0, 100], [0, 200]],
        chunk_grid=[0, 1],
        end_grid=[0, 1],
        prefill_seconds=[[0, 0], [0, 1000]],
        prompt_launch_seconds=5,
    )
    result = ran(requests((0, 3, 2)), times=times)
    assert [step.seconds for step in result.log] == [7 + 10 + 9000 + 5, 3 + 10 + 300]


def test_tables_go_on_as_between_their_last_two_points() -> None:
    assert [along([1, 2, 4], [1, 3, 4], x) for x in (0, 1.5, 3, 8)] == [-1, 2, 3.5, 6]


def test_nothing_is_lost_in_any_run() -> None:
    """The simulator itself checks blocks and requests at every step; here, that everyone came to an end."""
    for case in cases(400):
        result = simulate(case.workload, case.engine, case.policy, case.times, log=True)
        for i, rejected in enumerate(result.rejected):
            assert math.isnan(result.finish[i]) == rejected, case.seed
            assert rejected or result.admitted[i] <= result.first_token[i] <= result.finish[i], case.seed
        assert sum(result.preempted) == result.preemptions
        assert result.steps == len(result.log)
        starts = [step.start for step in result.log]
        assert starts == sorted(starts)


def test_first_come_is_first_admitted() -> None:
    for case in cases(400):
        if case.workload.users or case.workload.after is not None:
            continue
        result = simulate(case.workload, case.engine, case.policy, case.times)
        admitted = [when for when in result.admitted if not math.isnan(when)]
        assert admitted == sorted(admitted), case.seed


def test_who_goes_ahead_of_all_is_never_preempted_where_the_whole_is_set_aside() -> None:
    for case in cases(400):
        if case.policy.admit == "whole" and case.engine.positions == 1:
            assert simulate(case.workload, case.engine, case.policy, case.times).preemptions == 0, case.seed


def test_caching_only_saves_tokens_of_a_single_user() -> None:
    saved = 0
    for case in cases(400):
        workload = dataclasses.replace(case.workload, users=1, after=None, think_seconds=None)
        workload.arrival_seconds = np.nan_to_num(workload.arrival_seconds)
        computed = []
        for caching in (False, True):
            engine = dataclasses.replace(case.engine, caching=caching)
            result = simulate(workload, engine, case.policy, case.times, log=True)
            computed.append(sum(tokens(result)))
            assert result.preemptions == 0
        assert computed[1] <= computed[0], case.seed
        saved += computed[0] - computed[1]
    assert saved > 0


def test_random_cases_reach_the_rules() -> None:
    """Preemptions, hits, both in one run, refusals, and all orders, among cases the rules settle."""
    seen: dict[str, int] = {}
    for case in cases(600, settled=True):
        result = simulate(case.workload, case.engine, case.policy, case.times)
        reached = {
            case.policy.order: True,
            case.policy.admit: True,
            f"{case.policy.order} preempts {case.policy.victim}": result.preemptions > 0,
            "hits": result.total_hit_tokens > 0,
            "both": result.total_hit_tokens > 0 and result.preemptions > 0,
            "refused": any(result.rejected),
            "drafts": case.engine.gain > 1,
            "drafts preempted": case.engine.gain > 1 and result.preemptions > 0,
            "windows": case.engine.window_blocks > 0 and case.engine.window_cap > 0,
            "after": case.workload.after is not None,
            "closed": case.workload.users > 0,
            "a step ahead": case.policy.lead == 1,
        }
        for name in (name for name, is_so in reached.items() if is_so):
            seen[name] = seen.get(name, 0) + 1
    preempting = [
        f"{o} preempts {v}" for o in ("decode-first", "prefill-first") for v in ("last", "least-made")
    ]
    assert {"static", "step", "prompt", "whole", "ratio", *preempting} <= seen.keys()
    assert min(seen.values()) >= 5, seen
