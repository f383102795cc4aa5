"""Memory where the context asked for decides the cache: llama.cpp and transformers.

Nothing is left over for the cache to grow into: weights, caches as allocated, compute buffers and the
device's context are added up, and they fit or they do not. llama.cpp may leave a part on the host.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvplan.engines.deployment import Deployment
from kvplan.engines.llama_cpp_placement import HOST, Placed, placement
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
from kvplan.figure import Leaf, Source, Trust, bare, most, named, total, value_of

_PROMPT_TOKENS = 2048


def context_memory(d: Deployment, leaf: Leaf) -> dict[str, Any]:
    """The contract's `memory` table; the pool is what the caches take at the context asked for."""
    if d.memory_bytes is None:
        return given_pool(d, cache_bytes(d, leaf), leaf)
    return _MEMORY[d.setup.engine](d, leaf)


def cache_bytes(d: Deployment, leaf: Leaf) -> Any:
    """What the engine allocates for keys, values and states, or None where it cannot be said."""
    found = capacity_of(d, None, leaf)
    held = [part for part in (found.kv_bytes, found.state_bytes) if part is not None]
    return named("kv_pool_bytes", "B", total(held)) if held else None


def placed_on(d: Deployment) -> list[Placed]:
    """What every device and the host hold under llama.cpp; `--tp` devices of a kind share the layers."""
    if d.memory_bytes is None or d.setup.platform == "cpu":
        return placement(d.model, d.setup, ())
    return placement(d.model, d.setup, [free_bytes(d)] * (d.setup.tp * d.setup.pp))


def free_bytes(d: Deployment) -> int:
    """What llama.cpp finds free on one device: less the device's context and what others hold."""
    context = value_of(learnt(d, "non_torch_bytes", "B", "value", bare))
    return int(max(0, (d.memory_bytes or 0) - context - d.in_use_bytes))


def room_for_cache(memory: Mapping[str, Any]) -> int | None:
    """Bytes that the device has for caches beside all the rest; None where the device is not known."""
    headroom, pool = value_of(memory["headroom_bytes"]), value_of(memory["kv_pool_bytes"])
    return None if headroom is None or pool is None else int(max(0, headroom + pool))


def _llama_cpp(d: Deployment, leaf: Leaf) -> dict[str, Any]:
    """The fullest device; of the host where there is none."""
    placed = placed_on(d)
    devices = [p for p in placed if p.device != HOST] or placed
    fullest = max(devices, key=lambda p: p.high_bytes)
    where = f"{d.model.file}: {fullest.layers} layers on {fullest.device}"
    held = {"weight_bytes": leaf("weight_bytes", fullest.weight_bytes, "B", Source(Trust.STATED, where))}
    mine = with_measured(d, held, leaf)["weight_bytes"]
    rule = Source(Trust.ENGINE_RULE, f"cells and rows of {where}")
    pool = leaf("kv_pool_bytes", fullest.cache_bytes, "B", rule)
    buffer = fullest.compute
    sizes = {"value": (buffer.low + buffer.high) // 2, "low": buffer.low, "high": buffer.high}
    parts = {}
    for end in ENDS:
        working = leaf("activation_bytes", sizes[end] + fullest.output_bytes, "B", buffer.source)
        parts[end] = with_measured(d, _around(d, working, end, leaf), leaf)
    return memory_table(device_bytes(d, leaf), mine, parts["value"], dict.fromkeys(ENDS, pool))


def _transformers(d: Deployment, leaf: Leaf) -> dict[str, Any]:
    """Weights, the cache at the length asked for, and the peak of one prompt's pass."""
    cache = cache_bytes(d, leaf)
    given, batch = d.setup.flags.get("prompt_tokens"), d.setup.flags.get("batch_size", 1)
    why = Source(Trust.ASSUMED if given is None else Trust.STATED, "tokens of one pass")
    prompt = min(_PROMPT_TOKENS if given is None else given, d.max_model_len)
    tokens = leaf("prompt_tokens", prompt, "token", why)
    if batch > 1:
        tokens = tokens * leaf("batch", batch, "sequence", Source(Trust.STATED, "--batch"))
    parts = {}
    for end in ENDS:
        scale, rate = (
            learnt(d, name, unit, end, leaf)
            for name, unit in (("forward_scale", ""), ("bytes_per_logit", "B"))
        )
        peak = most(forward(d.model, d.setup.tp, tokens, scale, leaf), logits(d.model, tokens, rate, leaf))
        parts[end] = with_measured(d, _around(d, peak, end, leaf), leaf)
    pools = dict.fromkeys(ENDS, cache)
    return memory_table(device_bytes(d, leaf), fullest_weights(d, leaf), parts["value"], pools)


def _around(d: Deployment, working: Any, end: str, leaf: Leaf) -> Mapping[str, Any]:
    """Working memory, no graph pool, and what the device's context and others take."""
    none = Source(Trust.ENGINE_RULE, "no graph pool is kept")
    outside = learnt(d, "non_torch_bytes", "B", end, leaf) + in_use(d, leaf)
    return {
        "activation_bytes": named("activation_bytes", "B", working),
        "graph_bytes": leaf("graph_bytes", 0, "B", none),
        "overhead_bytes": named("overhead_bytes", "B", outside),
    }


_MEMORY = {"llama.cpp": _llama_cpp, "transformers": _transformers}
