"""What a start-up log of TensorRT-LLM says.

Its PyTorch backend makes the cache twice: a small one for a dry run, and after it the one that counts.
"""

from __future__ import annotations

from typing import Any

from kvplan.observe.failing import failure_of
from kvplan.observe.forms import Said
from kvplan.observe.literals import arguments
from kvplan.observe.observed import Observed, Pool
from kvplan.observe.settings import Sorted
from kvplan.observe.startup import Hit, StartUp

_PLAIN = (
    "weight_bytes", "loaded_bytes", "loaded_outside_bytes", "activation_bytes", "outside_bytes", "peak_bytes",
    "kv_pool_bytes", "kv_bytes_per_token", "accelerator_bytes", "temporary_bytes", "encoder_bytes",
    "available_bytes", "adjusted_seq_len", "engine_file_bytes", "execution_context_bytes",
    "runtime_buffer_bytes", "decoder_bytes", "engine_context_bytes",
)  # fmt: skip
_FLAGS = ("max_seq_len", "max_num_tokens", "max_batch_size", "tokens_per_block", "free_gpu_memory_fraction")
_CACHE = (
    "tokens_per_block", "free_gpu_memory_fraction", "max_tokens", "max_attention_window", "host_cache_size",
    "max_gpu_total_bytes",
)  # fmt: skip
_PHASES = {
    "version": "loading the weights",
    "loaded_bytes": "the dry run",
    "peak_bytes": "making the cache",
    "kv_allocated_bytes": "capturing graphs and warming up",
}


def observed(startup: StartUp) -> Observed:
    """The deployment and the figures of a start-up of TensorRT-LLM."""
    stated = startup.last("arguments")
    given = arguments(stated) if stated else {}
    found = Sorted()
    found.take("tensorrt-llm", {k: v for k, v in given.items() if k != "kv_cache_config"})
    _cache_config(found, given.get("kv_cache_config"))
    for name in _FLAGS:
        said = startup.figure(name)
        if said is not None and name not in found.flags:
            found.flags[name] = said.value if name.endswith("fraction") else int(said.value)
    lowered = startup.figure("adjusted_seq_len")
    if lowered is not None and lowered.value >= 1:
        found.flags["max_seq_len"] = int(lowered.value)
    ranks = {hit.rank.tp for hit in startup.hits if hit.rank.tp is not None}
    if "tp" not in found.split and len(ranks) > 1:
        found.split["tp"] = max(ranks) + 1
    model = given.get("model")
    return Observed(
        engine="tensorrt-llm",
        version=startup.last("version") or None,
        model=str(model) if model else None,
        split=found.split,
        named={k: v for k, v in found.named.items() if v != "auto"},
        flags=found.flags,
        none=frozenset(found.none),
        whole=bool(stated),
        figures=_figures(startup),
        ranks=max(1, len(ranks)),
        pools=tuple(_pools(startup)),
        failure=failure_of(startup, _PHASES),
        notes=tuple(_notes(startup)),
    )


def _cache_config(found: Sorted, config: Any) -> None:
    if isinstance(config, dict):
        found.take("tensorrt-llm", {name: config[name] for name in _CACHE if name in config})
        if config.get("dtype") not in (None, "auto"):
            found.named.setdefault("kv_cache_dtype", str(config["dtype"]))


def _counting(startup: StartUp) -> list[Hit]:
    """The lines that count: those after the dry run's result, where there was one."""
    runs = [i for i, hit in enumerate(startup.hits) if hit.form.marks == "profiled"]
    return startup.hits[runs[-1] :] if runs else startup.hits


def _figures(startup: StartUp) -> dict[str, Said]:
    found: dict[str, Said] = {}
    for name in _PLAIN:
        said = startup.figure(name)
        if said is not None:
            found[name] = said
    for hit in _counting(startup):
        for name in (
            "num_blocks",
            "kv_tokens",
            "kv_allocated_bytes",
            "secondary_blocks",
            "blocks_per_sequence",
        ):
            value = hit.values.get(name)
            if isinstance(value, Said):
                found[name] = value
    sizes = list(startup.of("kv_allocated_bytes"))
    if not any(isinstance(v := hit.values["kv_allocated_bytes"], Said) and v.value > 0 for hit in sizes):
        found.pop("kv_allocated_bytes", None)  # AutoDeploy's manager has no sizes of its own: it prints 0.00
    return found


def _pools(startup: StartUp) -> list[Pool]:
    """The caches made after the dry run: several where windows, or an encoder, have their own."""
    found = []
    for hit in _counting(startup):
        if "kv_allocated_bytes" in hit.values or "window_tokens" in hit.values:
            kept = {name: value for name, value in hit.values.items() if isinstance(value, Said)}
            found.append(Pool("window" if "window_tokens" in hit.values else "paged", kept))
    return found


def _notes(startup: StartUp) -> list[str]:
    first = startup.hits[: len(startup.hits) - len(_counting(startup))]
    if any("kv_allocated_bytes" in hit.values for hit in first):
        return ["the cache of the dry run, printed first, is left out: the one made after it counts"]
    return []
