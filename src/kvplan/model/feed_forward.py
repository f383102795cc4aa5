"""Reading the feed-forward part of a layer: dense, or a router with experts."""

from __future__ import annotations

from typing import Any

from kvplan.model.keys import Keys
from kvplan.model.model import Weight

Table = dict[str, Any]


def dense_weights(
    keys: Keys, table: Table, hidden: int, layer: int, width: int | None = None
) -> tuple[Weight, ...]:
    """Two matrices, or three when gated; the width is the config's or a multiple of hidden."""
    width = _dense_width(keys, table, hidden, layer) if width is None else width
    gated, bias = keys.flag(table.get("gated")), keys.flag(table.get("bias"))
    if not width:
        return ()
    up = Weight("up_proj", "feed_forward", width, hidden, bias, split="column")
    down = Weight("down_proj", "feed_forward", hidden, width, bias, split="row")
    gate = (Weight("gate_proj", "feed_forward", width, hidden, bias, split="column"),) if gated else ()
    return (*gate, up, down)


def _dense_width(keys: Keys, table: Table, hidden: int, layer: int) -> int:
    names = table.get("width") or keys.spellings("ff_width")
    read = keys.find("ff_width", names)
    if read is None:
        return int(table.get("times_hidden", 4)) * hidden
    key, value, _ = read
    if isinstance(value, list):
        value = value[layer] if layer < len(value) else None
    width = keys.whole(key, value, 0, 16777216)
    width = width * int(table.get("width_numerator", 1)) // int(table.get("width_denominator", 1))
    if table.get("auto_adjust") and keys.flag(table["auto_adjust"], bool(table.get("auto_adjust_default"))):
        width = 2 * width // 3
        width = int(keys.real("block_ffn_dim_multiplier", 1.0) * width)
        step = keys.whole("block_multiple_of", int(keys.real("block_multiple_of", 256)), 1)
        width = -(-width // step) * step
    return width


def expert_weights(keys: Keys, table: Table, hidden: int, layer: int) -> tuple[Weight, ...]:
    """Router, experts and shared experts of one sparse layer."""
    experts = _per_layer(keys, "experts", layer) or 0
    if not experts:
        return ()
    active = _per_layer(keys, "experts_per_token", layer)
    active = min(active, experts) if active is not None else experts
    inside = _latent_width(keys, table, hidden)
    width = _per_layer(keys, "expert_width", layer) or _dense_width(keys, table, hidden, layer)
    bias = keys.flag(table.get("expert_bias"))
    gated = keys.flag(table.get("gated", True), True)
    router_bias = keys.flag(table.get("router_bias"))

    def expert(name: str, outputs: int, inputs: int) -> Weight:
        return Weight(name, "expert", outputs, inputs, bias, experts, active, "expert")

    weights = [Weight("router", "router", experts, hidden, router_bias)]
    if inside != hidden:
        weights += [
            Weight("latent_down", "feed_forward", inside, hidden),
            Weight("latent_up", "feed_forward", hidden, inside),
        ]
    weights += [expert("up_proj", width, inside), expert("down_proj", inside, width)]
    weights += [expert("gate_proj", width, inside)] if gated else []
    return (*weights, *_shared_weights(keys, table, hidden, layer, width, gated))


def _latent_width(keys: Keys, table: Table, hidden: int) -> int:
    key = table.get("latent_width")
    return (keys.count(key, [key]) or hidden) if key else hidden


def _shared_weights(
    keys: Keys, table: Table, hidden: int, layer: int, width: int, gated: bool
) -> tuple[Weight, ...]:
    shared = shared_width(keys, table, layer, width)
    if not shared:
        return ()
    found = [
        Weight("shared_up", "shared_expert", shared, hidden, split="column"),
        Weight("shared_down", "shared_expert", hidden, shared, split="row"),
    ]
    if gated:
        found.append(Weight("shared_gate", "shared_expert", shared, hidden, split="column"))
    if table.get("shared_router"):
        found.append(Weight("shared_router", "router", 1, hidden))
    return tuple(found)


def shared_width(keys: Keys, table: Table, layer: int, width: int) -> int:
    """Values inside the shared experts of a layer, all of them together."""
    if table.get("shared") is False:
        return 0
    if table.get("shared_as_dense"):
        return _dense_width(keys, {"width": table["shared_as_dense"]}, 0, layer)
    count = _per_layer(keys, "shared_experts", layer)
    one = keys.count("shared_width")
    if table.get("shared_width_total", True) and one:
        return one
    return (count or 0) * (one or width)


def _per_layer(keys: Keys, quantity: str, layer: int) -> int | None:
    """A count that some configs give as a list, one entry per layer."""
    read = keys.find(quantity)
    if read is None:
        return None
    key, value, source = read
    if isinstance(value, list):
        value = value[min(layer, len(value) - 1)] if value else None
        if value is None:
            return None
    keys.origins[quantity] = source
    return keys.whole(key, value, 0, 16777216)
