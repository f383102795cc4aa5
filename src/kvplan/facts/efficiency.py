"""What serving measurements add to kernel timings: scales, overheads and the spread of the errors.

`efficiency/serving.json` is written by tools/fit_serving.py. A quantity is its base times the factors of
every level that knows the deployment: the engine, the engine on a generation or an accelerator, the
engine with a weight format, and links over a shared bus, which differ by the host.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Any

from kvplan.facts import store
from kvplan.facts.kernels import generation
from kvplan.figure import Source, Trust


@dataclass(frozen=True, slots=True)
class Spread:
    """How far measurements lie from an estimate, as factors: 80 % are between `low` and `high` of it."""

    low: float
    high: float
    rows: int
    where: str


@functools.cache
def _table() -> dict[str, Any]:
    found: dict[str, Any] = store.json_file("efficiency/serving.json")
    return found


def serving_fitted_on() -> dict[str, Any]:
    """What the serving parameters were fitted on, and when."""
    found: dict[str, Any] = _table()["fitted_on"]
    return found


def era_of(engine: str, version: str | None) -> str:
    """The engine's name among the fits: its early versions are another engine."""
    eras = store.toml("efficiency/classes.toml")["era"]
    found = eras.get(engine)
    if found is None or not version:
        return engine
    return f"{engine}@0" if _parts(version) < _parts(found["below"]) else engine


def _parts(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


@functools.lru_cache(maxsize=8192)
def fitted(quantity: str, engine: str, accelerator: str, format: str = "", shared: bool = False) -> float:
    """A quantity for an engine (its era's name) on an accelerator, in the unit of its base."""
    entry = _table()["quantities"][quantity]
    value = float(entry["base"])
    for key in _keys(engine, accelerator, format, shared=shared):
        value *= entry["factors"].get(key, 1.0)
    return value


def _keys(engine: str, accelerator: str, format: str, *, shared: bool) -> list[str]:
    keys = [
        engine,
        f"{engine} {generation(accelerator)}",
        f"{engine} {generation(accelerator)} {accelerator}",
    ]
    keys += [f"{engine} as {format}"] if format else []
    return [*keys, "shared bus", over_a_bus(engine, accelerator)] if shared else keys


def over_a_bus(engine: str, accelerator: str) -> str:
    """The key of an accelerator's links over a shared bus, as that engine reaches them."""
    return f"{engine} {accelerator} over a shared bus"


def fitted_version(quantity: str, engine: str, version: str | None) -> float:
    """A quantity of the front end: the engine's, and its version's where that one was measured."""
    entry = _table()["quantities"][quantity]
    factors = entry["factors"]
    value = float(entry["base"]) * factors.get(engine, 1.0)
    return float(value * factors.get(f"{engine} {version}", 1.0)) if version else float(value)


@functools.lru_cache(maxsize=512)
def is_measured(engine: str, accelerator: str) -> bool:
    """Whether serving measurements of this engine on this accelerator were fitted on."""
    return f"{engine} {accelerator}" in _table()["measured"]


@functools.lru_cache(maxsize=1024)
def fit_source(quantity: str, engine: str, accelerator: str) -> Source:
    """Where a fitted quantity comes from, and how near."""
    on = serving_fitted_on()
    near = f"fitted on {on['rows']} serving measurements, {on['date']} (docs/accuracy.md)"
    if is_measured(engine, accelerator):
        return Source(Trust.MEASURED, f"{quantity}: {near}")
    return Source(Trust.ASSUMED, f"{quantity}: {near}, none of {engine} on {accelerator}")


@functools.lru_cache(maxsize=1024)
def spread(figure: str, engine: str, accelerator: str) -> Spread:
    """The 80 % interval of a figure's errors, cross-validated: of deployments as well known as this one."""
    table = _table()["spreads"][figure]
    tier = "measured" if is_measured(engine, accelerator) else "elsewhere"
    found = table[tier]
    return Spread(found["low"], found["high"], found["rows"], f"{figure}, {tier}")
