"""Speculative decoding: what drafting and verifying cost a step, and what acceptance buys."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvplan.cost.step import Step
from kvplan.figure import Source, Trust, sourced
from kvplan.serve import draft, steady
from kvplan.serve.load import Load, accepted_tokens, tokens_a_step
from latency_cases import POLICY, clock

LOAD = Load(1000, 512)
MODELS = ("llama-3.1-8b", "deepseek-v3", "qwen3-30b-a3b")


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("layers", [0, 1])
def test_drafts_never_accepted_cost_time_and_gain_nothing(model: str, layers: int) -> None:
    c = clock(model)
    plain = steady.together(c, LOAD, POLICY, 8)
    drafted = steady.together(c, replace(LOAD, drafts=3, acceptance=0.0, draft_layers=layers), POLICY, 8)
    assert tokens_a_step(replace(LOAD, drafts=3)) == 1
    assert drafted.tpot_seconds > plain.tpot_seconds
    assert drafted.output_tokens_per_second < plain.output_tokens_per_second


@given(st.integers(1, 8))
def test_drafts_always_accepted_gain_one_token_each_and_the_next(drafts: int) -> None:
    load = replace(LOAD, drafts=drafts, acceptance=1.0, draft_layers=1)
    assert tokens_a_step(load) == drafts + 1
    found = steady.together(clock("llama-3.1-8b"), load, POLICY, 4)
    assert found.decode_step_seconds == pytest.approx((drafts + 1) * found.tpot_seconds)


@given(st.integers(1, 8), st.floats(0, 0.99), st.floats(0.001, 0.5), st.sampled_from(MODELS))
def test_more_acceptance_never_yields_less(drafts: int, chance: float, more: float, model: str) -> None:
    few, many = (
        replace(LOAD, drafts=drafts, acceptance=a, draft_layers=1) for a in (chance, min(1.0, chance + more))
    )
    assert tokens_a_step(few) <= tokens_a_step(many)
    c = clock(model)
    for ask in (steady.together, steady.closed_loop):
        slow, fast = (ask(c, load, POLICY, 16).output_tokens_per_second for load in (few, many))
        assert slow <= fast * (1 + 1e-9)


def test_accepted_tokens_are_those_a_draw_finds() -> None:
    draw = random.Random(7)  # noqa: S311
    for chance, drafts in ((0.3, 2), (0.8, 5)):
        tokens = 0
        for _ in range(40_000):
            kept = 0
            while kept < drafts and draw.random() < chance:
                kept += 1
            tokens += kept + 1
        assert accepted_tokens(chance, drafts) == pytest.approx(tokens / 40_000, rel=0.01)


def test_n_grams_are_free_and_layers_are_not() -> None:
    c, step = clock("llama-3.1-8b"), Step(8, 1000, 4)
    load = replace(LOAD, drafts=3, acceptance=0.5)
    assert draft.drafting(c, load, step) == 0
    one, two = (draft.drafting(c, replace(load, draft_layers=n), step) for n in (1, 2))
    assert 0 < one < two < 2 * one  # the head is passed once a token whatever the layers
    assert one < 3 * c.seconds(Step(8, 1000))


def test_drafting_time_follows_drafts_and_leaves_prompts_alone() -> None:
    c, step = clock("llama-3.1-8b"), Step(8, 1000)
    three, six = (
        draft.drafting(c, replace(LOAD, drafts=n, acceptance=0.5, draft_layers=1), step) for n in (3, 6)
    )
    assert six == pytest.approx(2 * three)
    assert draft.drafting(c, replace(LOAD, drafts=3, draft_layers=1), Step(prompts=1, chunk=100)) == 0


def test_every_method_says_how_many_layers_a_draft_passes() -> None:
    found = [draft.layers_of(name) for name in ("ngram", "suffix", "mtp", "eagle", "eagle3")]
    assert found == [0, 0, 1, 1, 1]
    assert draft.layers_of("draft_model", 0.125, 32) == 4


def test_drafting_explains_itself() -> None:
    asked = Source(Trust.STATED, "as asked")
    load = replace(LOAD, drafts=sourced("drafts", 3, "token", asked), acceptance=0.5, draft_layers=1)
    figure = draft.drafting(clock("llama-3.1-8b"), load, Step(8, 1000, 4), sourced)
    text = figure.explain()
    for word in ("drafts", "head_seconds", "kernels_seconds", "layer_seconds"):
        assert word in text
    assert figure.value == pytest.approx(draft.drafting(clock("llama-3.1-8b"), load, Step(8, 1000, 4)).value)
