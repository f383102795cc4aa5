"""What an engine's module reads is a setting by its own name: in Python, as an option and in --command."""

from __future__ import annotations

from typing import Any

import pytest

import kvplan
from kvplan.errors import BadInput
from kvplan.facts.flags import checked, flags, reads

L = "meta-llama/Llama-3.1-8B-Instruct"
STATES = "Qwen/Qwen3-Next-80B-A3B-Instruct"
WINDOWS = "openai/gpt-oss-20b"

CHANGES: list[tuple[str, str, dict[str, Any]]] = [
    (STATES, "vllm", {"mamba_ssm_cache_dtype": "float32"}),
    (WINDOWS, "vllm", {"enable_chunked_prefill": False}),
    (WINDOWS, "vllm", {"performance_mode": "throughput"}),
    (WINDOWS, "sglang", {"swa_full_tokens_ratio": 0.3}),
    (WINDOWS, "sglang", {"disable_hybrid_swa_memory": True}),
    (L, "sglang", {"disable_cuda_graph": True}),
    (WINDOWS, "tensorrt-llm", {"max_attention_window": "1024,4096"}),
    (L, "tensorrt-llm", {"max_tokens": "8k"}),
]


@pytest.mark.parametrize(("model", "engine", "given"), CHANGES, ids=[str(g) for _, _, g in CHANGES])
def test_a_setting_that_the_engine_reads_is_taken_and_changes_its_figures(
    model: str, engine: str, given: dict[str, Any]
) -> None:
    plain = kvplan.fit(model, gpu="B200", engine=engine)
    changed = kvplan.fit(model, gpu="B200", engine=engine, **given)
    assert changed["capacity"] != plain["capacity"] or changed["memory"] != plain["memory"]


@pytest.mark.parametrize(
    ("text", "value"), [("16k", 16000), ("16K", 16384), ("1.5k", 1500), ("4096", 4096), (4096, 4096)]
)
def test_a_count_takes_units_as_vllm_does(text: str | int, value: int) -> None:
    assert checked("max_num_batched_tokens", text, "vllm") == value


@pytest.mark.parametrize("text", ["16x", "k", "", "1.5", "1e3", "-5", "9" * 30, True])
def test_a_count_that_is_none_is_refused(text: str | bool) -> None:
    with pytest.raises(BadInput, match="max-num-batched-tokens"):
        checked("max_num_batched_tokens", text, "vllm")


def test_a_setting_of_two_engines_is_refused_by_a_third() -> None:
    assert checked("attention_backend", "fa3", "sglang") == checked("attention_backend", "fa3", "vllm")
    with pytest.raises(BadInput, match=r"belongs to vllm and sglang, not llama\.cpp"):
        checked("attention_backend", "fa3", "llama.cpp")


def test_words_that_an_engine_does_not_know_are_refused() -> None:
    with pytest.raises(BadInput, match="mamba-cache-mode: 'some' is not known; use none, align, all"):
        kvplan.fit(STATES, gpu="B200", mamba_cache_mode="some")


def test_every_setting_is_of_a_type_that_is_checked() -> None:
    for name, flag in flags().items():
        assert set(flag.unread) <= set(flag.engines), name
        assert checked(name, None, flag.engines[0]) is None
        assert flag.help


@pytest.mark.parametrize("name", ["turboquant_k8v4", "turboquant_3bit_nc", "uint8", "fp8_inc"])
def test_every_cache_format_of_vllm_is_taken_and_the_model_counts_as_the_engine_does(name: str) -> None:
    found = kvplan.fit(L, gpu="H100", kv_cache_dtype=name)["capacity"]
    assert found["bytes_per_block"] == 16 * kvplan.size(L, kv_cache_dtype=name)["kv"]["bytes_per_token"]


def test_what_is_read_and_not_used_is_listed() -> None:
    line = f"vllm serve {L} --disable-sliding-window --max-cpu-loras 4 --max-num-seqs 8"
    found = kvplan.fit(gpu="H100", command=line)
    assert found["command"]["ignored"] == ["--disable-sliding-window", "--max-cpu-loras"]
    said = "--command: read, and left out of the figures: --disable-sliding-window --max-cpu-loras"
    assert said in found["notes"]


def test_a_setting_without_effect_is_said_to_have_none() -> None:
    assert not reads("cpu_offload_gb", "sglang")
    notes = kvplan.fit(L, gpu="H100", engine="sglang", cpu_offload_gb=4)["notes"]
    assert "left out of the figures: --cpu-offload-gb" in notes
    line = f"python -m sglang.launch_server --model-path {L} --cpu-offload-gb 4"
    found = kvplan.fit(command=line, gpu="H100")
    assert found["command"]["ignored"] == ["--cpu-offload-gb"]
    assert sum("--cpu-offload-gb" in note for note in found["notes"]) == 1


@pytest.mark.parametrize(
    ("given", "tokens"),
    [
        ({"attention_backend": "FLASHMLA"}, 64),
        ({"attention_config": {"backend": "CUTLASS_MLA"}}, 128),
        ({"attention_backend": "TRITON_MLA"}, 16),
        ({"attention_backend": "FLASHMLA", "block_size": 128}, 128),
    ],
)
def test_a_backend_of_latent_attention_sets_the_block(given: dict[str, Any], tokens: int) -> None:
    found = kvplan.fit("deepseek-ai/DeepSeek-V3", gpu="B200", tp=8, **given)
    assert found["capacity"]["block_tokens"] == tokens


def test_the_cache_stays_on_the_host_with_nkvo() -> None:
    given: dict[str, Any] = {"gpu": "RTX 4090", "engine": "llama.cpp", "ctx_size": 8192}
    by_line = kvplan.fit(command=f"llama-server -m {L} -nkvo -c 8192", gpu="RTX 4090")
    assert by_line["placement"] == kvplan.fit(L, **given, no_kv_offload=True)["placement"]
    assert by_line["placement"] != kvplan.fit(L, **given)["placement"]


def test_settings_inside_tensorrt_llms_cache_config_count() -> None:
    line = f"""trtllm-serve {L} --kv_cache_config '{{"max_tokens": 4096, "dtype": "fp8"}}'"""
    found = kvplan.fit(command=line, gpu="H100")["capacity"]
    assert (
        found
        == kvplan.fit(L, engine="tensorrt-llm", gpu="H100", max_tokens=4096, kv_cache_dtype="fp8")["capacity"]
    )
