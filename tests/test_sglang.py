"""SGLang's arithmetic: worked numbers of its own source, defaults by device, and what always holds."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvplan.engines import sglang_memory
from kvplan.engines.engine import Capacity, Setup
from kvplan.engines.sglang import capacity, stage_layers
from kvplan.engines.sglang_rules import rules_of
from kvplan.errors import BadInput, NotServed
from kvplan.figure import Figure, sourced
from kvplan.model.locate import load_model
from kvplan.model.model import Model

GiB, MiB = 2**30, 2**20
LLAMA, GPT_OSS = "meta-llama/Llama-3.1-8B-Instruct", "openai/gpt-oss-20b"
NEXT, V3, V32, V4 = (
    "Qwen/Qwen3-Next-80B-A3B-Instruct",
    "deepseek-ai/DeepSeek-V3",
    "deepseek-ai/DeepSeek-V3.2",
    "deepseek-ai/DeepSeek-V4-Flash",
)


def asked(name: str, pool: float | None, version: str = "0.5.23", **setup: Any) -> Capacity:
    flags = setup.pop("flags", {})
    return capacity(
        load_model(name), Setup("sglang", version, flags, **setup), None if pool is None else int(pool * GiB)
    )


def fraction(name: str, mib: int, version: str = "0.5.23", **setup: Any) -> float:
    return float(
        sglang_memory.mem_fraction_static(
            load_model(name), Setup("sglang", version, memory_bytes=mib * MiB, **setup)
        )
    )


@pytest.mark.parametrize(
    ("name", "mib", "tp", "expected"),
    [
        (LLAMA, 81559, 1, 0.83),
        (LLAMA, 81559, 4, 0.819),
        (LLAMA, 81559, 8, 0.812),
        (V3, 81559, 8, 0.799),
        (LLAMA, 143771, 1, 0.903),
        (LLAMA, 183359, 1, 0.854),
        (LLAMA, 24564, 1, 0.704),
    ],
)
def test_the_static_share_follows_the_device(name: str, mib: int, tp: int, expected: float) -> None:
    assert fraction(name, mib, tp=tp) == expected


def test_older_versions_have_other_shares() -> None:
    assert fraction(LLAMA, 81559, "0.4.6.post5") == 0.88
    assert fraction(LLAMA, 81559, "0.4.6.post5", tp=8) == 0.81
    assert fraction(LLAMA, 81559, "0.4.9") == round((81559 - 10 * 1024) / 81559, 3)
    assert fraction(LLAMA, 24564, "0.5.6") == round((24564 - 512 - 3072 - 48 - 128) / 24564, 3)


def test_prefill_graphs_are_counted_as_captured() -> None:
    assert [sglang_memory.prefill_graphs(n) for n in (4096, 8192, 16384)] == [50, 58, 74]


def test_a_vision_tower_takes_some_of_the_share_back() -> None:
    model = load_model(LLAMA)
    assert sglang_memory.vision_factor(model, None) == 1.0
    assert sglang_memory.vision_factor(model, (24, 1024)) == 0.95
    assert sglang_memory.vision_factor(model, (48, 2048)) == pytest.approx(0.95 * 0.8)


def test_llama_on_an_h100_from_free_memory_to_tokens() -> None:
    pool = sglang_memory.pool_bytes(int(63.6 * GiB), int(78.7 * GiB), 0.83)
    found = asked(LLAMA, pool / GiB)
    assert (found.kv_tokens, found.max_running_requests) == (411410, 2048)
    assert (found.block_tokens, found.bytes_per_block) == (1, 131072)


def test_nothing_is_left_when_weights_exceed_the_share() -> None:
    assert sglang_memory.pool_bytes(5 * GiB, 80 * GiB, 0.8) == 0
    found = asked(LLAMA, 0)
    assert found.fits is False
    assert "mem-fraction-static" in found.notes[0]


def test_sliding_windows_have_a_pool_of_their_own_where_the_version_gives_one() -> None:
    found = asked(GPT_OSS, 50)
    cells = {g.kind: g.cells for g in found.groups}
    assert (found.kv_tokens, cells) == (1213629, {"full": 1213629, "swa": 970903})
    halved = asked(GPT_OSS, 50, flags={"swa_full_tokens_ratio": 0.4})
    assert halved.kv_tokens > found.kv_tokens
    whole = asked(GPT_OSS, 50, flags={"disable_hybrid_swa_memory": True})
    assert whole.kv_tokens == 50 * GiB // (24 * 2 * 8 * 64 * 2)


@pytest.mark.parametrize(
    "name", ["google/gemma-3-27b-it", "google/gemma-2-9b-it", "allenai/Olmo-3.1-32B-Instruct"]
)
def test_other_windowed_models_pay_in_full_and_are_told(name: str) -> None:
    model = load_model(name)
    cell = sum(2 * 2 * a.kv_heads * a.key_width for layer in model.layers for a in layer.attentions)
    found = asked(name, 50)
    assert found.kv_tokens == 50 * GiB // cell
    assert any("charged as full" in note for note in found.notes)


def test_windows_are_sized_from_requests_without_a_radix_cache() -> None:
    flags = {"disable_radix_cache": True, "max_running_requests": 64, "chunked_prefill_size": 8192}
    found = asked(GPT_OSS, 50, flags=flags)
    swa = next(g for g in found.groups if g.kind == "swa")
    assert swa.cells == 64 * (128 + 1 + 1 + 1) + 2 * 8192 + 1
    assert found.kv_tokens > asked(GPT_OSS, 50).kv_tokens


def test_states_come_before_tokens() -> None:
    found = asked(NEXT, 50)
    states = next(g for g in found.groups if g.kind == "mamba")
    assert found.kv_tokens == 1150157
    assert states.cells == 329  # 328 and the padding slot
    assert found.state_bytes == 329 * 77266944
    assert found.max_running_requests == 328 // 5


@pytest.mark.parametrize(
    ("flags", "slots"),
    [
        ({"disable_radix_cache": True}, 1),
        ({"mamba_radix_cache_strategy": "no_buffer"}, 3),
        ({"mamba_radix_cache_strategy": "extra_buffer"}, 5),
        ({"mamba_radix_cache_strategy": "extra_buffer", "disable_overlap_schedule": True}, 4),
        ({"mamba_radix_cache_strategy": "extra_buffer_lazy"}, 4),
    ],
)
def test_states_of_one_request_depend_on_what_is_kept(flags: dict[str, Any], slots: int) -> None:
    assert asked(NEXT, 50, flags=flags).max_running_requests == 328 // slots


def test_narrow_states_leave_room_for_more() -> None:
    wide = asked(NEXT, 50)
    narrow = asked(NEXT, 50, flags={"mamba_ssm_dtype": "bfloat16"})
    assert narrow.max_running_requests > 1.8 * wide.max_running_requests


def test_drafts_keep_states_for_every_draft_token() -> None:
    flags = {"speculative_algorithm": "NEXTN", "speculative_num_draft_tokens": 4, "max_running_requests": 48}
    found = asked(NEXT, 50, flags=flags)
    groups = {g.kind: g.cells for g in found.groups}
    one, budget = 77266944, 50 * GiB * 0.9 / 1.9
    slots = int((budget - one * 5) // (one * (1 + 4 / 5)))
    assert groups["mamba"] == slots + 1
    assert groups["mamba_draft"] == (min(48, slots // 5) + 1) * 4
    assert found.kv_tokens < asked(NEXT, 50).kv_tokens


def test_sparse_latents_carry_an_indexer_and_scales() -> None:
    plain, narrow = asked(V32, 50, kv_cache_dtype="bfloat16"), asked(V32, 50, kv_cache_dtype="fp8_e4m3")
    assert (plain.block_tokens, plain.bytes_per_block // 64) == (64, 78324)
    assert narrow.bytes_per_block // 64 == 48068
    raw = asked(V32, 50, kv_cache_dtype="fp8_e4m3", flags={"dsa_decode_backend": "trtllm"})
    assert raw.bytes_per_block // 64 == 61 * (576 + 132)


def test_latents_are_not_divided_and_heads_are() -> None:
    assert asked(V3, 50, tp=8).kv_tokens == asked(V3, 50).kv_tokens == 50 * GiB // 70272
    assert asked(LLAMA, 50, tp=8).bytes_per_block == 131072 // 8
    assert asked(LLAMA, 50, tp=16).bytes_per_block == 131072 // 8
    assert asked(LLAMA, 50, tp=8, attention_dp=8).bytes_per_block == 131072
    assert asked(LLAMA, 50, tp=8, dp=8, flags={"enable_dp_attention": True}).bytes_per_block == 131072


def test_narrow_formats_count_their_scales() -> None:
    assert asked(LLAMA, 50, kv_cache_dtype="fp8_e5m2").bytes_per_block == 65536
    assert asked(LLAMA, 50, kv_cache_dtype="mxfp8").bytes_per_block == 65536 + 65536 // 32
    assert asked(LLAMA, 50, kv_cache_dtype="nvfp4").bytes_per_block == 65536 // 2 + 65536 // 16
    assert asked(V3, 50, kv_cache_dtype="nvfp4").bytes_per_block == 61 * (288 + 36)


def test_an_engine_without_such_a_format_says_so() -> None:
    with pytest.raises(BadInput, match="kv-cache-dtype"):
        asked(LLAMA, 50, kv_cache_dtype="q8_0")


def test_a_drafter_widens_the_cell() -> None:
    flags = {"speculative_algorithm": "EAGLE"}
    found = asked(LLAMA, 50, flags=flags, drafter={"algorithm": "EAGLE", "layers": 1})
    assert found.bytes_per_block == 131072 + 4096
    assert found.max_running_requests == 48
    own = {"algorithm": "DFLASH", "layers": 5, "kv_heads": 8, "key_width": 128}
    assert asked(LLAMA, 50, drafter=own).bytes_per_block == 131072 + 5 * 4096
    assert asked(LLAMA, 50, flags={"speculative_algorithm": "NGRAM"}).bytes_per_block == 131072
    assert asked(LLAMA, 50, "0.5.10", flags=flags).bytes_per_block == 131072


def test_mtp_layers_of_the_model_are_the_default_drafter() -> None:
    found = asked(V3, 50, flags={"speculative_algorithm": "NEXTN"})
    assert found.bytes_per_block == 62 * 1152
    assert any("MTP" in note for note in found.notes)


@pytest.mark.parametrize(
    ("flags", "arch", "page"),
    [
        ({}, "sm90", 1),
        ({}, "sm100", 64),
        ({"page_size": 32}, "sm100", 32),
        ({"attention_backend": "fa4"}, "sm100", 128),
        ({"attention_backend": "fa3", "page_size": 16}, "sm90", 16),
        ({"attention_backend": "trtllm_mha", "page_size": 1}, "sm100", 64),
        ({"decode_attention_backend": "flashmla"}, "sm90", 64),
    ],
)
def test_the_page_follows_the_attention_backend(flags: dict[str, Any], arch: str, page: int) -> None:
    found = asked(LLAMA, 50.001, flags=flags, arch=arch)
    assert found.block_tokens == page
    assert found.kv_tokens % page == 0
    assert asked(LLAMA, 50, "0.5.3", arch="sm100").block_tokens == 1


def test_caps_are_obeyed_and_never_raise_capacity() -> None:
    assert asked(LLAMA, 50, flags={"max_total_tokens": 100_003, "page_size": 16}).kv_tokens == 100_000
    assert asked(LLAMA, 1, flags={"max_total_tokens": 10**9}).kv_tokens == GiB // 131072
    assert asked(LLAMA, None, flags={"max_total_tokens": 4096}).kv_tokens == 4096
    assert asked(LLAMA, None).kv_tokens is None


def test_running_requests_are_bounded_by_flags_tokens_and_workers() -> None:
    assert asked(LLAMA, 50, flags={"max_running_requests": 100}).max_running_requests == 100
    assert (
        asked(LLAMA, 50, tp=4, attention_dp=4, flags={"max_running_requests": 100}).max_running_requests == 25
    )
    assert asked(LLAMA, None, flags={"max_total_tokens": 300}).max_running_requests == 150
    assert asked(LLAMA, 50, flags={"context_length": 4096}).max_running_requests == 4096


def test_stages_share_layers_as_sglang_does_and_the_fullest_decides() -> None:
    assert [len(r) for r in stage_layers(61, 4)] == [15, 15, 15, 16]
    assert asked(LLAMA, 10, pp=2).kv_tokens == 10 * GiB // (131072 // 2)
    assert asked(V3, 10, pp=4).kv_tokens == 10 * GiB // (16 * 1152)


def test_compressed_attention_keeps_pages_of_256() -> None:
    found = asked(V4, 50)
    assert found.block_tokens == 256
    assert found.kv_tokens % 256 == 0
    assert {g.kind for g in found.groups} == {"full", "swa"}


def test_a_context_longer_than_the_pool_is_said_not_refused() -> None:
    found = asked(LLAMA, 1)
    assert found.fits is True
    assert found.estimated_max_model_len == GiB // 131072
    assert any("131,072" in note for note in found.notes)


def test_versions_take_the_newest_rule_at_or_below() -> None:
    assert rules_of("0.5.7")["swa_split"] == "layers"
    assert rules_of("0.5.11")["swa_split"] == "bytes"
    assert rules_of("").version == rules_of("main").version == "0.5.23"
    assert "0.5.14" in rules_of("0.5.16").sources["draft_cell"]


def test_before_bytes_windows_were_shared_out_by_layers() -> None:
    found = asked(GPT_OSS, 50, "0.5.6")
    tokens = 50 * GiB // (24 * 2048)
    assert found.kv_tokens == int(tokens * 24 / (0.8 * 12 + 12))


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"page_size": 0}, "page_size"),
        ({"page_size": "64"}, "page_size"),
        ({"max_running_requests": -1}, "max_running_requests"),
        ({"swa_full_tokens_ratio": 1.5}, "swa_full_tokens_ratio"),
        ({"mamba_ssm_dtype": "int8"}, "mamba_ssm_dtype"),
        ({"mamba_radix_cache_strategy": "radix_off!"}, "mamba_radix_cache_strategy"),
        (
            {"speculative_num_draft_tokens": True, "speculative_algorithm": "EAGLE"},
            "speculative_num_draft_tokens",
        ),
    ],
)
def test_a_bad_flag_is_named_in_one_line(flags: dict[str, Any], words: str) -> None:
    name = NEXT if words.startswith("mamba") else GPT_OSS
    with pytest.raises(BadInput, match=words) as caught:
        asked(name, 50, flags=flags)
    assert "\n" not in str(caught.value)


def test_ranks_that_do_not_divide_are_refused() -> None:
    with pytest.raises(BadInput, match="attention-dp"):
        asked(LLAMA, 50, tp=4, attention_dp=3)


EVERY = [LLAMA, GPT_OSS, NEXT, V3, V32, V4, "google/gemma-3-27b-it", "tiiuae/falcon-mamba-7b"]


@pytest.mark.parametrize("name", EVERY)
def test_figures_carry_the_same_values_as_numbers_and_explain_themselves(name: str) -> None:
    setup = Setup("sglang", "0.5.23")
    plain = capacity(load_model(name), setup, 40 * GiB)
    told = capacity(load_model(name), setup, 40 * GiB, sourced)
    for field in (
        "kv_tokens",
        "num_blocks",
        "kv_bytes",
        "state_bytes",
        "max_running_requests",
        "needed_kv_bytes",
    ):
        assert getattr(plain, field) == getattr(told, field), field
    if isinstance(told.kv_tokens, Figure):
        assert "max_total_num_tokens" in told.kv_tokens.explain()


@given(pool=st.integers(0, 400 * GiB), name=st.sampled_from(EVERY), page=st.sampled_from([1, 16, 64]))
def test_pools_never_exceed_what_is_given(pool: int, name: str, page: int) -> None:
    found = asked_raw(load_model(name), pool, page)
    held = int(found.kv_bytes or 0) if found.kv_tokens else 0
    slack = 3 * max(int(found.bytes_per_block), 1) + 2 * (page + 1) * 2**20
    assert held + int(found.state_bytes or 0) <= pool + slack or not found.fits
    assert found.kv_tokens % found.block_tokens == 0 or found.bytes_per_block == 0


def asked_raw(model: Model, pool: int, page: int) -> Capacity:
    return capacity(model, Setup("sglang", "0.5.23", {"page_size": page}), pool)


@given(pool=st.integers(GiB, 200 * GiB), more=st.integers(1, 20 * GiB))
def test_more_memory_never_means_fewer_tokens(pool: int, more: int) -> None:
    for name in (LLAMA, GPT_OSS, V32):
        model = load_model(name)
        assert asked_raw(model, pool, 1).kv_tokens <= asked_raw(model, pool + more, 1).kv_tokens


def test_a_version_that_does_not_serve_a_model_says_which_does() -> None:
    for name, version in ((NEXT, "0.4.6"), (V4, "0.5.6")):
        with pytest.raises(NotServed, match="first version"):
            asked(name, 50, version)


def test_pools_too_small_for_a_state_or_a_page_are_refused() -> None:
    for name, pool in ((NEXT, 0.01), (V4, 0.01), (LLAMA, 0.0)):
        found = asked(name, pool)
        assert found.fits is False
        assert found.kv_tokens == 0
        assert found.max_running_requests == 0
