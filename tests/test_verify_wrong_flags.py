"""A flag that is not the one that ran is found, and what to type in its place is said."""

from __future__ import annotations

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


def test_a_batch_that_the_engine_caps_is_no_wrong_flag() -> None:
    answer = verified(
        (RUNS / "llama_cpp/gemma270m_ctx4096.log").read_bytes(), batch_size=2048, ubatch_size=512
    )
    assert answer["agrees"]


def test_a_change_is_printed_as_fit_takes_it() -> None:
    def printed(log: str, **flags: Any) -> str:
        return document(verified((RUNS / f"{log}.log").read_bytes(), model_of(log), **flags))

    assert "`--no-kv-unified`" in printed(GEMMA, kv_unified=True)
    assert "the plan has --no-enable-prefix-caching, the log --enable-prefix-caching" in printed(
        VLLM, enable_prefix_caching=False
    )
    assert "`leave out --swa-full`" in printed(GEMMA, swa_full=True)
