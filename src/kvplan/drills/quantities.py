"""What an answer is a number of: how it is shown, how far it may be off, and which values are sensible."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kvplan.units import bytes_text, count_text, decimal_text, seconds_text


@dataclass(frozen=True, slots=True)
class Quantity:
    """A kind of number: its unit, an example of how to write it, its tolerance, its sensible range."""

    name: str
    noun: str
    unit: str
    example: str
    tolerance: float
    least: float
    most: float

    def text(self, value: float) -> str:
        """The number as an answer shows it."""
        return _SHOW[self.name](value)

    def scale(self, value: float) -> float:
        """What one of the unit is worth in which `text` shows the value: 2^30 for 40 GiB."""
        shown = _SHOW[self.name](value)
        word = shown.rpartition(" ")[2] if " " in shown else ""
        return _SCALES[self.name].get(word, 1.0)


QUANTITIES = {
    q.name: q
    for q in (
        Quantity("bytes", "a size", "B", "40 GiB", 0.05, 32, 2**46),
        Quantity("seconds", "a time", "s", "12 ms", 0.1, 1e-4, 60),
        Quantity("share", "a share", "", "6 %", 0.1, 0.001, 0.999),
        Quantity("count", "a number", "", "48 or 1.5k", 0.05, 1, 10**9),
        Quantity("ratio", "a factor", "", "8x", 0.05, 1 / 1024, 1024),
        Quantity("intensity", "operations for each byte", "FLOP/B", "295", 0.1, 0.1, 10**5),
        Quantity("rate", "tokens a second", "token/s", "900 tokens/s", 0.1, 0.1, 10**7),
        Quantity("flops", "a number of operations", "FLOP", "35 TFLOP", 0.1, 10**6, 10**19),
    )
}


def _share(value: float) -> str:
    return f"{100 * value:.2g} %" if value < 0.01 else f"{100 * value:.1f} %"


def _ratio(value: float) -> str:
    return f"{value:.3g}x" if value < 1000 else f"{value:,.0f}x"


def _rate(value: float) -> str:
    return f"{value:,.0f} tokens/s" if value >= 10 else f"{value:.1f} tokens/s"


def _count(value: float) -> str:
    return count_text(value) if value == int(value) or value >= 100 else f"{value:.2f}"


_SHOW: dict[str, Callable[[float], str]] = {
    "bytes": bytes_text,
    "seconds": seconds_text,
    "share": _share,
    "count": _count,
    "ratio": _ratio,
    "intensity": lambda value: f"{value:,.3g} FLOP/B" if value < 1000 else f"{value:,.0f} FLOP/B",
    "rate": _rate,
    "flops": lambda value: decimal_text(value, "FLOP"),
}
_BINARY = {unit: 2.0 ** (10 * i) for i, unit in enumerate(("B", "KiB", "MiB", "GiB", "TiB", "PiB"))}
_SCALES: dict[str, dict[str, float]] = {
    "bytes": _BINARY,
    "seconds": {"s": 1.0, "ms": 1e-3, "µs": 1e-6},
    "share": {"%": 0.01},
    "count": {},
    "ratio": {},
    "intensity": {},
    "rate": {},
    "flops": {f"{p}FLOP": 1000.0**i for i, p in enumerate(("", "k", "M", "G", "T", "P", "E"))},
}
