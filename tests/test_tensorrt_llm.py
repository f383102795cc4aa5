"""TensorRT-LLM's arithmetic: worked numbers, windows, splits and formats."""

from __future__ import annotations

from typing import Any

import pytest

from kvplan.engines.engine import Capacity, Setup
from kvplan.engines.tensorrt_llm import (
    available_bytes,
    capacity,
    free_gpu_memory_fraction,
    temporary_blocks,
)
from kvplan.errors import BadInput
from kvplan.figure import sourced
from kvplan.model.locate import load_model

GiB = 2**30
LLAMA, GPT_OSS, V3 = "meta-llama/Llama-3.1-8B-Instruct", "openai/gpt-oss-20b", "deepseek-ai/DeepSeek-V3"


def asked(name: str, pool: float | None, **setup: Any) -> Capacity:
    flags = setup.pop("flags", {})
    given = None if pool is None else int(pool * GiB)
    return capacity(load_model(name), Setup("tensorrt-llm", "1.2.1", flags, **setup), given)


def test_llama_on_an_h100_from_the_dry_run_to_blocks() -> None:
    pool = available_bytes(int(79.1 * GiB), int(17.5 * GiB), GiB, 0.9)
    found = asked(LLAMA, pool / GiB)
    assert pool // 131072 == 461537 or pool // 131072 == 461536
    assert (found.num_blocks, found.kv_tokens) == (14423, 461536)
    assert found.block_tokens == 32


def test_the_dry_run_keeps_blocks_for_its_dummy_requests() -> None:
    assert temporary_blocks(8192, 4096, 64, 64, 32) == 257
    assert temporary_blocks(8192, 131072, 64, 64, 32) == 4097 + 63
    assert temporary_blocks(8192, 4096, 2048, 64, 32) == 2048


def test_the_fraction_is_a_flag_or_the_default() -> None:
    assert free_gpu_memory_fraction(Setup("tensorrt-llm", "")) == 0.9
    flags = {"free_gpu_memory_fraction": 0.5}
    assert free_gpu_memory_fraction(Setup("tensorrt-llm", "", flags)) == 0.5
    with pytest.raises(BadInput, match="free_gpu_memory_fraction"):
        free_gpu_memory_fraction(Setup("tensorrt-llm", "", {"free_gpu_memory_fraction": 1.5}))


def test_splits_divide_heads_and_not_latents() -> None:
    assert asked(LLAMA, 10, tp=4).bytes_per_block == 32 * 131072 // 4
    assert asked(LLAMA, 10, tp=4, attention_dp=4).bytes_per_block == 32 * 131072
    assert asked(LLAMA, 10, pp=2).bytes_per_block == 32 * 131072 // 2
    assert asked(V3, 10, tp=8).bytes_per_block == 32 * 61 * 1152


def test_fewer_heads_than_ranks_allocate_more_than_is_estimated() -> None:
    found = asked(LLAMA, 10, tp=16)
    assert found.bytes_per_block == 32 * 131072 // 8
    assert any("estimate" in note for note in found.notes)


def test_formats_have_their_sizes() -> None:
    assert asked(LLAMA, 10, kv_cache_dtype="fp8").bytes_per_block == 32 * 65536
    assert asked(LLAMA, 10, kv_cache_dtype="nvfp4").bytes_per_block == 32 * (65536 // 2 + 65536 // 16)
    assert asked(V3, 10, kv_cache_dtype="fp8").bytes_per_block == 32 * 35136
    assert asked("nvidia/DeepSeek-V3.1-NVFP4", 10).bytes_per_block in (32 * 35136, 32 * 70272)
    with pytest.raises(BadInput, match="q4_0"):
        asked(LLAMA, 10, kv_cache_dtype="q4_0")


def test_windows_share_the_pool_equally() -> None:
    flags = {"max_attention_window": [128, 131072]}
    found = asked(GPT_OSS, 20, flags=flags)
    half, layers = 10 * GiB, 12 * 2048
    assert [g.cells for g in found.groups] == [half // layers // 32 * 32] * 2
    assert found.kv_tokens == half // layers // 32 * 32
    shared = asked(GPT_OSS, 20, flags={**flags, "TRTLLM_WINDOW_SIZE_SHARES": [0.1, 0.9]})
    assert shared.kv_tokens == int(20 * GiB * 0.9 // layers) // 32 * 32
    assert any("charged in full" in n for n in asked(GPT_OSS, 20).notes)


def test_caps_and_lengths() -> None:
    assert asked(LLAMA, 10, flags={"max_tokens": 1000}).kv_tokens == 992
    assert asked(LLAMA, 10, flags={"max_gpu_total_bytes": GiB}).kv_tokens == 8192
    short = asked(LLAMA, 1, flags={"max_seq_len": 16384})
    assert short.estimated_max_model_len == 8192
    assert any("reduced" in note for note in short.notes)
    assert asked(LLAMA, 0).fits is False
    assert asked(LLAMA, None).kv_tokens is None
    assert any("host pool" in n for n in asked(LLAMA, 1, flags={"host_cache_size": GiB}).notes)


@pytest.mark.parametrize(
    "flags",
    [
        {"max_attention_window": 4096},
        {"max_attention_window": []},
        {"tokens_per_block": 0},
        {"max_tokens": "many"},
        {"max_attention_window": [128, 4096], "TRTLLM_WINDOW_SIZE_SHARES": [0.5]},
    ],
)
def test_a_bad_flag_is_named(flags: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        asked(LLAMA, 10, flags=flags)


def test_figures_explain_themselves() -> None:
    model, setup = load_model(LLAMA), Setup("tensorrt-llm", "1.2.1")
    told = capacity(model, setup, 10 * GiB, sourced)
    assert told.kv_tokens == capacity(model, setup, 10 * GiB).kv_tokens
    assert "tokens_per_block" in told.kv_tokens.explain()
