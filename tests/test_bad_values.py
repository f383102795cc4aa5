"""Values a config cannot mean are refused in one line that names the key, the value and the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvplan.errors import BadConfig
from kvplan.facts.catalogue import entries
from kvplan.model.json_kind import json_kind
from kvplan.model.locate import load_entry, load_model
from kvplan.model.quantization import quantization_of
from kvplan.model.read import read_config

GROUPS = {"quant_method": "compressed-tensors", "config_groups": []}
WEIGHTS = {
    "quant_method": "compressed-tensors",
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "group_size": 0}}},
}
AWQ = {"quant_method": "awq", "bits": 4}
FP8 = {"quant_method": "fp8"}
EXPERTS = {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 99}
REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"max_position_embeddings": "8192"}, "max_position_embeddings", "'8192'"),
    ({"max_position_embeddings": True}, "max_position_embeddings", "True"),
    ({"max_position_embeddings": [8192]}, "max_position_embeddings", "[8192]"),
    ({"rope_scaling": "x"}, "rope_scaling", "'x'"),
    ({"rope_scaling": {"type": ["yarn"], "factor": 2}}, "rope_type", "['yarn']"),
    ({"rope_scaling": {"rope_type": {}, "type": {"a": 1}, "factor": 2}}, "rope_type", "{}"),
    ({"rope_scaling": {"rope_type": "yarn", "factor": "2"}}, "factor", "'2'"),
    ({"quantization_config": 5}, "quantization_config", "5"),
    ({"quantization_config": [AWQ]}, "quantization_config", "[{"),
    ({"quantization_config": GROUPS}, "config_groups", "[]"),
    ({"quantization_config": WEIGHTS}, "config_groups.group_0.weights.group_size", "0"),
    ({"quantization_config": {**AWQ, "group_size": 0}}, "group_size", "0"),
    ({"quantization_config": {**AWQ, "group_size": "128"}}, "group_size", "'128'"),
    ({"quantization_config": {**FP8, "weight_block_size": [0, 0]}}, "weight_block_size", "[0, 0]"),
    ({"quantization_config": {**FP8, "weight_block_size": 128.5}}, "weight_block_size", "128.5"),
    (EXPERTS, "num_experts_per_tok", "99"),
]


@pytest.mark.parametrize(("change", "key", "value"), REFUSED, ids=[f"{k} {v}" for _, k, v in REFUSED])
def test_a_value_that_cannot_be_meant_is_refused_by_key_value_and_file(
    llama8b: dict[str, Any], change: dict[str, Any], key: str, value: str
) -> None:
    with pytest.raises(BadConfig) as caught:
        quantization_of(read_config({**llama8b, **change}, "broken.json"))
    said = str(caught.value)
    assert key in said
    assert value in said
    assert "broken.json" in said
    assert "expected" in said or "there are" in said


ACCEPTED: list[dict[str, Any]] = [
    {"max_position_embeddings": None},
    {"rope_scaling": None},
    {"rope_scaling": {}},
    {"quantization_config": None},
    {"quantization_config": {**AWQ, "group_size": -1}},
    {"quantization_config": {**FP8, "weight_block_size": [128, 128]}},
    {"quantization_config": {**FP8, "weight_block_size": None}},
    {**EXPERTS, "num_experts_per_tok": 8},
]


@pytest.mark.parametrize("change", ACCEPTED, ids=str)
def test_null_and_values_in_use_are_taken(llama8b: dict[str, Any], change: dict[str, Any]) -> None:
    quantization_of(read_config({**llama8b, **change}, "config.json"))


@pytest.mark.parametrize("entry", entries(), ids=lambda e: e.id)
def test_no_built_in_model_holds_such_a_value(entry: Any) -> None:
    quantization_of(load_entry(entry))


@pytest.mark.parametrize(
    ("text", "kind"), [("5", "a number"), ("null", "null"), ("[]", "a list"), ('"x"', "text")]
)
def test_a_file_that_is_no_object_is_named_by_its_kind_in_plain_words(
    tmp_path: Path, text: str, kind: str
) -> None:
    file = tmp_path / "odd.json"
    file.write_text(text)
    with pytest.raises(BadConfig, match=f"odd.json holds {kind}, not a config's object"):
        load_model(file)


def test_every_kind_of_json_value_has_its_word() -> None:
    kinds = [json_kind(v) for v in (None, True, {}, [], "", 0, 0.5, object())]
    assert kinds == [
        "null", "true or false", "an object", "a list", "text", "a number", "a number",
        "something that is not JSON",
    ]  # fmt: skip
