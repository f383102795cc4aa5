"""`fit`: the memory budget on given accelerators, and the capacity as the named engine will report it."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from kvplan.engines.budget import memory_of
from kvplan.engines.context_budget import placed_on, room_for_cache
from kvplan.engines.deployment import Deployment
from kvplan.engines.engine import FIGURES, CacheGroup, Capacity
from kvplan.engines.llama_cpp_placement import Placed, margin_bytes
from kvplan.engines.registry import CONTEXT_DECIDES, capacity_of
from kvplan.figure import Figure, Leaf, Source, Trust, bare, value_of
from kvplan.units import bytes_text
from kvplan.verbs import series
from kvplan.verbs.against import compare
from kvplan.verbs.answer import Answer
from kvplan.verbs.check import whole
from kvplan.verbs.deploy import KNOWN_VENDORS, Size, with_flags
from kvplan.verbs.described import WORDS, described, only
from kvplan.verbs.given import ModelLike
from kvplan.verbs.pasted import Pasted
from kvplan.verbs.size import MAX_BATCH
from kvplan.verbs.verdict import enough, occupied, pool_for, starts
from kvplan.verbs.ways import ways_back

_LIMITS = (
    "num_gpu_blocks_override",
    "max_total_tokens",
    "max_tokens",
)  # of the cache, whatever is left for it


def fit(
    model: ModelLike | None = None,
    *,
    gpu: str | None = None,
    engine: str | None = None,
    engine_version: str | None = None,
    tp: int | None = None,
    pp: int | None = None,
    dp: int | None = None,
    ep: int | None = None,
    dcp: int | None = None,
    attention_dp: int | None = None,
    dtype: str | None = None,
    quantization: str | None = None,
    kv_cache_dtype: str | None = None,
    gpu_memory: Size = None,
    memory_in_use: Size = None,
    kv_cache_memory_bytes: Size = None,
    weights_memory: Size = None,
    activation_memory: Size = None,
    graph_memory: Size = None,
    batch: int | None = None,
    command: str | None = None,
    against: str | None = None,
    **flags: Any,
) -> Answer:
    """The budget of one rank in bytes, and blocks, tokens and concurrency as engine and version print them.

    `flags` are the engine's own settings (`max_model_len=8192`, `ctx_size=4096`, …), and `command` a launch
    command to read them from; what is given by itself wins over it. The engine is vLLM, its newest version
    known and one rank unless stated. With `batch`, that
    many sequences of the maximum length must fit; where they do not, `ways_back` has one row for each
    change that would help. With `against`, what another version prints and which rule changed it.
    Returns the contract's `fit` document; raises BadInput or UnknownName for what cannot be used. What
    does not fit is an answer.
    """
    if batch is not None:
        whole("--batch", batch, 1, MAX_BATCH)
    words = only(WORDS, locals())
    d, read = described(model, words, flags, batch)
    return fit_answer(d, batch, against, read)


def fit_answer(d: Deployment, batch: int | None, against: str | None, read: Pasted) -> Answer:
    """The `fit` document with what goes beside it: the ways back, and another version's figures."""
    compared = compare(d, against) if against else None

    def compute(leaf: Leaf) -> dict[str, Any]:
        part = fit_part(d, batch, leaf)
        short = part["capacity"]["fits"] is False
        part["ways_back"] = ways_back(d, batch) if short and leaf is bare else []
        part["notes"] = [*read.notes, *part["notes"]]
        beside = {"command": read.report, "against": compared}
        return part | {name: found for name, found in beside.items() if found is not None}

    def draws(answer: dict[str, Any]) -> dict[str, Any]:
        return {"memory": series.memory_parts(answer["memory"]), "of": series.deployed(d)}

    return Answer(compute, draws)


def fit_part(d: Deployment, batch: int | None, leaf: Leaf, length: int | None = None) -> dict[str, Any]:
    """The contract's `fit` document of a deployment; `batch` sequences of `length`, else of the longest."""
    d, lowered = _with_fitted_context(d)
    memory = memory_of(d, leaf)
    pool = pool_for(d, memory)
    capacity = capacity_of(d, pool, leaf)
    started = starts(d, memory, capacity)
    if started is False and d.setup.engine in CONTEXT_DECIDES:
        capacity = replace(capacity, estimated_max_model_len=None)  # was of the caches alone
    beside = [*occupied(d, memory), *_held_back(d, pool, capacity), *_stands_in(d)]
    notes = [*d.model.notes, *lowered, *capacity.notes, *beside]
    placed = {"placement": [placed_row(p) for p in placed_on(d)]} if d.setup.engine == "llama.cpp" else {}
    return {
        "engine": {"name": d.setup.engine, "version": d.setup.version, "settings": settings_of(d, capacity)},
        "memory": memory,
        "capacity": {
            "fits": started and enough(d, pool, capacity, batch, length),
            **{name: explained(d, capacity, name, leaf) for name in FIGURES},
            "groups": [group_row(group) for group in capacity.groups],
        },
        **placed,
        "notes": notes,
    }


def _with_fitted_context(d: Deployment) -> tuple[Deployment, list[str]]:
    """llama.cpp lowers a context that nobody asked for until one device holds it (common/fit.cpp)."""
    alone = d.memory_bytes is not None and d.setup.tp * d.setup.pp == 1
    if d.setup.engine != "llama.cpp" or not alone or "ctx_size" in d.setup.flags:
        return d, []
    memory, margin = memory_of(d, bare), margin_bytes(d.setup)
    if memory["headroom_bytes"] >= margin:
        return d, []
    found = capacity_of(d, max(0, (room_for_cache(memory) or 0) - margin), bare)
    if not found.fits:
        return d, []
    left = f"to {found.kv_tokens:,}, to leave {bytes_text(margin)} free"
    note = f"no --ctx-size given: llama.cpp lowers the context {left}"
    return with_flags(d, ctx_size=found.kv_tokens), [note]


def explained(d: Deployment, capacity: Capacity, name: str, leaf: Leaf) -> Any:
    """A figure of the capacity; one that the engine's rules give without a formula names those rules."""
    value = getattr(capacity, name)
    if value is None or isinstance(value, Figure):
        return value
    setting = capacity.settings.get("block_size" if name == "block_tokens" else name)
    held = [g for g in capacity.groups if g.page_bytes is not None and g.blocks_per_request is not None]
    parts = [f"{g.layers} × {g.page_bytes:,} B × {g.blocks_per_request:,} blocks" for g in held]
    made_of = ", ".join(parts) or "its caches"
    where = setting[1] if setting else f"{d.setup.engine} {d.setup.version}'s own rules over {made_of}"
    unit = "B" if name.endswith("_bytes") or name == "bytes_per_block" else ""
    return leaf(name, value, unit, Source(Trust.ENGINE_RULE, where))


def settings_of(d: Deployment, capacity: Capacity) -> dict[str, Any]:
    """Every setting in force: those given and the engine's defaults."""
    filled = {name: value for name, (value, _) in capacity.settings.items()}
    split: dict[str, Any] = {"tensor_parallel_size": d.setup.tp, "kv_cache_dtype": d.setup.kv_cache_dtype}
    for name, count in (("pipeline_parallel_size", d.setup.pp), ("data_parallel_size", d.setup.dp)):
        split |= {name: count} if count > 1 else {}
    return {**split, **filled, **d.setup.flags}


def _held_back(d: Deployment, pool: Any, capacity: Capacity) -> list[str]:
    """A cache that a flag keeps smaller than what is left for it."""
    name = next((flag for flag in _LIMITS if d.setup.flags.get(flag) is not None), None)
    blocks, each, room = (value_of(x) for x in (capacity.num_blocks, capacity.bytes_per_block, pool))
    if name is None or not blocks or not each or room is None or blocks * each >= room:
        return []
    option = f"--{name.replace('_', '-')} {d.setup.flags[name]}"
    return [f"{option}: takes {bytes_text(blocks * each)} of the {bytes_text(room)} left for the cache"]


def _stands_in(d: Deployment) -> list[str]:
    """Makers whose devices an engine serves by a plugin that was not read."""
    if d.accelerator is None or d.accelerator.vendor in KNOWN_VENDORS:
        return []
    return [f"{d.setup.engine} on {d.accelerator.vendor} follows its own rules; CUDA's stand in for them"]


def group_row(group: CacheGroup) -> dict[str, Any]:
    """One entry of the contract's `groups`: only what the engine has."""
    row = {key: value for key, value in asdict(group).items() if value is not None}
    return {"name": row["kind"], **row} if "cells" in row else row


def placed_row(placed: Placed) -> dict[str, Any]:
    """What one device, or the host, holds under llama.cpp; the compute buffer between two bounds."""
    return {
        "device": placed.device,
        "layers": placed.layers,
        "weight_bytes": placed.weight_bytes,
        "cache_bytes": placed.cache_bytes,
        "compute_low_bytes": placed.compute.low,
        "compute_high_bytes": placed.compute.high,
        "output_bytes": placed.output_bytes,
    }


def pool_of(d: Deployment) -> int | None:
    """Bytes one rank gives to its cache, as a bare number."""
    found: int | None = memory_of(d, bare)["kv_pool_bytes"]
    return found


def capacity_numbers(d: Deployment) -> Capacity:
    """The engine's figures for a deployment, as bare numbers."""
    return capacity_of(d, pool_of(d), bare)


def concurrency_of(d: Deployment) -> float | None:
    """How many sequences of the maximum length run at once, as the engine prints it."""
    found: float | None = capacity_numbers(d).max_concurrency
    return found
