"""Whether a deployment starts, and whether it runs so many sequences at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvplan.engines.budget import memory_of
from kvplan.engines.context_budget import placed_on, room_for_cache
from kvplan.engines.deployment import Deployment
from kvplan.engines.engine import Capacity
from kvplan.engines.llama_cpp_placement import HOST
from kvplan.engines.registry import CONTEXT_DECIDES, capacity_of
from kvplan.figure import bare, value_of
from kvplan.units import bytes_text
from kvplan.verbs.deploy import with_flags

LENGTHS = {
    "vllm": "max_model_len",
    "sglang": "context_length",
    "tensorrt-llm": "max_seq_len",
    "llama.cpp": "ctx_size",
    "transformers": "max_length",
}


def pool_for(d: Deployment, memory: Mapping[str, Any]) -> Any:
    """The bytes the engine's cache is judged by: its pool, or the room where the context decides.

    None where several devices, or the host, hold parts of llama.cpp's cache: the placement judges then.
    """
    if d.setup.engine not in CONTEXT_DECIDES:
        return memory["kv_pool_bytes"]
    if d.setup.engine == "llama.cpp" and d.memory_bytes is not None:
        holding = [placed for placed in placed_on(d) if placed.layers]
        if len(holding) != 1 or (holding[0].device == HOST) != (d.setup.platform == "cpu"):
            return None
    return room_for_cache(memory)


def starts(d: Deployment, memory: Mapping[str, Any], capacity: Capacity) -> bool | None:
    """Whether weights and all else find room, and the engine's own start check passes for one request."""
    headroom = value_of(memory["headroom_bytes"])
    if headroom is not None and headroom < 0:
        return False
    if occupied(d, memory) or capacity.fits is False:
        return False
    if capacity.fits is None and d.setup.engine in CONTEXT_DECIDES and headroom is not None:
        return True
    return capacity.fits


def would_start(d: Deployment) -> bool | None:
    """The same of a deployment from nothing but itself, as `fit` says."""
    memory = memory_of(d, bare)
    return starts(d, memory, capacity_of(d, value_of(pool_for(d, memory)), bare))


def occupied(d: Deployment, memory: Mapping[str, Any]) -> list[str]:
    """vLLM refuses to start when less is free than it asks for, whoever holds the rest."""
    budget = value_of(memory["budget_bytes"])
    if d.setup.engine != "vllm" or not d.in_use_bytes or d.memory_bytes is None or budget is None:
        return []
    free = d.memory_bytes - d.in_use_bytes
    if free >= budget:
        return []
    return [
        f"{bytes_text(d.in_use_bytes)} are in use and {bytes_text(free)} free, less than the "
        f"{bytes_text(budget)} the engine asks for: it will refuse to start"
    ]


def enough(d: Deployment, pool: Any, capacity: Capacity, batch: int | None, length: int | None) -> bool:
    """Whether `batch` sequences of `length`, else of the longest, run at once; unknown counts as enough."""
    if batch is None:
        return True
    limit = most_running(capacity)
    if limit is not None and limit < batch:
        return False
    held = sequences_of(d, pool, length) if length else at_once(d, capacity)
    return held is None or bool(held >= batch)


def most_running(capacity: Capacity) -> int | None:
    """The engine's own cap on sequences that run at once."""
    asked = value_of(capacity.max_running_requests)
    if asked is not None:
        return int(asked)
    found, _ = capacity.settings.get("max_num_seqs", (None, ""))
    return None if found is None else int(found)


def at_once(d: Deployment, capacity: Capacity) -> float | None:
    """How many sequences of the longest length the cache holds; llama.cpp's slots may share one context."""
    if d.setup.engine != "llama.cpp":
        found: float | None = value_of(capacity.max_concurrency)
        return found
    each, _ = capacity.settings.get("n_ctx_seq", (None, ""))
    return value_of(capacity.kv_tokens) / each if each else None


def sequences_of(d: Deployment, pool: Any, length: int) -> float | None:
    """How many sequences of `length` tokens the engine's cache holds at once; None where not known."""
    flag = LENGTHS.get(d.setup.engine)
    if flag is None or d.setup.engine in CONTEXT_DECIDES:
        return None
    found: float | None = capacity_of(with_flags(d, **{flag: length}), value_of(pool), bare).max_concurrency
    return found
