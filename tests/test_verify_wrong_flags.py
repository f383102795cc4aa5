"""A flag that is not the one that ran is found, and what to type in its place is said."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from kvplan.faces.verify_markdown import document
from verifying import RUNS, verified

GEMMA = "llama_cpp/gemma270m_ctx8192_par4"
VLLM = "vllm/vmx_gemma3"
WRONG: dict[str, tuple[str, dict[str, Any], list[tuple[str, Any]]]] = {
    "a context of half": (GEMMA, {"ctx_size": 4096}, [("--ctx-size", 8192)]),
    "a cache of all cells": (GEMMA, {"swa_full": True}, [("--swa-full", None)]),
    "one unified cache": (GEMMA, {"kv_unified": True}, [("--kv-unified", False)]),
    "a shorter batch": (GEMMA, {"batch_size": 512}, [("--batch-size", 2048)]),
    "a shorter microbatch": (GEMMA, {"ubatch_size": 128}, [("--ubatch-size", 512)]),
    "a narrower cache": (GEMMA, {"cache_type_k": "q8_0"}, [("--cache-type-k", "f16")]),
    "two of them": (GEMMA, {"ctx_size": 4096, "parallel": 2}, [("--ctx-size", 8192), ("--parallel", 4)]),
    "blocks that no line shows": (
        VLLM, {"num_gpu_blocks_override": 100}, [("--num-gpu-blocks-override", None)],
    ),
    "smaller blocks": (VLLM, {"block_size": 32}, [("--block-size", 128)]),
    "a shorter longest sequence": (VLLM, {"max_model_len": 100}, [("--max-model-len", 2048)]),
    "blocks of another number and size": (
        VLLM, {"block_size": 64, "num_gpu_blocks_override": 77},
        [("--block-size", 128), ("--num-gpu-blocks-override", None)],
    ),
    "a card": (VLLM, {"gpu": "h100"}, [("--gpu", "cpu")]),
    "a card that llama.cpp did not see": (GEMMA, {"gpu": "rtx4090"}, [("--gpu", None)]),
    "another build": (GEMMA, {"engine_version": "b6000"}, [("--engine-version", None)]),
    "two slots and one cache": (
        GEMMA, {"parallel": 2, "kv_unified": True}, [("--kv-unified", False), ("--parallel", 4)],
    ),
    "no prefixes": (VLLM, {"enable_prefix_caching": False}, [("--enable-prefix-caching", True)]),
    "one kind of layers": (
        VLLM, {"disable_hybrid_kv_cache_manager": True}, [("--disable-hybrid-kv-cache-manager", False)],
    ),
}  # fmt: skip


def model_of(log: str) -> Any:
    return RUNS / f"{log}.config.json" if log.startswith("vllm") else None


@pytest.mark.parametrize("name", WRONG)
def test_a_flag_that_did_not_run_is_named_with_what_did(name: str) -> None:
    log, flags, changes = WRONG[name]
    answer = verified((RUNS / f"{log}.log").read_bytes(), model_of(log), **flags)
    assert not answer["agrees"]
    assert sorted((row["flag"], row["value"]) for row in answer["changes"]) == changes
    put = {flag.removeprefix("--").replace("-", "_"): value for flag, value in changes}
    again = verified((RUNS / f"{log}.log").read_bytes(), model_of(log), **{**flags, **put})
    assert again["agrees"]


PAIRED: dict[str, dict[str, Any]] = {
    GEMMA: {
        "ctx_size": 6144, "parallel": 2, "batch_size": 512, "ubatch_size": 128, "cache_type_k": "q8_0",
        "cache_type_v": "q4_0", "swa_full": True, "kv_unified": True, "gpu": "rtx4090",
        "engine_version": "b6000",
    },
    VLLM: {
        "block_size": 64, "max_model_len": 1000, "num_gpu_blocks_override": 77,
        "enable_prefix_caching": False,
        "kv_cache_dtype": "fp8", "tp": 2, "max_num_batched_tokens": 512, "gpu": "h100",
        "gpu_memory_utilization": 0.5, "dtype": "float32", "engine_version": "0.11.0", "pp": 2,
    },
}  # fmt: skip


@pytest.mark.parametrize("log", PAIRED)
def test_what_is_advised_of_any_two_wrong_flags_leads_back_to_agreement(log: str) -> None:
    text = (RUNS / f"{log}.log").read_bytes()
    for pair in itertools.combinations(PAIRED[log], 2):
        flags = {name: PAIRED[log][name] for name in pair}
        for _ in range(3):
            answer = verified(text, model_of(log), **flags)
            if answer["agrees"]:
                break
            assert answer["changes"], pair
            put = {r["flag"].removeprefix("--").replace("-", "_"): r["value"] for r in answer["changes"]}
            flags = {name: value for name, value in {**flags, **put}.items() if value is not None}
        assert answer["agrees"], pair


def test_a_batch_that_the_engine_caps_is_no_wrong_flag() -> None:
    answer = verified(
        (RUNS / "llama_cpp/gemma270m_ctx4096.log").read_bytes(), batch_size=2048, ubatch_size=512
    )
    assert answer["agrees"]


SGLANG = """[2026-03-04 10:00:00] server_args=ServerArgs(model_path='Qwen/Qwen3-8B', tp_size=1, page_size=1, \
mem_fraction_static=0.88, dtype='auto', max_total_tokens=None, max_running_requests=None, version='0.5.2')
[2026-03-04 10:00:41] KV Cache is allocated. #tokens: 374397, K size: 25.71 GB, V size: 25.71 GB
[2026-03-04 10:00:53] max_total_num_tokens=374397, chunked_prefill_size=8192, context_len=40960
"""


@pytest.mark.parametrize("beside", [{}, {"tp": 1}, {"page_size": 1}, {"dtype": "bfloat16"}])
def test_a_setting_that_is_printed_as_none_is_not_taken_as_stated(beside: dict[str, Any]) -> None:
    assert verified(SGLANG, **beside)["agrees"]
    answer = verified(SGLANG, max_total_tokens=100_000, **beside)
    assert [(row["flag"], row["value"]) for row in answer["changes"]] == [("--max-total-tokens", None)]


def test_a_command_whose_path_is_the_servers_is_read_for_its_flags() -> None:
    log = (RUNS / f"{GEMMA}.log").read_bytes()
    words = "llama-server -m models/gemma-3-270m-q4_k_m.gguf"
    assert verified(log, command=f"{words} -c 8192 -np 4")["agrees"]
    wrong = verified(log, command=f"{words} -c 4096 -np 4")
    assert [(row["flag"], row["value"]) for row in wrong["changes"]] == [("--ctx-size", 8192)]


def test_a_model_of_the_same_shape_is_as_good() -> None:
    text = (RUNS.parent / "sample-logs" / "peak.log").read_bytes()
    rows = {row["name"]: row["agrees"] for row in verified(text, "llama-3.1-8b", gpu="h100")["checks"]}
    assert rows["model"]
    rows = {row["name"]: row["agrees"] for row in verified(text, "qwen2.5-7b", gpu="h100")["checks"]}
    assert not rows["model"]


def test_a_change_is_printed_as_fit_takes_it() -> None:
    def printed(log: str, **flags: Any) -> str:
        return document(verified((RUNS / f"{log}.log").read_bytes(), model_of(log), **flags))

    assert "`--no-kv-unified`" in printed(GEMMA, kv_unified=True)
    assert "the plan has --no-enable-prefix-caching, the log --enable-prefix-caching" in printed(
        VLLM, enable_prefix_caching=False
    )
    assert "`leave out --swa-full`" in printed(GEMMA, swa_full=True)


PEAK = (RUNS.parent / "sample-logs" / "peak.log").read_text("utf-8")


def test_a_pool_that_was_given_in_bytes_says_nothing_of_the_device() -> None:
    pinned = PEAK.replace("'model':", "'kv_cache_memory_bytes': 47179869184, 'model':", 1)
    assert pinned != PEAK
    names = {row["name"] for row in verified(pinned, gpu="h100")["checks"]}
    assert "weight_bytes" in names
    assert not {"kv_pool_bytes", "kv_tokens_from_flags"} & names


def test_what_is_known_to_be_wrong_is_put_right_before_memory_is_explained() -> None:
    """The log is of an H100; a smaller card and a wrong share are both named, and no third."""
    quiet = "\n".join(line for line in PEAK.splitlines() if "79.18" not in line and "GiB total" not in line)
    answer = verified(quiet, gpu="a100-40-pcie", gpu_memory_utilization=0.8)
    flags = {row["flag"]: row["value"] for row in answer["changes"]}
    assert flags["--gpu-memory-utilization"] == 0.9
    right = verified(quiet, gpu="a100-40-pcie")
    assert flags.get("--gpu") == {row["flag"]: row["value"] for row in right["changes"]}.get("--gpu")


def test_what_others_hold_is_compared_with_what_was_free() -> None:
    row = next(
        row
        for row in verified(PEAK, gpu="h100", memory_in_use="60GiB")["checks"]
        if row["name"] == "memory_in_use"
    )
    assert not row["agrees"]
    assert row["reported"] == pytest.approx(0.5 * 2**30)


CAPPED = """[TensorRT-LLM] TensorRT LLM version: 1.2.0
[03/04/2026-10:00:00] [TRT-LLM] [I] LLM Args: model='meta-llama/Llama-3.1-8B-Instruct' \
tensor_parallel_size=1 max_batch_size=64 max_num_tokens=8192 max_seq_len=8192 \
kv_cache_config=KvCacheConfig(max_tokens=100000, free_gpu_memory_fraction=0.9, max_attention_window=None)
[03/04/2026-10:00:01] [TRT-LLM] [I] Use 14.99 GB for model weights.
[03/04/2026-10:00:08] [TRT-LLM] [I] Peak memory during memory usage profiling (torch + non-torch): 18.61 \
GiB, available KV cache memory when calculating max tokens: 12.21 GiB, fraction is set 0.9, \
kv size is 131072. device total memory 79.18 GiB, temporary kv cache memory during profiling 1.25 GiB
[TensorRT-LLM][INFO] Max KV cache blocks per sequence: 257 [window size=8192], tokens per block=32, primary \
blocks=3125, secondary blocks=0
[TensorRT-LLM][INFO] [MemUsageChange] Allocated 12.21 GiB for max tokens in paged KV cache (100000).
"""


def test_a_cache_of_so_many_tokens_at_most_is_no_other_device() -> None:
    answer = verified(CAPPED, gpu="h100")
    assert answer["agrees"], [row for row in answer["checks"] if not row["agrees"]]
    assert {"kv_pool_bytes", "kv_pool_from_parts", "kv_tokens"} <= {row["name"] for row in answer["checks"]}
    wrong = verified(CAPPED, gpu="h100", max_attention_window="1024,8192")
    assert ("--max-attention-window", None) in [(row["flag"], row["value"]) for row in wrong["changes"]]
