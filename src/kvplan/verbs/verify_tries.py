"""What would explain a capacity that disagrees: one change at a time, until figures are as printed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kvplan.engines.registry import capacity_of
from kvplan.errors import KvplanError
from kvplan.facts.engine_versions import key, versions_of
from kvplan.figure import bare, value_of
from kvplan.observe.observed import Observed
from kvplan.verbs.verify_deployment import Case, printing_so
from kvplan.verbs.verify_engines import agrees_with, trial_of

_SECONDS = 10.0
_MOST_FOUND = 3
_POWERS = (1, 2, 4, 8, 16)
_BATCHED = (2048, 4096, 8192, 16384, 32768)
_VLLM = {
    "enable_prefix_caching": (True, False),
    "disable_hybrid_kv_cache_manager": (True, False),
    "block_size": (16, 32, 64, 128, 256),
    "async_scheduling": (True, False),
    "pp": _POWERS,
    "dcp": _POWERS,
    "max_num_batched_tokens": _BATCHED,
    "max_num_seqs": (128, 256, 512, 1024),
    "enable_chunked_prefill": (True, False),
    "mamba_cache_mode": ("none", "align", "all"),
    "mamba_ssm_cache_dtype": ("float32", "bfloat16"),
}
_KINDS: dict[str, dict[str, tuple[Any, ...]]] = {
    "vllm": {"kv_cache_dtype": ("fp8", "bfloat16"), "tp": _POWERS, **_VLLM},
    "sglang": {
        "kv_cache_dtype": ("fp8_e5m2", "bfloat16"),
        "tp": _POWERS,
        "page_size": (1, 16, 32, 64),
        "attention_dp": _POWERS,
        "pp": _POWERS,
        "swa_full_tokens_ratio": (0.8, 0.5, 1.0),
        "mamba_ssm_dtype": ("float32", "bfloat16"),
        "disable_overlap_schedule": (True, False),
        "disable_radix_cache": (True, False),
    },
    "tensorrt-llm": {
        "kv_cache_dtype": ("fp8", "bfloat16"),
        "tp": _POWERS,
        "pp": _POWERS,
        "tokens_per_block": (32, 64, 128),
        "attention_dp": _POWERS,
    },
    "llama.cpp": {
        "cache_type_k": ("f16", "q8_0", "q4_0", "bf16", "f32"),
        "cache_type_v": ("f16", "q8_0", "q4_0", "bf16", "f32"),
        "swa_full": (True, False),
        "kv_unified": (True, False),
        "parallel": (1, 2, 4),
        "ubatch_size": (128, 512, 1024, 2048),
    },
}
_DRAFTERS: dict[str, dict[str, Any]] = {
    "vllm": {"speculative_config": {"method": "eagle3", "num_speculative_tokens": 3, "layers": 1}},
    "sglang": {"speculative_algorithm": "EAGLE", "speculative_num_steps": 3},
}


@dataclass(frozen=True, slots=True)
class Tried:
    """A change with which the figures are those that were printed."""

    flag: str
    value: Any
    says: str
    changed: dict[str, Any]


def versions(case: Case) -> Iterator[str]:
    """The versions to try, nearest to the one that was taken first."""
    o, at = case.observed, case.at.version
    known = printing_so(o) or versions_of(o.engine)
    minors: dict[tuple[int, ...], str] = {}
    for version in known:
        minors[key(version)[:2]] = version
    found = list(minors.values()) if o.engine != "sglang" else known
    here = max((i for i, version in enumerate(found) if at is None or key(version) <= key(at)), default=0)
    near = sorted(range(len(found)), key=lambda i: abs(i - here))
    return (found[i] for i in near if found[i] != at)


def tries(case: Case) -> list[Tried]:
    """The single changes that make every figure agree: at most three, found within a time."""
    made, agrees = trial_of(case), agrees_with(case)
    found: list[Tried] = []
    until = time.monotonic() + _SECONDS
    for flag, value, changed in _changes(case):
        if len(found) == _MOST_FOUND or time.monotonic() > until:
            break
        if flag in [one.flag for one in found]:
            continue
        d = made(**changed)
        try:
            if d is not None and agrees(d):
                found.append(Tried(flag, value, _says(case, flag, value), changed))
        except KvplanError:
            continue
    return found


def _changes(case: Case) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """A flag, its value, and what to change: a drafter and a version before settings that may be anything."""
    o = case.observed
    if o.drafting and o.engine in _DRAFTERS and not _drafts(o):
        yield "drafter", "one layer", _DRAFTERS[o.engine]
    length = o.figures.get("concurrency_length")
    if length is not None and length.value >= 1:
        yield "max_model_len", int(length.value), {"max_model_len": int(length.value)}
    kinds = _KINDS[o.engine]
    for name in ("kv_cache_dtype", "tp"):
        yield from ((name, value, {name: value}) for value in kinds.get(name, ()))
    rules = (("engine_version", version, {"version": version}) for version in versions(case))
    sure = o.version in versions_of(o.engine)
    if not sure:
        yield from rules
    for name, values in kinds.items():
        if name not in ("kv_cache_dtype", "tp"):
            yield from ((name, value, {name: value}) for value in values)
    if sure:
        yield from rules
    if o.engine in _DRAFTERS and not o.drafting:
        yield "drafter", "one layer", _DRAFTERS[o.engine]


def _drafts(o: Observed) -> bool:
    return any(name.startswith("speculative") for name in o.flags)


def _says(case: Case, flag: str, value: Any) -> str:
    """A sentence on what was found."""
    option = f"--{flag.replace('_', '-')}"
    if flag == "engine_version":
        taken = case.at.version or "the newest one's"
        return f"under {value}'s rules every figure is as printed, under those of {taken} not"
    if flag == "drafter":
        return "with a drafter of one layer, which holds cache too, every figure is as printed"
    return f"with {option} {value} every figure is as printed"


def implied(case: Case) -> str:
    """Bytes of a token by the log beside those of the plan, where nothing was found."""
    o = case.observed
    pool, tokens = o.figures.get("kv_pool_bytes"), o.figures.get("kv_tokens")
    d = trial_of(case)()
    if pool is None or tokens is None or d is None or tokens.value <= 0 or pool.value <= 0:
        return ""
    got = value_of(capacity_of(d, round(pool.value), bare).kv_tokens)
    if not got:
        return ""
    ours, theirs = pool.value / got, pool.value / tokens.value
    return (
        f"no single change that was tried explains it: by the log a token takes {theirs:,.0f} B of the pool, "
        f"by the plan {ours:,.0f} B, {theirs / ours:.3g} times as much; is the model, or its cache, another?"
    )
