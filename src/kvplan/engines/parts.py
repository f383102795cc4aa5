"""What every engine's memory budget is put together from: the contract's `memory` table of one rank."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvplan.cost.weights import Split
from kvplan.engines.deployment import Deployment
from kvplan.engines.drafter import drafter_room
from kvplan.engines.engine import Setup
from kvplan.engines.loaded import are_known, weights_on_rank
from kvplan.engines.lora import lora_room
from kvplan.engines.sglang_setup import attention_ranks
from kvplan.facts import store
from kvplan.facts.engine_versions import entry_for
from kvplan.figure import Leaf, Number, Source, Trust, bare, formula, named, value_of

PARTS = ("activation_bytes", "graph_bytes", "overhead_bytes")
ENDS = ("value", "low", "high")
_POOLS = ("kv_pool_bytes", "kv_pool_low_bytes", "kv_pool_high_bytes")


@formula("B")
def budget_bytes(
    weight_bytes: Number,
    activation_bytes: Number,
    graph_bytes: Number,
    overhead_bytes: Number,
    kv_pool_bytes: Number,
) -> Number:
    """Everything the engine takes on this rank."""
    return weight_bytes + activation_bytes + graph_bytes + overhead_bytes + kv_pool_bytes


def fullest_weights(d: Deployment, leaf: Leaf) -> Any:
    """Weights on the rank that holds most: the largest pipeline stage."""
    measured = d.measured.get("weight_bytes")
    if measured is not None:
        return leaf("weight_bytes", measured[0], "B", measured[1])
    arch = d.accelerator.arch if d.accelerator else None
    s = d.setup
    groups = _groups(s)
    splits = [Split(s.tp, s.pp, stage, ep=s.ep, attention_dp=groups) for stage in range(s.pp)]
    largest = max(splits, key=lambda split: value_of(_on_rank(d, split, bare, arch)))
    return named("weight_bytes", "B", _on_rank(d, largest, leaf, arch))


def _groups(s: Setup) -> int:
    """Groups of ranks that attend apart within a tensor-parallel group."""
    if s.engine == "sglang":
        return attention_ranks(s)
    if s.engine == "tensorrt-llm":
        return s.tp if s.attention_dp > 1 or s.flags.get("enable_attention_dp") else 1
    return 1


def _on_rank(d: Deployment, split: Split, leaf: Leaf, arch: str | None) -> Any:
    """The model's weights on a rank, with slots for adapters and the drafter's weights."""
    loaded = weights_on_rank(d.model, split, leaf, arch) + lora_room(d.model, d.setup, split, leaf)
    return loaded + drafter_room(d, split, leaf, arch)


def with_measured(d: Deployment, reserve: Mapping[str, Any], leaf: Leaf) -> dict[str, Any]:
    """Figures the user measured in place of predicted ones."""
    return {
        name: leaf(name, d.measured[name][0], "B", d.measured[name][1]) if name in d.measured else predicted
        for name, predicted in reserve.items()
    }


def memory_table(
    accelerator: Any, weights: Any, reserve: Mapping[str, Any], pools: Mapping[str, Any]
) -> dict[str, Any]:
    """The table from its parts; `pools` at the ends of `ENDS`: the low end of a reserve leaves most."""
    budget = budget_bytes(
        weights,
        reserve["activation_bytes"],
        reserve["graph_bytes"],
        reserve["overhead_bytes"],
        pools["value"],
    )
    return {
        "accelerator_bytes": accelerator,
        "budget_bytes": budget,
        "weight_bytes": weights,
        **{name: reserve[name] for name in PARTS},
        "kv_pool_bytes": pools["value"],
        "kv_pool_low_bytes": named("kv_pool_low_bytes", "B", pools["high"]),
        "kv_pool_high_bytes": named("kv_pool_high_bytes", "B", pools["low"]),
        "headroom_bytes": named("headroom_bytes", "B", accelerator - budget),
    }


def given_pool(d: Deployment, pool: Any, leaf: Leaf) -> dict[str, Any]:
    """The table where no accelerator decides: its figures are None."""
    table: dict[str, Any] = dict.fromkeys(("accelerator_bytes", "budget_bytes"))
    known = "weight_bytes" in d.measured or are_known(d.model)
    table["weight_bytes"] = fullest_weights(d, leaf) if known else None
    table |= dict.fromkeys(PARTS) | dict.fromkeys(_POOLS, pool)
    return table | {"headroom_bytes": None}


def device_bytes(d: Deployment, leaf: Leaf) -> Any:
    """The device's whole memory as CUDA reports it."""
    return leaf("accelerator_bytes", d.memory_bytes or 0, "B", d.memory_source)


def in_use(d: Deployment, leaf: Leaf) -> Any:
    """What others hold on the device."""
    if not d.in_use_bytes:
        return 0
    return leaf("in_use_bytes", d.in_use_bytes, "B", Source(Trust.STATED, "--memory-in-use"))


def learnt(d: Deployment, name: str, unit: str, end: str, leaf: Leaf) -> Any:
    """A figure of facts/engines/reserve.toml for this engine and version, at one end of its range."""
    row = entry_for(store.toml("engines/reserve.toml")[d.setup.engine][name], d.setup.version)
    why = f"{row['source']}; taken {row[end]:,} of {row['low']:,} to {row['high']:,}"
    return leaf(name, row[end], unit, Source(Trust.ASSUMED, why))
