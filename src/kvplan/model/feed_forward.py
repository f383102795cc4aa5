"""Reading the feed-forward part of a layer: dense, or a router with experts."""

from __future__ import annotations

from typing import Any

from kvplan.figure import Trust
from kvplan.model.extras import extra_weights
from kvplan.model.keys import Keys
from kvplan.model.model import Weight

Table = dict[str, Any]


def dense_weights(keys: Keys, table: Table, hidden: int, width: int | None = None) -> tuple[Weight, ...]:
    """Two matrices, or three when gated; the width is the config's or a multiple of hidden."""
    width = _dense_width(keys, table, hidden) if width is None else width
    gated, bias = _gated(keys, table), keys.flag(table.get("bias"))
    if not width:
        return ()
    up = Weight("up_proj", "feed_forward", width, hidden, bias, split="column")
    down = Weight("down_proj", "feed_forward", hidden, width, bias, split="row")
    gate = (Weight("gate_proj", "feed_forward", width, hidden, bias, split="column"),) if gated else ()
    return (*gate, up, down)


def _gated(keys: Keys, table: Table) -> bool:
    """Whether there is a third matrix: as the type says, or as the text under a key begins."""
    if "gated_when" in table:
        rule = table["gated_when"]
        return (keys.text(rule["key"]) or "").startswith(rule["starts"])
    return keys.flag(table.get("gated"))


def _dense_width(keys: Keys, table: Table, hidden: int) -> int:
    if "multiplier" in table:
        return _multiplied(keys, table, hidden)
    names = table.get("width") or keys.spellings("ff_width")
    read = keys.find("ff_width", names)
    if read is None:
        times = table.get("times_key")
        stated = keys.count(times, [times]) if times else None
        if stated is None:
            keys.assume("ff_width", f"4 × hidden_size, {4 * hidden:,}")
        return (stated or 4) * hidden
    width = keys.whole(read[0], keys.here(read[1]), 0, 16777216)
    width = width * int(table.get("width_numerator", 1)) // int(table.get("width_denominator", 1))
    if table.get("auto_adjust") and keys.flag(table["auto_adjust"], bool(table.get("auto_adjust_default"))):
        width = 2 * width // 3
        width = int(keys.real("block_ffn_dim_multiplier", 1.0) * width)
        step = keys.whole("block_multiple_of", int(keys.real("block_multiple_of", 256)), 1)
        width = -(-width // step) * step
    return width


def _multiplied(keys: Keys, table: Table, hidden: int) -> int:
    """A multiple of hidden, one for each layer, rounded to the nearest step but never below 90 %."""
    exact = keys.real(table["multiplier"], 4.0) * hidden
    step = keys.count(table["multiple_of"], [table["multiple_of"]]) or 1
    width = max(step, int(exact + step / 2) // step * step)
    return width + step if width < 0.9 * exact else width


def expert_weights(keys: Keys, table: Table, hidden: int) -> tuple[Weight, ...]:
    """Router, experts and shared experts of one sparse layer."""
    experts = keys.count("experts") or 0
    if not experts:
        return ()
    active = _active_experts(keys, experts)
    inside = _latent_width(keys, table, hidden)
    width = keys.count("expert_width") or _dense_width(keys, table, hidden)
    bias = keys.flag(table.get("expert_bias"))
    gated = keys.flag(table.get("gated", True), True)
    router_bias = keys.flag(table.get("router_bias"))

    def expert(name: str, outputs: int, inputs: int) -> Weight:
        return Weight(name, "expert", outputs, inputs, bias, experts, active, "expert")

    idle = keys.count(table["idle_experts"], [table["idle_experts"]]) or 0 if "idle_experts" in table else 0
    router = Weight("router", "router", experts + idle, hidden, router_bias)
    weights = [] if table.get("router") is False else [router]
    if inside != hidden:
        weights += [
            Weight("latent_down", "feed_forward", inside, hidden),
            Weight("latent_up", "feed_forward", hidden, inside),
        ]
    weights += [expert("up_proj", width, inside), expert("down_proj", inside, width)]
    weights += [expert("gate_proj", width, inside)] if gated else []
    extras = extra_weights(keys, table.get("extras", {}), {"hidden": hidden, "experts": experts})
    return (*weights, *_shared_weights(keys, table, hidden, width, gated), *extras)


def _active_experts(keys: Keys, experts: int) -> int:
    """Experts one token is sent to: no more than there are, all of them where nothing says."""
    read = keys.find("experts_per_token")
    active = keys.count("experts_per_token")
    if read is None or active is None:
        keys.assume("experts_per_token", f"all {experts} experts for every token")
        return experts
    if active > experts and read[2].trust is Trust.STATED:
        raise keys.wrong(read[0], active, f"there are {experts} experts")
    return min(active, experts)


def _latent_width(keys: Keys, table: Table, hidden: int) -> int:
    key = table.get("latent_width")
    return (keys.count(key, [key]) or hidden) if key else hidden


def _shared_weights(keys: Keys, table: Table, hidden: int, width: int, gated: bool) -> tuple[Weight, ...]:
    shared = shared_width(keys, table, width)
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


def shared_width(keys: Keys, table: Table, width: int) -> int:
    """Values inside the shared experts of a layer, all of them together."""
    if table.get("shared") is False:
        return 0
    if table.get("shared_as_dense"):
        return _dense_width(keys, {"width": table["shared_as_dense"]}, 0)
    count = keys.count("shared_experts")
    one = keys.count("shared_width")
    if table.get("shared_width_total", True) and one:
        return one
    return (count or 0) * (one or width)
