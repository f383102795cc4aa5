"""Rules of vLLM's planning that recorded answers do not reach, worked by hand or by arithmetic."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kvplan.engines.engine import Capacity, Setup
from kvplan.engines.vllm import capacity
from kvplan.engines.vllm_packed import common_size
from kvplan.engines.vllm_version import numbers_of, rules_of, since
from kvplan.errors import BadInput, UnknownName
from kvplan.figure import Figure, sourced
from kvplan.model.model import Model
from kvplan.model.read import read_config
from vllm_replay import model_of

GIB = 2**30
LLAMA = "meta-llama__Meta-Llama-3.1-8B.json"
GPT_OSS = "openai__gpt-oss-20b.json"
NEXT = "Qwen__Qwen3-Next-80B-A3B-Instruct.json"
R1 = "deepseek-ai__DeepSeek-V3.json"


def fit(file: str, version: str = "0.32.0", gib: float = 60, setup: Any = None, **flags: Any) -> Capacity:
    """A model on that version with so many GiB for its cache."""
    return capacity(model_of(file), Setup("vllm", version, flags, **(setup or {})), int(gib * GIB))


@pytest.mark.parametrize(
    ("file", "gib", "flags", "setup", "blocks", "tokens", "requests"),
    [
        (LLAMA, 60, {"max_model_len": 131072}, {}, 30720, 491_520, 3.75),
        (LLAMA, 60, {"max_model_len": 131072}, {"kv_cache_dtype": "fp8"}, 61440, 983_040, 7.5),
        (
            GPT_OSS,
            60,
            {"max_model_len": 131072, "max_num_batched_tokens": 8192},
            {},
            163840,
            2_327_895,
            17.76,
        ),
        (R1, 60, {"max_model_len": 163840, "block_size": 16}, {}, 57299, 916_784, 5.6),
        (R1, 60, {"max_model_len": 163840, "block_size": 16}, {"dcp": 8, "tp": 8}, 57299, 7_334_272, 44.76),
        (NEXT, 20, {"max_model_len": 262144}, {}, 1606, 862_711, 3.29),
        (NEXT, 20, {"max_model_len": 262144, "enable_prefix_caching": False}, {}, 1606, 868_047, 3.31),
    ],
)
def test_the_worked_numbers_of_the_reference(
    file: str, gib: int, flags: Any, setup: Any, blocks: int, tokens: int, requests: float
) -> None:
    got = fit(file, gib=gib, setup=setup, **flags)
    assert (got.num_blocks, got.kv_tokens, round(got.max_concurrency, 2)) == (blocks, tokens, requests)


def test_one_more_full_layer_of_a_drafter_widens_every_block() -> None:
    alone = fit(GPT_OSS, max_model_len=131072, max_num_batched_tokens=8192)
    drafted = fit(
        GPT_OSS,
        setup={"drafter": {"method": "eagle3", "num_speculative_tokens": 3}},
        max_model_len=131072,
        max_num_batched_tokens=8192,
    )
    assert (alone.bytes_per_block, drafted.bytes_per_block) == (393_216, 425_984)
    assert (drafted.num_blocks, drafted.kv_tokens) == (151_236, 2_148_813)


def test_a_refusal_states_what_is_needed_and_the_longest_length_that_fits() -> None:
    got = fit(LLAMA, gib=10, max_model_len=131072)
    assert got.fits is False
    assert (got.needed_kv_bytes, got.estimated_max_model_len) == (16 * GIB, 81_904)
    before = fit(LLAMA, "0.28.0", gib=10, max_model_len=131072)
    assert before.estimated_max_model_len == 81_920  # no null block held back


def test_auto_takes_the_longest_length_that_fits() -> None:
    got = fit(LLAMA, gib=10, max_model_len=-1)
    assert got.fits
    assert got.settings["max_model_len"][0] == 81_904
    assert fit(LLAMA, gib=100, max_model_len=-1).settings["max_model_len"][0] == 131_072
    with pytest.raises(BadInput, match=r"0\.14"):
        fit(LLAMA, "0.13.0", max_model_len=-1)


def test_the_smallest_stage_of_a_pipeline_decides() -> None:
    even = fit(LLAMA, setup={"pp": 2}, max_model_len=8192)
    assert even.num_blocks == 2 * fit(LLAMA, max_model_len=8192).num_blocks
    uneven = fit(LLAMA, setup={"pp": 2}, max_model_len=8192, VLLM_PP_LAYER_PARTITION="8,24")
    assert uneven.bytes_per_block == 24 * 65_536
    with pytest.raises(BadInput, match="add up to 32"):
        fit(LLAMA, setup={"pp": 2}, VLLM_PP_LAYER_PARTITION="8,25")


def test_heads_are_repeated_when_there_are_more_ranks() -> None:
    sixteen = fit(LLAMA, setup={"tp": 16}, max_model_len=8192)
    eight = fit(LLAMA, setup={"tp": 8}, max_model_len=8192)
    assert sixteen.bytes_per_block == eight.bytes_per_block == 32 * 16 * 512
    with pytest.raises(BadInput, match="neither divides nor repeats"):
        fit(LLAMA, setup={"tp": 3})


def test_latent_caches_are_whole_on_every_rank() -> None:
    assert fit(R1, setup={"tp": 8}).bytes_per_block == fit(R1).bytes_per_block


@pytest.mark.parametrize(
    ("dtype", "per_head"),
    [("auto", 512), ("fp8", 256), ("fp8_per_token_head", 264), ("int4_per_token_head", 136), ("nvfp4", 144)],
)
def test_a_cache_format_sets_a_head_s_bytes(dtype: str, per_head: int) -> None:
    assert fit(LLAMA, setup={"kv_cache_dtype": dtype}).bytes_per_block == 32 * 16 * 8 * per_head


def test_a_drafter_widens_convolutions_and_takes_state_blocks() -> None:
    drafter = {"drafter": {"method": "mtp", "num_speculative_tokens": 2}}
    plain = fit(NEXT, gib=20, max_model_len=65536)
    drafted = fit(NEXT, gib=20, setup=drafter, max_model_len=65536)
    assert [g.blocks_per_request for g in plain.groups[:3]] == [2, 2, 2]
    assert drafted.groups[0].blocks_per_request == 4
    assert drafted.block_tokens >= plain.block_tokens


def test_blocks_are_raised_in_steps_of_the_given_size_from_0_20_on() -> None:
    assert fit(NEXT, "0.32.0", max_model_len=65536, block_size=128).block_tokens == 640
    assert fit(NEXT, "0.19.0", max_model_len=65536, block_size=128).block_tokens == 544


def test_latent_blocks_follow_the_architecture() -> None:
    sizes = {
        (version, arch): fit(R1, version, setup={"arch": arch}).block_tokens
        for version in ("0.10.2", "0.32.0")
        for arch in ("sm90", "sm100")
    }
    assert list(sizes.values()) == [64, 128, 16, 32]


@pytest.mark.parametrize(
    ("memory", "arch", "version", "tokens", "seqs"),
    [
        (24, "sm89", "0.32.0", 2048, 256),
        (79, "sm90", "0.32.0", 8192, 1024),
        (79, "sm80", "0.32.0", 2048, 256),
        (79, "sm80", "0.8.5", 8192, 1024),
        (180, "sm100", "0.32.0", 16384, 1024),
        (180, "sm100", "0.27.0", 8192, 1024),
    ],
)
def test_the_step_s_tokens_follow_the_device(
    memory: int, arch: str, version: str, tokens: int, seqs: int
) -> None:
    got = fit(LLAMA, version, setup={"arch": arch, "memory_bytes": memory * GIB}).settings
    assert (got["max_num_batched_tokens"][0], got["max_num_seqs"][0]) == (tokens, seqs)


def test_old_engines_count_every_layer_as_full() -> None:
    got = fit("google__gemma-2-27b-it.json", "0.6.6", max_model_len=8192)
    assert len(got.groups) == 1
    assert got.kv_tokens == got.num_blocks * 16
    assert got.max_concurrency == got.kv_tokens / 8192


def test_versions_are_numbers_and_the_newest_is_like_the_one_before() -> None:
    assert numbers_of("0.11.0rc2.dev98+g393de22d2") == (0, 11, 0)
    assert since("0.10.1.1", "0.10.1")
    assert replace(rules_of("0.33.0"), version="") == replace(rules_of("0.32.0"), version="")
    for wrong in ("latest", "0.5.4"):
        with pytest.raises(UnknownName):
            rules_of(wrong)


def test_the_explanation_and_the_answer_are_one() -> None:
    for file in (LLAMA, GPT_OSS, NEXT, R1):
        setup = Setup("vllm", "0.32.0", {"max_model_len": 32768})
        plain = capacity(model_of(file), setup, 30 * GIB)
        told = capacity(model_of(file), setup, 30 * GIB, sourced)
        for name in ("num_blocks", "kv_tokens", "max_concurrency", "bytes_per_block", "kv_bytes"):
            figure = getattr(told, name)
            assert isinstance(figure, Figure)
            assert figure.value == getattr(plain, name)
            assert all(leaf.source for leaf in figure.inputs())


def test_without_a_pool_the_request_is_still_known() -> None:
    got = capacity(model_of(LLAMA), Setup("vllm", "0.32.0", {"max_model_len": 8192}), None)
    assert (got.fits, got.num_blocks, got.needed_kv_bytes) == (None, None, GIB)


def test_an_encoder_keeps_no_cache() -> None:
    got = fit("ibm-granite__granite-embedding-125m-english.json")
    assert got.num_blocks == 1
    assert "keeps a cache" in got.notes[0]


def test_mixers_that_vllm_does_not_serve_are_refused() -> None:
    with pytest.raises(BadInput, match="does not serve"):
        fit("RWKV__rwkv-5-world-3b.json")


def tiny(**keys: Any) -> Model:
    """A small Llama."""
    base = {
        "model_type": "llama",
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "hidden_size": 256,
        "intermediate_size": 512,
        "vocab_size": 1000,
        "max_position_embeddings": 4096,
    }
    return read_config({**base, **keys}, "tiny")


def test_a_checkpoint_names_its_cache_format_from_0_14_on() -> None:
    quantized = tiny(quantization_config={"quant_method": "modelopt", "kv_cache_quant_algo": "FP8"})
    new = capacity(quantized, Setup("vllm", "0.14.0"), GIB)
    old = capacity(quantized, Setup("vllm", "0.13.0"), GIB)
    assert 2 * new.bytes_per_block == old.bytes_per_block


def test_a_pool_of_nothing_has_its_own_words() -> None:
    got = capacity(tiny(), Setup("vllm", "0.32.0"), 1000)
    assert got.fits is False
    assert "No available memory" in got.notes[0]


def test_common_sizes_pad_least_and_prefer_the_larger() -> None:
    assert common_size([31, 31, 30, 61], 30) == 31
    assert common_size([4, 8], 1) == 4
