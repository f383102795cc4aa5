"""The record of a machine that was timed: written by `measure`, read wherever an accelerator is named."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kvplan.errors import BadInput, shown
from kvplan.facts.accelerators import Accelerator
from kvplan.facts.reached import ADDED, SHARES, Reached
from kvplan.figure import Source, Trust

# What an accelerator's peaks are called in the catalogue.
PEAKS = {"float32": "tf32", "bfloat16": "bf16", "float16": "fp16"}
_MOST_BYTES = 32 * 2**20
_FIRST_CACHE = 0.5  # of the bandwidth, until a model was run: libraries pass over a cache more than once


def shares_of(products: Sequence[Mapping[str, Any]], rate: float, dtype: str) -> dict[str, float]:
    """What products alone say of a step: the share of the bandwidth of few rows, of the peak of many."""
    mine = [row for row in products if row["dtype"] == dtype] or list(products)
    best = max(row["flops_per_second"] for row in mine)
    most = max(mine, key=lambda row: row["m"])
    few = min(mine, key=lambda row: row["m"])
    compute = min(1.0, most["flops_per_second"] / best)
    return {
        "product_compute": compute,
        "product_memory": min(1.0, few["weight_bytes_per_second"] / rate),
        "prompt_compute": compute,
        "cache_memory": _FIRST_CACHE,
    }


def is_machine_file(name: object) -> bool:
    """Whether what stands for an accelerator is a file that `measure` wrote."""
    return isinstance(name, str) and name.strip().lower().endswith(".json")


def read_machine(path: str, field: str = "--gpu") -> Accelerator:
    """The machine that a file describes, as an accelerator. Raises BadInput for a file that is none."""
    file = Path(path.strip()).expanduser()
    try:
        if file.stat().st_size > _MOST_BYTES:
            raise BadInput(f"{field}: {shown(path)} is too large for what kvplan measure writes")
        document = json.loads(file.read_text("utf-8"))
    except OSError as error:
        raise BadInput(f"{field}: {shown(path)} cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError):
        raise BadInput(
            f"{field}: {shown(path)} is not JSON in UTF-8; kvplan measure --save writes one"
        ) from None
    return accelerator_of(document, f"{field}: {shown(path)}")


def accelerator_of(document: Any, where: str = "machine") -> Accelerator:
    """The accelerator that a record describes; raises BadInput naming what is missing."""
    machine = document.get("machine") if isinstance(document, dict) else None
    if not isinstance(machine, dict):
        raise BadInput(f"{where} has no machine in it; give what kvplan measure --save wrote")
    rate = _positive(machine, "bytes_per_second", where)
    stated = machine.get("peak_flops_per_second")
    if not isinstance(stated, dict) or not stated:
        raise BadInput(f"{where}: peak_flops_per_second is missing; measure again")
    peaks = {PEAKS.get(str(name), str(name)): _positive(stated, name, where) for name in stated}
    memory = machine.get("memory_bytes")
    if memory is not None and (isinstance(memory, bool) or not isinstance(memory, int) or memory < 1):
        raise BadInput(f"{where}: memory_bytes {shown(memory)} is not a number of bytes")
    platform = machine.get("platform")
    if platform not in ("cpu", "cuda"):
        raise BadInput(f"{where}: platform {shown(platform)} is not cpu or cuda")
    date = str(machine.get("date") or "at a date not known")[:20]
    name = str(machine.get("name") or "a machine")[:120]
    return Accelerator(
        key=f"measured-{platform}",
        name=name,
        vendor="nvidia" if platform == "cuda" else "host",
        arch=None,
        memory_bytes=memory,
        memory_source="the system's total",
        bytes_per_second=rate,
        peaks=peaks,
        link_bytes_per_second=None,
        pcie=None,
        power_watts=None,
        sources=(f"measured {date}",),
        unsure=(),
        notes="timed by kvplan measure",
        reached=_reached(document, where, name, date),
    )


def _reached(document: Mapping[str, Any], where: str, name: str, date: str) -> Reached:
    found = document.get("calibration") or document.get("from_machine")
    if not isinstance(found, dict):
        raise BadInput(f"{where}: neither calibration nor from_machine is in it; measure again")
    shares = {key: min(1.0, _positive(found, key, where)) for key in SHARES}
    added = {key: _positive(found, key, where) for key in ADDED if found.get(key) is not None}
    overlap = _positive(found, "overlap", where)
    if overlap > 8:
        raise BadInput(f"{where}: overlap {overlap:g} is above 8; measure again")
    with_model = bool(document.get("calibration"))
    words = str(found.get("words") or "")[:200]
    source = Source(Trust.MEASURED if with_model else Trust.ASSUMED, f"measured {date} on {name}: {words}")
    spreads = found.get("spreads") if with_model else None
    return Reached(
        **shares,
        overlap=overlap,
        source=source,
        words=words,
        **added,
        rows=_rows(found.get("rows"), where),
        spreads=_spreads(spreads, where),
    )


def _rows(given: Any, where: str) -> tuple[tuple[float, float], ...]:
    found = []
    for row in given or () if isinstance(given, list) else ():
        if not isinstance(row, dict):
            raise BadInput(f"{where}: rows {shown(row)} is not an object; measure again")
        found.append((_positive(row, "m", where), _positive(row, "factor", where)))
    return tuple(sorted(dict(found).items()))


def _spreads(given: Any, where: str) -> dict[str, tuple[float, float, int]]:
    found = {}
    for name, row in (given or {}).items() if isinstance(given, dict) else ():
        if not isinstance(row, dict):
            raise BadInput(f"{where}: spreads.{name} is not an object; measure again")
        low, high = _positive(row, "low", where), _positive(row, "high", where)
        found[str(name)] = (min(1.0, low), max(1.0, high), int(_positive(row, "rows", where)))
    return found


def _positive(record: Mapping[Any, Any], name: Any, where: str) -> float:
    value = record.get(name)
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or not math.isfinite(value)
        or value <= 0
    ):
        raise BadInput(f"{where}: {name} {shown(value)} is not a positive number; measure again")
    return float(value)
