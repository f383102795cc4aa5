"""Keys of the config that a flag replaces are replaced before the model is read."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

import kvplan
from kvplan.errors import BadConfig, BadInput
from kvplan.model.locate import load_model
from kvplan.verbs.overridden import merged

L = "meta-llama/Llama-3.1-8B-Instruct"


def fitted(model: Any, **given: Any) -> dict[str, Any]:
    return dict(kvplan.fit(model, gpu="H100", **given))


def test_a_shorter_context_shortens_the_request() -> None:
    line = f"""vllm serve {L} --hf-overrides '{{"max_position_embeddings": 4096}}'"""
    found = fitted(None, command=line)
    assert found["capacity"]["needed_kv_bytes"] * 32 == fitted(L)["capacity"]["needed_kv_bytes"]
    assert "--hf-overrides: the config is read with max_position_embeddings replaced" in found["notes"]
    assert found["command"]["ignored"] == []


@pytest.mark.parametrize(
    ("flag", "engine"), [("hf_overrides", "vllm"), ("json_model_override_args", "sglang")]
)
def test_heads_and_layers_change_the_cache(flag: str, engine: str) -> None:
    plain = fitted(L, engine=engine)["capacity"]["groups"]
    fewer = fitted(L, engine=engine, **{flag: {"num_key_value_heads": 1}})["capacity"]["groups"]
    assert fewer != plain


def test_a_scaled_rope_lengthens_the_context_so_that_nothing_is_refused() -> None:
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    scaled = fitted("Qwen/Qwen2.5-7B-Instruct", rope_scaling=json.dumps(scaling), max_model_len=131072)
    assert not any("refuses" in note for note in scaled["notes"])
    plain = fitted("Qwen/Qwen2.5-7B-Instruct", max_model_len=131072)
    assert any("vllm refuses it" in note for note in plain["notes"])
    allowed = fitted("Qwen/Qwen2.5-7B-Instruct", max_model_len=131072, VLLM_ALLOW_LONG_MAX_MODEL_LEN=True)
    assert not any("refuses" in note for note in allowed["notes"])


def test_a_key_beside_the_decoders_own_is_said_to_miss_it() -> None:
    model = "google/gemma-3-27b-it"
    beside = fitted(model, hf_overrides={"max_position_embeddings": 4096})
    assert beside["capacity"] == fitted(model)["capacity"]
    assert any("nest it in text_config" in note for note in beside["notes"])
    nested = fitted(model, hf_overrides={"text_config": {"max_position_embeddings": 4096}})
    assert nested["capacity"]["needed_kv_bytes"] < beside["capacity"]["needed_kv_bytes"]


def test_a_wrong_value_is_refused_by_key_and_flag() -> None:
    with pytest.raises(BadConfig, match=r"num_hidden_layers: 'x' in .* with --hf-overrides"):
        fitted(L, hf_overrides={"num_hidden_layers": "x"})
    with pytest.raises(BadInput, match="--hf-overrides: '\\{' is not JSON"):
        fitted(L, hf_overrides="{")
    with pytest.raises(BadInput, match="the config has no text_config to change"):
        fitted(L, hf_overrides={"text_config": {"num_hidden_layers": 4}})
    with pytest.raises(BadInput, match="--hf-overrides: needs a config to change"):
        fitted(load_model(L), hf_overrides={"num_hidden_layers": 4})


def test_the_config_given_is_not_changed(llama8b: dict[str, Any]) -> None:
    before = json.dumps(llama8b)
    fitted(llama8b, hf_overrides={"num_hidden_layers": 4, "rope_scaling": {"a": 1}})
    assert json.dumps(llama8b) == before


def test_configs_inside_are_merged_and_other_objects_replaced() -> None:
    raw = {"text_config": {"a": 1, "b": 2}, "rope_parameters": {"c": 3}, "x": {"y": 1}}
    found = merged(raw, {"text_config": {"b": 5}, "rope_scaling": {"d": 4}, "x": {"z": 2}})
    assert found == {"text_config": {"a": 1, "b": 5}, "rope_scaling": {"d": 4}, "x": {"z": 2}}


def test_weight_files_give_way_where_the_sizes_change(tmp_path: Path, llama8b: dict[str, Any]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(llama8b))
    header = json.dumps({"model.norm.weight": {"dtype": "BF16", "shape": [4096], "data_offsets": [0, 8192]}})
    body = struct.pack("<Q", len(header)) + header.encode() + bytes(8192)
    (tmp_path / "model.safetensors").write_bytes(body)
    fewer = fitted(str(tmp_path), hf_overrides={"num_hidden_layers": 4})
    assert any("weights by the formula" in note for note in fewer["notes"])
    shorter = fitted(str(tmp_path), hf_overrides={"max_position_embeddings": 4096})
    assert not any("weights by the formula" in note for note in shorter["notes"])
