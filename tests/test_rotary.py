"""A rotary table is loaded where attention rotates, and nowhere else."""

from __future__ import annotations

from typing import Any

import pytest

from kvplan.engines.loaded import rotary_width
from kvplan.facts.model_types import known_types, spec_of
from kvplan.model.read import read_config

WITHOUT: list[dict[str, Any]] = [
    {"model_type": "gpt2"},
    {"model_type": "opt"},
    {"model_type": "bloom"},
    {"model_type": "gpt_bigcode"},
    {"model_type": "jamba"},
    {"model_type": "falcon", "alibi": True},
    {"model_type": "mpt", "attn_config": {"alibi": True}},
    {"model_type": "granitemoehybrid", "position_embedding_type": "nope", "layer_types": ["attention"] * 32},
]
WITH: list[tuple[dict[str, Any], int]] = [
    ({"model_type": "llama"}, 128),
    ({"model_type": "falcon"}, 64),
    ({"model_type": "mpt", "attn_config": {"rope": True}}, 128),
    (
        {
            "model_type": "granitemoehybrid",
            "position_embedding_type": "rope",
            "layer_types": ["attention"] * 32,
        },
        128,
    ),
    ({"model_type": "deepseek_v3"}, 64),
]


@pytest.mark.parametrize("config", WITHOUT, ids=lambda c: c["model_type"])
def test_a_model_that_does_not_rotate_has_no_rotary_table(config: dict[str, Any]) -> None:
    width, source = rotary_width(read_config(config, "config.json"))
    assert width == 0
    assert "not rotated" in source.where


@pytest.mark.parametrize(("config", "width"), WITH, ids=str)
def test_a_model_that_rotates_has_one_of_its_heads_width(config: dict[str, Any], width: int) -> None:
    assert rotary_width(read_config(config, "config.json"))[0] == width


@pytest.mark.parametrize("model_type", known_types())
def test_no_type_has_learned_positions_and_a_rotary_table(model_type: str) -> None:
    spec = spec_of(model_type)
    extras = spec.get("outer", {}).get("extras", {})
    learned = [name for name, entry in extras.items() if entry.get("part") == "position"]
    assert not learned or spec.get("rotary") is False


def test_a_stated_head_width_is_the_architectures_for_granite_hybrids() -> None:
    """transformers 5.24.0 reads head_dim; vLLM 0.32.0 does not, which is that engine's affair."""
    config = {
        "model_type": "granitemoehybrid",
        "hidden_size": 2048,
        "num_attention_heads": 32,
        "num_hidden_layers": 4,
        "layer_types": ["attention"] * 4,
        "head_dim": 128,
    }
    assert read_config(config, "config.json").layers[0].attentions[0].key_width == 128
