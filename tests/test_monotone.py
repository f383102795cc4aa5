"""Monotone where physics is: faster hardware, longer contexts, larger batches, longer prompts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kvplan.cost.estimate import Clock
from kvplan.cost.operations import Ranks
from kvplan.cost.step import Step
from kvplan.facts.accelerators import find_accelerator
from kvplan.serve import prompt, steady
from kvplan.serve.load import Load, Policy
from latency_cases import clock, clock_on, faster

# Chunked attention is left out where contexts are compared: past a chunk's end a token reads one slot again.
CHUNKED = "llama-4-scout-17b-16e-instruct"
MODELS = (
    "llama-3.1-8b",
    "qwen3-30b-a3b",
    "gemma-3-27b-it",
    "openai/gpt-oss-20b",
    "deepseek-v3",
    "deepseek-v3.2",
    "minimax-m3",
    "deepseek-ai/DeepSeek-V4-Flash",
    "Qwen/Qwen3-Next-80B-A3B-Instruct",
    "falcon-mamba-7b",
)
GPUS = ("h100", "b200", "a100", "rtx4090", "mi300x")
SPLITS = (Ranks(), Ranks(tp=4), Ranks(tp=2, pp=2), Ranks(tp=8, ep=8), Ranks(tp=8, ep=8, attention_dp=8))
EXACT = 1e-9

setups = st.tuples(st.sampled_from(MODELS), st.sampled_from(GPUS), st.sampled_from(SPLITS))
batches, more = st.integers(1, 600), st.integers(1, 200)
tokens, lengths = st.integers(1, 40_000), st.integers(1, 4000)
loads = st.builds(Load, tokens, lengths, st.sampled_from([0, 3000]))
policies = st.builds(
    Policy, st.sampled_from([512, 2048, 8192, 1 << 30]), st.floats(1, 900), st.booleans(), st.just(1)
)


def of(setup: Any, policy: Policy) -> tuple[Clock, Policy]:
    """The clock of a deployment, and its scheduler over as many stages."""
    model, gpu, ranks = setup
    return clock(model, gpu, ranks), replace(policy, pp=ranks.pp)


def no_more(less: float, greater: float) -> bool:
    """Whether the one is at most the other, within what floats round."""
    return less <= greater * (1 + EXACT)


@given(setups, loads, policies, batches, st.floats(1.01, 4), st.sampled_from(["bandwidth", "peak"]))
def test_faster_hardware_is_never_slower(
    setup: Any, load: Load, policy: Policy, n: int, times: float, what: str
) -> None:
    model, gpu, ranks = setup
    slow, policy = of(setup, policy)
    fast = clock_on(faster(find_accelerator(gpu, "gpu"), **{what: times}), model, ranks)
    for step in (Step(n, load.prompt_tokens), Step(prompts=1, chunk=load.prompt_tokens)):
        assert no_more(fast.seconds(step), slow.seconds(step))
        assert no_more(fast.floor(step), slow.floor(step))
    for ask, amount in ((steady.closed_loop, (n,)), (steady.together, (n,)), (steady.saturated, ())):
        before, after = ask(slow, load, policy, *amount), ask(fast, load, policy, *amount)
        assert no_more(before.output_tokens_per_second, after.output_tokens_per_second)
        assert no_more(after.tpot_seconds, before.tpot_seconds)
        if ask is steady.together:
            assert no_more(after.ttft_seconds, before.ttft_seconds)
        elif before.ttft_seconds is not None:  # prompts are charged what they add to a step, and bandwidth
            assert after.ttft_seconds <= before.ttft_seconds * 1.01  # leaves less of it to add to for nothing


@given(setups, batches, tokens, st.integers(1, 20_000), st.integers(1, 4))
def test_a_longer_context_is_never_faster(setup: Any, n: int, context: int, longer: int, new: int) -> None:
    c = clock(*setup)
    short, long = Step(n, context, new), Step(n, context + longer, new)
    assert no_more(c.seconds(short), c.seconds(long))
    assert no_more(c.floor(short), c.floor(long))


@given(setups, batches, more, tokens)
def test_a_larger_batch_is_never_a_shorter_step(setup: Any, n: int, extra: int, context: int) -> None:
    c = clock(*setup)
    few, many = Step(n, context), Step(n + extra, context)
    assert no_more(c.seconds(few), c.seconds(many))
    assert no_more(c.floor(few), c.floor(many))


@given(setups, loads, policies, batches, more)
def test_more_at_once_never_yields_less_before_the_cache_is_full(
    setup: Any, load: Load, policy: Policy, n: int, extra: int
) -> None:
    c, policy = of(setup, policy)
    wide = replace(policy, running=float(n + extra))
    for ask in (steady.closed_loop, steady.together):
        few, many = (ask(c, load, wide, x).output_tokens_per_second for x in (n, n + extra))
        assert no_more(few, many)
    few, many = (steady.saturated(c, load, replace(policy, running=float(x))) for x in (n, n + extra))
    assert no_more(few.output_tokens_per_second, many.output_tokens_per_second)


@given(setups, loads, policies, batches, more)
def test_more_users_than_run_at_once_never_yield_less_and_wait(
    setup: Any, load: Load, policy: Policy, n: int, extra: int
) -> None:
    c, policy = of(setup, replace(policy, running=float(n)))
    all_run, some_wait = (steady.closed_loop(c, load, policy, x) for x in (n, n + extra))
    assert no_more(all_run.requests_per_second, some_wait.requests_per_second)
    assert some_wait.waiting_seconds > 0


# A prompt of one chunk keeps one stage busy at a time, one of two chunks both: it may well be quicker.
@given(setups.filter(lambda setup: setup[2].pp == 1), loads, policies, batches, st.integers(1, 5000))
def test_a_longer_prompt_never_answers_sooner(
    setup: Any, load: Load, policy: Policy, n: int, extra: int
) -> None:
    c, policy = of(setup, policy)
    long = replace(load, prompt_tokens=load.prompt_tokens + extra)
    assert no_more(prompt.prompt_seconds(c, load, policy), prompt.prompt_seconds(c, long, policy))
    assert no_more(prompt.prompts_seconds(c, load, policy, n), prompt.prompts_seconds(c, long, policy, n))
    # Where prompts fill the steps fewer decode beside them, and the step that a request meets is the shorter
    # for it: of caches of thousands of tokens that is a little more than the prompt's own tokens add.
    full = steady._fed(long, policy) < min(n, policy.running)
    for ask in (steady.closed_loop, steady.together):
        before, after = ask(c, load, policy, n), ask(c, long, policy, n)
        near = 1.03 if full and ask is steady.closed_loop else 1
        assert no_more(before.ttft_seconds, near * after.ttft_seconds)
        assert no_more(after.output_tokens_per_second, near * before.output_tokens_per_second)


@given(setups, loads, policies, batches, more)
def test_more_users_never_get_their_tokens_sooner(
    setup: Any, load: Load, policy: Policy, n: int, extra: int
) -> None:
    c, policy = of(setup, policy)
    few, many = (steady.closed_loop(c, load, policy, x) for x in (n, n + extra))
    assert no_more(few.tpot_seconds, many.tpot_seconds)


@given(setups, loads, policies, st.floats(0.01, 0.9), st.floats(1.001, 1.09))
def test_a_higher_rate_never_gets_its_tokens_sooner(
    setup: Any, load: Load, policy: Policy, share: float, times: float
) -> None:
    load = replace(load, output_tokens=load.output_tokens + 31)
    c, policy = of(setup, policy)
    rate = share * steady.saturated(c, load, policy).requests_per_second
    calm, busy = (steady.open_loop(c, load, policy, x) for x in (rate, rate * times))
    assert calm.tpot_seconds <= busy.tpot_seconds * (1 + 1e-3)  # the steady state is found within that
    assert calm.concurrency <= busy.concurrency * (1 + 1e-2)


def test_only_a_chunks_end_makes_a_longer_context_lighter() -> None:
    c = clock(CHUNKED)
    at = [c.floor(Step(64, n)) for n in (8000, 8192, 8193, 16_384)]
    assert at[0] < at[1] > at[2] < at[3]
