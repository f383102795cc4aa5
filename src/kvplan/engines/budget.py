"""How one rank's memory is spent: weights, what the engine needs to run, and the rest for the cache.

A first budget: utilisation is the engine's rule, weights are the model's, the reserves are
assumptions with ranges and say so.
"""

from __future__ import annotations

from typing import Any

from kvplan.cost.weights import Split
from kvplan.engines.deployment import Deployment
from kvplan.engines.loaded import weights_on_rank
from kvplan.facts import store
from kvplan.figure import Leaf, Number, Source, Trust, ceiling, formula, most, named

ENDS = ("value", "low", "high")


@formula("B", "vLLM 0.32.0 v1/worker/utils.py")
def requested_bytes(accelerator_bytes: Number, gpu_memory_utilization: Number) -> Number:
    """The share of the device the engine may use."""
    return ceiling(accelerator_bytes * gpu_memory_utilization, 1)


@formula("B", "assumption: no profile of this model read")
def activation_bytes(
    batched_tokens: Number, widest_values: Number, value_bytes: Number, copies: Number
) -> Number:
    """Peak of a profiling run: some live copies of the widest activation of a full batch of tokens."""
    return batched_tokens * widest_values * value_bytes * copies


@formula("B")
def kv_pool_bytes(
    requested_bytes: Number,
    weight_bytes: Number,
    activation_bytes: Number,
    graph_bytes: Number,
    overhead_bytes: Number,
) -> Number:
    """What is left for keys and values; nothing when the rest already takes more."""
    return most(0, requested_bytes - weight_bytes - activation_bytes - graph_bytes - overhead_bytes)


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


def memory_of(d: Deployment, leaf: Leaf) -> dict[str, Any]:
    """The contract's `memory` table in bytes, the pool with its interval."""
    accelerator = leaf("accelerator_bytes", d.memory_bytes, "B", d.memory_source)
    share = leaf("gpu_memory_utilization", d.gpu_memory_utilization, "", d.utilization_source)
    requested = requested_bytes(accelerator, share)
    mine = weights_on_rank(d.model, Split(tp=d.tp), leaf, d.accelerator.arch)
    mine = named("weight_bytes", "B", mine)
    pools = {}
    parts: dict[str, Any] = {}
    for end in ENDS:
        reserve = _reserve(d, end, leaf)
        pools[end] = kv_pool_bytes(requested, mine, *reserve.values())
        parts = reserve if end == "value" else parts
    activation, graph, overhead = parts.values()
    budget = budget_bytes(mine, activation, graph, overhead, pools["value"])
    return {
        "accelerator_bytes": accelerator,
        "budget_bytes": budget,
        "weight_bytes": mine,
        **parts,
        "kv_pool_bytes": pools["value"],
        "kv_pool_low_bytes": named("kv_pool_low_bytes", "B", pools["high"]),
        "kv_pool_high_bytes": named("kv_pool_high_bytes", "B", pools["low"]),
        "headroom_bytes": named("headroom_bytes", "B", accelerator - budget),
    }


def _reserve(d: Deployment, end: str, leaf: Leaf) -> dict[str, Any]:
    table = store.toml("engines.toml")["reserve"]

    def assumed(name: str, unit: str) -> Any:
        entry = table[name]
        why = f"{entry['why']}; taken {entry[end]:,} of {entry['low']:,} to {entry['high']:,}"
        return leaf(name, entry[end], unit, Source(Trust.ASSUMED, why))

    tokens, source = batched_tokens(d)
    activation = activation_bytes(
        leaf("batched_tokens", tokens, "token", source),
        leaf(
            "widest_values",
            widest_values(d),
            "value",
            Source(Trust.STATED, f"{d.model.file}: hidden and feed-forward width on a rank"),
        ),
        leaf("activation_value_bytes", 2, "B/value", Source(Trust.ENGINE_RULE, "activations in 16 bit")),
        assumed("activation_copies", "copy"),
    )
    return {
        "activation_bytes": activation,
        "graph_bytes": assumed("graph_bytes", "B"),
        "overhead_bytes": assumed("overhead_bytes", "B"),
    }


def batched_tokens(d: Deployment) -> tuple[int, Source]:
    """Tokens of the largest step when no flag is given, by the device's memory."""
    rows = store.toml("engines.toml")[d.engine]["max_num_batched_tokens"]
    row = next(r for r in rows if d.memory_bytes >= r["at_least_bytes"])
    return int(row["value"]), Source(Trust.ENGINE_RULE, f"max_num_batched_tokens: {row['source']}")


def widest_values(d: Deployment) -> int:
    """Hidden width plus the widest feed-forward of one rank, in values."""
    widths = [
        w.outputs
        for _, layer in d.model.grouped()
        for w in layer.weights
        if w.part in ("feed_forward", "shared_expert", "expert") and w.name in ("up_proj", "shared_up")
    ]
    return int(d.model.hidden + 2 * max(widths, default=4 * d.model.hidden) // d.tp)


def utilization_default(engine: str) -> tuple[float, Source]:
    """The engine's default share of the device."""
    row = store.toml("engines.toml")[engine]["gpu_memory_utilization"][0]
    return float(row["value"]), Source(Trust.ENGINE_RULE, f"{engine} default: {row['source']}")
