"""Rates of a machine: bytes a second over sizes, and products over shapes and number formats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvplan.errors import BadInput
from kvplan.measured.arrays import DTYPES, Arrays
from kvplan.measured.clock import Timer, shortest
from kvplan.units import bytes_text

MiB = 2**20
SIZES = (16 * MiB, 64 * MiB, 256 * MiB)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 1024)
SHAPE = (2816, 1024)  # outputs and inputs
_SET_BYTES = 96 * MiB  # of different matrices in turn, so that none is found in a cache
_MOST_FLOPS = 4e10  # of one timing, where a machine is slow


def bandwidth(arrays: Arrays, clock: Timer, sizes: Sequence[int] = SIZES, repeats: int = 5) -> list[Any]:
    """Bytes a second of reading, copying and adding arrays of each size: a row a size.

    A copy counts its bytes read and written, an addition in place two reads and a write.
    Raises BadInput where the memory does not suffice.
    """
    rows = []
    for size in sizes:
        count = max(1, size // 4)
        try:
            x, y = arrays.vector(count), arrays.vector(count)
        except (MemoryError, RuntimeError):
            raise BadInput(f"--size: no memory for two arrays of {bytes_text(size)}; give less") from None

        def rate(passes: int, work: Any, size: int = 4 * count) -> float:
            return passes * size / shortest(work, clock, repeats)

        rows.append(
            {
                "bytes": 4 * count,
                "read_bytes_per_second": rate(1, lambda x=x: arrays.read(x)),
                "copy_bytes_per_second": rate(2, lambda x=x, y=y: arrays.copy(x, y)),
                "add_bytes_per_second": rate(3, lambda x=x, y=y: arrays.add(x, y)),
            }
        )
    return rows


def best_bandwidth(rows: Sequence[dict[str, Any]]) -> float:
    """The best rate of the largest size."""
    last = max(rows, key=lambda row: row["bytes"])
    return max(float(value) for name, value in last.items() if name.endswith("per_second"))


def products(
    arrays: Arrays,
    clock: Timer,
    dtypes: Sequence[str],
    rows: Sequence[int] = ROWS,
    shape: tuple[int, int] = SHAPE,
    repeats: int = 3,
) -> list[dict[str, Any]]:
    """FLOP/s and bytes of weights a second of m × k times k × n, over m and number formats.

    As many different matrices as a cache does not hold take turns, as a model's do.
    """
    outputs, inputs = shape
    found = []
    for dtype in dtypes:
        size = outputs * inputs * DTYPES[dtype]
        try:
            weights = [arrays.matrix(outputs, inputs, dtype) for _ in range(max(1, _SET_BYTES // size))]
            found += [_product(arrays, clock, dtype, m, weights, shape, repeats) for m in rows]
        except (MemoryError, RuntimeError) as error:
            why = str(error).splitlines()[0][:120] if str(error) else "no memory"
            raise BadInput(f"--dtypes: products in {dtype} cannot be timed here: {why}") from None
    return found


def _product(
    arrays: Arrays, clock: Timer, dtype: str, m: int, weights: Any, shape: tuple[int, int], repeats: int
) -> dict[str, Any]:
    outputs, inputs = shape
    flops = 2.0 * m * outputs * inputs
    turn = weights[: max(1, min(len(weights), int(_MOST_FLOPS / flops)))]
    x = arrays.matrix(m, inputs, dtype)

    def work() -> None:
        for one in turn:
            arrays.product(x, one)

    seconds = shortest(work, clock, repeats) / len(turn)
    return {
        "dtype": dtype,
        "m": m,
        "n": outputs,
        "k": inputs,
        "seconds": seconds,
        "flops_per_second": flops / seconds,
        "weight_bytes_per_second": outputs * inputs * DTYPES[dtype] / seconds,
    }


def peaks(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The best rate of each number format."""
    found: dict[str, float] = {}
    for row in rows:
        found[row["dtype"]] = max(found.get(row["dtype"], 0.0), float(row["flops_per_second"]))
    return found
