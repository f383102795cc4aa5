"""Seconds of an operation on a machine that was timed (kvplan measure)."""

from __future__ import annotations

from kvplan.facts.kernels import Kernel
from kvplan.facts.reached import Reached
from kvplan.figure import Number, formula, power, value_of


@formula("s", "overlap 1: one after the other; 2: as kernels overlap")
def reached_seconds(compute_seconds: Number, memory_seconds: Number, overlap: Number) -> Number:
    """Compute and memory of an operation on a machine that was timed."""
    if value_of(overlap) == 1:
        return compute_seconds + memory_seconds
    return power(power(compute_seconds, overlap) + power(memory_seconds, overlap), 1 / overlap)


def reached_kernel(reached: Reached, kind: str) -> Kernel:
    """The shares of a timed machine as a kernel of that kind of operation."""
    compute, memory = reached.product_compute, reached.product_memory
    if kind.endswith("prefill"):
        compute = reached.prompt_compute
    elif kind.endswith("decode") and kind != "state_decode":
        memory = reached.cache_memory
    return Kernel(0.0, compute, memory, 0.0, 0.0, 0.0, 0.0, 0, reached.source)
