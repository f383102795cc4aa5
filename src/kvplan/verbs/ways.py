"""The way back from a start that fails: which one change makes context and concurrency fit."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from kvplan.cost import cache
from kvplan.engines.budget import memory_of
from kvplan.engines.context_budget import free_bytes
from kvplan.engines.deployment import Deployment
from kvplan.engines.llama_cpp_placement import largest_offload
from kvplan.engines.registry import CONTEXT_DECIDES, capacity_of
from kvplan.errors import KvplanError
from kvplan.figure import bare
from kvplan.verbs.deploy import with_flags, with_kv_cache_dtype, with_tp
from kvplan.verbs.verdict import LENGTHS, enough, pool_for, starts

MOST_UTILIZATION = 0.98
_SHARES = {
    "vllm": "gpu_memory_utilization",
    "sglang": "mem_fraction_static",
    "tensorrt-llm": "free_gpu_memory_fraction",
}
_MOST_TP = 64


def holds(d: Deployment, batch: int | None) -> bool:
    """Whether the deployment starts and runs that many sequences of its maximum length at once.

    Without a number vLLM's start check decides, which asks for one in its own way; of others one must fit.
    """
    batch = 1 if batch is None and d.setup.engine != "vllm" else batch
    memory = memory_of(d, bare)
    found = capacity_of(d, pool_for(d, memory), bare)
    return starts(d, memory, found) is not False and enough(d, None, found, batch, None)


def ways_back(d: Deployment, batch: int | None) -> list[dict[str, Any]]:
    """One change at a time: whether it is enough for `batch` sequences, or to start, and what it takes.

    A row: `change` (flag and value, empty where no value is enough), `fits`, `note`.
    """
    kinds = (_shorter, _share, _narrower, _on_host, more_ranks)
    return [row for kind in kinds for row in kind(d, batch)]


def _row(name: str, value: Any, note: str) -> dict[str, Any]:
    return {"flag": name, "value": value, "fits": value is not None, "note": note}


def _tried(batch: int | None, change: Callable[[], Deployment]) -> bool:
    try:
        return holds(change(), batch)
    except KvplanError:
        return False


def _shorter(d: Deployment, batch: int | None) -> Iterator[dict[str, Any]]:
    """The longest maximum length at which it fits, by bisection: more tokens never need less."""
    flag = LENGTHS.get(d.setup.engine)
    if flag is None:
        return
    option = f"--{flag.replace('_', '-')}"

    def enough(tokens: int) -> bool:
        return _tried(batch, partial(with_flags, d, **{flag: tokens}))

    longest = _largest(enough, d.max_model_len)
    note = "the longest sequence that fits, nothing else changed" if longest else "not at any length"
    yield _row(option, longest, note)


def _largest(enough: Callable[[int], bool], most: int) -> int | None:
    if not enough(1):
        return None
    low, high = 1, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if enough(middle) else (low, middle - 1)
    return low


def _least(enough: Callable[[int], bool], most: int) -> int | None:
    """The least count that is enough, by bisection: where one is, every larger one is."""
    if not enough(most):
        return None
    low, high = 1, most
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle + 1, high)
    return low


def _share(d: Deployment, batch: int | None) -> Iterator[dict[str, Any]]:
    flag = _SHARES.get(d.setup.engine)
    if flag is None or d.memory_bytes is None or "kv_pool_bytes" in d.measured:
        return
    shares = [n / 100 for n in range(1, round(MOST_UTILIZATION * 100) + 1)]

    def enough(count: int) -> bool:
        return _tried(batch, partial(with_flags, d, **{flag: shares[count - 1]}))

    if d.in_use_bytes:
        note = "the largest share that starts beside what is in use"
        found = next((shares[n - 1] for n in range(len(shares), 0, -1) if enough(n)), None)
    else:
        note = "the least share that is enough"
        least = _least(enough, len(shares))
        found = None if least is None else shares[least - 1]
    missed = "at no share" if d.in_use_bytes else f"not even at {MOST_UTILIZATION}"
    yield _row(f"--{flag.replace('_', '-')}", found, note if found else missed)


def _narrower(d: Deployment, batch: int | None) -> Iterator[dict[str, Any]]:
    if d.setup.engine == "llama.cpp":
        ok = _tried(batch, partial(with_flags, d, cache_type_k="q8_0", cache_type_v="q8_0"))
        yield _row(
            "--cache-type-k and --cache-type-v",
            "q8_0" if ok else None,
            "nearly half the bytes" if ok else "not enough alone",
        )
        return
    if d.stored.format.bits <= 8 or d.setup.engine in CONTEXT_DECIDES:
        return
    ok = _tried(batch, partial(with_kv_cache_dtype, d, "fp8"))
    yield _row(
        "--kv-cache-dtype", "fp8" if ok else None, "half the cache's bytes" if ok else "not enough alone"
    )


def _on_host(d: Deployment, batch: int | None) -> Iterator[dict[str, Any]]:
    """llama.cpp: layers, or experts, that stay in host memory, with a margin left on every device."""
    if (
        (batch or 1) > 1
        or d.setup.engine != "llama.cpp"
        or d.memory_bytes is None
        or d.setup.platform == "cpu"
    ):
        return
    free = [free_bytes(d)] * (d.setup.tp * d.setup.pp)
    found = largest_offload(d.model, d.setup, free)
    what = "layers whose experts stay on the host" if found.flag == "n_cpu_moe" else "layers on the devices"
    best = "" if found.at_best == found.surely else f"; {found.at_best} with luck, the buffer at its least"
    note = f"{what}{best}" if found.surely is not None else "not with any number of layers"
    yield _row(f"--{found.flag.replace('_', '-')}", found.surely, note)


def more_ranks(d: Deployment, batch: int | None) -> Iterator[dict[str, Any]]:
    """The fewest tensor-parallel ranks, in powers of two, that hold it."""
    if d.setup.engine in CONTEXT_DECIDES:
        return
    for power in range(math.ceil(math.log2(_MOST_TP)) + 1):
        tp = 2**power
        if tp <= d.tp:
            continue
        try:
            cache.check_split(d.model, tp)
        except KvplanError:
            continue
        if _tried(batch, partial(with_tp, d, tp)):
            yield _row("--tp", tp, f"{tp} accelerators; the fewest, in powers of two, that hold it")
            return
    yield _row("--tp", None, "not on any number of accelerators that divides the heads")
