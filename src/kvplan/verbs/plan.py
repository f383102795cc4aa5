"""`plan`: the one-page answer for a model on accelerators."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvplan.cost import cache
from kvplan.engines.deployment import Deployment
from kvplan.engines.registry import CONTEXT_DECIDES
from kvplan.errors import BadInput
from kvplan.facts.engine_versions import find_engine
from kvplan.figure import Leaf, Source, Trust, bare, value_of
from kvplan.units import bytes_text, count_text, seconds_text
from kvplan.verbs import fit as fitting
from kvplan.verbs import floor, series, size
from kvplan.verbs.answer import Answer
from kvplan.verbs.check import whole
from kvplan.verbs.deploy import Size, Split, deployment, with_flags, with_kv_cache_dtype, with_tp
from kvplan.verbs.given import ModelLike
from kvplan.verbs.launch import launch_command, launch_notes
from kvplan.verbs.pasted import Pasted, settings
from kvplan.verbs.verdict import most_running, sequences_of

DEFAULT_PROMPT, DEFAULT_OUTPUT, DEFAULT_BATCH = 2048, 256, 32
# What a lever's row will say of time and cost, which need an estimate and not a floor.
_LATER = ("ttft_seconds", "tpot_seconds", "output_tokens_per_second", "cost_per_million_output_tokens")
CONTEXTS = (2048, 8192, 32768, 131072, 262144, 1048576)


@dataclass(frozen=True, slots=True)
class Load:
    """What is asked of the deployment: prompts and outputs of stated lengths, so many at once."""

    prompt_tokens: int
    output_tokens: int
    batch: int
    batch_source: Source


def plan(
    model: ModelLike,
    *,
    gpu: str,
    engine: str = "vllm",
    engine_version: str | None = None,
    tp: int = 1,
    pp: int = 1,
    dtype: str = "auto",
    quantization: str | None = None,
    kv_cache_dtype: str = "auto",
    gpu_memory: Size = None,
    prompt_tokens: int | None = None,
    output_tokens: int = DEFAULT_OUTPUT,
    batch: int | None = None,
    **flags: Any,
) -> Answer:
    """Memory, capacity, floors of prefill and decode, what holds the deployment back, and its launch.

    `flags` are the engine's own settings. Prompts have 2,048 tokens, or what the longest sequence leaves,
    unless given; with `batch`, that many sequences of prompt and output must fit. Returns the
    contract's `plan` document: bytes, tokens and seconds. Times are lower bounds; figures not known are
    None. Raises BadInput or UnknownName for anything that cannot be used.
    """
    if prompt_tokens is not None:
        whole("--prompt-tokens", prompt_tokens, 1, size.MAX_TOKENS)
    whole("--output-tokens", output_tokens, 1, size.MAX_TOKENS)
    if isinstance(gpu, str) and gpu.strip().lower() == "cpu":
        raise BadInput("--gpu: times need an accelerator with known peaks; kvplan fit answers for the CPU")
    if batch is not None:
        whole("--batch", batch, 1, size.MAX_BATCH)
    d = deployment(
        model,
        gpu=gpu,
        engine=engine,
        engine_version=engine_version,
        split=Split(tp=tp, pp=pp),
        dtype=dtype,
        quantization=quantization,
        kv_cache_dtype=kv_cache_dtype,
        gpu_memory=gpu_memory,
        flags=settings(flags, Pasted(), find_engine(engine)),
        batch=batch,
    )
    load = _load(d, prompt_tokens, output_tokens, batch)
    lengths = load.prompt_tokens, load.output_tokens

    def compute(leaf: Leaf) -> dict[str, Any]:
        fit = fitting.fit_part(d, batch, leaf, sum(lengths))
        return {
            "size": _size_part(d, leaf),
            "fit": fit,
            "latency": floor.latency_part(d, *lengths, load.batch, load.batch_source, leaf),
            "contexts": _contexts(d, value_of(fit["memory"]["kv_pool_bytes"])),
            "limits": _limits(d, fit, load),
            "levers": _levers(d),
            "launch": _launch(d, fit, model, dtype, quantization),
            "load": {"prompt_tokens": lengths[0], "output_tokens": lengths[1], "batch": load.batch},
            "notes": [
                *fit.pop("notes"),
                *size.weight_notes(d.model),
                *size.uncrossed(d.model),
                *launch_notes(d, quantization),
            ],
        }

    def draws(answer: dict[str, Any]) -> dict[str, Any]:
        memory = answer["fit"]["memory"]
        peak, rate = floor.peaks(d, bare)
        return {
            "of": series.deployed(d),
            "memory": series.memory_parts(memory),
            "growth": series.growth_by_kind(d.model, d.stored, d.max_model_len),
            "decode": series.decode_over_batch(d, *lengths, memory["kv_pool_bytes"] or 0),
            "roofline": {"points": series.roofline_points(answer["latency"]), "peak": peak, "rate": rate},
        }

    return Answer(compute, draws)


def _launch(
    d: Deployment, fit: dict[str, Any], model: ModelLike, dtype: str, quantization: str | None
) -> str:
    """The command that starts it: with the longest length that fits, or none where nothing does."""
    served = d.model.id
    if isinstance(model, (str, os.PathLike)) and Path(model).exists():
        served = str(model) if Path(model).is_dir() or str(model).endswith(".gguf") else "MODEL"
    capacity, memory = fit["capacity"], fit["memory"]
    longest = value_of(capacity["estimated_max_model_len"])
    if not value_of(memory["kv_pool_bytes"]) or (value_of(memory["headroom_bytes"]) or 0) < 0:
        return ""
    if capacity["fits"] is None and d.setup.engine not in CONTEXT_DECIDES:
        return ""  # the engine does not serve it
    if capacity["fits"] is False and longest and longest < d.max_model_len and d.setup.engine == "vllm":
        d = with_flags(d, max_model_len=longest)
    return launch_command(d, served, dtype, quantization)


def _load(d: Deployment, prompt: int | None, output: int, batch: int | None) -> Load:
    room = d.max_model_len - output
    if prompt is None:
        prompt = max(1, min(DEFAULT_PROMPT, room))
    elif prompt > room:
        raise BadInput(
            f"--prompt-tokens: {prompt:,} with {output:,} of output are more than the longest sequence of "
            f"{d.max_model_len:,} ({d.context_source.where}); shorten them or give --max-model-len"
        )
    if batch is not None:
        return Load(prompt, output, batch, Source(Trust.STATED, "--batch"))
    each = cache.bytes_per_sequence(d.model, d.stored, prompt + output, bare)
    pool = fitting.pool_of(d) or 0
    room = int(pool // each) if each else DEFAULT_BATCH
    limit = most_running(fitting.capacity_numbers(d)) or DEFAULT_BATCH
    why = Source(Trust.ASSUMED, f"no --batch given: as many as the pool holds, at most {DEFAULT_BATCH}")
    return Load(prompt, output, max(1, min(DEFAULT_BATCH, room, limit)), why)


def _size_part(d: Deployment, leaf: Leaf) -> dict[str, Any]:
    asked = {"tokens": d.max_model_len, "batch": 1, "crossed": 0}
    return {"model": size.model_part(d.model, leaf), "kv": size.kv_part(d.model, d.stored, asked, leaf)}


def _contexts(d: Deployment, pool_bytes: int | None) -> list[dict[str, Any]]:
    """How many sequences fit at several lengths, as the engine keeps them: what people read first."""
    rows = []
    for tokens in [*(n for n in CONTEXTS if n < d.max_model_len), d.max_model_len]:
        each, held = cache.bytes_per_sequence(d.model, d.stored, tokens, bare), None
        if pool_bytes is not None:
            held = sequences_of(d, pool_bytes, tokens)
            held = pool_bytes / each if held is None and each else held
        count = None if held is None or not each else int(held)
        rows.append({"tokens": tokens, "bytes_per_sequence": each, "sequences": count})
    return rows


def _limits(d: Deployment, fit: dict[str, Any], load: Load) -> list[str]:
    """What holds the deployment back, most pressing first, in a sentence each."""
    found = _memory_limits(d, fit, load)
    repeated = [g.label for g in cache.groups_of(d.model) if d.tp > g.attention.kv_heads]
    if d.tp > 1 and repeated:
        found.append(
            f"the {', '.join(repeated)} cache has fewer heads than ranks: every rank repeats it, "
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
        "decode stays bandwidth-bound at any batch: reading what sequences hold costs more than computing",
    ]


def _memory_limits(d: Deployment, fit: dict[str, Any], load: Load) -> list[str]:
    memory = {key: value_of(value) for key, value in fit["memory"].items()}
    capacity = {key: value_of(value) for key, value in fit["capacity"].items()}
    if memory["kv_pool_bytes"] == 0:
        missing = memory["budget_bytes"] - memory["accelerator_bytes"]
        if missing > 0:
            return [f"does not fit: {bytes_text(missing)} a rank are missing before any cache"]
        return ["does not fit: weights and reserve leave nothing of the engine's share for the cache"]
    if capacity["fits"] is None and capacity["kv_tokens"] is None:
        return [note for note in fit["notes"] if "does not serve" in note]
    if capacity["fits"] is not False:
        return []
    longest, needed = capacity["estimated_max_model_len"], capacity["needed_kv_bytes"]
    if needed is not None and needed <= (memory["kv_pool_bytes"] or 0):
        length = load.prompt_tokens + load.output_tokens
        held = sequences_of(d, memory["kv_pool_bytes"], length)
        if held is not None and held < load.batch:
            return [
                f"{load.batch} sequences of {count_text(length)} tokens are wanted and {held:.2f} fit at once"
            ]
    advice = f"; --max-model-len {longest} fits" if longest else ""
    wants = bytes_text(needed) if needed is not None else "more"
    return [
        f"one sequence of {count_text(d.max_model_len)} tokens needs {wants} "
        f"and the pool has {bytes_text(memory['kv_pool_bytes'] or 0)}{advice}"
    ]


def _levers(d: Deployment) -> list[dict[str, Any]]:
    """A few changes to the deployment, each through the same arithmetic."""
    changed: list[tuple[str, dict[str, Any], Deployment]] = []
    if d.setup.engine == "llama.cpp":
        narrow = {"cache_type_k": "q8_0", "cache_type_v": "q8_0"}
        changed.append(("q8_0 caches", narrow, with_flags(d, **narrow)))
    if d.setup.engine in CONTEXT_DECIDES:
        return [row for entry in changed if (row := _lever_row(*entry))]
    if d.stored.format.bits > 8:
        sparse = any(g.attention.latent and g.attention.index_width for g in cache.groups_of(d.model))
        name = "fp8_ds_mla" if sparse and d.setup.engine == "vllm" else "fp8"
        changed.append((f"{name} KV cache", {"kv_cache_dtype": name}, with_kv_cache_dtype(d, name)))
    wider = _wider(d)
    if wider is not None:
        stages = f", {d.setup.pp} stages" if d.setup.pp > 1 else ""
        changed.append((f"tensor parallelism over {wider.tp}{stages}", {"tp": wider.tp}, wider))
    if d.max_model_len > 8192 and d.setup.engine == "vllm":
        shorter = with_flags(d, max_model_len=8192)
        changed.append(("sequences of 8,192 tokens", {"max_model_len": 8192}, shorter))
    return [row for entry in changed if (row := _lever_row(*entry))]


def _wider(d: Deployment) -> Deployment | None:
    """Twice the ranks or, where this does not fit, the fewest on which one sequence does."""
    for tp in (d.tp * 2**n for n in range(1, 8)):
        try:
            cache.check_split(d.model, tp)
        except BadInput:
            continue
        wider = with_tp(d, tp)
        enough = fitting.concurrency_of(wider)
        if enough is None or enough >= 1:
            return wider
    return None


def _lever_row(name: str, change: dict[str, Any], d: Deployment) -> dict[str, Any] | None:
    """One lever's figures; None where the engine refuses the change."""
    try:
        capacity = fitting.capacity_numbers(d)
    except BadInput:
        return None
    if capacity.kv_tokens is None:
        return None
    return {
        "name": name,
        "change": change,
        "bytes_per_token": cache.bytes_per_token(d.model, d.stored, bare, after_windows=False),
        "kv_tokens": capacity.kv_tokens,
        "max_concurrency": capacity.max_concurrency,
        **dict.fromkeys(_LATER),
        "note": "",
    }
