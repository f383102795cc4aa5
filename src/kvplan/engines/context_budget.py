"""Memory where the context asked for decides the cache: llama.cpp and transformers.

Nothing is left over for the cache to grow into: weights, caches as allocated, compute buffers and the
device's context are added up, and they fit or they do not.
"""

from __future__ import annotations

from typing import Any

from kvplan.engines.deployment import Deployment
from kvplan.engines.parts import (
    ENDS,
    device_bytes,
    fullest_weights,
    given_pool,
    in_use,
    learnt,
    memory_table,
    with_measured,
)
from kvplan.engines.registry import capacity_of
from kvplan.engines.reserve import forward, logits
from kvplan.figure import Leaf, Source, Trust, most, named, total

_STEP = {"llama.cpp": ("ubatch_size", 512), "transformers": ("prompt_tokens", 2048)}


def context_memory(d: Deployment, leaf: Leaf) -> dict[str, Any]:
    """The contract's `memory` table; the pool is what the caches take at the context asked for."""
    cache = cache_bytes(d, leaf)
    if d.memory_bytes is None:
        return given_pool(d, cache, leaf)
    accelerator, mine = device_bytes(d, leaf), fullest_weights(d, leaf)
    parts = {end: with_measured(d, _parts(d, end, leaf), leaf) for end in ENDS}
    return memory_table(accelerator, mine, parts["value"], dict.fromkeys(ENDS, cache))


def cache_bytes(d: Deployment, leaf: Leaf) -> Any:
    """What the engine allocates for keys, values and states, or None where it cannot be said."""
    found = capacity_of(d, None, leaf)
    held = [part for part in (found.kv_bytes, found.state_bytes) if part is not None]
    return named("kv_pool_bytes", "B", total(held)) if held else None


def _parts(d: Deployment, end: str, leaf: Leaf) -> dict[str, Any]:
    name, default = _STEP[d.setup.engine]
    given = d.setup.flags.get(name)
    why = Source(Trust.STATED, f"--{name.replace('_', '-')}")
    fallback = Source(Trust.ENGINE_RULE, f"{d.setup.engine} default of {name}")
    tokens = leaf(name, default if given is None else given, "token", fallback if given is None else why)
    scale = learnt(d, "forward_scale", "", end, leaf)
    rate = learnt(d, "bytes_per_logit", "B", end, leaf)
    peak = most(forward(d.model, d.setup.tp, tokens, scale, leaf), logits(d.model, tokens, rate, leaf))
    outside = learnt(d, "non_torch_bytes", "B", end, leaf) + in_use(d, leaf)
    none = Source(Trust.ENGINE_RULE, "no graph pool is kept")
    return {
        "activation_bytes": named("activation_bytes", "B", peak),
        "graph_bytes": leaf("graph_bytes", 0, "B", none),
        "overhead_bytes": named("overhead_bytes", "B", outside),
    }
