"""Prefill and decode apart: what crosses the link, what a request waits for, which side is the narrower."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvplan.cost.operations import Ranks
from kvplan.figure import Source, Trust, sourced
from kvplan.serve import apart
from kvplan.serve.apart import Apart, Side
from kvplan.serve.load import Load
from kvplan.serve.prompt import prompt_seconds
from kvplan.serve.steady import decode_seconds
from latency_cases import POLICY, clock

LOAD = Load(2000, 300)
C = clock("llama-3.1-8b")
ONE = Apart(Side(C, POLICY), Side(C, POLICY), 50e9)


def test_the_cache_of_a_prompt_crosses_whole() -> None:
    assert apart.prompt_cache_bytes(C.ops, 2000) == 2000 * 131_072
    four = clock("llama-3.1-8b", "h100", Ranks(tp=4))
    assert apart.prompt_cache_bytes(four.ops, 2000) == 2000 * 131_072 / 4
    staged = clock("llama-3.1-8b", "h100", Ranks(pp=2))
    assert apart.prompt_cache_bytes(staged.ops, 2000) == 2000 * 131_072 / 2


def test_a_window_bounds_what_crosses() -> None:
    ops = clock("gemma-3-27b-it").ops
    short, long = (apart.prompt_cache_bytes(ops, n) for n in (1024, 11_024))
    assert long - short == 10_000 * 10 * 2 * 16 * 128 * 2  # the ten layers without a window


def test_ttft_is_queue_prefill_transfer_and_a_first_step() -> None:
    found = apart.at_rate(replace(ONE, overlapped=False), LOAD, 1e-9)
    seconds = prompt_seconds(C, LOAD, POLICY) + 2000 * 131_072 / 50e9 + decode_seconds(C, LOAD, POLICY, 1)
    assert found.ttft_seconds == pytest.approx(seconds + C.front("request_seconds"))
    assert found.tpot_seconds == decode_seconds(C, LOAD, POLICY, 1)


def test_overlapping_hides_all_but_the_last_layers_transfer() -> None:
    whole = apart.at_rate(replace(ONE, overlapped=False), LOAD, 1.0).transfer_seconds
    assert apart.at_rate(ONE, LOAD, 1.0).transfer_seconds == pytest.approx(whole / 32)
    slow = replace(ONE, link_bytes_per_second=1e9)
    found = apart.at_rate(slow, LOAD, 1.0)
    assert found.transfer_seconds == pytest.approx(2000 * 131_072 / 1e9 - found.prefill_seconds)


def test_a_slow_link_is_the_prefill_sides_rate() -> None:
    found = apart.rates(replace(ONE, link_bytes_per_second=1e9), LOAD)
    assert found.prefill == pytest.approx(1e9 / (2000 * 131_072))
    assert found.narrower == "prefill"
    assert found.both == found.prefill


def test_more_than_the_narrower_side_passes_has_no_steady_state() -> None:
    top = apart.rates(ONE, LOAD)
    assert top.both == min(top.prefill, top.decode)
    found = apart.at_rate(ONE, LOAD, top.both * 1.01)
    assert found.ttft_seconds is None
    assert found.requests_per_second == top.both


def test_at_the_best_ratio_both_sides_pass_the_same() -> None:
    ratio = apart.best_ratio(ONE, LOAD)
    top = apart.rates(ONE, LOAD)
    assert ratio * top.prefill == pytest.approx(top.decode)


@pytest.mark.parametrize("workers", [2, 3, 8, 16])
@pytest.mark.parametrize("goal", [None, 0.012])
def test_no_other_split_passes_more_than_the_best(workers: int, goal: float | None) -> None:
    split, found = apart.best_split(ONE, LOAD, workers, goal)
    assert split.prefill.workers + split.decode.workers == workers
    held = None if goal is None else apart.largest_running(ONE, LOAD, goal)
    for n in range(1, workers):
        other = replace(
            ONE, prefill=replace(ONE.prefill, workers=n), decode=replace(ONE.decode, workers=workers - n)
        )
        assert apart.rates(other, LOAD, held).both <= found.both


def test_a_tighter_tpot_needs_more_decode_workers() -> None:
    loose, tight = (apart.best_split(ONE, LOAD, 16, goal)[0].decode.workers for goal in (1.0, 0.009))
    assert tight > loose
    assert apart.token_seconds(ONE, LOAD, apart.largest_running(ONE, LOAD, 0.009))[0] <= 0.009


@given(st.integers(1, 3000))
def test_users_under_way_are_those_that_littles_law_counts(users: int) -> None:
    found = apart.at_concurrency(ONE, LOAD, users)
    assert found.requests_per_second * found.e2e_seconds == pytest.approx(users, rel=1e-3)
    assert found.requests_per_second <= found.rates.both


@given(st.integers(1, 2000), st.integers(1, 500))
def test_more_users_never_yield_less_nor_wait_less(users: int, more: int) -> None:
    few, many = (apart.at_concurrency(ONE, LOAD, n) for n in (users, users + more))
    assert many.requests_per_second >= few.requests_per_second * (1 - 1e-6)
    assert many.ttft_seconds >= few.ttft_seconds * (1 - 1e-6)


def test_a_token_takes_as_long_as_its_step_whatever_the_prompts() -> None:
    short = apart.at_rate(ONE, replace(LOAD, prompt_tokens=100, depth=1900), 5.0)
    long = apart.at_rate(ONE, LOAD, 5.0)
    assert short.tpot_seconds == pytest.approx(long.tpot_seconds)


def test_several_workers_share_one_queue() -> None:
    at = [apart.shared_queue_seconds(0.8, n, 1.0) for n in (1, 2, 4)]
    assert at[0] == pytest.approx(0.8 / 0.2 / 2)  # Pollaczek-Khinchine
    assert at == sorted(at, reverse=True)


def test_its_figures_explain_themselves() -> None:
    asked = sourced("rate", 3.0, "request/s", Source(Trust.STATED, "--rate"))
    figure = apart.at_rate(ONE, LOAD, asked, sourced).ttft_seconds
    assert figure.value == pytest.approx(apart.at_rate(ONE, LOAD, 3.0).ttft_seconds)
    for word in ("shared_queue_seconds", "prompt_cache_bytes", "link_bytes_per_second", "request_seconds"):
        assert figure.explain().count(word)
