"""How one rank's memory is spent: weights as loaded, what the engine needs to run, the rest for the cache.

Engines that size their cache by what memory is left are here; the ones whose cache follows from the
context asked for are in context_budget.py. Figures a user measured stand in place of predicted ones.
"""

from __future__ import annotations

import math
from typing import Any

from kvplan.engines import sglang_memory
from kvplan.engines.context_budget import context_memory
from kvplan.engines.deployment import Deployment
from kvplan.engines.limits import limits_of
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
from kvplan.engines.reserve import activation_bytes, encoder_bytes, forward, logits
from kvplan.facts import store
from kvplan.facts.engine_versions import entry_for
from kvplan.figure import Leaf, Number, Source, Trust, bare, ceiling, formula, least, most, named, whole

_NO_IMAGES = ("language_model_only", "skip_mm_profiling")


@formula("B", "vLLM 0.32.0 v1/worker/utils.py")
def requested_bytes(accelerator_bytes: Number, gpu_memory_utilization: Number) -> Number:
    """The share of the device the engine may use."""
    return ceiling(accelerator_bytes * gpu_memory_utilization, 1)


@formula("B")
def kv_pool_bytes(
    requested_bytes: Number,
    weight_bytes: Number,
    activation_bytes: Number,
    graph_bytes: Number,
    overhead_bytes: Number,
) -> Number:
    """What is left for keys and values; nothing when the rest already takes more."""
    left = requested_bytes - weight_bytes - activation_bytes - graph_bytes - overhead_bytes
    return most(0, left)


@formula("B")
def overhead_bytes(one_rank_bytes: Number, doubling_bytes: Number, doublings: Number) -> Number:
    """Memory outside PyTorch: the context, and communication buffers that grow with the ranks."""
    return one_rank_bytes + whole(doubling_bytes * doublings)


def memory_of(d: Deployment, leaf: Leaf) -> dict[str, Any]:
    """The contract's `memory` table in bytes, the pool with its interval (None where none is known)."""
    if d.setup.engine in ("llama.cpp", "transformers"):
        return context_memory(d, leaf)
    given = d.measured.get("kv_pool_bytes")
    if given is not None:
        return given_pool(d, leaf("kv_pool_bytes", given[0], "B", given[1]), leaf)
    return _BUDGETS[d.setup.engine](d, leaf)


def _vllm(d: Deployment, leaf: Leaf) -> dict[str, Any]:
    """A share of the device's total, less weights, the profiled peak, memory outside PyTorch and graphs.

    What others held at the start is not taken off: vLLM refuses to start where less is free than it
    asks for (vLLM 0.32.0 v1/worker/utils.py request_memory).
    """
    accelerator, mine = device_bytes(d, leaf), fullest_weights(d, leaf)
    requested = requested_bytes(accelerator, leaf("gpu_memory_utilization", *_utilization(d)))
    limits = limits_of(d.model, d.setup)
    tokens = leaf(
        "max_num_batched_tokens",
        limits["max_num_batched_tokens"][0],
        "token",
        limits["max_num_batched_tokens"][1],
    )
    rows = leaf("max_num_seqs", limits["max_num_seqs"][0], "sequence", limits["max_num_seqs"][1])
    parts, pools = {}, {}
    for end in ENDS:
        parts[end] = with_measured(d, _profiled(d, tokens, rows, end, leaf), leaf)
        pools[end] = kv_pool_bytes(requested, mine, *parts[end].values())
    return memory_table(accelerator, mine, parts["value"], pools)


def _profiled(d: Deployment, tokens: Any, rows: Any, end: str, leaf: Leaf) -> dict[str, Any]:
    """What vLLM's profiling run finds, at one end of what start-up logs showed."""
    pass_bytes = forward(d.model, d.setup.tp, tokens, learnt(d, "forward_scale", "", end, leaf), leaf)
    sampler = logits(d.model, rows, learnt(d, "sampler_bytes_per_logit", "B", end, leaf), leaf)
    eager = Source(Trust.STATED, "--enforce-eager")
    no_graphs = bool(d.setup.flags.get("enforce_eager"))
    return {
        "activation_bytes": activation_bytes(pass_bytes, sampler, _encoder(d, tokens, end, leaf)),
        "graph_bytes": leaf("graph_bytes", 0, "B", eager)
        if no_graphs
        else learnt(d, "graph_bytes", "B", end, leaf),
        "overhead_bytes": _outside(d, end, leaf),
    }


def profiled_ends(d: Deployment) -> dict[str, tuple[int, int, int]]:
    """vLLM's activation, graphs and overhead in bytes: as taken, and at both ends of what logs showed."""
    limits = limits_of(d.model, d.setup)
    tokens, rows = limits["max_num_batched_tokens"][0], limits["max_num_seqs"][0]
    ends = [with_measured(d, _profiled(d, tokens, rows, end, bare), bare) for end in ENDS]
    return {name: (int(ends[0][name]), int(ends[1][name]), int(ends[2][name])) for name in ends[0]}


def _encoder(d: Deployment, tokens: Any, end: str, leaf: Leaf) -> Any:
    """The vision tower's own peak: 0 without one, or where the flags leave images out."""
    flags = d.setup.flags
    images = flags.get("limit_mm_per_prompt")
    none = isinstance(images, dict) and not any(images.values())
    if not d.model.tower_values or none or any(flags.get(name) for name in _NO_IMAGES):
        return 0
    shape = Source(Trust.STATED, f"{d.model.file}: 2 × width and 3 × feed-forward of the vision tower")
    return encoder_bytes(
        tokens,
        learnt(d, "patches_per_token", "patch/token", end, leaf),
        leaf("tower_values", d.model.tower_values, "value", shape),
        leaf("activation_value_bytes", 2, "B/value", Source(Trust.ENGINE_RULE, "activations in 16 bit")),
        learnt(d, "forward_scale", "", end, leaf),
    )


def _utilization(d: Deployment) -> tuple[float, str, Source]:
    """The share of the device vLLM may use: the flag, else the version's default."""
    given = d.setup.flags.get("gpu_memory_utilization")
    if given is not None:
        return float(given), "", Source(Trust.STATED, "--gpu-memory-utilization")
    row = entry_for(store.toml("engines/reserve.toml")["vllm"]["gpu_memory_utilization"], d.setup.version)
    return float(row["value"]), "", Source(Trust.ENGINE_RULE, f"vLLM default: {row['source']}")


def _outside(d: Deployment, end: str, leaf: Leaf) -> Any:
    ranks = Source(Trust.STATED, f"tp {d.setup.tp} × pp {d.setup.pp}")
    return overhead_bytes(
        learnt(d, "non_torch_bytes", "B", end, leaf),
        learnt(d, "non_torch_bytes_per_doubling", "B", end, leaf),
        leaf("doublings", math.log2(d.setup.tp * d.setup.pp), "", ranks),
    )


def _sglang(d: Deployment, leaf: Leaf) -> dict[str, Any]:
    """A static share of what is free before loading, less the weights; the rest is kept for running."""
    accelerator, mine = device_bytes(d, leaf), fullest_weights(d, leaf)
    fraction = sglang_memory.mem_fraction_static(d.model, d.setup, leaf)
    fraction = 0 if fraction is None else fraction
    multimodal = sglang_memory.mm_reserve_bytes(d.model, d.setup)
    pools, parts = {}, {}
    for end in ENDS:
        outside = named("overhead_bytes", "B", _outside(d, end, leaf) + in_use(d, leaf))
        free = named("pre_load_free", "B", sglang_memory.not_negative(accelerator - outside))
        kept = named("activation_bytes", "B", whole(free * (1 - fraction)) + multimodal)
        after = named("free_after_weights", "B", free - mine)
        pool = named("kv_pool_bytes", "B", sglang_memory.pool_bytes(after, free, fraction, multimodal))
        graphs = leaf(
            "graph_bytes", 0, "B", Source(Trust.ENGINE_RULE, "graphs are part of what is kept back")
        )
        pools[end] = pool
        parts[end] = with_measured(
            d, {"activation_bytes": kept, "graph_bytes": graphs, "overhead_bytes": outside}, leaf
        )
    return memory_table(accelerator, mine, parts["value"], pools)


def _tensorrt_llm(d: Deployment, leaf: Leaf) -> dict[str, Any]:
    """A share of what a dry run of a full step leaves free."""
    accelerator, mine = device_bytes(d, leaf), fullest_weights(d, leaf)
    table = store.toml("engines/tensorrt_llm.toml")["defaults"]
    where = Source(Trust.ENGINE_RULE, f"TensorRT-LLM default: {table['source']}")

    def setting(name: str, unit: str) -> Any:
        given = d.setup.flags.get(name)
        stated = Source(Trust.STATED, f"--{name.replace('_', '-')}")
        return leaf(name, table[name], unit, where) if given is None else leaf(name, given, unit, stated)

    share = setting("free_gpu_memory_fraction", "")
    tokens, rows = setting("max_num_tokens", "token"), setting("max_batch_size", "sequence")
    pools, parts = {}, {}
    for end in ENDS:
        scale = learnt(d, "forward_scale", "", end, leaf)
        peak = activation_bytes(
            forward(d.model, d.setup.tp, tokens, scale, leaf),
            logits(d.model, rows, learnt(d, "bytes_per_logit", "B", end, leaf), leaf),
        )
        outside = named("overhead_bytes", "B", _outside(d, end, leaf) + in_use(d, leaf))
        graphs = learnt(d, "graph_bytes", "B", end, leaf)
        parts[end] = with_measured(
            d, {"activation_bytes": peak, "graph_bytes": graphs, "overhead_bytes": outside}, leaf
        )
        used = mine + parts[end]["activation_bytes"] + parts[end]["overhead_bytes"]
        pools[end] = named("kv_pool_bytes", "B", whole(most(0, accelerator - used) * least(1, share)))
    return memory_table(accelerator, mine, parts["value"], pools)


_BUDGETS = {"vllm": _vllm, "sglang": _sglang, "tensorrt-llm": _tensorrt_llm}
