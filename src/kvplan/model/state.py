"""Reading mixers that keep a state instead of keys and values: what they hold and their weights.

Each mixer's shapes follow the paper's layer as transformers 5.24.0 and vLLM 0.32.0
(`layers/mamba/mamba_utils.py`) build it; the convolution keeps width − 1 columns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvplan.model.extras import extra_weights, total_of
from kvplan.model.keys import Keys
from kvplan.model.model import State, Weight
from kvplan.model.rwkv import rwkv4, rwkv5, rwkv6, rwkv7

Table = dict[str, Any]
Mixer = tuple[State, tuple[Weight, ...]]


def state_of(keys: Keys, mixer: str, table: Table, hidden: int) -> Mixer:
    """The state that one layer of that mixer keeps, and its weights."""
    keys.origins = {}
    return _MIXERS[mixer](keys, table, hidden)


def _recurrent(keys: Keys, mixer: str, kind: str = "recurrent", **shape: int) -> State:
    return State(kind=kind, mixer=mixer, origins=dict(keys.origins), **shape)


def _mamba1(keys: Keys, table: Table, hidden: int) -> Mixer:
    """Mamba: inner channels × state width (Gu and Dao 2023)."""
    inner = keys.count("inner", table["inner"]) if "inner" in table else None
    inner = inner or (keys.need("expand") * hidden)
    width, kernel = keys.need("state_width"), keys.need("conv_width")
    read = keys.find("dt_rank")
    rank = -(-hidden // 16) if read is None or read[1] == "auto" else keys.count("dt_rank") or 0
    bias = keys.flag(table.get("proj_bias"))
    weights = [
        Weight("in_proj", "state", 2 * inner, hidden, bias, split="column"),
        Weight(
            "conv1d", "state", inner, kernel, keys.flag(table.get("conv_bias", True), True), split="column"
        ),
        Weight("x_proj", "state", rank + 2 * width, inner, split="row"),
        Weight("dt_proj", "state", inner, rank, True, split="column"),
        Weight("A_log", "state", inner, width, split="column"),
        Weight("D", "state", inner, split="column"),
        Weight("out_proj", "state", hidden, inner, bias, split="row"),
    ]
    if table.get("inner_norms"):
        weights.append(Weight("dt_b_c_norms", "norm", rank + 2 * width))
    state = _recurrent(keys, "mamba1", channels=inner, columns=kernel - 1, values=inner * width, heads=inner)
    return state, tuple(weights)


def _mamba2(keys: Keys, table: Table, hidden: int) -> Mixer:
    """Mamba-2: heads × head width × state width; B and C per group (Dao and Gu 2024)."""
    width, kernel = keys.need("state_width"), keys.need("conv_width")
    heads, head_width = keys.count("ssm_heads"), keys.count("ssm_head_width")
    groups = keys.count("ssm_groups") or 1
    inner = keys.count("inner", table["inner"]) if "inner" in table else None
    if inner is None and heads and head_width:
        inner = heads * head_width
    inner = inner or keys.need("expand") * hidden
    if not heads:
        heads = inner // head_width if head_width else keys.need("ssm_heads")
    head_width = inner // heads
    bias = keys.flag(table.get("proj_bias"))
    channels = inner + 2 * groups * width
    weights = [
        Weight("in_proj", "state", 2 * inner + 2 * groups * width + heads, hidden, bias, split="column"),
        Weight(
            "conv1d", "state", channels, kernel, keys.flag(table.get("conv_bias", True), True), split="column"
        ),
        Weight("A_D_dt", "state", 3 * heads, split="column"),
        Weight("out_proj", "state", hidden, inner, bias, split="row"),
    ]
    if keys.flag(table.get("inner_norm", True), True):
        weights.append(Weight("norm", "norm", inner))
    state = _recurrent(
        keys,
        "mamba2",
        channels=inner,
        columns=kernel - 1,
        values=heads * head_width * width,
        heads=heads,
        groups=groups,
        group_channels=2 * width,
    )
    return state, tuple(weights)


def _gated_delta_net(keys: Keys, table: Table, hidden: int) -> Mixer:
    """Gated delta net: value heads × key width × value width (Yang et al. 2024)."""
    key_heads, value_heads = keys.need("linear_key_heads"), keys.need("linear_value_heads")
    key_width, value_width = keys.count("linear_key_width"), keys.count("linear_value_width")
    if key_width is None and "key_share" in table:  # OLMo-Hybrid derives its widths
        key_width = int(table["key_share"] * hidden / key_heads)
    key_width = key_width or keys.need("linear_key_width")
    value_width = value_width or (2 * key_width if "key_share" in table else keys.need("linear_value_width"))
    kernel = keys.need("conv_width")
    keys_total, values_total = key_heads * key_width, value_heads * value_width
    channels = 2 * keys_total + values_total
    weights = (
        Weight("in_proj_qkvz", "state", channels + values_total, hidden, split="column"),
        Weight("in_proj_ba", "state", 2 * value_heads, hidden, split="column"),
        Weight("conv1d", "state", channels, kernel, split="column"),
        Weight("A_dt", "state", 2 * value_heads, split="column"),
        Weight("norm", "norm", value_width),
        Weight("out_proj", "state", hidden, values_total, split="row"),
    )
    state = _recurrent(
        keys,
        "gated_delta_net",
        channels=channels,
        columns=kernel - 1,
        values=value_heads * key_width * value_width,
        heads=key_heads,
    )
    return state, weights


def _kda(keys: Keys, table: Table, hidden: int) -> Mixer:
    """Kimi delta attention: heads × width × width, convolutions on q, k and v."""
    heads = keys.count("linear_heads") or keys.need("query_heads")
    width = keys.count("linear_width") or keys.need("head_width")
    kernel = keys.count("linear_kernel") or 4
    inner = heads * width
    low_rank = (
        Weight("f_a_g_a", "state", 2 * width, hidden),
        Weight("f_b_g_b", "state", 2 * inner, width, split="column"),
    )
    full_rank = (Weight("f_g", "state", 2 * inner, hidden, split="column"),)
    weights = (
        Weight("qkv_proj", "state", 3 * inner, hidden, split="column"),
        Weight("conv1d", "state", 3 * inner, kernel, split="column"),
        *(full_rank if table.get("full_gates") else low_rank),
        Weight("b_proj", "state", heads, hidden, split="column"),
        Weight("A_dt", "state", heads + inner, split="column"),
        Weight("norm", "norm", width),
        Weight("o_proj", "state", hidden, inner, split="row"),
    )
    state = _recurrent(
        keys, "kda", channels=3 * inner, columns=kernel - 1, values=heads * width * width, heads=heads
    )
    return state, weights


def _short_conv(keys: Keys, _table: Table, hidden: int) -> Mixer:
    """LFM2's gated short convolution: only its last columns are kept."""
    kernel = keys.need("conv_cache")
    bias = keys.flag("conv_bias")
    weights = (
        Weight("in_proj", "state", 3 * hidden, hidden, bias, split="column"),
        Weight("conv", "state", hidden, kernel, bias, split="column"),
        Weight("out_proj", "state", hidden, hidden, bias, split="row"),
    )
    state = _recurrent(
        keys, "short_conv", "convolution", channels=hidden, columns=kernel - 1, values=0, heads=hidden
    )
    return state, weights


def _lightning(keys: Keys, _table: Table, hidden: int) -> Mixer:
    """Lightning attention: heads × width × width, no convolution (MiniMax-01)."""
    heads = keys.need("query_heads")
    width = keys.count("head_width") or hidden // heads
    inner = heads * width
    weights = [
        Weight("qkv_proj", "state", 3 * inner, hidden, split="column"),
        Weight("output_gate", "state", inner, hidden, split="column"),
        Weight("norm", "norm", inner),
        Weight("out_proj", "state", hidden, inner, split="row"),
    ]
    state = _recurrent(keys, "lightning", channels=0, columns=0, values=heads * width * width, heads=heads)
    return state, tuple(weights)


def _xlstm(keys: Keys, _table: Table, hidden: int) -> Mixer:
    """mLSTM: a matrix memory, a normaliser and a maximum per head (Beck et al. 2024)."""
    heads = keys.need("query_heads")
    qk = -(-int(hidden * keys.real("qk_dim_factor", 0.5)) // 64) * 64
    v = -(-int(hidden * keys.real("v_dim_factor", 1.0)) // 64) * 64
    step = int(keys.real("ffn_round_up_to_multiple_of", 64)) or 1
    ff = -(-int(hidden * keys.real("ffn_proj_factor", 2.667)) // step) * step
    weights = (
        Weight("qk", "state", 2 * qk, hidden, split="column"),
        Weight("v_ogate", "state", 2 * v, hidden, split="column"),
        Weight("gates", "state", 2 * heads, hidden, True),
        Weight("norm", "norm", v),
        Weight("out_proj", "state", hidden, v, split="row"),
        Weight("ffn_gate_up", "feed_forward", 2 * ff, hidden, split="column"),
        Weight("ffn_down", "feed_forward", hidden, ff, split="row"),
    )
    per_head = (qk // heads) * (v // heads) + qk // heads + 1
    state = _recurrent(keys, "xlstm", channels=0, columns=0, values=heads * per_head, heads=heads)
    return state, weights


def _rg_lru(keys: Keys, _table: Table, hidden: int) -> Mixer:
    """RG-LRU of Griffin: one float32 vector, a convolution before it."""
    width = keys.count("lru_width", ["lru_width"]) or hidden
    kernel = keys.count("conv_width") or 4
    heads = keys.need("query_heads")
    weights = (
        Weight("linear_x_y", "state", 2 * width, hidden, True, split="column"),
        Weight("conv1d", "state", width, kernel, True, split="column"),
        Weight("gates", "state", 2 * width, width // heads, True, split="column"),
        Weight("recurrent_param", "state", width, split="column"),
        Weight("linear_out", "state", hidden, width, True, split="row"),
    )
    state = _recurrent(keys, "rg_lru", channels=width, columns=kernel - 1, values=width, heads=heads)
    return state, weights


def _conv_tail(keys: Keys, table: Table, hidden: int) -> Mixer:
    """Convolutions beside attention: the last columns of their inputs, and `values` if any."""
    known = {"hidden": hidden}
    channels = total_of(keys, table["channels"], known)
    columns = total_of(keys, table["columns"], known)
    values = total_of(keys, table.get("values", []), known)
    state = _recurrent(
        keys,
        "conv_tail",
        "recurrent" if values else "convolution",
        channels=channels,
        columns=columns,
        values=values,
        heads=keys.need("kv_heads"),
    )
    return state, extra_weights(keys, table.get("weights", {}), known)


_MIXERS: dict[str, Callable[[Keys, Table, int], Mixer]] = {
    "mamba1": _mamba1,
    "mamba2": _mamba2,
    "gated_delta_net": _gated_delta_net,
    "kda": _kda,
    "short_conv": _short_conv,
    "lightning": _lightning,
    "rwkv4": rwkv4,
    "rwkv5": rwkv5,
    "rwkv6": rwkv6,
    "rwkv7": rwkv7,
    "xlstm": _xlstm,
    "rg_lru": _rg_lru,
    "conv_tail": _conv_tail,
}
