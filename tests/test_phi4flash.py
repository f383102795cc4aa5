"""Phi-4-mini-flash: Mamba beside windowed attention, then readers of one layer's keys and values."""

from __future__ import annotations

from typing import Any

import pytest

import kvplan
from kvplan.model.read import read_config

PUBLISHED = {
    "model_type": "phi4flash",
    "hidden_size": 2560,
    "intermediate_size": 10240,
    "max_position_embeddings": 262144,
    "mb_per_layer": 2,
    "num_attention_heads": 40,
    "num_hidden_layers": 32,
    "num_key_value_heads": 20,
    "sliding_window": 512,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": True,
    "vocab_size": 200064,
}


def test_its_cache_has_eighteen_slots_nine_of_them_states() -> None:
    model = read_config(PUBLISHED, "config.json")
    kinds = [layer.kinds[0] for layer in model.layers]
    assert kinds == [*["recurrent", "sliding"] * 8, "recurrent", "full", *["none", "shared"] * 7]
    assert model.notes == ()


def test_its_window_state_and_only_full_layer_are_counted() -> None:
    kv = kvplan.size(PUBLISHED)["kv"]
    one = 2 * 20 * 64 * 2
    assert kv["bytes_per_token"] == 9 * one
    assert kv["bytes_per_token_after_windows"] == one
    assert kv["window_tokens"] == 512
    assert kv["state_bytes_per_sequence"] == 9 * (5120 * 16 * 4 + 5120 * 3 * 2)


def test_its_readers_project_queries_only_and_it_comes_out_at_its_published_size() -> None:
    model = read_config(PUBLISHED, "config.json")
    names = {weight.name for weight in model.layers[-1].weights}
    assert "q_proj" in names
    assert not names & {"k_proj", "v_proj"}
    assert model.parameters == pytest.approx(3.85e9, rel=0.001)


@pytest.mark.parametrize("window", [512, [512 if i < 16 and i % 2 else None for i in range(32)]])
def test_the_window_may_be_listed_for_each_layer(window: Any) -> None:
    model = read_config({**PUBLISHED, "sliding_window": window}, "config.json")
    assert [layer.attentions[0].window for layer in model.layers[1::2]] == [512] * 8 + [None] * 8
