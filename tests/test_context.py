"""The longest context: what the file states, under whichever name, beats what the class would put there."""

from __future__ import annotations

from typing import Any

import pytest

from kvplan.facts.catalogue import find_model
from kvplan.figure import Trust
from kvplan.model.locate import load_entry
from kvplan.model.read import read_config

STATED: list[tuple[dict[str, Any], int]] = [
    ({"model_type": "gpt2", "n_positions": 2048}, 2048),
    ({"model_type": "gptj", "n_positions": 4096}, 4096),
    ({"model_type": "codegen", "n_positions": 4096}, 4096),
    ({"model_type": "gpt_bigcode", "n_positions": 8192}, 8192),
    ({"model_type": "dbrx", "max_seq_len": 32768}, 32768),
]


@pytest.mark.parametrize(("config", "length"), STATED, ids=lambda x: str(x)[:40])
def test_a_stated_length_beats_a_class_default_under_another_name(
    config: dict[str, Any], length: int
) -> None:
    model = read_config(config, "config.json")
    assert model.max_context == length
    assert model.origin("max_context").trust is Trust.STATED


@pytest.mark.parametrize(
    ("id", "length"),
    [("WizardLMTeam/WizardCoder-15B-V1.0", 8192), ("bigcode/gpt_bigcode-santacoder", 2048)],
)
def test_a_published_file_that_states_n_positions_has_that_context(id: str, length: int) -> None:
    entry = find_model(id)
    assert entry is not None
    assert load_entry(entry).max_context == length


def test_the_least_of_the_stated_lengths_holds(llama8b: dict[str, Any]) -> None:
    config = {**llama8b, "max_position_embeddings": 8192, "model_max_length": 4096, "rope_scaling": None}
    assert read_config(config, "config.json").max_context == 4096


def test_the_class_default_stands_where_the_file_states_no_length() -> None:
    model = read_config({"model_type": "gpt2"}, "config.json")
    assert model.max_context == 1024
    assert model.origin("max_context").trust is Trust.ENGINE_RULE
