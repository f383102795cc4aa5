"""Intervals from errors: how wide they must be to hold 80 % of what was left out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from serving_rows import Row

Ratio = tuple[str, str, float]  # fold, row, log of measured ÷ predicted, of a time
WANTED = 0.80


def ratios(rows: Iterable[Row], errors: Mapping[str, float]) -> list[Ratio]:
    """What each figure would have had to be multiplied with, as a logarithm."""
    return [
        (row.raw["arch"], row.raw["id"], -errors[row.raw["id"]]) for row in rows if row.raw["id"] in errors
    ]


def widened(values: list[Ratio]) -> float:
    """The tail to cut on each side so that intervals of the other folds hold 80 % of a fold."""
    for tail in np.arange(0.10, 0.0, -0.01):
        if _coverage(values, float(tail)) >= WANTED:
            return float(tail)
    return 0.01


def _coverage(values: list[Ratio], tail: float) -> float:
    held = 0
    for fold in {a for a, _, _ in values}:
        others = [v for a, _, v in values if a != fold]
        if not others:
            return 1.0
        low, high = np.quantile(others, [tail, 1 - tail])
        held += sum(low <= v <= high for a, _, v in values if a == fold)
    return held / len(values)


def interval(values: list[Ratio]) -> dict[str, Any]:
    """The interval to state: factors of the estimate."""
    tail = widened(values)
    low, high = np.quantile([v for _, _, v in values], [tail, 1 - tail])
    return {"low": round(float(np.exp(low)), 3), "high": round(float(np.exp(high)), 3), "rows": len(values)}
