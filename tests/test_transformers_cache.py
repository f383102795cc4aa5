"""The bytes that transformers' own caches hold are predicted exactly, after a prompt and some steps later."""

from __future__ import annotations

from typing import Any

import pytest

import kvplan
from conftest import lines
from kvplan.engines.engine import Setup
from kvplan.engines.transformers import capacity
from kvplan.errors import BadInput
from kvplan.figure import bare, sourced
from kvplan.model.read import read_config
from kvplan.verbs.deploy import deployment
from kvplan.verbs.fit import fit_part

ROWS = lines("transformers_cache.jsonl")
LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 128,
    "max_position_embeddings": 2048,
}


def setup_of(row: dict[str, Any], tokens: int, prompt: int) -> Setup:
    """The setup that makes the row's cache: its kind, length, batch and, of an encoder, the prompt."""
    flags: dict[str, Any] = {
        "max_cache_len": tokens,
        "prompt_tokens": prompt,
        "batch_size": row.get("batch", 1),
    }
    if row["cache"] == "static":
        flags |= {"cache_implementation": "static", "max_cache_len": row["max_cache_len"]}
    if row["cache"] == "fp8":
        flags |= {"cache_implementation": "quantized", "cache_config": {"backend": "fp8"}}
    if "prompt" not in row:
        flags |= {"max_cache_len": row["steps"], "encoder_tokens": row["tokens"], "prompt_tokens": 1}
    return Setup("transformers", "", flags=flags, dtype="bfloat16")


def differences(row: dict[str, Any], answer: dict[str, Any]) -> list[str]:
    """Where the prediction and what transformers holds differ; `answer` has `prompt` and `after`."""
    model, wrong = read_config(row["config"], "config", row["id"]), []
    for moment, tokens in (("prompt", row["tokens"]), ("after", row["tokens"] + row["steps"])):
        if moment not in answer:
            continue
        logged = answer[moment]
        found = capacity(model, setup_of(row, tokens, row["tokens"]), None)
        state = logged.get("conv_states", 0) + logged.get("recurrent_states", 0)
        held = sum(size for name, size in logged.items() if name != "stored") - state
        if (found.kv_bytes or 0) != held:
            wrong.append(f"{moment}: holds {held}, predicted {found.kv_bytes}")
        if (found.state_bytes or 0) != state:
            wrong.append(f"{moment}: states of {state}, predicted {found.state_bytes}")
        stored = found.settings["prompt_storage_bytes" if moment == "prompt" else "stored_bytes"][0]
        if stored != logged["stored"]:
            wrong.append(f"{moment}: stores {logged['stored']}, predicted {stored}")
    return wrong


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["id"])
def test_a_cache_holds_and_stores_what_transformers_says(row: dict[str, Any]) -> None:
    assert differences(row, row) == []


def test_the_caches_cover_many_model_types_and_kinds() -> None:
    assert len({row["config"]["model_type"] for row in ROWS}) >= 30
    assert {row["cache"] for row in ROWS} == {"dynamic", "static", "fp8"}


def of_llama(**flags: Any) -> Any:
    return capacity(read_config(LLAMA, "config", "llama"), Setup("transformers", "", flags=flags), None)


def test_the_peak_holds_one_layers_keys_twice() -> None:
    found = of_llama(max_cache_len=100)
    layer = 100 * 2 * 16 * 2
    assert found.kv_bytes == 4 * 2 * layer
    assert found.settings["peak_bytes"][0] == found.kv_bytes + layer


def test_a_quantised_cache_keeps_scales_and_a_residue() -> None:
    found = of_llama(cache_implementation="quantized", max_cache_len=1127)
    row, packed, loose = 2 * 16, 1000, 127
    one = packed * row // 2 + packed * row // 64 * 2 * 2 + loose * row * 2
    assert found.kv_bytes == 4 * 2 * one


def test_an_offloaded_cache_leaves_two_layers_on_the_device() -> None:
    found = of_llama(cache_implementation="offloaded", max_cache_len=100)
    assert found.settings["device_bytes"][0] * 2 == found.kv_bytes


def test_before_version_5_15_compressed_attention_kept_every_heads_keys() -> None:
    row = next(r for r in ROWS if r["config"]["model_type"] == "deepseek_v3" and r["cache"] == "dynamic")
    model = read_config(row["config"], "config", "deepseek")
    flags = {"max_cache_len": 10}
    old = capacity(model, Setup("transformers", "5.14.0", flags=flags), None)
    new = capacity(model, Setup("transformers", "5.15.0", flags=flags), None)
    assert old.kv_bytes == 4 * 10 * 4 * (24 + 16) * 2
    assert new.kv_bytes == 4 * 10 * (32 + 8) * 2


def test_a_pool_holds_the_tokens_whose_peak_fits_it() -> None:
    model = read_config(LLAMA, "config", "llama")
    found = capacity(model, Setup("transformers", "", flags={}), 100_000)
    peak = capacity(model, Setup("transformers", "", flags={"max_cache_len": found.kv_tokens}), None)
    more = capacity(model, Setup("transformers", "", flags={"max_cache_len": found.kv_tokens + 1}), None)
    assert peak.needed_kv_bytes <= 100_000 < more.needed_kv_bytes


def test_an_explanation_ends_in_its_sources() -> None:
    row = next(r for r in ROWS if r["config"]["model_type"] == "gemma3_text")
    model = read_config(row["config"], "config", "gemma")
    found = capacity(model, Setup("transformers", "", flags={"max_cache_len": 100}), None, sourced)
    assert "kept_tokens" in found.kv_bytes.explain()


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ({"cache_implementation": "paged"}, "--cache-implementation"),
        ({"max_cache_len": 0}, "--max-cache-len"),
        ({"cache_implementation": "quantized", "cache_config": "{"}, "--cache-config"),
        ({"cache_implementation": "quantized", "cache_config": {"nbits": "four"}}, "nbits"),
        ({"cache_implementation": "quantized", "cache_config": {"q_group_size": 0}}, "q_group_size"),
        ({"cache_config": {"nbits": 4}}, "--cache-config"),
        ({"cache_implementation": "quantized", "cache_config": {"backend": "hqq", "nbits": 5}}, "nbits"),
    ],
)
def test_a_flag_that_cannot_be_used_is_named(flags: dict[str, Any], named: str) -> None:
    with pytest.raises(BadInput, match=named):
        of_llama(**flags)


def fitted(name: str = "llama-3.1-8b", batch: int | None = None, **given: Any) -> dict[str, Any]:
    named = {k: given.pop(k) for k in ("kv_cache_dtype", "gpu_memory") if k in given}
    d = deployment(name, gpu="h100", engine="transformers", flags=given, batch=batch, **named)
    return dict(fit_part(d, batch, bare))


def test_a_length_and_a_kind_can_be_asked_for() -> None:
    short = fitted(max_length=4096)
    assert short["capacity"]["kv_bytes"] == short["memory"]["kv_pool_bytes"] == 4096 * 131_072
    both = {"max_length": 100, "max_cache_len": 4096}
    assert fitted(**both, cache_implementation="static")["capacity"]["kv_bytes"] >= 4096 * 131_072
    assert fitted(**both)["capacity"]["kv_bytes"] == 100 * 131_072
    assert kvplan.fit("llama-3.1-8b", gpu="h100", engine="transformers", max_length=4096)["capacity"]["fits"]


@pytest.mark.parametrize("old", ["sliding_window", "hybrid", "hybrid_chunked"])
def test_old_names_of_static_caches_are_read_as_such(old: str) -> None:
    found = of_llama(cache_implementation=old, max_length=100)
    assert found.kv_bytes == of_llama(cache_implementation="static", max_length=100).kv_bytes
    assert "static" in found.notes[0]


def test_a_batch_is_held_by_the_cache() -> None:
    one, many = fitted(max_length=4096), fitted(batch=64, max_length=4096)
    assert many["capacity"]["kv_bytes"] == 64 * one["capacity"]["kv_bytes"]
    assert many["capacity"]["max_running_requests"] == 64
    assert many["memory"]["activation_bytes"] > 32 * one["memory"]["activation_bytes"]
    assert fitted(batch=64)["capacity"]["fits"] is False


@pytest.mark.parametrize(
    ("name", "bits", "backend"), [("int4", 4, "quanto"), ("int8", 8, "hqq"), ("fp8", 8, "fp8")]
)
def test_a_narrow_format_is_a_quantised_cache(name: str, bits: int, backend: str) -> None:
    found = fitted(kv_cache_dtype=name, max_length=8192)
    assert found["capacity"]["kv_bytes"] < fitted(max_length=8192)["capacity"]["kv_bytes"] * 0.6
    assert found["engine"]["settings"]["cache_config"] == {"backend": backend, "nbits": bits}
    assert found["engine"]["settings"]["cache_implementation"] == "quantized"
    assert any(f"{bits} bits" in note for note in found["notes"])


def test_a_format_that_transformers_has_not_is_refused_with_those_it_has() -> None:
    with pytest.raises(BadInput, match=r"nvfp4.*use int4, int8, fp8"):
        fitted(kv_cache_dtype="nvfp4")
    with pytest.raises(BadInput, match=r"static.*quantized"):
        fitted(kv_cache_dtype="int8", cache_implementation="static")
    assert fitted(kv_cache_dtype="bf16")["capacity"] == fitted()["capacity"]


def test_a_model_without_a_length_is_told_a_flag_that_works() -> None:
    with pytest.raises(BadInput, match="--max-length 8192"):
        fitted("falcon-mamba-7b")
    assert fitted("falcon-mamba-7b", max_length=8192)["capacity"]["fits"] is True
