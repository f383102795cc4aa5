"""TensorRT-LLM's log beside what kvplan predicts: blocks and tokens of what it allocated, and the budget."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvplan.engines.budget import memory_of
from kvplan.engines.deployment import Deployment
from kvplan.engines.registry import capacity_of
from kvplan.engines.tensorrt_llm import available_bytes
from kvplan.figure import bare, value_of
from kvplan.observe.forms import Said
from kvplan.observe.observed import Observed
from kvplan.verbs.verify_check import FLAGS, MEASURED, PARTS, Check, between, exact, found, within
from kvplan.verbs.verify_deployment import Case
from kvplan.verbs.verify_outcome import Compared

_ROUNDED = "the log rounds its pool to 0.01 GiB"


def compared(case: Case) -> Compared:
    """Every figure of the start-up, and the deployment with the pool it allocated."""
    o, d = case.observed, trial(case)
    pool = _pool(o)
    rows = [*(_capacity(o, d, pool) if d is not None and pool is not None else []), *_parts(o, d)]
    planned, notes = case.planned()
    if planned is not None:
        rows += _from_flags(o, planned)
    return Compared(rows, d, planned, notes)


def trial(case: Case, **changed: Any) -> Deployment | None:
    """The deployment with the pool that was allocated, and something changed where asked."""
    pool = _pool(case.observed)
    return case.attempt(round(pool.value), **changed) if pool is not None and pool.value >= 1 else None


def _pool(o: Observed) -> Said | None:
    return o.figures.get("kv_allocated_bytes") or o.figures.get("kv_pool_bytes")


def _capacity(o: Observed, d: Deployment, pool: Said) -> list[Check]:
    at, low, high = (capacity_of(d, max(0, round(p)), bare) for p in (pool.value, pool.low, pool.high))
    said = o.figures.get("kv_tokens")
    best = _nearest(d, pool, said) if said is not None else None
    at = capacity_of(d, best, bare) if best is not None else at
    rows = []
    for name, unit in (("kv_tokens", "token"), ("num_blocks", "block")):
        best, *ends = [value_of(getattr(c, name)) for c in (at, low, high)]
        rows.append(between(name, best, (ends[0], ends[1]), o.figures.get(name), unit, MEASURED, _ROUNDED))
    block = value_of(at.bytes_per_block)
    per_token = block / at.block_tokens if block and at.block_tokens else None
    per_token = int(per_token) if per_token is not None and per_token == int(per_token) else per_token
    rows.append(exact("kv_bytes_per_token", per_token, o.figures.get("kv_bytes_per_token"), "B", FLAGS))
    return found(rows)


def _nearest(d: Deployment, pool: Said, said: Said) -> int | None:
    """The pool within the rounding that holds the tokens printed, or None."""
    block = int(value_of(capacity_of(d, round(pool.value), bare).bytes_per_block) or 0)
    tokens = capacity_of(d, None, bare).block_tokens
    if not block or not tokens:
        return None
    at = int(said.value // tokens) * block
    return at if pool.low - block <= at <= pool.high + block else None


def _most(d: Deployment | None, pool: float) -> float:
    """The pool, or the part of it that `max_tokens` lets the engine take."""
    if d is None or d.setup.flags.get("max_tokens") is None:
        return pool
    at = capacity_of(d, max(0, round(pool)), bare)
    blocks, each = value_of(at.num_blocks), value_of(at.bytes_per_block)
    return min(pool, float(blocks * each)) if blocks and each else pool


def _parts(o: Observed, d: Deployment | None) -> list[Check]:
    """The pool by the engine's own rule from what its dry run printed."""
    f = o.figures
    share = o.flags.get("free_gpu_memory_fraction")
    rows: list[Check | None] = []
    if all(n in f for n in ("accelerator_bytes", "peak_bytes")) and share and "kv_pool_bytes" in f:
        temporary = f.get("temporary_bytes", Said(0))
        device, peak = round(f["accelerator_bytes"].value), round(f["peak_bytes"].value)
        predicted = available_bytes(device, peak, round(temporary.value), float(share))
        slack = (f["accelerator_bytes"].half + f["peak_bytes"].half + temporary.half) * 1.1
        predicted = _most(d, float(value_of(predicted)))
        bounds = (predicted - slack, predicted + slack)
        why = "every part is printed to 0.01 GiB: (device − peak + the dry run's pool) × the fraction"
        rows.append(
            between("kv_pool_from_parts", round(predicted), bounds, f["kv_pool_bytes"], "B", PARTS, why)
        )
    if "available_bytes" in f and "kv_allocated_bytes" in f and "peak_bytes" not in f:
        part = float(share) if share else 0.9
        predicted = f["available_bytes"].value * part
        slack = f["available_bytes"].half + 0.01 * 2**30
        why = f"a fraction of {part:g}{'' if share else ', the default,'} of what was free"
        rows.append(
            between("kv_pool_from_parts", round(predicted), (predicted - slack, predicted + slack),
                    f["kv_allocated_bytes"], "B", PARTS, why)
        )  # fmt: skip
    return found(rows)


def _from_flags(o: Observed, d: Deployment) -> list[Check]:
    table = memory_of(d, bare)
    pool = _pool(o)
    predicted, low, high = (
        None if table[name] is None else _most(d, table[name])
        for name in ("kv_pool_bytes", "kv_pool_low_bytes", "kv_pool_high_bytes")
    )
    why = "between the ends of what other engines' start-up logs showed"
    return found(
        [
            within("weight_bytes", table["weight_bytes"], 0.05, o.figures.get("weight_bytes"), "B", FLAGS,
                   "padding of kernels is not known for this engine"),
            between("kv_pool_bytes", predicted, (low, high), pool, "B", FLAGS, why),
        ]
    )  # fmt: skip


def agrees_with(case: Case) -> Callable[[Deployment], bool]:
    """Whether a deployment's blocks and tokens are those that the log printed."""
    o = case.observed

    def tried(d: Deployment) -> bool:
        pool = _pool(o)
        rows = _capacity(o, d, pool) if pool is not None else []
        return bool(rows) and all(row.agrees for row in rows)

    return tried
