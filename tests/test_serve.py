"""Serving in steady state: users, rates, batches and saturation agree where they describe the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvplan.cost.operations import Ranks
from kvplan.cost.step import Step
from kvplan.serve import prompt, steady
from kvplan.serve.load import Load, Policy
from kvplan.verbs.cases import read_case
from latency_cases import POLICY, clock

LOAD = Load(1000, 200)
MODELS = ("llama-3.1-8b", "qwen3-30b-a3b", "deepseek-v3")
LOADS = st.builds(Load, st.integers(1, 20_000), st.integers(2, 3000))


def case(**row: Any) -> Any:
    """A row of a benchmark table, read."""
    base = {"engine_name": "vllm", "mode": "offline-throughput", "isl": 1000, "osl": 500}
    return read_case({**base, **row})


def test_a_second_accelerator_much_more_than_doubles_what_hardly_fits() -> None:
    row = {"config": "meta-llama/Llama-3.1-70B-Instruct", "weight_dtype": "fp8", "gpu_key": "h100-sxm"}
    one, two, four = (case(**row, n_gpus=n, tp=n) for n in (1, 2, 4))
    yields = [steady.saturated(c.clock, c.load, c.policy).output_tokens_per_second for c in (one, two, four)]
    assert one.policy.running < 15
    assert yields[1] > 5 * yields[0]
    assert yields[2] < 3 * yields[1]  # past the cliff, twice the accelerators are about twice the rate
    few, many = (steady.closed_loop(c.clock, c.load, c.policy, 64) for c in (one, two))
    assert few.waiting_seconds > 10
    assert many.waiting_seconds == pytest.approx(0, abs=1e-9)


@given(LOADS, st.integers(1, 600), st.sampled_from(MODELS))
def test_users_are_those_that_littles_law_counts(load: Load, users: int, model: str) -> None:
    found = steady.closed_loop(clock(model), load, POLICY, users)
    assert found.requests_per_second * found.e2e_seconds == pytest.approx(users)
    assert found.output_tokens_per_second == pytest.approx(found.requests_per_second * load.output_tokens)
    assert found.total_tokens_per_second == pytest.approx(
        found.requests_per_second * (load.prompt_tokens + load.output_tokens)
    )


@given(LOADS, st.sampled_from(MODELS))
def test_endless_users_are_saturation(load: Load, model: str) -> None:
    c = clock(model)
    top = steady.saturated(c, load, POLICY).requests_per_second
    many = steady.closed_loop(c, load, POLICY, 10**6)
    assert many.requests_per_second <= top * (1 + 1 / load.output_tokens) * (1 + 1e-9)


@given(LOADS, st.sampled_from(MODELS))
def test_a_rare_request_meets_the_engine_alone(load: Load, model: str) -> None:
    c = clock(model)
    rare = steady.open_loop(c, load, POLICY, 1e-9)
    assert rare.waiting_seconds == pytest.approx(0, abs=1e-6)
    assert rare.decode_step_seconds == pytest.approx(steady.decode_seconds(c, load, POLICY, 1))
    assert rare.ttft_seconds > prompt.prompt_seconds(c, load, POLICY) * min(1.0, c.front("prompt_factor"))


@given(LOADS, st.sampled_from(MODELS), st.floats(0.05, 0.95))
def test_the_rate_that_comes_in_goes_out(load: Load, model: str, share: float) -> None:
    c = clock(model)
    rate = share * steady.saturated(c, load, POLICY).requests_per_second
    found = steady.open_loop(c, load, POLICY, rate)
    assert found.requests_per_second == rate
    decoding = rate * load.output_tokens * found.tpot_seconds
    assert found.concurrency == pytest.approx(decoding, rel=0.1)


def test_more_than_is_answered_has_no_steady_state() -> None:
    c = clock("llama-3.1-8b")
    top = steady.saturated(c, LOAD, POLICY)
    found = steady.open_loop(c, LOAD, POLICY, 2 * top.requests_per_second)
    assert (found.ttft_seconds, found.e2e_seconds, found.waiting_seconds) == (None, None, None)
    assert found.requests_per_second == top.requests_per_second
    assert "more than the" in found.note


def test_a_batch_that_does_not_fit_goes_in_waves() -> None:
    c, policy = clock("llama-3.1-8b"), replace(POLICY, running=64.0)
    one, two = (steady.together(c, LOAD, policy, n) for n in (64, 128))
    assert two.output_tokens_per_second == pytest.approx(one.output_tokens_per_second)
    assert two.ttft_seconds == pytest.approx(one.ttft_seconds + one.e2e_seconds / 2)
    assert two.tpot_seconds == one.tpot_seconds


def test_a_batch_is_its_prompts_and_then_its_steps() -> None:
    c = clock("llama-3.1-8b")
    found = steady.together(c, LOAD, POLICY, 8)
    prompts = prompt.prompts_seconds(c, LOAD, POLICY, 8)
    step = c.seconds(Step(8, LOAD.middle_context))
    assert found.ttft_seconds == prompts
    assert found.tpot_seconds == step
    assert found.e2e_seconds == pytest.approx(prompts + 199 * step)
    assert found.output_tokens_per_second == pytest.approx(8 * 200 / (prompts + 199 * step))


@given(st.integers(1, 60_000), st.sampled_from([512, 2048, 8192]))
def test_prompts_beside_decoding_cost_more_with_every_token(tokens: int, budget: int) -> None:
    c, policy, step = clock("llama-3.1-8b"), replace(POLICY, budget=budget), Step(32, 2000)
    plain = c.seconds(step)
    cost = [
        prompt.beside_decoding(c, Load(n, 100), policy, step, plain, 1)
        for n in (tokens, tokens + 1, tokens + budget)
    ]
    assert cost == sorted(cost)


@given(LOADS, st.sampled_from([512, 2048, 8192]), st.integers(1, 600))
def test_no_step_carries_more_than_its_budget(load: Load, budget: int, users: int) -> None:
    policy = Policy(budget, float(users))
    found = steady.saturated(clock("llama-3.1-8b"), load, policy)
    tokens = found.concurrency / load.output_tokens * load.prompt_tokens + found.concurrency
    assert tokens <= budget * (1 + 1e-9) or found.concurrency == 1


def test_prompts_that_fill_every_step_make_others_wait_for_theirs() -> None:
    c, load, policy = clock("llama-3.1-8b"), Load(8000, 20), replace(POLICY, budget=2048)
    few, many = (steady.closed_loop(c, load, policy, n) for n in (128, 256))
    assert many.tpot_seconds == pytest.approx(few.tpot_seconds, rel=0.02)
    assert many.output_tokens_per_second == pytest.approx(few.output_tokens_per_second, rel=0.02)
    assert many.ttft_seconds > 1.8 * few.ttft_seconds


def test_prompts_wait_for_no_one_where_the_engine_does_not_mix_them() -> None:
    c = clock("llama-3.1-8b")
    mixed, apart = (
        steady.closed_loop(c, LOAD, replace(POLICY, mixes=mixes), 64).tpot_seconds for mixes in (True, False)
    )
    assert mixed < apart


def test_a_prefix_found_in_the_cache_is_not_computed_again() -> None:
    c = clock("llama-3.1-8b")
    whole, half, last = (prompt.prompt_seconds(c, Load(4000, 10, 0, n), POLICY) for n in (0, 2000, 4000))
    assert last < half < whole
    assert last == pytest.approx(prompt.prompt_seconds(c, Load(1, 10, 3999), POLICY))


def test_stages_work_on_batches_of_their_own() -> None:
    staged = clock("llama-3.1-8b", "h100", Ranks(pp=2))
    policy = replace(POLICY, pp=2)
    found = steady.together(staged, LOAD, policy, 64)
    assert found.decode_step_seconds == staged.seconds(Step(32, LOAD.middle_context))
    alone = steady.together(staged, LOAD, replace(policy, microbatches=False), 64)
    assert alone.decode_step_seconds == staged.seconds(Step(64, LOAD.middle_context))
