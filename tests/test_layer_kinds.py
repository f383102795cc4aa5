"""What each layer keeps, against the cache transformers would build for the same config."""

from __future__ import annotations

import json
from typing import Any

import pytest

from conftest import lines
from kvplan.facts.catalogue import find_model
from kvplan.facts.model_types import is_known, known_types, spec_of
from kvplan.model.locate import load_entry
from kvplan.model.model import Layer, Model
from kvplan.model.read import read_config

ROWS = lines("parameters.jsonl")[1:]
ENCODER = "an encoder keeps nothing; DynamicCache does not ask"
CROSS = "layers that read the image keep its keys, not the text's; DynamicCache does not ask"
OWN = "the model keeps its state in an object of its own, not in a DynamicCache"
FLAT = "the published file is flat, and transformers' wrapper class reads a nested text_config only"
# Rows whose layers differ on purpose, by id or model type.
REASONS: dict[str, str] = {
    "bert": ENCODER,
    "camembert": ENCODER,
    "data2vec-text": ENCODER,
    "ernie": ENCODER,
    "gpt_neo": "local layers attend to a window; transformers masks but keeps the rest",
    "ibm-granite/granite-embedding-125m-english": ENCODER,
    "meta-llama/Llama-3.2-11B-Vision-Instruct": CROSS,
    "megatron-bert": ENCODER,
    "mllama": CROSS,
    "NX-AI/xLSTM-7b": OWN,
    "roberta": ENCODER,
    "roberta-prelayernorm": ENCODER,
    "rwkv": OWN,
    "RWKV/rwkv-4-7b-pile": OWN,
    "stepfun-ai/Step-3.7-Flash": FLAT,
    "stepfun-ai/Step-3.7-Flash-FP8": FLAT,
    "xlm-roberta": ENCODER,
    "xlm-roberta-xl": ENCODER,
    "xlstm": OWN,
}
# The model types of the class-default table in the specification.
TABLE = [
    "llama", "mistral", "mixtral", "ministral", "ministral3", "mistral4", "qwen2", "qwen2_moe", "qwen3",
    "qwen3_moe", "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "qwen4_exp_text", "qwen2_5_vl_text",
    "qwen3_vl_text", "gemma", "gemma2", "gemma3_text", "gemma3n_text", "gemma4_text", "vaultgemma",
    "recurrent_gemma", "gpt_oss", "deepseek_v2", "deepseek_v3", "deepseek_v32", "deepseek_v4",
    "kimi_linear", "longcat_flash", "bailing_hybrid", "glm", "glm4", "glm4_moe", "glm_moe_dsa", "cohere",
    "cohere2", "falcon", "mpt", "gpt2", "gpt_neox", "gptj", "opt", "bloom", "gpt_bigcode", "phi", "phi3",
    "phimoe", "starcoder2", "stablelm", "olmo", "olmo2", "olmo3", "olmoe", "granite", "granitemoe",
    "granitemoehybrid", "bamba", "jamba", "zamba2", "falcon_h1", "falcon_mamba", "mamba", "mamba2",
    "nemotron", "nemotron_h", "lfm2", "lfm2_moe", "minimax", "llama4_text", "smollm3", "exaone4",
    "hunyuan_v1_dense", "hunyuan_v1_moe", "ernie4_5", "ernie4_5_moe", "seed_oss", "arcee", "apertus",
    "dbrx", "jetmoe", "afmoe", "dots1", "mllama_text_model", "whisper", "bart", "t5", "diffllama",
]  # fmt: skip


def name_of(row: dict[str, Any]) -> str:
    """The row's id, or its model type."""
    return str(row.get("id") or row["config"]["model_type"])


def model_of(row: dict[str, Any]) -> Model:
    """The model a row describes."""
    if "config" in row:
        return read_config(row["config"], "config.json")
    entry = find_model(row["id"])
    assert entry is not None
    return load_entry(entry)


def words_of(layer: Layer) -> list[tuple[str, int | None]]:
    """The layer's caches in the words of the golden file; two attentions are two caches."""
    kept = [a for a in layer.attentions if a.holds and a.kind not in ("cross", "encoder")]
    states = ["state"] * bool(layer.states)
    if len(kept) > 1 and all(a.kind in ("full", "latent") for a in kept):
        return [("full", None) for _ in kept]
    words = []
    for attention in kept:
        sliding = attention.window is not None
        words.append("compressed" if attention.kind == "compressed" else "sliding" if sliding else "full")
    window = next((a.window for a in kept if a.window is not None), None)
    return [("+".join([*words, *states]) or "none", window)]


def expected_of(row: dict[str, Any], context: int | None) -> list[tuple[str, int | None]]:
    """The row's layers, one entry each; a window as long as the context never closes."""
    found: list[tuple[str, int | None]] = []
    for count, kind, window in row["layers"]:
        inert = window is not None and context is not None and window >= context
        found += [(kind.replace("sliding", "full"), None) if inert else (kind, window)] * count
    return found


@pytest.mark.parametrize("row", [r for r in ROWS if name_of(r) not in REASONS], ids=name_of)
def test_each_layer_keeps_what_transformers_keeps(row: dict[str, Any]) -> None:
    model = model_of(row)
    assert [word for layer in model.layers for word in words_of(layer)] == expected_of(row, model.max_context)


def test_every_model_type_of_the_specification_has_a_file_and_a_source() -> None:
    assert len(TABLE) == 88
    for model_type in TABLE:
        assert is_known(model_type), model_type


def test_every_model_type_names_its_source() -> None:
    for model_type in known_types():
        assert spec_of(model_type)["source"] != spec_of("base")["source"], model_type


def test_a_config_without_layer_types_takes_the_pattern_of_its_class() -> None:
    gemma = read_config({"model_type": "gemma3_text"}, "config.json")
    assert [layer.kinds[0] for layer in gemma.layers[:7]] == ["sliding"] * 5 + ["full", "sliding"]
    oss = read_config({"model_type": "gpt_oss"}, "config.json")
    assert [layer.kinds[0] for layer in oss.layers[:3]] == ["sliding", "full", "sliding"]
    gemma4 = read_config({"model_type": "gemma4_text", "num_hidden_layers": 7}, "config.json")
    assert gemma4.layers[-1].kinds == ("full",)


def test_full_layers_of_gemma_4_have_a_head_width_of_their_own() -> None:
    model = read_config({"model_type": "gemma4_text"}, "config.json")
    widths = {layer.kinds[0]: layer.attentions[0].key_width for layer in model.layers}
    assert widths == {"sliding": 256, "full": 512}


def test_an_absent_kv_head_count_is_the_class_default_and_not_the_query_heads() -> None:
    heads = {
        t: read_config({"model_type": t}, "c").layers[0].attentions[0].kv_heads for t in ("mistral", "llama")
    }
    assert heads == {"mistral": 8, "llama": 32}


def test_a_multimodal_config_that_does_not_name_its_decoder_takes_the_classs_own() -> None:
    model = read_config({"model_type": "llava", "text_config": {"num_hidden_layers": 3}}, "config.json")
    assert model.model_type == "llama"
    assert len(model.layers) == 3
    assert json.dumps(model.notes) == "[]"


@pytest.mark.parametrize("row", [r for r in ROWS if name_of(r) in REASONS], ids=name_of)
def test_each_difference_in_layers_is_still_one(row: dict[str, Any]) -> None:
    model = model_of(row)
    assert [word for layer in model.layers for word in words_of(layer)] != expected_of(row, model.max_context)


def test_index_keys_are_kept_by_the_layers_the_offset_and_the_frequency_say() -> None:
    config = {"model_type": "glm_moe_dsa", "num_hidden_layers": 10, "index_topk_freq": 4}
    model = read_config({**config, "index_skip_topk_offset": 3}, "config.json")
    own = [i for i, layer in enumerate(model.layers) if layer.attentions[0].index_width]
    assert own == [0, 1, 2, 6]
