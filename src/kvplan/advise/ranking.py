"""Which of several deployments that meet the goals is the best, and how near the others come."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from kvplan.advise.families import Family

# What a further way to divide a model must bring of the time to the last token: it is one more thing to run,
# and its estimate rests on more (experts are taken as evenly asked for, stages as evenly loaded).
_WORTH = {"pp": 1.15, "dp": 1.15, "attention_dp": 1.15, "ep": 1.05}


_FOUR = (
    "awq",
    "gptq",
    "awq_marlin",
    "gptq_marlin",
    "bitsandbytes",
)  # formats of four bits that do not say so


@dataclass(frozen=True, slots=True, order=True)
class Rank:
    """Cheapest first; where prices are not known, after all known ones, the fewest accelerators first.

    Among equals: those that meet the goals with slow steps too, then those with the fewest bits `lost` of
    weights and cache, the shorter `seconds` to the last token,
    weighted by how the model is divided, and the engine's own settings (`changed` 0).
    """

    cost_per_hour: float
    accelerators: int
    at_risk: bool
    lost: int
    seconds: float
    changed: int
    name: str


def lost_by(family: Family) -> int:
    """How much narrower weights and cache are than the checkpoint has them: 1 for eight bits, 2 for four."""
    found = 0
    for name, plain in ((family.quantization, ""), (family.kv_cache_dtype, "auto")):
        if name != plain:
            found += 2 if "4" in name or name in _FOUR else 1
    return found


def weighted(seconds: float, family: Family) -> float:
    """Seconds of a family as they are ranked: its simplest division as they are, others longer."""
    for part, worth in _WORTH.items():
        seconds *= worth if getattr(family, part) > 1 else 1.0
    return seconds


def known_or_last(cost_per_hour: float | None) -> float:
    """A cost that is not known is ranked behind all that are."""
    return math.inf if cost_per_hour is None else cost_per_hour


def relaxed(seconds: float) -> float:
    """A goal that a time meets, in two digits: the next above."""
    if not math.isfinite(seconds) or seconds <= 0:
        return seconds
    digit = 10.0 ** (math.floor(math.log10(seconds)) - 1)
    return float(f"{math.ceil(seconds / digit - 1e-9) * digit:.12g}")


def groups_of(items: list[Any], key: Any) -> dict[Any, list[Any]]:
    """Items by what `key` gives, in the order of their coming."""
    found: dict[Any, list[Any]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found
