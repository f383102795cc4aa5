"""Reading and printing bytes, times and rates. Inside kvplan everything is SI and plain.

GiB is 2^30 and GB is 10^9; they are never mixed. `parse(show(x)) == x` to the digits shown.
"""

from __future__ import annotations

import math
import re

from kvplan.errors import BadInput, shown

_BYTES = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgtp", start=1):
    _BYTES[f"{_letter}b"] = 10 ** (3 * _power)
    _BYTES[f"{_letter}ib"] = 2 ** (10 * _power)
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "m": 60.0, "min": 60.0, "h": 3600.0}
_SECONDS |= {"d": 86400.0, "w": 7 * 86400.0}
_PATTERN = re.compile(r"\s*([0-9][0-9_,]*\.?[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+)\s*([a-zA-Zµ]*)\s*")
MAX_BYTES = 2**60


def parse_bytes(text: str, field: str) -> int:
    """A SIZE (`80GB`, `74.5GiB`, `1073741824`) as whole bytes.

    Raises BadInput naming `field` when the text is no size, is negative or is absurd.
    """
    match = _PATTERN.fullmatch(text[:64])
    unit = _BYTES.get(match.group(2).lower()) if match else None
    if match is None or unit is None:
        raise BadInput(
            f"{field}: {shown(text)} is not a size; write bytes or a unit, such as 80GB or 74.5GiB"
        )
    number = match.group(1).replace(",", "").replace("_", "")
    value = int(number) * unit if number.isdigit() else float(number) * unit
    if value > MAX_BYTES:
        raise BadInput(f"{field}: {shown(text)} is more than {bytes_text(MAX_BYTES)}")
    return round(value)


def parse_rate(text: str, field: str) -> float:
    """A RATE (`16GB/s`, `900e9`) as bytes per second.

    Raises BadInput naming `field` when the text is no rate.
    """
    try:
        return float(parse_bytes(text.strip().removesuffix("/s"), field))
    except BadInput:
        raise BadInput(
            f"{field}: {shown(text)} is not a rate; write bytes a second, such as 16GB/s"
        ) from None


def parse_seconds(text: str, field: str) -> float:
    """A TIME (`0.5s`, `30ms`, `5m`, `24h`) in seconds; a unit is required, and minutes are `m` or `min`.

    Raises BadInput naming `field` when the text is no time.
    """
    match = _PATTERN.fullmatch(text[:64])
    unit = _SECONDS.get(match.group(2)) if match else None
    if match is None or unit is None:
        raise BadInput(f"{field}: {shown(text)} is not a time; write a unit, such as 0.5s or 30ms")
    value = float(match.group(1).replace(",", "").replace("_", "")) * unit
    if not math.isfinite(value):
        raise BadInput(f"{field}: {shown(text)} is no time that could be waited for; write such as 0.5s")
    return value


def _scaled(value: float, step: float, names: list[str], digits: int) -> str:
    index = 0
    while index + 1 < len(names) and round(abs(value), digits) >= step:
        value /= step
        index += 1
    number = f"{value:,.{digits}f}" if index else f"{value:,.0f}"
    return f"{number} {names[index]}"


def bytes_text(value: float) -> str:
    """Bytes in binary units: 512 MiB, 1.50 GiB. Whole numbers lose their zeros."""
    text = _scaled(value, 1024, ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"], 2)
    number, unit = text.split(" ")
    return f"{number.removesuffix('.00')} {unit}"


def decimal_text(value: float, unit: str) -> str:
    """A count or rate in decimal units: 70.6 billion is 70.6 G, 3.35e12 is 3.35 T."""
    number, prefix = _scaled(value, 1000, ["", "k", "M", "G", "T", "P", "E"], 2).split(" ")
    return f"{number} {prefix}{unit}"


def seconds_text(value: float) -> str:
    """A time in the unit that reads best."""
    if value >= 1 or value == 0:
        return f"{value:,.2f} s"
    return f"{value * 1e3:,.2f} ms" if value >= 1e-3 else f"{value * 1e6:,.1f} µs"


def count_text(value: float) -> str:
    """A whole number with grouped digits."""
    return f"{value:,.0f}"


def counted(value: float, noun: str) -> str:
    """A count and its noun: 1 token, 2,048 tokens."""
    return f"{count_text(value)} {noun}" + ("" if value == 1 else "s")
