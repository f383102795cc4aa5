"""The least time a step can take on one rank (Williams, Waterman and Patterson 2009)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvplan.figure import Number, formula, most, whole


@formula("s")
def compute_seconds(flops: Number, peak_flops_per_second: Number) -> Number:
    """All operations at the accelerator's dense peak."""
    return flops / peak_flops_per_second


@formula("s")
def mixed_compute_seconds(
    matmul_flops: Number, peak: Number, attention_flops: Number, attention_peak: Number
) -> Number:
    """Matrices at their own dense peak, attention at that of the narrower format it may run in."""
    return matmul_flops / peak + attention_flops / attention_peak


@formula("s")
def memory_seconds(bytes_read: Number, bytes_per_second: Number) -> Number:
    """All bytes at the accelerator's full bandwidth."""
    return bytes_read / bytes_per_second


@formula("s", "lower bound: compute and memory overlap perfectly")
def lower_bound_seconds(compute_seconds: Number, memory_seconds: Number) -> Number:
    """The slower of the two is the floor."""
    return most(compute_seconds, memory_seconds)


@formula("FLOP/B")
def arithmetic_intensity(flops: Number, bytes_read: Number) -> Number:
    """Operations done for each byte read."""
    return flops / bytes_read


@formula("sequence", "with experts spread evenly by the router")
def compute_bound_batch(
    weight_bytes: Number, sequence_bytes: Number, sequence_compute_seconds: Number, bytes_per_second: Number
) -> Number:
    """The first batch that computes for longer than its weights and caches take to read."""
    return whole(weight_bytes / (sequence_compute_seconds * bytes_per_second - sequence_bytes)) + 1


@formula("FLOP/B")
def ridge_point(peak_flops_per_second: Number, bytes_per_second: Number) -> Number:
    """The intensity at which compute and bandwidth are both full."""
    return peak_flops_per_second / bytes_per_second


def first_compute_bound(is_compute_bound: Callable[[int], bool], limit: int = 1 << 20) -> int | None:
    """The smallest batch at which a step is compute-bound, or None when none up to `limit` is."""
    high = 1
    while not is_compute_bound(high):
        high *= 2
        if high > limit:
            return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_compute_bound(middle) else (middle, high)
    return high


def binds(compute: Any, memory: Any) -> str:
    """Which of the two a step waits for."""
    return "compute" if compute > memory else "memory"
