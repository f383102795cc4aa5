"""What a start-up log of vLLM says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kvplan.observe.failing import failure_of
from kvplan.observe.forms import Said
from kvplan.observe.literals import arguments
from kvplan.observe.names import gpu_key
from kvplan.observe.observed import Observed
from kvplan.observe.settings import Sorted
from kvplan.observe.startup import StartUp

# Of several ranks, which one's figure counts: the fullest's weights, the emptiest's pool.
_MOST = (
    "weight_bytes", "non_torch_bytes", "activation_bytes", "consumed_bytes", "non_kv_bytes", "graph_bytes",
    "graph_estimate_bytes", "peak_torch_bytes", "initial_used_bytes",
)  # fmt: skip
_LEAST = (
    "kv_pool_bytes", "kv_tokens", "num_blocks", "max_concurrency", "free_before_bytes", "kv_checked_bytes",
)  # fmt: skip
_LAST = (
    "accelerator_bytes", "requested_bytes", "concurrency_length", "needed_kv_bytes", "attention_block_tokens",
    "estimated_max_model_len", "gpu_memory_utilization",
)  # fmt: skip
# What the engine's own configuration calls the flags of its command line.
_RENAMED = {"max_seq_len": "max_model_len"}
_EFFECTIVE = (
    "max_seq_len", "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size",
    "decode_context_parallel_size", "dtype", "quantization", "enforce_eager", "kv_cache_dtype",
    "enable_prefix_caching", "enable_chunked_prefill",
)  # fmt: skip
_PHASES = {
    "engine_arguments": "loading the weights",
    "weight_bytes": "profiling a full step",
    "kv_pool_bytes": "making the cache",
    "num_blocks": "making the cache",
    "kv_tokens": "capturing graphs and warming up",
    "graph_bytes": "warming up",
}


def observed(startup: StartUp) -> Observed:
    """The deployment and the figures of a start-up of vLLM."""
    found, model, drafter = _settings(startup)
    figures = _figures(startup)
    stated = found.flags.pop("kv_cache_memory_bytes", None)
    if isinstance(stated, int) and stated > 0:
        figures["kv_pool_bytes"] = Said(float(stated))
    ranks = startup.ranks("kv_pool_bytes")
    platform = _platform(startup)
    if platform == "cpu":
        figures.pop("accelerator_bytes", None)  # the node's memory: no device's
    return Observed(
        engine="vllm",
        version=startup.last("version") or None,
        since=max((h.form.since for h in startup.hits), key=_numbers, default=""),
        until=min((h.form.until for h in startup.hits if h.form.until), key=_numbers, default=""),
        model=model,
        architecture=startup.last("architecture") or None,
        split=found.split,
        named=found.named,
        flags=found.flags,
        none=frozenset(found.none),
        pinned=isinstance(stated, int) and stated > 0,
        whole=bool(startup.texts("arguments")),
        figures=figures,
        ranks=max(1, len(ranks)),
        ranks_differ=_apart(ranks.values()),
        gpu=next((key for name in startup.texts("gpu_name") if (key := gpu_key(name))), None),
        platform=platform,
        drafting=drafter or bool(startup.texts("drafting")),
        graphs_profiled="utilization_without_graphs" in {n for h in startup.hits for n in h.values},
        failure=failure_of(startup, _PHASES),
        notes=tuple(_notes(found)),
    )


def _settings(startup: StartUp) -> tuple[Sorted, str | None, bool]:
    """What was given, then what the engine made of it where nothing was."""
    found = Sorted()
    given = arguments(startup.last("arguments")) if startup.last("arguments") else {}
    made = arguments(startup.last("engine_arguments")) if startup.last("engine_arguments") else {}
    effective = {_RENAMED.get(name, name): made[name] for name in _EFFECTIVE if made.get(name) is not None}
    found.take("vllm", {name: None for name, value in made.items() if value in (None, "None")})
    found.take("vllm", effective)
    found.take("vllm", _given(given))
    for name in ("max_model_len", "max_num_batched_tokens", "num_gpu_blocks_override"):
        said = startup.figure(name)
        if said is not None and name not in found.flags and said.value >= 1:
            found.flags[name] = int(said.value)
    ahead = startup.last("async_scheduling")
    if ahead and "async_scheduling" not in found.flags:
        found.flags["async_scheduling"] = ahead == "enabled"
    share = startup.figure("gpu_memory_utilization")
    if share is not None and 0 < share.value <= 1:
        found.flags.setdefault("gpu_memory_utilization", share.value)
    drafter = made.get("speculative_config") not in (None, "None")
    if drafter and "speculative_config" not in found.flags and isinstance(made["speculative_config"], dict):
        found.flags["speculative_config"] = _drafter(made["speculative_config"])
    model = given.get("model") or given.get("model_tag") or made.get("model")
    return found, str(model) if model else None, drafter


def _given(given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments without those that only repeat `auto`, which the engine's own line resolves."""
    return {k: v for k, v in given.items() if not (k in ("dtype", "quantization") and v in ("auto", None))}


def _drafter(made: Mapping[str, Any]) -> dict[str, Any]:
    """--speculative-config of what the engine prints: SpeculativeConfig(method=…, num_spec_tokens=…)."""
    names = {"method": "method", "model": "model", "num_spec_tokens": "num_speculative_tokens"}
    return {ours: made[theirs] for theirs, ours in names.items() if made.get(theirs) is not None}


def _figures(startup: StartUp) -> dict[str, Said]:
    found: dict[str, Said] = {}
    for names, pick in ((_MOST, max), (_LEAST, min)):
        for name in names:
            stated = list(_sharpest(startup, name))
            if stated:
                found[name] = pick(stated, key=lambda said: said.value)
    for name in _LAST:
        last = startup.figure(name)
        if last is not None:
            found[name] = last
    return found


def _sharpest(startup: StartUp, name: str) -> Iterable[Said]:
    """What each rank states of a figure, with the most digits it states it with.

    Figures of the whole engine are stated without a rank, once for each: every one counts.
    """
    if name in ("kv_tokens", "max_concurrency", "num_blocks"):
        return [v for h in startup.of(name) if isinstance(v := h.values[name], Said)]
    ranks: dict[Any, Said] = {}
    for hit in startup.of(name):
        value, old = hit.values[name], ranks.get(hit.rank)
        if isinstance(value, Said) and (
            old is None or value.half <= old.half or abs(value.value - old.value) > old.half
        ):
            ranks[hit.rank] = value
    return ranks.values()


def _apart(ranks: Iterable[Said]) -> float:
    """By what share the ranks' pools differ."""
    values = [said.value for said in ranks]
    return (max(values) - min(values)) / max(values) if values and max(values) > 0 else 0.0


def _platform(startup: StartUp) -> str | None:
    made = startup.last("engine_arguments")
    device = arguments(made).get("device_config") if made else None
    return str(device) if device else None


def _notes(found: Sorted) -> list[str]:
    names = ", ".join(f"--{name.replace('_', '-')}" for name in found.unusable)
    return [f"of the log's arguments, left out since their values cannot be used: {names}"] if names else []


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())
