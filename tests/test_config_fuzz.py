"""Broken configs: each mutation of a real config is either answered or refused in one line."""

from __future__ import annotations

import copy
import json
import random
import time
import tracemalloc
from typing import Any

import pytest

import kvplan
from kvplan.errors import BadConfig, KvplanError
from kvplan.facts.catalogue import entries
from kvplan.facts.model_types import class_defaults, known_types
from kvplan.model.model import Model
from kvplan.model.read import read_config

MUTATIONS = 4000
SECONDS_EACH = 1.0
VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 7, 2**31, 2**63, 10**30, -(10**30), 0.5, -0.0, 1e308, float("nan"),
    float("inf"), float("-inf"), "", "auto", "32", "full_attention", "²", "1,2,3", "x" * 5000, [], [1],
    [0, 1, 2], [None], [True], ["full_attention"], [[1]], [-1] * 32, ["sliding_attention"] * 32, [8] * 32,
    [10**30] * 32, [{}], {}, {"a": 1}, {"num_hidden_layers": 2}, {"factor": float("nan")},
]  # fmt: skip
SHAPE = (
    "num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim",
    "intermediate_size", "vocab_size", "layer_types", "sliding_window", "max_position_embeddings",
    "rope_scaling", "num_local_experts", "num_experts_per_tok", "kv_lora_rank", "text_config", "model_type",
    "tie_word_embeddings", "quantization_config", "torch_dtype", "num_kv_shared_layers", "block_configs",
    "hybrid_override_pattern", "layers_block_type", "moe_layers_enum", "attention_bias",
)  # fmt: skip


def answered(config: dict[str, Any], *, sized: bool) -> Model | None:
    """The model, or None when it was refused in one line; anything else fails the test."""
    started = time.perf_counter()
    try:
        model = read_config(config, "config.json")
        assert model.parameters >= 0
        if sized:
            kvplan.size(config, tokens=100)
    except KvplanError as error:
        text = str(error)
        assert text
        assert "\n" not in text
        assert len(text) < 600
        return None
    finally:
        assert time.perf_counter() - started < SECONDS_EACH
    return model


def tables(config: dict[str, Any]) -> list[dict[str, Any]]:
    """The config's own table and those nested in it."""
    found = [config]
    for value in config.values():
        if isinstance(value, dict):
            found += tables(value)
    return found


def mutated(config: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """A copy with one to three keys dropped or replaced."""
    broken = copy.deepcopy(config)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        table = rng.choice(tables(broken))
        key = rng.choice(list(table)) if table and rng.random() < 0.8 else rng.choice(SHAPE)
        if rng.random() < 0.2:
            table.pop(key, None)
        else:
            table[key] = copy.deepcopy(rng.choice(VALUES))
    return broken


def test_a_mutated_config_is_answered_or_refused_in_one_line() -> None:
    rng = random.Random(20250101)  # noqa: S311 - a seed that repeats
    configs = [entry.config() for entry in entries()]
    refused = 0
    for i in range(MUTATIONS):
        config = mutated(rng.choice(configs), rng)
        try:
            refused += answered(config, sized=i % 8 == 0) is None
        except Exception as error:  # noqa: BLE001 - any of them fails the test
            pytest.fail(f"{type(error).__name__}: {error} for {json.dumps(config)[:2000]}")
    assert 0.05 < refused / MUTATIONS < 0.95


def test_every_model_type_takes_any_value_under_any_of_its_keys() -> None:
    rng = random.Random(20250102)  # noqa: S311 - a seed that repeats
    for model_type in known_types():
        defaults = class_defaults().get(model_type, {})
        for _ in range(12):
            key = rng.choice([*defaults, *SHAPE])
            config = {"model_type": model_type, **defaults, key: copy.deepcopy(rng.choice(VALUES))}
            try:
                answered(config, sized=False)
            except Exception as error:  # noqa: BLE001 - any of them fails the test
                pytest.fail(f"{type(error).__name__}: {error} for {json.dumps(config)[:2000]}")


@pytest.mark.parametrize("value", VALUES, ids=[repr(v)[:20] for v in VALUES])
def test_any_value_under_a_llama_key_is_answered_or_refused(llama8b: dict[str, Any], value: Any) -> None:
    for key in (*llama8b, *SHAPE):
        answered({**llama8b, key: copy.deepcopy(value)}, sized=True)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"num_hidden_layers": 32, "n_layer": 24}, "num_hidden_layers"),
        ({"layer_types": ["full_attention"] * 31}, "layer_types"),
        ({"num_key_value_heads": 5}, "num_key_value_heads"),
        ({"num_key_value_heads": 0}, "num_key_value_heads"),
        ({"num_attention_heads": -32}, "num_attention_heads"),
        ({"hidden_size": float("nan")}, "hidden_size"),
        ({"num_hidden_layers": "32"}, "num_hidden_layers"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ({"head_dim": True}, "head_dim"),
        ({"layer_types": ["full_attention"] * 31 + ["dense"]}, "layer_types"),
        ({"num_key_value_heads": [8] * 31}, "num_key_value_heads"),
        ({"vocab_size": 1.5}, "vocab_size"),
    ],
)
def test_a_contradiction_is_refused_with_the_key_the_value_and_the_file(
    llama8b: dict[str, Any], change: dict[str, Any], named: str
) -> None:
    with pytest.raises(BadConfig) as caught:
        read_config({**llama8b, **change}, "broken.json")
    assert named in str(caught.value)
    assert "broken.json" in str(caught.value)


def test_a_type_without_defaults_says_which_keys_it_looked_for() -> None:
    with pytest.raises(BadConfig, match=r"num_hidden_layers: missing in broken\.json.*n_layer"):
        read_config({"model_type": "not-a-type", "hidden_size": 64}, "broken.json")


def test_an_unknown_type_is_read_by_its_keys_and_says_what_was_assumed(llama8b: dict[str, Any]) -> None:
    known = read_config(llama8b, "config.json")
    unknown = read_config({**llama8b, "model_type": "new-thing"}, "config.json")
    assert unknown.layers == known.layers
    assert "new-thing" in unknown.notes[0]
    assert "Llama-like" in unknown.notes[0]


def test_an_encoder_keeps_no_cache_and_says_that_its_weights_are_assumed() -> None:
    model = read_config({"model_type": "modernbert"}, "config.json")
    assert not any(layer.holds_tokens for layer in model.layers)
    assert "keeps no cache" in model.notes[0]


def test_openelm_lists_heads_and_widths_and_comes_out_at_its_published_size() -> None:
    config = {
        "model_type": "openelm",
        "num_transformer_layers": 16,
        "model_dim": 1280,
        "head_dim": 64,
        "vocab_size": 32000,
        "num_query_heads": [12] * 5 + [16] * 7 + [20] * 4,
        "num_kv_heads": [3] * 5 + [4] * 7 + [5] * 4,
        "ffn_multipliers": [
            0.5, 0.73, 0.97, 1.2, 1.43, 1.67, 1.9, 2.13, 2.37, 2.6, 2.83, 3.07, 3.3, 3.53, 3.77, 4.0,
        ],
        "ffn_dim_divisor": 256,
        "normalize_qk_projections": True,
        "share_input_output_layers": True,
    }  # fmt: skip
    model = read_config(config, "config.json")
    assert model.parameters == 271_527_168
    assert sum(layer.attentions[0].kv_heads for layer in model.layers) == 63


def test_kv_heads_listed_per_layer_make_layers_that_differ(llama8b: dict[str, Any]) -> None:
    config = {**llama8b, "model_type": "new-thing", "num_key_value_heads": [4] * 16 + [8] * 16}
    model = read_config(config, "config.json")
    assert [layer.attentions[0].kv_heads for layer in model.layers] == [4] * 16 + [8] * 16


def test_feed_forward_widths_listed_per_layer_are_counted_each(llama8b: dict[str, Any]) -> None:
    even = read_config({**llama8b, "intermediate_size": 1000}, "config.json").parameters
    mixed = read_config({**llama8b, "intermediate_size": [500] * 16 + [1500] * 16}, "config.json").parameters
    assert mixed == even


def test_the_largest_config_allowed_is_read_within_a_second_and_200_megabytes(
    llama8b: dict[str, Any],
) -> None:
    config = {
        **llama8b,
        "num_hidden_layers": 4096,
        "intermediate_size": list(range(1, 4097)),
        "layer_types": ["full_attention"] * 4096,
    }
    started = time.perf_counter()
    model = read_config(config, "config.json")
    assert time.perf_counter() - started < 1.0
    assert len(model.layers) == 4096
    tracemalloc.start()
    read_config(config, "config.json")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 200 * 2**20
