"""A floor counts only what no engine can leave out, and says which peak it was taken at."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvplan
from kvplan.cost import pairs, work
from kvplan.cost.weights import read_bytes
from kvplan.facts.catalogue import entries
from kvplan.figure import bare
from kvplan.model.locate import load_model

SPARSE = ("deepseek-v3.2", "zai-org/GLM-5", "zai-org/GLM-5.3", "minimax-m3", "deepseek-ai/DeepSeek-V4-Flash")
EXPERTS = ("deepseek-v3", "qwen3-30b-a3b", "openai/gpt-oss-120b", "llama-4-scout-17b-16e-instruct", *SPARSE)
SMALL, WIDE = st.integers(1, 400), st.integers(1, 60)


def latency(model: Any, gpu: str = "h200", **load: Any) -> dict[str, Any]:
    """The latency part of a plan on a card with room for anything."""
    load = {"batch": 1, "prompt_tokens": 1000, "output_tokens": 1, **load}
    load["max_model_len"] = load["prompt_tokens"] + load["output_tokens"]
    found: dict[str, Any] = kvplan.plan(model, gpu=gpu, gpu_memory="2000GB", **load)["latency"]
    return found


@given(SMALL, WIDE)
def test_windowed_pairs_are_those_a_count_finds(tokens: int, window: int) -> None:
    assert pairs.windowed_pairs(tokens, window) == sum(min(i, window) for i in range(1, tokens + 1))


@given(SMALL, WIDE)
def test_chunked_pairs_are_those_a_count_finds(tokens: int, chunk: int) -> None:
    counted = [sum(j // chunk == i // chunk for j in range(i + 1)) for i in range(tokens)]
    assert pairs.chunked_pairs(tokens, chunk) == sum(counted)
    assert pairs.chunk_position(tokens, chunk) == counted[-1]


@given(SMALL, WIDE, st.integers(1, 40))
def test_pairs_of_slots_are_those_a_count_finds(tokens: int, stride: int, attended: int) -> None:
    slots = [i // stride for i in range(1, tokens + 1)]
    assert pairs.slot_pairs(tokens, stride) == sum(slots)
    assert pairs.selected_pairs(tokens, stride, attended) == sum(min(n, attended) for n in slots)


def test_causal_pairs_are_windowed_ones_without_a_window() -> None:
    assert pairs.causal_pairs(777) == pairs.windowed_pairs(777, 777) == pairs.slot_pairs(777, 1)


def test_a_sparse_decode_step_reads_index_keys_and_the_picked_latents() -> None:
    few, many = (
        latency("deepseek-v3.2", tp=8, batch=n, prompt_tokens=99_999, output_tokens=2)["decode"]
        for n in (8, 16)
    )
    cached = 61 * (2048 * 576 * 2 + 100_000 * 128)
    assert many["bytes_read"] - few["bytes_read"] == 8 * cached
    assert few["lower_bound_seconds"] < 0.0058


def test_layers_that_share_an_indexer_read_no_index_keys_of_their_own() -> None:
    model = load_model("zai-org/GLM-5.3")
    own, layers = (
        sum(f(a) for x in model.layers for a in x.attentions) for f in (lambda a: a.index_width > 0, bool)
    )
    few, many = (latency("zai-org/GLM-5.3", prompt_tokens=n)["decode"]["bytes_read"] for n in (3000, 4000))
    assert layers > own > 0
    assert many - few == own * 128 * 1000


def test_a_sparse_prefill_is_not_quadratic_but_for_the_indexer() -> None:
    model = load_model("deepseek-v3.2")
    matrices = int(work.prefill_matmul_flops(model, 50_000, bare))
    attended = sum(min(i, 2048) for i in range(1, 50_001))
    scored = sum(range(2049, 50_001))
    attention = 61 * 2 * (128 * (128 + 64 + 128) * attended + 64 * 128 * scored)
    assert latency("deepseek-v3.2", prompt_tokens=50_000)["prefill"]["flops"] == matrices + attention


@given(st.sampled_from(SPARSE), st.integers(1, 150_000), st.integers(1, 64))
def test_a_sparse_floor_never_exceeds_one_tokens_experts_index_keys_and_the_pick(
    name: str, context: int, batch: int
) -> None:
    model = load_model(name)
    always, one = read_bytes(model)
    least = always + work.expert_counts(model)[1] * one
    cached, held = 0, context + 1  # the one token that is made lies half a token further on
    for a in (a for layer in model.layers for a in layer.attentions):
        width = a.key_width + (a.value_width or 0)
        slots = min(held // a.stride, a.attended or a.window or held)
        cached += 2 * (slots * a.kv_heads * width + held // a.index_stride * a.index_width)
    assert latency(name, batch=batch, prompt_tokens=context)["decode"]["bytes_read"] <= least + batch * cached


@given(st.sampled_from(EXPERTS), st.integers(1, 150_000))
def test_a_prefill_writes_no_more_than_size_says_is_held(name: str, tokens: int) -> None:
    one, two = (latency(name, batch=n, prompt_tokens=tokens)["prefill"]["bytes_read"] for n in (1, 2))
    assert 0 < two - one <= kvplan.size(name, tokens=tokens)["kv"]["bytes_per_sequence"]


@given(st.sampled_from(SPARSE), st.integers(1, 150_000), st.integers(1, 5000))
def test_a_longer_context_never_lowers_a_sparse_floor(name: str, context: int, more: int) -> None:
    short, long = (latency(name, prompt_tokens=n) for n in (context, context + more))
    for key in ("flops", "bytes_read"):
        assert short["prefill"][key] <= long["prefill"][key]
        assert short["decode"][key] <= long["decode"][key]


@pytest.mark.parametrize("name", EXPERTS)
def test_a_batch_may_send_every_token_to_the_same_experts(name: str) -> None:
    model = load_model(name)
    always, one = read_bytes(model)
    active = work.expert_counts(model)[1]
    at = {n: latency(name, batch=n, prompt_tokens=1)["decode"]["bytes_read"] for n in (1, 2, 64)}
    each = at[2] - at[1]
    assert at[64] - 64 * each == at[1] - each == pytest.approx(always + active * one, rel=1e-2)  # norms apart
    assert at[1] - each <= always + active * one


def test_idle_experts_may_take_the_place_of_real_ones() -> None:
    model = load_model("qwen3-30b-a3b")
    layer = next(x for x in model.layers if any(w.part == "expert" for w in x.weights))
    idle = tuple(replace(w, outputs=w.outputs + 3) if w.name == "router" else w for w in layer.weights)
    changed = replace(model, layers=(replace(layer, weights=idle),))
    assert work.expert_counts(changed) == (128, 8 - 3)


def test_the_expected_experts_stay_between_one_tokens_and_all() -> None:
    model = load_model("qwen3-30b-a3b")
    always, one = read_bytes(model)
    expected = [work.expected_weight_bytes_read(model, n, bare) for n in (1, 2, 64, 4096)]
    assert expected[0] == pytest.approx(always + 8 * one)
    assert expected == sorted(expected)
    assert expected[-1] == pytest.approx(always + 128 * one)


def test_pipeline_stages_share_the_work_of_a_rank() -> None:
    one, two = (latency("llama-3.1-8b", pp=pp, batch=4) for pp in (1, 2))
    assert two["prefill"]["flops"] == one["prefill"]["flops"] // 2
    assert two["prefill"]["bytes_read"] == one["prefill"]["bytes_read"] // 2
    assert two["decode"]["flops"] == one["decode"]["flops"] // 2


def test_each_of_a_pipelines_batches_reads_the_weights_anew() -> None:
    one, two, four = (latency("llama-3.1-8b", pp=pp, batch=4, output_tokens=2)["decode"] for pp in (1, 2, 4))
    cache = 4 * 1001 * 131_072
    assert one["bytes_read"] - two["bytes_read"] == cache // 2
    assert two["bytes_read"] - four["bytes_read"] == cache // 4


def test_llama_4_attends_within_its_chunks() -> None:
    name = "meta-llama/Llama-4-Scout-17B-16E-Instruct"
    model = load_model(name)
    chunk = 8192 * 8193 // 2
    attention = 2 * 40 * 256 * (36 * 16 * chunk + 12 * pairs.causal_pairs(131_072))
    expected = int(work.prefill_matmul_flops(model, 131_072, bare)) + attention
    assert latency(name, prompt_tokens=131_072)["prefill"]["flops"] == expected


def test_a_step_past_a_chunks_end_reads_one_token_of_it() -> None:
    name = "meta-llama/Llama-4-Scout-17B-16E-Instruct"
    last, first = (latency(name, prompt_tokens=n)["decode"]["bytes_read"] for n in (8192, 8193))
    assert last - first == 2 * 2 * 8 * 128 * (36 * 8191 - 12)


@pytest.mark.parametrize(
    ("model", "gpu", "taken", "missing"),
    [
        ("deepseek-v3", "a100-sxm-80gb", "bf16", "fp8"),
        ("openai/gpt-oss-20b", "h100", "bf16", "fp4"),
        ("llama-3.1-8b", "v100-sxm2-32gb", "fp16", "bf16"),
        ("openai/gpt-oss-20b", "l4", "bf16", "fp4"),
    ],
)
def test_a_peak_names_the_format_it_is_of(model: str, gpu: str, taken: str, missing: str) -> None:
    (peak,) = kvplan.plan(model, gpu=gpu, gpu_memory="2000GB").find("peak_flops_per_second")
    assert peak.source is not None
    assert peak.source.where.startswith(f"dense {taken} (")
    assert f"has no {missing} peak of its own" in peak.source.where


def test_attention_on_an_8_bit_cache_may_run_at_the_8_bit_peak() -> None:
    wide, narrow = (
        latency("llama-3.1-8b", "h100", prompt_tokens=100_000, kv_cache_dtype=name)["prefill"]
        for name in ("auto", "fp8")
    )
    attention = 2 * 32 * 32 * 256 * pairs.causal_pairs(100_000)
    assert wide["flops"] == narrow["flops"]
    saved = attention / 989e12 - attention / 1979e12
    assert wide["lower_bound_seconds"] - narrow["lower_bound_seconds"] == pytest.approx(saved)


@pytest.mark.parametrize("entry", entries(), ids=lambda e: e.id)
def test_work_is_counted_in_whole_operations_and_bytes(entry: Any) -> None:
    found = latency(entry.id, "b300", batch=3, prompt_tokens=777, output_tokens=9)
    for phase in ("prefill", "decode"):
        assert [type(found[phase][key]) for key in ("flops", "bytes_read")] == [int, int]


@pytest.mark.parametrize("model", ["llama-3.1-8b", "qwen3-30b-a3b", "deepseek-v3"])
def test_from_the_explained_batch_on_decode_waits_for_compute(model: str) -> None:
    answer = kvplan.plan(
        model, gpu="h100", gpu_memory="2000GB", prompt_tokens=16, output_tokens=2, max_model_len=2048
    )
    first = answer["latency"]["batches"]["compute_bound_batch"]
    (figure,) = answer.find("compute_bound_batch")
    assert figure.value == first
    assert "the first batch that computes for longer" in figure.doc.lower()
    bounds = [
        latency(model, "h100", batch=n, prompt_tokens=16, output_tokens=2)["decode"]["bound"]
        for n in (first - 1, first)
    ]
    assert bounds == ["memory", "compute"]
