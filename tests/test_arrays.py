"""Arrays of loads are answered as each of them alone: one formula for a case and for a sweep."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvplan.cost.operations import Ranks
from kvplan.cost.step import Step
from kvplan.serve import prompt, steady
from kvplan.serve.load import Load, Policy
from latency_cases import POLICY, clock

MODELS = (
    "llama-3.1-8b",
    "qwen3-30b-a3b",
    "gemma-3-27b-it",
    "deepseek-v3.2",
    "llama-4-scout-17b-16e-instruct",
    "Qwen/Qwen3-Next-80B-A3B-Instruct",
    "deepseek-ai/DeepSeek-V4-Flash",
)
SPLITS = (Ranks(), Ranks(tp=4), Ranks(tp=2, pp=2), Ranks(tp=8, ep=8), Ranks(tp=8, ep=8, attention_dp=8))
TOKENS, LENGTHS = st.integers(1, 30_000), st.integers(1, 3000)
LOADS = st.lists(st.builds(Load, TOKENS, LENGTHS, st.integers(0, 9000)), min_size=2, max_size=5)
POLICIES = st.builds(
    Policy, st.sampled_from([1, 512, 8192, 1 << 30]), st.floats(1, 900), st.booleans(), st.just(1)
)
SETUPS = st.tuples(
    st.sampled_from(MODELS), st.sampled_from(SPLITS), st.sampled_from(["h100", "b200", "mi300x"]), POLICIES
)
COUNTS = st.integers(1, 700)


def column(loads: list[Load]) -> Load:
    """The loads as one, each quantity an array of whole numbers."""
    return Load(*(np.array([getattr(load, name) for load in loads]) for name in _LENGTHS))


_LENGTHS = ("prompt_tokens", "output_tokens", "depth", "shared")


def same(found: Any, each: list[Any]) -> None:
    """Every element of the answer's arrays is the answer of that load alone; nan where that is None."""
    for f in fields(found):
        if f.name == "note":
            continue
        alone = [getattr(x, f.name) for x in each]
        value = getattr(found, f.name)
        if alone == [None] * len(each) and value is None:
            continue
        wanted = np.array([np.nan if x is None else x for x in alone], dtype=float)
        np.testing.assert_allclose(np.broadcast_to(value, wanted.shape), wanted, rtol=1e-9, atol=1e-12)


@given(SETUPS, LOADS, COUNTS)
def test_a_sweep_of_loads_is_each_load_alone(setup: Any, loads: list[Load], count: int) -> None:
    model, ranks, gpu, policy = setup
    c, many = clock(model, gpu, ranks), column(loads)
    policy = replace(policy, pp=ranks.pp)
    counts = np.arange(count, count + len(loads))
    pairs = list(zip(loads, counts.tolist(), strict=True))
    for ask in (steady.closed_loop, steady.together):
        same(ask(c, many, policy, counts), [ask(c, x, policy, n) for x, n in pairs])
    tops = [steady.saturated(c, x, policy) for x in loads]
    same(steady.saturated(c, many, policy), tops)
    rates = [
        top.requests_per_second * share for top, share in zip(tops, (0.1, 0.9, 1.1, 0.5, 0.98), strict=False)
    ]
    each = [steady.open_loop(c, x, policy, rate) for x, rate in zip(loads, rates, strict=True)]
    found = steady.open_loop(c, many, policy, np.array(rates))
    same(found, each)
    whole = prompt.prompts_seconds(c, many, policy, counts)
    np.testing.assert_allclose(whole, [prompt.prompts_seconds(c, x, policy, n) for x, n in pairs], rtol=1e-9)


@given(SETUPS, st.integers(1, 40_000), COUNTS, st.integers(1, 4))
def test_a_sweep_of_steps_is_each_step_alone(setup: Any, context: int, count: int, positions: int) -> None:
    model, ranks, gpu, _ = setup
    c = clock(model, gpu, ranks)
    batches, contexts = np.array([[1], [count], [2 * count]]), np.array([1, context, 3 * context])
    for kind in (c.seconds, c.floor):
        decode = kind(Step(batches, contexts, positions))
        prefill = kind(Step(prompts=batches, chunk=contexts, depth=context))
        for i, n in enumerate(batches[:, 0].tolist()):
            for j, tokens in enumerate(contexts.tolist()):
                assert decode[i, j] == pytest.approx(kind(Step(n, tokens, positions)), rel=1e-9)
                alone = kind(Step(prompts=n, chunk=tokens, depth=context))
                assert prefill[i, j] == pytest.approx(alone, rel=1e-9)


def test_counts_past_what_64_bits_hold_stay_right() -> None:
    c = clock("deepseek-v3", "h200", Ranks(tp=8))
    step = Step(prompts=np.array([4096]), chunk=np.array([1_000_000]))
    assert c.floor(step)[0] == pytest.approx(c.floor(Step(prompts=4096, chunk=1_000_000)), rel=1e-9)


def test_a_batch_and_a_length_make_a_grid() -> None:
    c = clock("llama-3.1-8b")
    load = Load(np.array([100, 1000, 10_000]), 100)
    found = steady.closed_loop(c, load, POLICY, np.array([[1], [64]]))
    assert found.tpot_seconds.shape == (2, 3)
    assert found.tpot_seconds[1, 2] == pytest.approx(
        steady.closed_loop(c, Load(10_000, 100), POLICY, 64).tpot_seconds
    )


def test_rates_beyond_what_is_answered_are_no_numbers() -> None:
    c, load = clock("llama-3.1-8b"), Load(1000, 100)
    top = steady.saturated(c, load, POLICY).requests_per_second
    found = steady.open_loop(c, load, POLICY, np.array([0.5, 1.5]) * top)
    assert np.isnan(found.ttft_seconds).tolist() == [False, True]
    assert np.isnan(found.waiting_seconds).tolist() == [False, True]
    assert found.requests_per_second[1] == pytest.approx(top)
    assert found.note == "1 of 2 rates are more than it answers"


def test_prompts_found_in_the_cache_and_none_at_all_stand_beside_others() -> None:
    c = clock("llama-3.1-8b")
    load = Load(np.array([1000, 1000, 0]), 100, np.array([0, 0, 500]), np.array([0, 1000, 0]))
    alone = [Load(1000, 100), Load(1000, 100, 0, 1000), Load(0, 100, 500)]
    same(steady.together(c, load, POLICY, 8), [steady.together(c, x, POLICY, 8) for x in alone])


def test_chances_of_acceptance_may_be_certain() -> None:
    c = clock("llama-3.1-8b")
    chances = [0.0, 0.5, 1.0]
    found = steady.saturated(c, Load(1000, 100, drafts=3, acceptance=np.array(chances)), POLICY)
    same(found, [steady.saturated(c, Load(1000, 100, drafts=3, acceptance=x), POLICY) for x in chances])
