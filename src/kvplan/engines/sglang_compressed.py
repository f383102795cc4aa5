"""Compressed attention (DeepSeek-V4) under SGLang: full, windowed and state pools of one rank.

SGLang 0.5.23 model_executor/pool_configurator.py DSV4PoolConfigurator, ratio mode.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvplan.engines.sglang_rules import FACTS, defaults
from kvplan.engines.sglang_setup import Started, since
from kvplan.facts import store
from kvplan.figure import Leaf, Number, Source, Trust, formula, most, named, value_of, whole
from kvplan.model.model import Layer, Model

_RULE = "SGLang 0.5.23 model_executor/pool_configurator.py DSV4PoolConfigurator"


@dataclass(frozen=True, slots=True)
class Shape:
    """Layers of a stage by compression, and the widths of their vectors."""

    layers: int
    by_ratio: dict[int, int]
    width: int
    index_width: int
    window: int


@formula("token", _RULE)
def compressed_tokens(pool_bytes: Number, fixed_bytes: Number, token_bytes: Number, page: Number) -> Number:
    """Tokens of the full pool: what is left beside the states, in whole pages."""
    return most(0, whole((pool_bytes - fixed_bytes) / token_bytes)) // page * page


def shape_of(layers: Sequence[Layer]) -> Shape:
    """What the layers of a stage keep."""
    by_ratio: dict[int, int] = {}
    width = index = window = 0
    for layer in layers:
        for a in layer.attentions:
            width, window = max(width, a.key_width), max(window, a.window or 0)
            if a.kind == "compressed":
                by_ratio[a.stride] = by_ratio.get(a.stride, 0) + 1
                index = max(index, a.index_width)
    return Shape(len(layers), by_ratio, width, index, window)


def bytes_per_token(shape: Shape, run: Started, swa_ratio: float) -> float:
    """Bytes one token of the full pool costs: its share of the window pool, slots and index keys."""
    table = store.toml(FACTS)["compressed"]
    swa = swa_ratio * _swa_token_bytes(shape, run, table)
    parts = [swa]
    index = shape.index_width + shape.index_width // table["index_scale_block"] * 4
    for ratio, layers in shape.by_ratio.items():
        one = _slot_bytes(shape, run, table, ratio) / ratio
        one += index / ratio if ratio == 4 else 0
        parts.append(layers * one)
    whole_cost = sum(parts)
    return whole_cost * (shape.layers + 1) / shape.layers if run.drafts else whole_cost


def _slot_bytes(shape: Shape, run: Started, table: dict[str, Any], ratio: int = 1) -> float:
    """One vector as FlashMLA lays it out: fp8 values, rotary values in 16 bit, scales; pages padded."""
    one = int(shape.width - table["rope_width"] + 2 * table["rope_width"] + table["scale_bytes"])
    if not since(run, "0.5.23"):
        return one
    slots, pad = max(1, run.page // ratio), int(table["page_pad_bytes"])
    return -(-slots * one // pad) * pad / slots


def _swa_token_bytes(shape: Shape, run: Started, table: dict[str, Any]) -> float:
    ring = table["ring_drafting" if run.drafts else "ring"]["4"]
    span = run.page if since(run, "0.5.23") else shape.window or run.page
    state = 4 * (shape.width + shape.index_width) * table["state_value_bytes"]
    return float(
        _slot_bytes(shape, run, table) * shape.layers + ring / span * state * shape.by_ratio.get(4, 0)
    )


def fixed_bytes(shape: Shape, run: Started, pool_bytes: int, token_bytes: float) -> int:
    """Bytes of the states that every running request keeps for the 128-fold layers."""
    layers = shape.by_ratio.get(128, 0)
    if not layers:
        return 0
    table = store.toml(FACTS)["compressed"]
    ring = int(table["ring_drafting" if run.drafts else "ring"]["128"])
    rows = (requests_of(run, pool_bytes, token_bytes) + 1) * ring + ring + 1
    rows = -(-rows // 128) * 128
    return rows * 2 * shape.width * int(table["state_value_bytes"]) * layers


def requests_of(run: Started, pool_bytes: int, token_bytes: float) -> int:
    """Running requests of one worker: given, else the model type's default."""
    if run.requests is not None:
        return max(1, run.requests // run.attn_dp)
    tokens = int(pool_bytes / token_bytes)
    least, most = int(defaults()["min_requests"]), int(defaults()["max_requests"])
    estimate = int(tokens / (run.context or tokens or 1) * int(defaults()["request_scale"]))
    return int(min(max(min(estimate, most), least), tokens // 2))


def full_tokens(
    model: Model, run: Started, layers: Sequence[Layer], pool: Any, swa_ratio: float, leaf: Leaf
) -> tuple[Any, Any]:
    """Tokens of the full pool and bytes one of them costs; None tokens where no pool is given."""
    shape = shape_of(layers)
    cost = bytes_per_token(shape, run, swa_ratio)
    where = Source(Trust.ENGINE_RULE, f"{_RULE}; {model.file} compress ratios")
    one = leaf("compressed_token_bytes", cost, "B/token", where)
    if pool is None:
        return None, one
    fixed = fixed_bytes(shape, run, int(value_of(pool)), cost)
    fixed_leaf = leaf("request_state_bytes", fixed, "B", where)
    page = leaf(
        "page_size",
        run.page,
        "token",
        Source(Trust.ENGINE_RULE, run.settings.get("page_size", (0, "--page-size"))[1]),
    )
    return named("full_tokens", "token", compressed_tokens(pool, fixed_leaf, one, page)), one
