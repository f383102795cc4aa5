"""Seconds of an operation on a machine that was timed (kvplan measure)."""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import Any

from kvplan.facts.kernels import Kernel
from kvplan.facts.reached import Reached
from kvplan.figure import Number, formula, power, value_of


@formula("s", "overlap 1: one after the other; 2: as kernels overlap")
def reached_seconds(compute_seconds: Number, memory_seconds: Number, overlap: Number) -> Number:
    """Compute and memory of an operation on a machine that was timed."""
    if value_of(overlap) == 1:
        return compute_seconds + memory_seconds
    return power(power(compute_seconds, overlap) + power(memory_seconds, overlap), 1 / overlap)


def rows_factor(reached: Reached, rows: Any) -> Any:
    """How many times as long as by the shares a product of so many rows takes: as timed, even over log rows.

    Libraries change their way with the rows, and two rows may well take longer than four.
    """
    points = reached.rows
    if hasattr(rows, "dtype"):
        import numpy as np

        at = np.log2(np.maximum(rows, 1))
        return np.interp(at, [math.log2(m) for m, _ in points], [factor for _, factor in points])
    at = bisect_right(points, (rows, math.inf))
    if at in (0, len(points)):
        return points[max(0, at - 1)][1]
    (low, first), (high, last) = points[at - 1], points[at]
    return first + (last - first) * math.log2(rows / low) / math.log2(high / low)


def reached_kernel(reached: Reached, kind: str) -> Kernel:
    """The shares of a timed machine as a kernel of that kind of operation."""
    compute, memory = reached.product_compute, reached.product_memory
    if kind.endswith("prefill"):
        compute = reached.prompt_compute
    elif kind.endswith("decode") and kind != "state_decode":
        memory = reached.cache_memory
    return Kernel(0.0, compute, memory, 0.0, 0.0, 0.0, 0.0, 0, reached.source)
