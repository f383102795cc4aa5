"""A step's work, counted: against arithmetic done by hand, the whole model's counts, and its weights."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvplan.cost import cache, reads, work
from kvplan.cost.operations import Ranks, operations_of
from kvplan.cost.step import Step, items_of, touched_experts
from kvplan.cost.weights import Split, quantization_of, read_bytes, shape_bytes
from kvplan.facts.accelerators import find_accelerator
from kvplan.facts.catalogue import entries
from kvplan.facts.formats import find_format
from kvplan.figure import Source, Trust, bare
from kvplan.model.locate import load_model
from latency_cases import clock

MODELS = [entry.id for entry in entries()]
DENSE = ("llama-3.1-8b", "meta-llama/Llama-3.1-70B-Instruct", "qwen2.5-7b-instruct")
SPARSE = ("qwen3-30b-a3b", "deepseek-v3", "deepseek-v3.2", "openai/gpt-oss-120b")
LATENT = ("deepseek-v3", "deepseek-v3.2")
# Matrices of theirs are known by size alone, not by sides: nothing is multiplied with them.
FLAT = {"google/gemma-3n-E4B-it", "Zyphra/Zamba2-2.7B"}


def flops(ops: Any, step: Step, *kinds: str) -> float:
    """Operations of a whole step on one rank, of all kinds or some."""
    return sum(i.layers * i.flops for i in items_of(ops, step) if not kinds or i.kind.startswith(kinds))


def least_bytes(ops: Any, step: Step, *kinds: str) -> float:
    """Bytes that the floor counts."""
    return sum(i.layers * i.least_bytes for i in items_of(ops, step) if not kinds or i.kind.startswith(kinds))


def whole_rank(model: str, ranks: Ranks | None = None) -> Any:
    """The operations of one rank with a cache in 16 bit."""
    return operations_of(load_model(model), ranks or Ranks(), 2.0, "bf16")


def test_the_floor_of_a_llama_step_is_what_a_hand_finds() -> None:
    batch, context, layers, hidden, inner, vocab = 16, 3000, 32, 4096, 14_336, 128_256
    a = find_accelerator("h100", "gpu")
    peak, rate = a.peaks["bf16"], a.bytes_per_second
    matrices = [6144 * hidden, hidden * hidden, 2 * inner * hidden, hidden * inner]
    seconds = sum(layers * max(2 * m * batch / peak, 2 * m / rate) for m in matrices)
    seconds += max(2 * vocab * hidden * batch / peak, 2 * vocab * hidden / rate)
    cache_bytes = batch * context * 2 * 8 * 128 * 2
    seconds += layers * max(2 * 32 * 256 * batch * context / peak, cache_bytes / rate)
    assert clock("llama-3.1-8b").floor(Step(batch, context)) == pytest.approx(seconds, rel=1e-12)


def test_the_floor_of_a_deepseek_step_is_what_a_hand_finds() -> None:
    batch, context, hidden, dense, sparse = 64, 5000, 7168, 3, 58
    a = find_accelerator("h200", "gpu")
    fp8, bf16, rate = a.peaks["fp8"], a.peaks["bf16"], a.bytes_per_second

    def matrix(outputs: int, inputs: int) -> float:
        scales = -(-outputs // 128) * -(-inputs // 128) * 4  # a float32 for each block of 128 × 128
        return max(2 * outputs * inputs * batch / fp8, (outputs * inputs + scales) / rate)

    first = sum(-(-n // 128) for n in (1536, 576))  # the two down projections are multiplied as one
    attention = max(2 * 2112 * hidden * batch / fp8, (2112 * hidden + first * 56 * 4) / rate)
    attention += matrix(128 * 192, 1536) + matrix(128 * 256, 512) + matrix(hidden, 128 * 128)
    latents = max(2 * 128 * (2 * 512 + 64) * batch * context / bf16, batch * context * 576 * 2 / rate)
    router = max(2 * 256 * hidden * batch / bf16, 2 * 256 * hidden / rate)
    shared = matrix(2 * 2048, hidden) + matrix(hidden, 2048)
    one = 3 * 2048 * hidden + 3 * 16 * 56 * 4
    routed = max(2 * 3 * 2048 * hidden * 8 * batch / fp8, 8 * one / rate)
    head = max(2 * 129_280 * hidden * batch / bf16, 2 * 129_280 * hidden / rate)
    mlp = matrix(2 * 18_432, hidden) + matrix(hidden, 18_432)
    seconds = (dense + sparse) * (attention + latents) + dense * mlp
    seconds += sparse * (router + shared + routed) + head
    assert clock("deepseek-v3", "h200").floor(Step(batch, context)) == pytest.approx(seconds, rel=1e-9)


@pytest.mark.parametrize("model", MODELS)
def test_a_prompts_operations_are_those_of_the_whole_model(model: str) -> None:
    read, tokens = load_model(model), 1237
    step = Step(prompts=1, chunk=tokens)
    matrices = flops(whole_rank(model), step, "matmul", "experts")
    counted = int(work.prefill_matmul_flops(read, tokens, bare))
    padded = 2 * (-(-read.vocab // 64) * 64 - read.vocab) * read.hidden
    assert matrices == pytest.approx(counted + padded, rel=2e-3)
    attention = flops(whole_rank(model), step, "attention", "mla")
    assert attention == pytest.approx(int(work.prefill_attention_flops(read, tokens, bare)), rel=1e-9)


@pytest.mark.parametrize("model", MODELS)
def test_chunks_of_a_prompt_are_together_the_prompt(model: str) -> None:
    ops = whole_rank(model)
    whole = flops(ops, Step(prompts=1, chunk=3000), "attention", "mla")
    chunks = [Step(prompts=1, chunk=1000, depth=depth) for depth in (0, 1000, 2000)]
    assert sum(flops(ops, step, "attention", "mla") for step in chunks) == pytest.approx(whole, rel=1e-9)


def test_an_endless_batch_reads_every_weight_of_the_rank() -> None:
    short = {}
    for model in MODELS:
        read = load_model(model)
        q = quantization_of(read)
        if q is not None and q.unknown:
            continue  # a scheme that is not known has no bytes of its own
        ops = whole_rank(model)
        items = items_of(ops, Step(10**7, 1))
        found = sum(i.layers * i.expected for i in items if i.kind in ("matmul", "experts"))
        always, one = read_bytes(read)
        wanted = always + max((e.experts for e in ops.experts), default=0) * one
        if found != pytest.approx(wanted, rel=0.02):
            short[model] = found / wanted
    assert set(short) == FLAT
    assert all(0.8 < part < 1 for part in short.values())


@pytest.mark.parametrize("model", [*DENSE, *SPARSE, "gemma-3-27b-it", "deepseek-ai/DeepSeek-V4-Flash"])
@pytest.mark.parametrize("context", [1, 700, 5000, 100_000])
def test_a_step_reads_of_the_cache_what_a_sequence_must(model: str, context: int) -> None:
    source = Source(Trust.STATED, "as asked")
    stored = cache.Stored(find_format("bfloat16", "kv"), 1, source, source)
    read = load_model(model)
    wanted = reads.sequence_bytes_read(read, stored, context, bare)
    found = least_bytes(whole_rank(model), Step(3, context), "attention", "mla", "state")
    assert found == pytest.approx(3 * wanted, rel=1e-9)


@pytest.mark.parametrize("model", [*DENSE, *SPARSE])
@pytest.mark.parametrize("tp", [2, 4])
def test_ranks_share_matrices_evenly_where_heads_divide(model: str, tp: int) -> None:
    one, each = whole_rank(model), whole_rank(model, Ranks(tp=tp))
    step = Step(8, 2000)
    names = {"o_proj", "gate_proj+up_proj", "down_proj", "experts", "q_b_proj", "kv_b_proj"}
    for whole, share in zip(items_of(one, step), items_of(each, step), strict=False):
        if whole.name in names:
            assert share.flops == pytest.approx(whole.flops / tp)
    decode = [flops(ops, step, "attention", "mla") for ops in (one, each)]
    if model not in LATENT[1:]:  # an indexer's heads are on every rank
        assert decode[1] == pytest.approx(decode[0] / tp)


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_ranks_hold_as_many_bytes_of_matrices_as_they_load(tp: int) -> None:
    for model in DENSE:
        read = load_model(model)
        found = least_bytes(whole_rank(model, Ranks(tp=tp)), Step(1, 1), "matmul")
        table = -(-read.vocab // 64) * 64 * read.hidden * 2 // tp
        assert found + table == pytest.approx(int(shape_bytes(read, bare, Split(tp=tp))), rel=2e-3)


def test_attention_groups_share_the_sequences_and_repeat_the_weights() -> None:
    one = whole_rank("deepseek-v3", Ranks(tp=8, ep=8, attention_dp=8))
    alone = whole_rank("deepseek-v3")
    step = Step(64, 4000)
    assert flops(one, step, "mla") == pytest.approx(flops(alone, step, "mla") / 8)
    assert flops(one, step, "experts") == pytest.approx(flops(alone, step, "experts") / 8)
    weights = [least_bytes(ops, step, "matmul") for ops in (one, alone)]
    assert weights[0] > weights[1] / 2


@given(st.sampled_from([(8, 2), (64, 6), (128, 8), (256, 8)]), st.integers(1, 40))
def test_touched_experts_are_those_that_dice_touch(shape: tuple[int, int], tokens: int) -> None:
    experts, chosen = shape
    dice, runs = random.Random(tokens), 400  # noqa: S311
    seen = 0
    for _ in range(runs):
        seen += len({e for _ in range(tokens) for e in dice.sample(range(experts), chosen)})
    assert touched_experts(experts, chosen, tokens, 1) == pytest.approx(seen / runs, rel=0.06)


@given(
    st.sampled_from(MODELS), st.sampled_from(["h100", "mi300x", "rtx4090", "a100"]), st.integers(1, 200_000)
)
def test_no_estimate_is_below_its_floor(model: str, gpu: str, context: int) -> None:
    c = clock(model, gpu)
    for batch in (1, 8, 64, 512):
        for step in (Step(batch, context), Step(prompts=min(batch, 8), chunk=context)):
            assert c.floor(step) <= c.seconds(step)


@pytest.mark.parametrize("model", MODELS)
def test_no_estimate_of_a_built_in_model_is_below_its_floor(model: str) -> None:
    for gpu in ("h100", "b200", "l40s"):
        c = clock(model, gpu)
        for batch in (1, 16, 512):
            step = Step(batch, 2000)
            assert 0 < c.floor(step) <= c.seconds(step)
