"""A start-up that failed: what was needed, what was there, and which flags would fix it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvplan.engines.budget import memory_of
from kvplan.engines.registry import CONTEXT_DECIDES, capacity_of
from kvplan.figure import bare, value_of
from kvplan.units import bytes_text
from kvplan.verbs.verify_deployment import Case
from kvplan.verbs.verify_failures import (
    executor_memory,
    freed_meanwhile,
    graphs,
    llama_allocation,
    static_share,
    unbalanced,
)
from kvplan.verbs.verify_fixes import (
    Failed,
    Told,
    held_by_others,
    lower_share,
    others,
    sure,
    ways,
    with_fewer_sequences,
    with_less_work,
)
from kvplan.verbs.verify_outcome import Compared
from kvplan.verbs.verify_relief import lighter, smaller

NOT_MEMORY = ("stopped", "other", "freed_meanwhile")


def failure_answer(case: Case, compared: Compared) -> dict[str, Any] | None:
    """The failure in the log with kvplan's answer, or None where it shows none."""
    failure = case.observed.failure
    if failure is None:
        return None
    told = _KINDS.get(failure.kind, _other)(Failed(case, compared, failure))
    needed, available = told.needed, told.available
    short = needed - available if needed is not None and available is not None else None
    return {
        "kind": failure.kind,
        "when": failure.when,
        "phase": failure.phase,
        "line": failure.line,
        "text": failure.text,
        "needed_bytes": None if needed is None else round(needed),
        "available_bytes": None if available is None else round(available),
        "short_bytes": None if short is None else max(0, round(short)),
        "held_by_others_bytes": told.held_by_others,
        "says": told.says,
        "fixes": told.fixes,
    }


def _too_long(at: Failed) -> Told:
    """One sequence of the longest length does not fit into the pool."""
    tokens = at.failure.value("max_model_len")
    needed, available = at.failure.value("needed_kv_bytes"), at.failure.value("kv_checked_bytes")
    d = at.compared.measured or at.planned
    if needed is None and d is not None and tokens:
        found = capacity_of(d, None, bare)
        block, size = value_of(found.bytes_per_block), found.block_tokens
        each = block / size if block and size else None
        held = at.failure.value("kv_tokens") or 0
        needed, available = (each * tokens, each * held) if each else (None, None)
    length = f"{int(tokens):,} tokens" if tokens else "the longest length"
    says = (
        f"one sequence of {length} needs {_size(needed)} of cache, and {_size(available)} are left for it "
        "once the weights, a step's peak and the rest are taken off"
    )
    return Told(needed, available, says, _as_the_engine_has_it(at, ways(at)))


def _as_the_engine_has_it(at: Failed, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same, the longest length being the engine's own figure where it prints one."""
    made, length = at.failure.value("kv_tokens"), at.failure.value("estimated_max_model_len")
    own = None
    if at.case.observed.engine == "tensorrt-llm" and made:
        own = sure("--max-seq-len", int(made), "as many tokens as the cache was made for")
    elif length:
        own = sure("--max-model-len", int(length), "the engine's own estimate")
    return rows if own is None else [own, *(r for r in rows if r["flag"] != own["flag"])]


def _no_memory(at: Failed) -> Told:
    """Nothing is left for the cache."""
    pool = at.log("kv_pool_bytes")
    d = at.planned or at.compared.measured
    needed = value_of(capacity_of(d, None, bare).needed_kv_bytes) if d is not None else None
    left = f" ({_size(pool)})" if pool is not None else ""
    says = (
        "the weights, a step's peak and what lies outside PyTorch take the engine's whole share of the "
        f"device: nothing is left for the cache{left}; one longest sequence needs {_size(needed)}"
    )
    return Told(needed, pool if pool is not None else 0.0, says, ways(at, weights=True))


def _not_free(at: Failed) -> Told:
    """Less is free at the start than the engine asks for."""
    free, total = at.failure.figures.get("free_before_bytes"), at.failure.figures.get("accelerator_bytes")
    asked = at.failure.value("requested_bytes")
    if free is None or total is None:
        return Told(asked, None, "less is free on the device than the engine asks for", [])
    held = total.value - free.value
    says = (
        f"{_size(asked)} are asked for and {_size(free.value)} are free: another process, or an earlier one "
        f"that has not ended, holds about {_size(held)} of the device; end it, or take a share that leaves "
        "it alone"
    )
    beside = at.case.attempt(memory_in_use=round(total.high - free.low))
    rows = ways(at, beside) if beside is not None else []
    if not rows:
        share = int(free.low / total.high * 100) / 100
        rows = [sure("--gpu-memory-utilization", share, "the largest share that is free")]
    return Told(asked, free.value, says, rows, round(held))


def _warm_up(at: Failed) -> Told:
    """The warm-up of the sampler, at the most sequences at once."""
    count = at.failure.value("warm_up_requests")
    rows = with_fewer_sequences(at, int(count)) if count else []
    rows += lower_share(at, at.short)
    many = f"{int(count):,} sequences" if count else "the most sequences"
    says = f"the cache is made and the device has too little left to sample for {many} at once"
    return Told(at.failure.value("tried_bytes"), at.failure.value("free_bytes"), says, rows)


def _out_of_memory(at: Failed) -> Told:
    """PyTorch's allocator found no room: where it did says what helps."""
    tried, free = at.failure.value("tried_bytes"), at.failure.value("free_bytes")
    number = at.failure.value("device_number")
    full = "the device was full" if number is None else f"device {number:.0f} was full"
    what = f"{_size(tried)} more were asked for" if tried is not None else full
    what = f"{what} {_while(at)}"
    says = f"{what}{f' and {_size(free)} were free' if free is not None else ''}{others(at.failure)}"
    rows: list[dict[str, Any]]
    if at.failure.when == "running" or "graphs" in at.failure.phase or "warming" in at.failure.phase:
        rows = lower_share(at, at.short)
    elif at.case.observed.engine in CONTEXT_DECIDES:
        rows = ways(at)
    elif "weights" in at.failure.phase:
        rows = lighter(at, ("weight_bytes",), None)
        says = f"{says}; {_weights(at)}"
    elif "cache" in at.failure.phase:
        rows = lower_share(at, at.short)
    else:
        rows = [*with_less_work(at), *lighter(at, ("weight_bytes", "activation_bytes"), at.short)]
    return Told(tried, free, says, rows, held_by_others(at.failure))


def _while(at: Failed) -> str:
    if at.failure.when == "running":
        return "while the engine ran"
    phase = at.failure.phase or "starting"
    return f"during {phase}" if phase.startswith("the ") else f"while {phase}"


def _weights(at: Failed) -> str:
    d = at.planned
    weights = memory_of(d, bare)["weight_bytes"] if d is not None else None
    return (
        f"the weights of one rank are {_size(weights)} of the device's {_size(d.memory_bytes if d else None)}"
    )


def _host(at: Failed) -> Told:
    needed, free = at.failure.value("needed_bytes"), at.failure.value("free_bytes")
    says = f"{_size(needed)} of host memory are needed and {_size(free)} are free"
    d = at.planned
    if d is None or d.setup.engine != "llama.cpp" or needed is None or free is None:
        return Told(needed, free, says)
    return Told(needed, free, says, smaller(at, d, needed - free, host=True))


def _other(at: Failed) -> Told:
    """The engine stopped for something else than memory, as far as the log says."""
    says = "the engine stopped for something that is not memory, as far as the log says"
    if at.failure.kind == "stopped":
        says = "the engine stopped and the log does not say why; the lines before may have been left out"
    return Told(None, None, says, [])


def _size(value: float | None) -> str:
    return "an amount that is not known" if value is None else bytes_text(round(value))


_KINDS: dict[str, Callable[[Failed], Told]] = {
    "one_request_too_long": _too_long,
    "no_cache_memory": _no_memory,
    "not_enough_free": _not_free,
    "warm_up": _warm_up,
    "out_of_memory": _out_of_memory,
    "host_memory": _host,
    "static_share_too_small": static_share,
    "graphs": graphs,
    "executor_memory": executor_memory,
    "allocation": llama_allocation,
    "layout_allocation": llama_allocation,
    "freed_meanwhile": freed_meanwhile,
    "unbalanced": unbalanced,
    "weights_allocation": llama_allocation,
    "cache_allocation": llama_allocation,
    "compute_allocation": llama_allocation,
}
