"""`plan`: the one-page answer for a model on accelerators."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kvplan.cost import cache
from kvplan.engines.budget import memory_of, utilization_default
from kvplan.engines.deployment import Deployment
from kvplan.errors import BadInput
from kvplan.facts import store
from kvplan.facts.accelerators import Accelerator, find_accelerator
from kvplan.facts.formats import find_format
from kvplan.figure import Leaf, Number, Source, Trust, bare, formula, named, value_of, whole
from kvplan.model.model import Model
from kvplan.units import bytes_text, count_text, parse_bytes, seconds_text
from kvplan.verbs import floor, series, size
from kvplan.verbs.answer import Answer
from kvplan.verbs.check import whole as whole_number
from kvplan.verbs.given import ModelLike, given_model

DEFAULT_PROMPT, DEFAULT_OUTPUT, DEFAULT_BATCH = 2048, 256, 32


@dataclass(frozen=True, slots=True)
class Load:
    """What is asked of the deployment: prompts and outputs of stated lengths, so many at once."""

    prompt_tokens: int
    output_tokens: int
    batch: int
    batch_source: Source


@formula("sequence")
def max_concurrency(kv_pool_bytes: Number, bytes_per_sequence: Number) -> Number:
    """How many sequences of the maximum length the pool holds, block rounding not counted."""
    return kv_pool_bytes / bytes_per_sequence


@formula("token")
def kv_tokens(max_concurrency: Number, max_model_len: Number) -> Number:
    """The pool in tokens of sequences of the maximum length."""
    return whole(max_concurrency * max_model_len)


def plan(
    model: ModelLike,
    *,
    gpu: str,
    tp: int = 1,
    gpu_memory: str | int | None = None,
    gpu_memory_utilization: float | None = None,
    max_model_len: int | None = None,
    kv_cache_dtype: str = "auto",
    dtype: str = "auto",
    quantization: str | None = None,
    prompt_tokens: int = DEFAULT_PROMPT,
    output_tokens: int = DEFAULT_OUTPUT,
    batch: int | None = None,
) -> Answer:
    """Memory, capacity, floors of prefill and decode, what holds the deployment back, and its launch.

    Returns the contract's `plan` document: bytes, tokens and seconds. Times are lower bounds;
    figures not known yet are None. Raises BadInput for anything that cannot be used.
    """
    whole_number("--tp", tp, 1, size.MAX_TP)
    whole_number("--prompt-tokens", prompt_tokens, 1, size.MAX_TOKENS)
    whole_number("--output-tokens", output_tokens, 1, size.MAX_TOKENS)
    if batch is not None:
        whole_number("--batch", batch, 1, size.MAX_BATCH)
    loaded = given_model(model, dtype, quantization)
    cache.check_split(loaded, tp)
    d = _deployment(loaded, gpu, tp, gpu_memory, gpu_memory_utilization, max_model_len, kv_cache_dtype)
    source = Source(Trust.STATED, "--batch") if batch else Source(Trust.ASSUMED, "no --batch given")
    load = Load(prompt_tokens, output_tokens, batch or DEFAULT_BATCH, source)
    if batch is None:
        load = replace(load, batch=_batch_that_fits(d, load))
    served = str(model) if isinstance(model, (str, os.PathLike)) and Path(model).exists() else loaded.id
    launch = launch_command(d, served, dtype, quantization)

    def compute(leaf: Leaf) -> dict[str, Any]:
        fit = fit_part(d, load if batch else None, leaf)
        return {
            "size": _size_part(d, leaf),
            "fit": fit,
            "latency": floor.latency_part(
                d, load.prompt_tokens, load.output_tokens, load.batch, load.batch_source, leaf
            ),
            "contexts": _contexts(d, value_of(fit["memory"]["kv_pool_bytes"]), leaf),
            "limits": _limits(d, fit, load),
            "levers": _levers(d),
            "launch": launch,
            "notes": [*loaded.notes, *size.weight_notes(loaded)],
        }

    def draws(answer: dict[str, Any]) -> dict[str, Any]:
        memory = answer["fit"]["memory"]
        pool = memory["kv_pool_bytes"]
        peak, rate = floor.peaks(d, bare)
        return {
            "memory": series.memory_parts(memory),
            "growth": series.growth_by_kind(d.model, d.stored, d.max_model_len),
            "decode": series.decode_over_batch(d, prompt_tokens, output_tokens, pool),
            "roofline": {"points": series.roofline_points(answer["latency"]), "peak": peak, "rate": rate},
        }

    return Answer(compute, draws)


def _deployment(
    model: Model,
    gpu: str,
    tp: int,
    gpu_memory: str | int | None,
    utilization: float | None,
    max_model_len: int | None,
    kv_cache_dtype: str,
) -> Deployment:
    accelerator = find_accelerator(gpu)
    memory, memory_source = _memory(accelerator, gpu_memory)
    share, share_source = utilization_default("vllm")
    if utilization is not None:
        if not 0 < utilization <= 1:
            raise BadInput(
                f"--gpu-memory-utilization: {utilization:g} is not a share; give more than 0, at most 1"
            )
        share, share_source = utilization, Source(Trust.STATED, "--gpu-memory-utilization")
    length, length_source = _length(model, max_model_len)
    return Deployment(
        model,
        accelerator,
        memory,
        memory_source,
        tp,
        size.stored_as(model, kv_cache_dtype, tp),
        share,
        share_source,
        length,
        length_source,
        "vllm",
        store.toml("engines.toml")["vllm"]["newest"],
    )


def _memory(accelerator: Accelerator, given: str | int | None) -> tuple[int, Source]:
    if given is not None:
        size_bytes = parse_bytes(given, "--gpu-memory") if isinstance(given, str) else given
        whole_number("--gpu-memory", size_bytes, 1, 2**60)
        return size_bytes, Source(Trust.STATED, "--gpu-memory")
    if accelerator.memory_bytes is None:
        raise BadInput(
            f"--gpu-memory: {accelerator.name}'s memory is not known; give it, such as --gpu-memory 64GiB"
        )
    source = accelerator.source("memory")
    return accelerator.memory_bytes, replace(source, where=f"{accelerator.memory_source}; {source.where}")


def _length(model: Model, given: int | None) -> tuple[int, Source]:
    if given is not None:
        whole_number("--max-model-len", given, 1, size.MAX_TOKENS)
        return given, Source(Trust.STATED, "--max-model-len")
    if model.max_context is None:
        raise BadInput(
            f"--max-model-len: {model.file} states no context length; give one, such as --max-model-len 8192"
        )
    return model.max_context, model.origin("max_context")


def _size_part(d: Deployment, leaf: Leaf) -> dict[str, Any]:
    asked = {"tokens": d.max_model_len, "batch": 1, "crossed": 0}
    return {"model": size.model_part(d.model, leaf), "kv": size.kv_part(d.model, d.stored, asked, leaf)}


def fit_part(d: Deployment, load: Load | None, leaf: Leaf) -> dict[str, Any]:
    """The contract's `fit` document on one rank; figures that need the engine's block rules are None."""
    memory = memory_of(d, leaf)
    length = leaf("max_model_len", d.max_model_len, "token", d.context_source)
    sequence = named("bytes_per_sequence", "B", cache.bytes_per_sequence(d.model, d.stored, length, leaf))
    concurrency = max_concurrency(memory["kv_pool_bytes"], sequence) if sequence else None
    wanted = load.batch if load else 1
    loads = memory["headroom_bytes"] >= 0 and memory["kv_pool_bytes"] > 0
    return {
        "engine": {
            "name": d.engine,
            "version": d.version,
            "settings": {
                "gpu_memory_utilization": d.gpu_memory_utilization,
                "max_model_len": d.max_model_len,
                "tensor_parallel_size": d.tp,
                "kv_cache_dtype": d.stored.format.name,
            },
        },
        "memory": memory,
        "capacity": {
            "fits": bool(loads and (concurrency is None or concurrency >= wanted)),
            "num_blocks": None,
            "block_tokens": None,
            "bytes_per_block": None,
            "kv_tokens": kv_tokens(concurrency, length) if concurrency is not None else None,
            "max_concurrency": concurrency,
            "max_running_requests": None,
            "needed_kv_bytes": named("needed_kv_bytes", "B", sequence),
            "estimated_max_model_len": longest(d, value_of(memory["kv_pool_bytes"])),
            "kv_bytes": None,
            "k_bytes": None,
            "v_bytes": None,
            "state_bytes": None,
            "groups": [],
        },
    }


def longest(d: Deployment, pool_bytes: int) -> int:
    """The longest single sequence the pool holds, at most the maximum length; 0 when none does."""
    low, high = 0, d.max_model_len
    while low < high:
        middle = (low + high + 1) // 2
        fits = cache.bytes_per_sequence(d.model, d.stored, middle, bare) <= pool_bytes
        low, high = (middle, high) if fits else (low, middle - 1)
    return low


def _concurrency(d: Deployment, tokens: int) -> float | None:
    pool = memory_of(d, bare)["kv_pool_bytes"]
    each = cache.bytes_per_sequence(d.model, d.stored, tokens, bare)
    return pool / each if each else None


def _batch_that_fits(d: Deployment, load: Load) -> int:
    room = _concurrency(d, load.prompt_tokens + load.output_tokens)
    return load.batch if room is None else max(1, min(load.batch, int(room)))


def _contexts(d: Deployment, pool_bytes: int, leaf: Leaf) -> list[dict[str, Any]]:
    """How many sequences fit at several lengths: what people read first."""
    lengths = [n for n in (2048, 8192, 32768, 131072, 262144, 1048576) if n < d.max_model_len]
    rows = []
    for tokens in [*lengths, d.max_model_len]:
        each = value_of(cache.bytes_per_sequence(d.model, d.stored, tokens, leaf))
        rows.append(
            {
                "tokens": tokens,
                "bytes_per_sequence": each,
                "sequences": int(pool_bytes // each) if each else None,
            }
        )
    return rows


def _limits(d: Deployment, fit: dict[str, Any], load: Load) -> list[str]:
    """What holds the deployment back, most pressing first, in a sentence each."""
    found = _memory_limits(d, fit)
    replicated = [g.label for g in cache.groups_of(d.model) if d.tp > g.attention.kv_heads]
    if d.tp > 1 and replicated:
        found.append(
            f"the {', '.join(replicated)} cache has fewer heads than ranks: every rank repeats it, "
            f"so more ranks free weights but do not divide the cache"
        )
    ended = floor.latency_numbers(d, load.prompt_tokens, load.output_tokens, load.batch)
    least = seconds_text(ended["decode_seconds"])
    found.append(f"decode at batch {load.batch} is {ended['decode_bound']}-bound, at best {least} a token")
    crossing = ended["compute_bound_batch"]
    if crossing:
        return [*found, f"from batch {count_text(crossing)} on decode is compute-bound"]
    return [
        *found,
        "decode stays bandwidth-bound at any batch: reading the cache costs more than computing on it",
    ]


def _memory_limits(d: Deployment, fit: dict[str, Any]) -> list[str]:
    memory = {key: value_of(value) for key, value in fit["memory"].items()}
    capacity = {key: value_of(value) for key, value in fit["capacity"].items()}
    if not memory["kv_pool_bytes"]:
        missing = memory["budget_bytes"] - int(memory["accelerator_bytes"] * d.gpu_memory_utilization)
        return [f"does not fit: {bytes_text(missing)} a rank are missing before any cache"]
    if capacity["fits"]:
        return []
    longest, needed = capacity["estimated_max_model_len"], bytes_text(capacity["needed_kv_bytes"])
    return [
        f"one sequence of {count_text(d.max_model_len)} tokens needs {needed} "
        f"and the pool has {bytes_text(memory['kv_pool_bytes'])}; --max-model-len {longest} fits"
    ]


def _levers(d: Deployment) -> list[dict[str, Any]]:
    """A few changes to the deployment, each through the same arithmetic."""
    changed: list[tuple[str, dict[str, Any], Deployment]] = []
    if d.stored.format.bits > 8:
        narrow = replace(d.stored, format=find_format("fp8", "--kv-cache-dtype"))
        changed.append(("fp8 KV cache", {"kv_cache_dtype": "fp8"}, replace(d, stored=narrow)))
    wider = _wider(d)
    if wider is not None:
        changed.append((f"tensor parallelism over {wider.tp}", {"tp": wider.tp}, wider))
    if d.max_model_len > 8192:
        changed.append(("sequences of 8,192 tokens", {"max_model_len": 8192}, replace(d, max_model_len=8192)))
    return [_lever_row(name, change, other) for name, change, other in changed]


def _wider(d: Deployment) -> Deployment | None:
    """Twice the ranks or, where this does not fit, the fewest on which one sequence does."""
    for tp in (d.tp * 2**n for n in range(1, 8)):
        try:
            cache.check_split(d.model, tp)
        except BadInput:
            continue
        source = Source(Trust.STATED, f"--tp {tp}")
        wider = replace(d, tp=tp, stored=replace(d.stored, tp=tp, tp_source=source))
        enough = _concurrency(wider, d.max_model_len)
        if enough is None or enough >= 1:
            return wider
    return None


def _lever_row(name: str, change: dict[str, Any], d: Deployment) -> dict[str, Any]:
    concurrency = _concurrency(d, d.max_model_len)
    return {
        "name": name,
        "change": change,
        "bytes_per_token": cache.bytes_per_token(d.model, d.stored, bare, after_windows=False),
        "kv_tokens": int(concurrency * d.max_model_len) if concurrency is not None else None,
        "max_concurrency": concurrency,
    }


def launch_command(d: Deployment, served: str, dtype: str, quantization: str | None) -> str:
    """The command that starts this deployment, with only the flags that differ from defaults."""
    words = ["vllm", "serve", served]
    if d.tp > 1:
        words += ["--tensor-parallel-size", str(d.tp)]
    if d.context_source.where == "--max-model-len":
        words += ["--max-model-len", str(d.max_model_len)]
    if d.utilization_source.trust == Trust.STATED:
        words += ["--gpu-memory-utilization", f"{d.gpu_memory_utilization:g}"]
    if d.stored.format_source.where.startswith("--kv-cache-dtype"):
        words += ["--kv-cache-dtype", d.stored.format.name]
    words += ["--dtype", dtype] if dtype != "auto" else []
    words += ["--quantization", quantization] if quantization not in (None, "none") else []
    return shlex.join(words)
