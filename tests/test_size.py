"""`size` says what one token, one sequence and one batch cost, for every architecture people serve."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvplan
from kvplan.facts.catalogue import entries

MiB, GiB = 2**20, 2**30
ANY_MODEL = st.sampled_from([entry.id for entry in entries()])


def test_grouped_heads_cost_131072_bytes_a_token(llama8b: dict[str, Any]) -> None:
    kv = kvplan.size(llama8b, tokens=4096)["kv"]
    assert kv["bytes_per_token"] == 131_072
    assert kv["bytes_per_sequence"] == 512 * MiB
    assert kv["mha_bytes_per_token"] == 4 * 131_072


def test_a_kv_head_for_every_query_head_costs_four_times_that(llama8b: dict[str, Any]) -> None:
    assert (
        kvplan.size({**llama8b, "num_key_value_heads": 32}, tokens=4096)["kv"]["bytes_per_sequence"]
        == 4 * 512 * MiB
    )


def test_llama_2_70b_in_16_and_8_bit() -> None:
    assert kvplan.size("llama-2-70b")["kv"]["bytes_per_token"] == 327_680
    assert kvplan.size("llama-2-70b", kv_cache_dtype="fp8")["kv"]["bytes_per_token"] == 163_840
    assert kvplan.size("llama-2-70b", tokens=4096, batch=64)["kv"]["bytes_total"] == 80 * GiB
    assert (
        kvplan.size("llama-2-70b", tokens=4096, batch=64, kv_cache_dtype="int8")["kv"]["bytes_total"]
        == 40 * GiB
    )


def test_latent_attention_is_one_vector_on_every_rank() -> None:
    assert kvplan.size("deepseek-v3")["kv"]["bytes_per_token"] == 70_272
    assert kvplan.size("deepseek-v3", tp=8)["kv"]["bytes_per_token"] == 70_272
    assert kvplan.size("deepseek-v3", kv_cache_dtype="fp8_ds_mla")["kv"]["bytes_per_token"] == 61 * 656


def test_multi_query_attention_has_one_head_of_71() -> None:
    kv = kvplan.size("falcon-7b")["kv"]
    assert kv["mha_bytes_per_token"] == 71 * kv["bytes_per_token"]


# What published planners get wrong at 8,192 tokens of one sequence in 16 bit; these are the true bytes.
TRUE_AT_8192 = {
    "deepseek-ai/DeepSeek-V3": 575_668_224,
    "google/gemma-2-9b-it": 2_113_929_216,
    "google/gemma-3-27b-it": 1_107_296_256,
    "openai/gpt-oss-120b": 306_708_480,
    "mistralai/Mistral-7B-v0.1": 536_870_912,
}


@pytest.mark.parametrize(("name", "true"), TRUE_AT_8192.items())
def test_what_planners_get_wrong_is_exact_here(name: str, true: int) -> None:
    assert kvplan.size(name, tokens=8192)["kv"]["bytes_per_sequence"] == true


@pytest.mark.parametrize(
    ("name", "cache"),
    [("ai21labs/AI21-Jamba-1.5-Mini", 134_217_728), ("Qwen/Qwen3-Next-80B-A3B-Instruct", 201_326_592)],
)
def test_a_hybrid_costs_its_attention_layers_and_its_state(name: str, cache: int) -> None:
    kv = kvplan.size(name, tokens=8192)["kv"]
    assert kv["state_bytes_per_sequence"] > 0
    assert kv["bytes_per_sequence"] == cache + kv["state_bytes_per_sequence"]


def test_heads_are_replicated_when_ranks_outnumber_them() -> None:
    per_rank = [kvplan.size("Qwen/Qwen3-30B-A3B", tp=tp)["kv"]["bytes_per_token"] for tp in (1, 2, 4, 8)]
    assert per_rank == [98_304, 49_152, 24_576, 24_576]


def test_layer_kinds_count_every_layer() -> None:
    assert kvplan.size("google/gemma-3-27b-it")["kv"]["layer_kinds"] == {"sliding": 52, "full": 10}
    assert kvplan.size("Qwen/Qwen3-Next-80B-A3B-Instruct")["kv"]["layer_kinds"] == {
        "recurrent": 36,
        "full": 12,
    }
    assert kvplan.size("google/gemma-3n-E4B-it")["kv"]["layer_kinds"] == {
        "sliding": 16,
        "full": 4,
        "shared": 15,
    }
    assert kvplan.size("tiiuae/Falcon-H1-7B-Instruct")["kv"]["layer_kinds"] == {"full": 44, "recurrent": 44}


FORMAT_BYTES = {
    "float32": 4 * 256, "bfloat16": 512, "float16": 512, "fp8": 256, "fp8_e5m2": 256, "int8": 256,
    "int4": 128,
    "int8_per_token_head": 256 + 8, "int4_per_token_head": 128 + 8, "nvfp4": 144, "q8_0": 272, "q4_0": 144,
    "q5_1": 192, "q5_0": 176, "q4_1": 160, "iq4_nl": 144,
}  # fmt: skip


NO_SCALES = {"float32": 32, "bfloat16": 16, "float16": 16, "fp8": 8, "fp8_e5m2": 8, "int8": 8, "int4": 4}


@pytest.mark.parametrize(("name", "head_bytes"), FORMAT_BYTES.items())
def test_every_cache_format_counts_the_scales_kept_beside_its_values(name: str, head_bytes: int) -> None:
    bits = NO_SCALES.get(name)
    values = int("".join(c for c in name.split("_")[0] if c.isdigit())) if bits is None else bits
    scales = head_bytes - 256 * values // 8
    assert scales == 0 if bits else scales > 0


@pytest.mark.parametrize(("name", "head_bytes"), FORMAT_BYTES.items())
def test_a_token_takes_its_formats_bytes_in_every_head(
    llama8b: dict[str, Any], name: str, head_bytes: int
) -> None:
    kv = kvplan.size(llama8b, kv_cache_dtype=name)["kv"]
    assert kv["bytes_per_token"] == 32 * 8 * head_bytes


@pytest.mark.parametrize("name", FORMAT_BYTES)
def test_a_model_with_one_kv_head_per_query_head_is_its_own_mha(name: str) -> None:
    kv = kvplan.size("llama-2-7b", kv_cache_dtype=name, tp=2)["kv"]
    assert kv["mha_bytes_per_token"] == kv["bytes_per_token"]


@pytest.mark.parametrize("dtype", [*FORMAT_BYTES, "mxfp4", "fp8_ds_mla", "nvfp4_ds_mla"])
def test_every_count_of_bytes_is_whole(dtype: str) -> None:
    kv = kvplan.size("deepseek-v3" if "mla" in dtype else "llama-3.1-8b", kv_cache_dtype=dtype)["kv"]
    assert {type(value) for key, value in kv.items() if "bytes" in key} == {int}


def test_a_block_format_that_does_not_divide_the_row_is_an_error(llama8b: dict[str, Any]) -> None:
    odd = {**llama8b, "head_dim": 72, "num_key_value_heads": 1}
    with pytest.raises(kvplan.KvplanError, match="q8_0 stores 32 values a block"):
        kvplan.size(odd, kv_cache_dtype="q8_0")


def test_the_packed_latent_layout_is_refused_for_other_models(llama8b: dict[str, Any]) -> None:
    with pytest.raises(kvplan.KvplanError, match="fp8_ds_mla is a layout for latent attention"):
        kvplan.size(llama8b, kv_cache_dtype="fp8_ds_mla")


def test_index_keys_are_counted_apart_and_in_the_sequence() -> None:
    kv = kvplan.size("deepseek-v3.2", tokens=1000)["kv"]
    assert kv["indexer_bytes_per_token"] == 15_616
    assert kv["bytes_per_sequence"] == 1000 * (kv["bytes_per_token"] + 15_616)


def test_image_tokens_count_only_where_cross_attention_keeps_them(llama8b: dict[str, Any]) -> None:
    vision = kvplan.size("meta-llama/Llama-3.2-11B-Vision-Instruct", image_tokens=1601)["kv"]
    assert vision["state_bytes_per_sequence"] == 8 * 8 * 256 * 2 * 1601
    with pytest.raises(kvplan.KvplanError, match="no cross-attention"):
        kvplan.size(llama8b, image_tokens=1601)


@given(ANY_MODEL, st.integers(1, 300_000), st.integers(1, 5000))
def test_a_longer_context_never_costs_less(name: str, tokens: int, more: int) -> None:
    shorter, longer = (
        kvplan.size(name, tokens=t)["kv"]["bytes_per_sequence"] for t in (tokens, tokens + more)
    )
    assert longer >= shorter


@given(ANY_MODEL, st.integers(1, 100_000), st.integers(1, 1000))
def test_a_batch_costs_its_sequences(name: str, tokens: int, batch: int) -> None:
    kv = kvplan.size(name, tokens=tokens, batch=batch)["kv"]
    assert kv["bytes_total"] == batch * kv["bytes_per_sequence"]


@given(ANY_MODEL)
def test_growth_after_windows_never_exceeds_growth_within(name: str) -> None:
    kv = kvplan.size(name)["kv"]
    assert kv["bytes_per_token_after_windows"] <= kv["bytes_per_token"]


@given(ANY_MODEL, st.integers(0, 4))
def test_the_ranks_together_hold_at_least_the_whole(name: str, power: int) -> None:
    tp = 2**power
    try:
        one = kvplan.size(name, tp=tp)["kv"]["bytes_per_token"]
    except kvplan.KvplanError:
        with pytest.raises(kvplan.KvplanError, match="--tp"):
            kvplan.size(name, tp=tp)
        return
    assert one * tp >= kvplan.size(name)["kv"]["bytes_per_token"]


def test_reading_a_model_again_gives_the_same_answer() -> None:
    assert kvplan.size("gemma-3-27b", tokens=777) == kvplan.size("gemma-3-27b", tokens=777)


def test_an_unknown_model_type_says_what_was_assumed(llama8b: dict[str, Any]) -> None:
    answer = kvplan.size({**llama8b, "model_type": "brand_new"})
    assert answer["kv"]["bytes_per_token"] == 131_072
    assert "model_type brand_new" in answer["notes"][0]
    assert "Llama-like" in answer["notes"][0]
