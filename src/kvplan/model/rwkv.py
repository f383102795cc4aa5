"""Reading RWKV's layers: time mixing over a state, channel mixing in place of a feed-forward part.

Shapes follow the published code: RWKV-4 to RWKV-6 `modeling_rwkv*.py` of the RWKV organisation, RWKV-7
flash-linear-attention's `rwkv7.py` with the ranks of RWKV-LM. The shift keeps two tokens.
"""

from __future__ import annotations

from typing import Any

from kvplan.errors import BadConfig
from kvplan.model.keys import Keys
from kvplan.model.model import State, Weight

Table = dict[str, Any]
Mixer = tuple[State, tuple[Weight, ...]]


def rwkv4(keys: Keys, _table: Table, hidden: int) -> Mixer:
    """RWKV-4: three float32 vectors of hidden width."""
    inner = keys.count("inner", ["attention_hidden_size"]) or hidden
    width = keys.count("ff_width") or 4 * hidden
    weights = (
        Weight("key_value_receptance", "state", 3 * inner, hidden, split="column"),
        Weight("output", "state", hidden, inner, split="row"),
        Weight("decay_first", "state", 2 * inner),
        Weight("time_mix", "state", 5 * hidden),
        *_channel_mix(hidden, width, receptance=True),
    )
    return _state(keys, "rwkv4", hidden, 3 * inner, inner), weights


def rwkv5(keys: Keys, table: Table, hidden: int) -> Mixer:
    """RWKV-5: a matrix for each head, decay and bonus the same for every token."""
    inner, width = _heads(keys, table, hidden)
    weights = (
        *_time_mix(inner, hidden),
        Weight("time_mix", "state", 4 * hidden + 2 * inner),
        *_channel_mix(hidden, _width(keys, hidden), receptance=True),
        Weight("ffn_mix", "feed_forward", 2 * hidden),
    )
    return _state(keys, "rwkv5", hidden, inner * width, inner // width), weights


def rwkv6(keys: Keys, table: Table, hidden: int) -> Mixer:
    """RWKV-6: mixing and decay follow the token through low-rank matrices, wider at `wide_hidden`."""
    inner, width = _heads(keys, table, hidden)
    wide = hidden == table["wide_hidden"]
    mix, decay = (int(table[name][wide]) for name in ("mix_ranks", "decay_ranks"))
    weights = (
        *_time_mix(inner, hidden),
        Weight("time_mix", "state", 6 * hidden + 2 * inner),
        Weight("mix_low", "state", 5 * mix, hidden),
        Weight("mix_high", "state", 5 * hidden, mix),
        Weight("decay_low", "state", decay, hidden),
        Weight("decay_high", "state", inner, decay, split="column"),
        *_channel_mix(hidden, _width(keys, hidden), receptance=True),
        Weight("ffn_mix", "feed_forward", 2 * hidden),
    )
    return _state(keys, "rwkv6", hidden, inner * width, inner // width), weights


def rwkv7(keys: Keys, table: Table, hidden: int) -> Mixer:
    """RWKV-7: a generalised delta rule; decay, rate, value residual and gate are of low rank.

    A rank the config does not state is `factor` × hidden ^ `power` in steps of 32; the first layer
    has no value residual.
    """
    inner, width = _heads(keys, table, hidden)
    low_rank = []
    for name, rule in table["ranks"].items():
        if name in table.get("without", ()):
            continue
        guess = max(32, round(rule["factor"] * hidden ** rule["power"] / 32) * 32)
        rank = keys.count(f"{name}_rank", [rule["key"]]) or guess
        low_rank.append(Weight(f"{name}_low", "state", rank, hidden))
        low_rank.append(Weight(f"{name}_high", "state", inner, rank, bool(rule["bias"]), split="column"))
    weights = (
        Weight("rkv", "state", 3 * inner, hidden, split="column"),
        Weight("output", "state", hidden, inner, split="row"),
        *low_rank,
        Weight("time_mix", "state", 6 * hidden + 3 * inner),
        Weight("group_norm", "norm", inner, bias=True),
        *_channel_mix(hidden, keys.count("ff_width") or 4 * hidden, receptance=False),
        Weight("ffn_mix", "feed_forward", hidden),
    )
    return _state(keys, "rwkv7", hidden, inner * width, inner // width), weights


def _heads(keys: Keys, table: Table, hidden: int) -> tuple[int, int]:
    """The width of all heads together, and of one."""
    width = keys.count("rwkv_head", table.get("head_size", ["head_size", "head_dim"])) or 64
    inner = keys.count("inner", ["attention_hidden_size"]) or hidden
    if inner % width:
        raise BadConfig(f"head_size: {width} does not divide {inner} in {keys.file}; correct the file")
    return inner, width


def _width(keys: Keys, hidden: int) -> int:
    return keys.count("ff_width") or int(hidden * 3.5) // 32 * 32


def _time_mix(inner: int, hidden: int) -> tuple[Weight, ...]:
    return (
        Weight("rkvg", "state", 4 * inner, hidden, split="column"),
        Weight("output", "state", hidden, inner, split="row"),
        Weight("group_norm", "norm", inner, bias=True),
    )


def _channel_mix(hidden: int, width: int, *, receptance: bool) -> tuple[Weight, ...]:
    gate = (Weight("ffn_receptance", "feed_forward", hidden, hidden),) if receptance else ()
    return (
        Weight("ffn_key", "feed_forward", width, hidden, split="column"),
        *gate,
        Weight("ffn_value", "feed_forward", hidden, width, split="row"),
    )


def _state(keys: Keys, mixer: str, hidden: int, values: int, heads: int) -> State:
    return State(
        kind="recurrent",
        mixer=mixer,
        channels=2 * hidden,
        columns=1,
        values=values,
        heads=heads,
        origins=dict(keys.origins),
    )
