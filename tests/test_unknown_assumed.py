"""A model type without a file: what stands in for a missing key is named and trusted as a guess."""

from __future__ import annotations

from typing import Any

import pytest

from kvplan.cost.weights import parameters, shape_bytes
from kvplan.cost.work import decode_matmul_flops
from kvplan.figure import Trust, sourced
from kvplan.model.read import read_config

FULL = {
    "model_type": "never_seen",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 256,
    "max_position_embeddings": 512,
    "torch_dtype": "bfloat16",
}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2}
MISSING = {
    "num_key_value_heads": "no num_key_value_heads: one KV head per query head",
    "intermediate_size": "no intermediate_size: 4 × hidden_size, 256",
    "vocab_size": "no vocab_size: no embedding and no head counted",
    "num_experts_per_tok": "no num_experts_per_tok: all 8 experts for every token",
}


def _without(key: str, **more: Any) -> dict[str, Any]:
    return {k: v for k, v in (FULL | EXPERTS | more).items() if k != key}


@pytest.mark.parametrize(("key", "said"), MISSING.items())
def test_what_is_assumed_is_named_and_rests_on_a_guess(key: str, said: str) -> None:
    model = read_config(_without(key), "config.json")
    assert any(said in note for note in model.notes)
    figures = [parameters(model, sourced, active=True), decode_matmul_flops(model, sourced)]
    if key != "num_experts_per_tok":
        figures += [parameters(model, sourced), shape_bytes(model, sourced)]
    for figure in figures:
        assert {leaf.source.trust for leaf in figure.weakest()} == {Trust.ASSUMED}


def test_key_value_heads_that_are_guessed_say_so_in_the_cache() -> None:
    model = read_config(_without("num_key_value_heads"), "config.json")
    assert model.layers[0].attentions[0].origin("kv_heads").trust is Trust.ASSUMED


def test_a_config_that_states_all_of_it_has_nothing_assumed() -> None:
    model = read_config(FULL | EXPERTS, "config.json")
    assert not [note for note in model.notes if note.startswith("assumed")]
    assert not [part for part in model.origins if part.startswith("shape.")]


def test_only_what_rests_on_the_guess_is_trusted_less() -> None:
    model = read_config(_without("num_key_value_heads"), "config.json")
    weakest = {leaf.name for leaf in parameters(model, sourced).weakest()}
    assert weakest == {"k_proj_outputs", "v_proj_outputs"}
    model = read_config(_without("num_experts_per_tok"), "config.json")
    assert {leaf.source.trust for leaf in parameters(model, sourced).weakest()} == {Trust.STATED}


def test_a_known_type_follows_its_own_rule() -> None:
    model = read_config(_without("num_key_value_heads", model_type="llama"), "config.json")
    assert not [note for note in model.notes if note.startswith("assumed")]
    assert model.layers[0].attentions[0].origin("kv_heads").trust is Trust.ENGINE_RULE
