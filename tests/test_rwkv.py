"""RWKV keeps a matrix for each head and two tokens; its sizes are those its authors publish."""

from __future__ import annotations

from typing import Any

import pytest

import kvplan
from kvplan.errors import BadConfig
from kvplan.model.read import read_config

# arXiv:2503.14456 (RWKV-7) and arXiv:2404.05892 (RWKV-6): layers, hidden width, parameters.
GOOSE = [(12, 768, {}, 191_034_624), (24, 1024, {"gate_low_rank_dim": 128}, 450_767_872)]
GOOSE += [(24, 2048, {}, 1_527_404_544), (32, 2560, {}, 2_947_735_040)]
FINCH = [(24, 2048, 1_599_873_024), (32, 4096, 7_635_746_816)]


def config(model_type: str, layers: int, hidden: int, **more: Any) -> dict[str, Any]:
    """A World model: its vocabulary and heads of 64."""
    return {
        "model_type": model_type,
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "vocab_size": 65536,
        "head_size": 64,
        **more,
    }


@pytest.mark.parametrize(("layers", "hidden", "ranks", "count"), GOOSE)
def test_rwkv7_comes_out_at_its_published_size(
    layers: int, hidden: int, ranks: dict[str, int], count: int
) -> None:
    assert read_config(config("rwkv7", layers, hidden, **ranks), "config.json").parameters == count


@pytest.mark.parametrize(("layers", "hidden", "count"), FINCH)
def test_rwkv6_comes_out_at_its_published_size(layers: int, hidden: int, count: int) -> None:
    assert read_config(config("rwkv6", layers, hidden), "config.json").parameters == count


@pytest.mark.parametrize("model_type", ["rwkv5", "rwkv6", "rwkv7"])
def test_the_state_is_a_matrix_per_head_and_two_tokens(model_type: str) -> None:
    kv = kvplan.size(config(model_type, 32, 2560))["kv"]
    assert kv["bytes_per_token"] == 0
    assert kv["layer_kinds"] == {"recurrent": 32}
    assert kv["state_bytes_per_sequence"] == 32 * (40 * 64 * 64 * 4 + 2 * 2560 * 2)


def test_ranks_that_the_config_states_are_taken() -> None:
    ranks = {"decay_low_rank_dim": 96, "a_low_rank_dim": 96, "v_low_rank_dim": 64, "gate_low_rank_dim": 320}
    stated = read_config(config("rwkv7", 32, 2560, **ranks), "config.json")
    wider = read_config(config("rwkv7", 32, 2560, **{**ranks, "gate_low_rank_dim": 352}), "config.json")
    assert stated.parameters == 2_947_735_040
    assert wider.parameters - stated.parameters == 32 * 2 * 32 * 2560


def test_a_head_that_does_not_divide_the_width_is_refused() -> None:
    with pytest.raises(BadConfig, match=r"head_size: 48 does not divide 2560 in broken\.json"):
        read_config({**config("rwkv7", 32, 2560), "head_size": 48}, "broken.json")
