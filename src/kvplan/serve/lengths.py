"""Distributions of lengths, written as a short text: 512, normal(512, 128), histogram(FILE)."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvplan.errors import BadInput, shown
from kvplan.serve.traces_table import fields_of, read_bytes

Longs = NDArray[np.int64]
Floats = NDArray[np.float64]
MOST = 10**8
KINDS = "512, normal(512, 128), lognormal(512, 128), uniform(1, 1024), empirical(FILE) or histogram(FILE)"
_CALL = re.compile(r"\s*([a-z-]+)\s*\((.*)\)\s*", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True, slots=True, eq=False)
class Lengths:
    """Whole lengths of at least 1: `kind` with its numbers, or values with their cumulative shares.

    `normal` and `lognormal` take the mean and the standard deviation of the lengths themselves; `uniform` the
    least and the most, both included. What is drawn below 1 becomes 1.
    """

    kind: str
    numbers: tuple[float, ...] = ()
    values: Longs | None = None
    shares: Floats | None = None
    text: str = ""

    def draw(self, rng: np.random.Generator, count: int) -> Longs:
        """`count` lengths; the first of more draws from the same state are the same."""
        if self.values is not None and self.shares is not None:
            place = np.searchsorted(self.shares, rng.random(count), side="right")
            return self.values[np.minimum(place, len(self.values) - 1)]
        drawn = np.rint(self._continuous(rng, count))
        return np.clip(drawn, 1, MOST).astype(np.int64)

    def _continuous(self, rng: np.random.Generator, count: int) -> Floats:
        if self.kind == "fixed":
            return np.full(count, self.numbers[0])
        first, second = self.numbers
        if self.kind == "uniform":
            return np.floor(first + rng.random(count) * (second - first + 1))
        if self.kind == "normal":
            return rng.normal(first, second, count)
        spread = math.log1p((second / first) ** 2)
        return rng.lognormal(math.log(first) - spread / 2, math.sqrt(spread), count)


def fixed(tokens: int) -> Lengths:
    """Always that length."""
    return Lengths("fixed", (float(tokens),), text=str(tokens))


def weighted(values: Iterable[float], weights: Iterable[float], text: str = "") -> Lengths:
    """Each value as often as its weight says; the weights need not sum to one. Values below 1 become 1."""
    sizes = np.maximum(np.fromiter(values, np.float64), 1).astype(np.int64)
    parts = np.fromiter(weights, np.float64)
    order = np.argsort(sizes, kind="stable")
    shares = np.cumsum(parts[order])
    return Lengths("histogram", values=sizes[order], shares=shares / shares[-1], text=text)


def parse_lengths(text: str, field: str) -> Lengths:
    """The distribution that a text names. Raises BadInput naming `field`, and the line of a file."""
    plain = text.strip().replace("_", "")
    if re.fullmatch(r"[-+.\deE]+", plain):
        return fixed(int(_number(plain, text, field, least=1, whole=True)))
    match = _CALL.fullmatch(text)
    kind, inside = (match.group(1).lower(), match.group(2).strip()) if match else ("", "")
    if kind in ("empirical", "histogram") and inside:
        named = inside.strip("'\"")
        return (_empirical if kind == "empirical" else _histogram)(named, field, text.strip())
    if kind == "fixed":
        return fixed(int(_number(inside, text, field, least=1, whole=True)))
    if kind not in ("normal", "lognormal", "uniform"):
        raise BadInput(f"{field}: {shown(text)} is no distribution of lengths; write {KINDS}")
    return _two(kind, inside, text, field)


def _two(kind: str, inside: str, text: str, field: str) -> Lengths:
    parts = inside.split(",")
    if len(parts) != 2:
        raise BadInput(f"{field}: {shown(text)} takes two numbers; write such as {kind}(512, 1024)")
    first = _number(parts[0], text, field, least=1, whole=kind == "uniform")
    second = _number(parts[1], text, field, least=first if kind == "uniform" else 0, whole=kind == "uniform")
    return Lengths(kind, (first, second), text=text.strip())


def _number(part: str, text: str, field: str, *, least: float, whole: bool) -> float:
    try:
        value = float(part)
    except ValueError:
        value = math.nan
    if least <= value <= MOST and (not whole or value == int(value)):
        return value
    what = "a whole number" if whole else "a number"
    raise BadInput(
        f"{field}: {shown(part.strip())} in {shown(text)} is not {what} from {least:g} to {MOST:,}"
    )


def _empirical(path: str, field: str, text: str) -> Lengths:
    """The lengths in a file of one column, each as likely as it is there."""
    rows = _rows(path, field, 1)
    return weighted([row[0] for row in rows], [1.0] * len(rows), text)


def _histogram(path: str, field: str, text: str) -> Lengths:
    """The lengths in a file of `length,weight` rows or of one JSON object."""
    data = read_bytes(path).strip()
    rows = _json_rows(path, field, data.decode()) if data[:1] == b"{" else _rows(path, field, 2)
    if not sum(row[1] for row in rows) > 0:
        raise BadInput(f"{field}: {path} has no weight above 0; give each length its count or share")
    kept = [row for row in rows if row[1] > 0]
    return weighted([row[0] for row in kept], [row[1] for row in kept], text)


def _json_rows(path: str, field: str, text: str) -> list[list[float]]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadInput(
            f"{field}: {path} is not JSON ({error}); write one object of lengths and weights"
        ) from None
    return [_checked([name, weight], f"{field}: {path} at {shown(name)}") for name, weight in found.items()]


def _rows(path: str, field: str, columns: int) -> list[list[float]]:
    """Rows of numbers, a line of names before them left out."""
    lines = read_bytes(path).decode("utf-8", "replace").splitlines()
    rows: list[list[float]] = []
    names_may_come = True
    for number, row in enumerate((fields_of(line) if line else [] for line in lines), 1):
        if not any(part.strip() for part in row):
            continue
        if len(row) != columns:
            raise BadInput(
                f"{field}: {path} line {number} has {len(row)} columns, not {columns}; keep that many"
            )
        if names_may_come and not re.match(r"\s*[-+.\d]", row[0]):
            names_may_come = False
            continue
        names_may_come = False
        rows.append(_checked(row, f"{field}: {path} line {number}"))
    if not rows:
        raise BadInput(f"{field}: {path} has no lengths; give one a line")
    return rows


def _checked(row: Iterable[object], where: str) -> list[float]:
    numbers: list[float] = []
    for part, least in zip(row, (1.0, 0.0), strict=False):
        try:
            value = float(part) if isinstance(part, (str, int, float)) else math.nan
        except ValueError:
            value = math.nan
        if not least <= value <= (MOST if least else 1e300):
            what = f"a length from 1 to {MOST:,}" if least else "a weight from 0"
            raise BadInput(f"{where}: {shown(part)} is not {what}; correct it or remove it")
        numbers.append(value)
    return numbers


def rng_of(seed: int, *topic: int) -> np.random.Generator:
    """The stream of random numbers of a topic under a seed; topics do not disturb one another."""
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or not 0 <= seed < 2**63:
        raise BadInput(f"--seed: {shown(seed)} is no seed; give a whole number from 0")
    return np.random.Generator(np.random.PCG64([int(seed), *topic]))
