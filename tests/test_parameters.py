"""Parameter counts against transformers' own, value by value."""

from __future__ import annotations

import json
from typing import Any

import pytest

from conftest import lines
from kvplan.facts.catalogue import find_model
from kvplan.model.locate import load_entry
from kvplan.model.model import Model
from kvplan.model.read import read_config

ROWS = lines("parameters.jsonl")[1:]
ENCODER = "transformers adds a head that predicts masked words; an embedding model is the encoder alone"
FLAT = "the published file is flat, and transformers' wrapper class reads a nested text_config only"
# Rows whose count differs on purpose, by id or model type.
REASONS = {
    "bert": ENCODER,
    "camembert": ENCODER,
    "data2vec-text": ENCODER,
    "ernie": ENCODER,
    "ibm-granite/granite-embedding-125m-english": ENCODER,
    "longcat_flash": "transformers allocates weights for the experts that are identities; they have none",
    "megatron-bert": ENCODER,
    "phi4_multimodal": "transformers' text class holds the vision and audio towers too",
    "roberta": ENCODER,
    "roberta-prelayernorm": ENCODER,
    "stepfun-ai/Step-3.7-Flash": FLAT,
    "stepfun-ai/Step-3.7-Flash-FP8": FLAT,
    "xlm-roberta": ENCODER,
    "xlm-roberta-xl": ENCODER,
}
# The closed forms of the specification, each reproduced by transformers.
CLOSED_FORMS: list[tuple[str, int]] = [
    ("meta-llama/Meta-Llama-3-8B-Instruct", 8_030_261_248),
    ("Qwen/Qwen2.5-7B-Instruct", 7_615_616_512),
    ("Qwen/Qwen3-4B", 4_022_468_096),
    ("mistralai/Mixtral-8x7B-v0.1", 46_702_792_704),
    ("Qwen/Qwen3-30B-A3B", 30_532_122_624),
    ("deepseek-ai/DeepSeek-V3", 671_026_404_352),
    ("google/gemma-2-9b-it", 9_241_705_984),
    ("google/gemma-3-27b-it", 27_009_346_304),
    ("openai/gpt-oss-20b", 20_914_757_184),
    ("Qwen/Qwen3-Next-80B-A3B-Instruct", 79_674_391_296),
]


def name_of(row: dict[str, Any]) -> str:
    """The row's id, or its model type."""
    return str(row.get("id") or row["config"]["model_type"])


def model_of(row: dict[str, Any]) -> Model:
    """The model a row describes."""
    if "config" in row:
        return read_config(row["config"], "config.json")
    return built_in(row["id"])


def built_in(id: str) -> Model:
    """A model of the catalogue."""
    entry = find_model(id)
    assert entry is not None, id
    return load_entry(entry)


@pytest.mark.parametrize("row", [r for r in ROWS if name_of(r) not in REASONS], ids=name_of)
def test_the_parameters_are_those_that_transformers_builds(row: dict[str, Any]) -> None:
    assert model_of(row).parameters == row["parameters"], json.dumps(row.get("config"))


@pytest.mark.parametrize(("id", "count"), CLOSED_FORMS)
def test_the_closed_forms_of_the_specification_come_out_exactly(id: str, count: int) -> None:
    assert built_in(id).parameters == count


def test_every_difference_from_transformers_still_differs_and_is_explained() -> None:
    named = {name_of(row): row for row in ROWS}
    assert set(REASONS) <= set(named)
    for name in REASONS:
        assert model_of(named[name]).parameters != named[name]["parameters"], (
            f"{name} agrees: drop its reason"
        )


def test_a_layer_that_predicts_ahead_is_not_counted() -> None:
    with_it = built_in("deepseek-ai/DeepSeek-V3")
    assert with_it.mtp_layers == 1
    assert with_it.parameters == 671_026_404_352


def test_one_token_uses_only_the_experts_it_is_sent_to() -> None:
    model = built_in("Qwen/Qwen3-30B-A3B")
    unused = 48 * (128 - 8) * 3 * 2048 * 768
    assert model.active_parameters == model.parameters - unused


def test_phi_3_small_shares_its_head_with_its_embedding() -> None:
    config = {
        "model_type": "phi3small",
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "ff_intermediate_size": 14336,
        "vocab_size": 100352,
    }
    assert read_config(config, "config.json").parameters == 7_392_272_384
