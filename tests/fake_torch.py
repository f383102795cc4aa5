"""Stand-ins for what `measure` times: arrays that cost known seconds, and a model whose steps do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvplan.measured.clock import Timer
from kvplan.measured.model_run import Ran


class Machine:
    """Arrays on a clock that only work moves: bytes at one rate, arithmetic at another."""

    platform = "cpu"
    library = "torch 9.9"
    threads = 1
    dtypes: tuple[str, ...] = ("float32", "bfloat16", "float16")
    wait: Callable[[], None] | None = None

    def __init__(self, rate: float = 1e10, peak: float = 1e11, room: float = float("inf")) -> None:
        self.rate, self.peak, self.room, self.at = rate, peak, room, 0.0

    def timer(self) -> Timer:
        return Timer(lambda: self.at, "made up")

    def _take(self, size: float) -> float:
        if size > self.room:
            raise MemoryError
        return size

    def vector(self, count: int) -> Any:
        return self._take(4 * count)

    def matrix(self, rows: int, columns: int, dtype: str) -> Any:
        return rows, columns, self._take(rows * columns * (4 if dtype == "float32" else 2))

    def read(self, x: Any) -> object:
        self.at += x / self.rate
        return None

    def copy(self, x: Any, y: Any) -> object:
        self.at += 2 * x / self.rate
        return None

    def add(self, x: Any, y: Any) -> object:
        self.at += 3 * x / self.rate
        return None

    def product(self, rows: Any, weights: Any) -> object:
        outputs, inputs, size = weights
        self.at += 2 * rows[0] * outputs * inputs / self.peak + size / self.rate / 0.5
        return None


def ran(seconds: Callable[[dict[str, Any]], float], held: Callable[[int, int], int], asked: Any) -> Ran:
    """What a model would have done under these rules, over the grid asked for."""
    prefill = [{"batch": 1, "prompt_tokens": n} for n in asked.prompts]
    decode = [{"batch": b, "context": c} for b in asked.batches for c in asked.contexts]
    cache = [
        {"batch": b, "tokens": c, "prompt_tokens": c, "kv_bytes": held(b, c), "state_bytes": 0}
        for b in asked.batches
        for c in asked.contexts
    ]
    timed = [[{**row, "seconds": seconds(row)} for row in rows] for rows in (prefill, decode)]
    return Ran("5.24.0", cache, *timed)
