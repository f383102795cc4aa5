"""The record of a machine that was timed: written by `measure`, read wherever an accelerator is named."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvplan.cost.estimate import compute_seconds, memory_seconds
from kvplan.cost.reached import reached_seconds
from kvplan.cost.step import product_bytes, product_flops
from kvplan.errors import BadInput, shown
from kvplan.facts.accelerators import Accelerator
from kvplan.facts.reached import ADDED, SHARES, Reached
from kvplan.figure import Source, Trust, value_of

# What an accelerator's peaks are called in the catalogue.
PEAKS = {"float32": "tf32", "bfloat16": "bf16", "float16": "fp16"}
_MOST_BYTES = 32 * 2**20
_MOST_MEMORY = 2**60
# Between what a figure of a machine lies: beyond, a file is damaged.
_RATE, _PEAK = (1e3, 1e18), (1e3, 1e21)
_SHARE, _SECONDS, _TIMES = (1e-9, 1.0), (1e-12, 3600.0), (1e-6, 1e6)
_OVERLAP, _COUNT = (1.0, 8.0), (1.0, 2.0**24)
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


def from_machine(made: Sequence[Mapping[str, Any]], rate: float, dtype: str, where: str) -> dict[str, Any]:
    """The shares that products alone show; what attends to a cache is assumed."""
    words = f"products in {dtype}; attention over a cache assumed at half the bandwidth"
    shares, overlap = shares_of(made, rate, dtype), 1.0 if where == "cpu" else 2.0
    mine = [row for row in made if row["dtype"] == dtype] or list(made)
    peak = max(float(row["flops_per_second"]) for row in mine)
    rows = [{"m": row["m"], "factor": _factor(row, shares, peak, rate, overlap)} for row in mine]
    return {**shares, "overlap": overlap, "dtype": dtype, "rows": rows, "words": words}


def _factor(
    row: Mapping[str, Any], shares: Mapping[str, float], peak: float, rate: float, overlap: float
) -> float:
    """How many times as long as by the shares a product was timed to take."""
    weights = row["weight_bytes_per_second"] * row["seconds"]
    busy = memory_seconds(
        product_bytes(weights, row["m"], row["n"], row["k"]), rate, shares["product_memory"]
    )
    work = compute_seconds(product_flops(row["n"], row["k"], row["m"]), peak, shares["product_compute"])
    return float(row["seconds"] / value_of(reached_seconds(work, busy, overlap)))


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
    """The accelerator that a record describes; raises BadInput naming what is missing or damaged."""
    machine = document.get("machine") if isinstance(document, dict) else None
    if not isinstance(machine, dict):
        raise BadInput(f"{where} has no machine in it; give what kvplan measure --save wrote")
    rate = _number(machine, "bytes_per_second", f"{where}: machine", _RATE)
    stated = machine.get("peak_flops_per_second")
    if not isinstance(stated, dict) or not stated:
        raise BadInput(f"{where}: machine.peak_flops_per_second is missing; measure again")
    at = f"{where}: machine.peak_flops_per_second"
    peaks = {PEAKS.get(str(name), str(name)): _number(stated, name, at, _PEAK) for name in stated}
    memory = machine.get("memory_bytes")
    if memory is not None and (
        isinstance(memory, bool) or not isinstance(memory, int) or not 1 <= memory <= _MOST_MEMORY
    ):
        raise BadInput(
            f"{where}: machine.memory_bytes {shown(memory)} is not a number of bytes from 1 to 2**60; "
            "measure again"
        )
    platform = machine.get("platform")
    if platform not in ("cpu", "cuda"):
        raise BadInput(f"{where}: platform {shown(platform)} is not cpu or cuda")
    date = _line(machine.get("date"), 20) or "at a date not known"
    name = _line(machine.get("name"), 120) or "a machine"
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
        reached=_reached(document, where, f"measured {date} on {name}", platform),
    )


def _reached(document: Mapping[str, Any], where: str, on: str, platform: str) -> Reached:
    """The calibration, or where no model was run what the rates alone say; other formats beside it."""
    with_model = document.get("calibration") is not None
    part = "calibration" if with_model else "from_machine"
    found = document.get(part)
    if found is None:
        raise BadInput(f"{where}: neither calibration nor from_machine is in it; measure again")
    if not isinstance(found, dict):
        raise BadInput(f"{where}: {part} {shown(found)} is not an object; measure again")
    at = f"{where}: {part}"
    numbers: dict[str, Any] = {key: _number(found, key, at, _SHARE) for key in SHARES}
    numbers |= {key: _number(found, key, at, _SECONDS) for key in ADDED if found.get(key) is not None}
    words = _line(found.get("words"), 200)
    products = _products(document.get("products"), where)
    reached = Reached(
        **numbers,
        overlap=_number(found, "overlap", at, _OVERLAP),
        source=Source(Trust.MEASURED if with_model else Trust.ASSUMED, f"{on}: {words}"),
        words=words,
        rows=_rows(found.get("rows"), at),
        spreads=_spreads(found.get("spreads"), at) if with_model else {},
        dtype=_dtype(document, part, products, where),
    )
    rate = float(document["machine"]["bytes_per_second"])
    formats = dict.fromkeys(row["dtype"] for row in products)
    others = {
        dtype: _other(reached, from_machine(products, rate, dtype, platform), with_model, on)
        for dtype in formats
        if dtype != reached.dtype
    }
    return replace(reached, others=others)


def _other(reached: Reached, base: Mapping[str, Any], with_model: bool, on: str) -> Reached:
    """The same machine with weights of another format: its own products, the rest as it was calibrated."""
    words = f"{reached.words}; products in {base['dtype']}" if with_model else str(base["words"])
    return replace(
        reached,
        product_compute=base["product_compute"],
        product_memory=base["product_memory"],
        prompt_compute=reached.prompt_compute if with_model else base["prompt_compute"],
        source=Source(Trust.ASSUMED, f"{on}: {words}"),
        words=words,
        rows=tuple(sorted((float(row["m"]), float(row["factor"])) for row in base["rows"])),
        spreads={},
        dtype=base["dtype"],
    )


def _dtype(
    document: Mapping[str, Any], part: str, products: Sequence[Mapping[str, Any]], where: str
) -> str | None:
    """The format of the weights that were timed: stated, that of the model, or of the last products."""
    model, field, given = document.get("model"), f"{part}.dtype", document[part].get("dtype")
    if given is None and model is not None:
        if not isinstance(model, dict):
            raise BadInput(f"{where}: model {shown(model)} is not an object; measure again")
        field, given = "model.dtype", model.get("dtype")
    if given is None and part == "from_machine" and products:
        given = products[-1]["dtype"]
    return None if given is None else _format(given, f"{where}: {field}")


def _format(given: Any, at: str) -> str:
    if not isinstance(given, str) or given not in PEAKS:
        raise BadInput(f"{at} {shown(given)} is not one of {', '.join(PEAKS)}; measure again")
    return given


def _products(given: Any, where: str) -> list[dict[str, Any]]:
    """Products as they were timed, in each format."""
    bounds = {
        "m": _COUNT,
        "n": _COUNT,
        "k": _COUNT,
        "seconds": _SECONDS,
        "flops_per_second": _PEAK,
        "weight_bytes_per_second": (1.0, _RATE[1]),
    }
    return [
        {"dtype": _format(row.get("dtype"), f"{at}.dtype")}
        | {name: _number(row, name, at, bound) for name, bound in bounds.items()}
        for at, row in _objects(given, f"{where}: products")
    ]


def _rows(given: Any, at: str) -> tuple[tuple[float, float], ...]:
    found = {
        _number(row, "m", here, _COUNT): _number(row, "factor", here, _TIMES)
        for here, row in _objects(given, f"{at}.rows")
    }
    return tuple(sorted(found.items()))


def _objects(given: Any, at: str) -> list[tuple[str, dict[str, Any]]]:
    """Objects of a list, each with where it stands; none where the list is left out."""
    if given is None:
        return []
    if not isinstance(given, list):
        raise BadInput(f"{at} {shown(given)} is not a list; measure again")
    for number, row in enumerate(given):
        if not isinstance(row, dict):
            raise BadInput(f"{at}[{number}] {shown(row)} is not an object; measure again")
    return [(f"{at}[{number}]", row) for number, row in enumerate(given)]


def _spreads(given: Any, at: str) -> dict[str, tuple[float, float, int]]:
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise BadInput(f"{at}.spreads {shown(given)} is not an object; measure again")
    found = {}
    for name, row in given.items():
        here = f"{at}.spreads.{_line(name, 40)}"
        if not isinstance(row, dict):
            raise BadInput(f"{here} is not an object; measure again")
        low, high = (_number(row, key, here, _TIMES) for key in ("low", "high"))
        found[str(name)] = (min(1.0, low), max(1.0, high), int(_number(row, "rows", here, _COUNT)))
    return found


def _line(given: Any, limit: int) -> str:
    """Words of a file as one printable line."""
    text = "" if given is None else str(given)
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:limit]


def _number(record: Mapping[Any, Any], name: Any, at: str, bounds: tuple[float, float]) -> float:
    """A number of a record, between those bounds."""
    value, (low, high) = record.get(name), bounds
    field = f"{at}.{_line(name, 40)}"
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not value > 0 or value == math.inf:
        raise BadInput(f"{field} {shown(value)} is not a positive number; measure again")
    if not low <= value <= high:
        raise BadInput(f"{field} {shown(value)} is not between {low:g} and {high:g}; measure again")
    return float(value)
