"""Every number of a built-in model says where it was read; none rests on a key that no config has."""

from __future__ import annotations

from typing import Any

import pytest

import kvplan
from kvplan.facts.catalogue import entries
from kvplan.figure import Figure, Trust
from kvplan.model.model import UNKNOWN


def inputs(id: str) -> dict[str, Figure]:
    """The sourced numbers behind a model's size, by name."""
    answer = kvplan.size(id, tokens=100)
    return {f.name: f for top in answer.figures().values() for f in top.inputs()}


@pytest.mark.parametrize("entry", entries(), ids=lambda e: e.id)
def test_no_figure_of_a_built_in_model_is_without_an_origin(entry: Any) -> None:
    nowhere = {name: f.value for name, f in inputs(entry.id).items() if f.source == UNKNOWN and f.value}
    assert not nowhere


def test_a_latent_width_names_both_keys_that_it_is_the_sum_of() -> None:
    found = inputs("deepseek-ai/DeepSeek-V3")["latent_key_width"]
    assert found.source is not None
    assert found.source.trust is Trust.STATED
    assert "kv_lora_rank + qk_rope_head_dim" in found.source.where


@pytest.mark.parametrize(
    ("id", "figure", "said"),
    [
        ("deepseek-ai/DeepSeek-V3", "latent_kv_heads", "multi-head latent attention"),
        ("deepseek-ai/DeepSeek-V4-Flash", "compressed_kv_heads", "DeepSeek-V4"),
        ("deepseek-ai/DeepSeek-V4-Flash", "sliding_kv_heads", "DeepSeek-V4"),
    ],
)
def test_the_one_head_of_a_shared_vector_is_a_rule_of_the_architecture(
    id: str, figure: str, said: str
) -> None:
    found = inputs(id)[figure]
    assert found.value == 1
    assert found.source is not None
    assert found.source.trust is Trust.ENGINE_RULE
    assert said in found.source.where
