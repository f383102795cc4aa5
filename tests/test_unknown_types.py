"""A model type without a file is read by its keys: what is certain is applied, the rest is named."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from kvplan.model.model import Model
from kvplan.model.read import read_config
from test_config_fuzz import VALUES, answered

WINDOW = {"sliding_window": 1024}
MAMBA = {"mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 2}
DELTA = {"full_attn_layers": [4, 8], "num_heads": 32, "head_dim": 128, "short_conv_kernel_size": 4}
LATENT = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128}
ALTERNATING = ["mamba", "attention"] * 16


@pytest.fixture
def brandnew(llama8b: dict[str, Any]) -> dict[str, Any]:
    """A config of a type nobody knows: 32 layers, 32 heads, 8 of them for keys."""
    return {**llama8b, "model_type": "brandnew", "head_dim": 128}


def kinds(model: Model) -> dict[str, int]:
    """How many layers there are of each kind."""
    return dict(Counter(kind for layer in model.layers for kind in layer.kinds))


APPLIED: list[tuple[dict[str, Any], dict[str, int]]] = [
    (WINDOW, {"sliding": 32}),
    ({**WINDOW, "use_sliding_window": False}, {"full": 32}),
    ({**WINDOW, "use_sliding_window": False, "max_window_layers": 16}, {"full": 32}),
    ({**WINDOW, "use_sliding_window": True, "max_window_layers": 16}, {"full": 16, "sliding": 16}),
    ({**WINDOW, "sliding_window_pattern": 4}, {"full": 8, "sliding": 24}),
    ({**WINDOW, "sliding_window_pattern": "LLLG"}, {"full": 8, "sliding": 24}),
    ({**WINDOW, "hybrid_layer_pattern": [0, 1, 1, 1] * 8}, {"full": 8, "sliding": 24}),
    ({**WINDOW, "num_local_experts": 8, "num_experts_per_tok": 2}, {"sliding": 32}),
    ({"sliding_window": [512, None] * 16}, {"full": 16, "sliding": 16}),
    ({**MAMBA, "attn_layer_period": 8, "attn_layer_offset": 4}, {"full": 4, "recurrent": 28}),
    ({**MAMBA, "layers_block_type": ALTERNATING}, {"full": 16, "recurrent": 16}),
    ({**MAMBA, "layer_types": ALTERNATING}, {"full": 16, "recurrent": 16}),
    ({"use_cla": True, "cla_share_factor": 2}, {"full": 16, "shared": 16}),
    ({"num_kv_shared_layers": 8}, {"full": 24, "shared": 8}),
    ({"linear_attn_config": DELTA}, {"full": 2, "recurrent": 30}),
    ({"linear_attn_config": DELTA, **LATENT}, {"latent": 2, "recurrent": 30}),
]


@pytest.mark.parametrize(("change", "layers"), APPLIED, ids=",".join)
def test_keys_whose_meaning_is_certain_are_applied_and_none_is_called_unused(
    brandnew: dict[str, Any], change: dict[str, Any], layers: dict[str, int]
) -> None:
    model = read_config({**brandnew, **change}, "config.json")
    assert kinds(model) == layers
    assert len(model.notes) == 1
    assert "brandnew" in model.notes[0]


NAMED: list[dict[str, Any]] = [
    {**WINDOW, "max_window_layers": 16},
    {**WINDOW, "attention_chunk_size": 8192},
    {**WINDOW, "full_attention_interval": 4},
    {**WINDOW, "global_attn_every_n_layers": 4},
    {**WINDOW, "mb_per_layer": 2},
    {"attention_chunk_size": 8192},
    {"attn_layer_period": 8, "attn_layer_offset": 4},
    {"cross_attention_layers": [3, 8, 13]},
    {"full_attention_interval": 4},
    {"index_topk": 2048},
    {"multi_query": True},
    {"num_nextn_predict_layers": 1},
    {"use_cla": True},
    MAMBA,
]


@pytest.mark.parametrize("change", NAMED, ids=",".join)
def test_where_the_meaning_is_not_certain_every_layer_is_full_and_each_key_is_named(
    brandnew: dict[str, Any], change: dict[str, Any]
) -> None:
    model = read_config({**brandnew, **change}, "config.json")
    assert kinds(model) == {"full": 32}
    assert all(layer.attentions[0].kv_heads == 8 for layer in model.layers)
    said = model.notes[-1]
    assert "not applied" in said
    assert [key for key in change if key not in said] == []


def test_mamba_layers_are_of_the_kind_that_their_keys_describe(brandnew: dict[str, Any]) -> None:
    first = {**brandnew, **MAMBA, "layer_types": ALTERNATING}
    second = {**first, "mamba_n_heads": 128, "mamba_d_head": 64, "mamba_n_groups": 1}
    assert read_config(first, "config.json").layers[0].states[0].mixer == "mamba1"
    state = read_config(second, "config.json").layers[0].states[0]
    assert (state.mixer, state.values) == ("mamba2", 128 * 64 * 16)


def test_a_values_width_beside_the_keys_is_taken(brandnew: dict[str, Any]) -> None:
    attention = read_config({**brandnew, "v_head_dim": 64}, "config.json").layers[0].attentions[0]
    assert (attention.key_width, attention.value_width) == (128, 64)


def test_multi_query_without_kv_heads_is_one_head(brandnew: dict[str, Any]) -> None:
    del brandnew["num_key_value_heads"]
    model = read_config({**brandnew, "multi_query": True}, "config.json")
    assert model.layers[0].attentions[0].kv_heads == 1


@pytest.mark.parametrize("latent", [{}, LATENT], ids=["grouped", "latent"])
def test_an_indexer_keeps_its_keys_on_every_layer(brandnew: dict[str, Any], latent: dict[str, Any]) -> None:
    index = {"index_head_dim": 128, "index_n_heads": 4, "index_topk": 2048}
    model = read_config({**brandnew, **latent, **index}, "config.json")
    assert {layer.attentions[0].index_width for layer in model.layers} == {128}
    assert "index_head_dim" in model.notes[0]
    assert len(model.notes) == 1


def test_a_known_type_carries_no_such_note(llama8b: dict[str, Any]) -> None:
    assert read_config({**llama8b, **WINDOW, "mb_per_layer": 2}, "config.json").notes == ()


KEYS = sorted({key for change, _ in APPLIED for key in change} | {key for change in NAMED for key in change})


@pytest.mark.parametrize("key", [*KEYS, "index_head_dim", "v_head_dim", "linear_attn_config", "kv_lora_rank"])
def test_any_value_under_such_a_key_is_answered_or_refused(brandnew: dict[str, Any], key: str) -> None:
    for value in VALUES:
        answered({**brandnew, **WINDOW, **MAMBA, key: value}, sized=False)
