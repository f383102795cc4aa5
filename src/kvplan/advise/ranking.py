"""Which of several deployments that meet the goals is the best, and how near the others come."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, order=True)
class Rank:
    """Cheapest first; where prices are not known, after all known ones, the fewest accelerators first.

    `slack` is the worst ratio of a time to its goal: among equals the one with the most room is better.
    """

    cost_per_hour: float
    accelerators: int
    slack: float
    name: str


def rank_of(cost_per_hour: float | None, accelerators: int, slack: float, name: str) -> Rank:
    """The rank of a deployment; a cost that is not known is ranked behind all that are."""
    return Rank(math.inf if cost_per_hour is None else cost_per_hour, accelerators, slack, name)


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
