"""The Pareto front: points that no other beats, where each of several figures is to be least."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


def front(points: Floats | Sequence[Sequence[float | None]]) -> Mask:
    """Which points are on the front: none is at most as large in every figure and less in one.

    One row a point. Equal points do not beat each other, so all of them stay. A point with an unknown
    figure (None or NaN) is never on the front, and beats none.
    """
    rows = np.asarray(points, dtype=np.float64)
    on = np.zeros(len(rows), dtype=np.bool_)
    if rows.size == 0:
        return on
    known = ~np.isnan(rows).any(axis=1)
    rows = rows[known] + 0.0  # -0.0 is 0.0
    if len(rows):
        on[known] = _of_two(rows[:, 0], rows[:, 1]) if rows.shape[1] == 2 else _of_any(rows)
    return on


def _of_two(first: Floats, second: Floats) -> Mask:
    """By the first figure, each group of equals must lower the least second one so far: O(n log n)."""
    order = np.lexsort((second, first))
    x, y = first[order], second[order]
    opens = np.append(True, x[1:] != x[:-1])
    group = np.cumsum(opens) - 1
    least = y[opens]
    lowers = np.append(True, least[1:] < np.minimum.accumulate(least)[:-1])
    on = np.empty(len(first), dtype=np.bool_)
    on[order] = lowers[group] & (y == least[group])
    return on


def _of_any(rows: Floats) -> Mask:
    """The first in order of its figures is beaten by none; what it beats goes; then the next: n · front."""
    different, which = np.unique(rows, axis=0, return_inverse=True)
    on = np.zeros(len(different), dtype=np.bool_)
    left = np.arange(len(different))
    while len(left):
        best = left[0]
        on[best] = True
        left = left[1:]
        left = left[(different[left] < different[best]).any(axis=1)]
    return on[which.reshape(-1)]
