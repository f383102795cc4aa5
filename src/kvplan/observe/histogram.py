"""A histogram as Prometheus keeps it: how many values were at most each bound, their sum and their number."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Histogram:
    """`bounds` ascend and end with infinity; `below` are the values at most each of them."""

    bounds: tuple[float, ...]
    below: tuple[float, ...]
    sum: float | None = None

    @property
    def count(self) -> float:
        """How many values."""
        return self.below[-1]

    @property
    def mean(self) -> float | None:
        """Their mean, exact where the sum is known."""
        return ratio(self.sum, self.count)

    @property
    def has_buckets(self) -> bool:
        """Whether more is known than how many values there are."""
        return math.isfinite(self.bounds[0])

    @property
    def counts(self) -> tuple[float, ...]:
        """How many values lie in each bucket, above the bound before it."""
        return tuple(b - a for a, b in zip((0.0, *self.below), self.below, strict=False))

    @property
    def above(self) -> float:
        """The share of values above the last finite bound, of which no more is known."""
        return self.counts[-1] / self.count if self.count > 0 else 0.0

    def quantile(self, share: float) -> float | None:
        """Interpolated within its bucket as Prometheus does; above the last finite bound, that bound.

        None where there is no bucket with a bound.
        """
        if self.count <= 0 or not self.has_buckets:
            return None
        rank, low, before = share * self.count, 0.0, 0.0
        for bound, below in zip(self.bounds, self.below, strict=True):
            if below >= rank and below > before:
                if math.isinf(bound):
                    return low
                return low + (bound - low) * (rank - before) / (below - before)
            low, before = (low if math.isinf(bound) else bound), below
        return low

    def bucket_of(self, share: float) -> tuple[float, float] | None:
        """The bounds between which a quantile lies."""
        low, rank = 0.0, share * self.count
        for bound, below in zip(self.bounds, self.below, strict=True):
            if below >= rank and below > 0:
                return low, bound
            low = bound
        return None

    def minus(self, earlier: Histogram) -> Histogram:
        """What was added since; all of it where the counts began anew, or the bounds are others."""
        if self.bounds != earlier.bounds or any(
            b < a for a, b in zip(earlier.below, self.below, strict=True)
        ):
            return self
        added = tuple(b - a for a, b in zip(earlier.below, self.below, strict=True))
        known = self.sum is not None and earlier.sum is not None
        return Histogram(self.bounds, added, (self.sum or 0.0) - (earlier.sum or 0.0) if known else None)

    def document(self) -> dict[str, Any]:
        """In numbers: count, mean, quantiles."""
        quantiles = {f"p{round(100 * q)}": self.quantile(q) for q in (0.5, 0.9, 0.99)}
        return {"count": self.count, "mean": self.mean, **quantiles}


def ratio(amount: float | None, of: float | None) -> float | None:
    """One number over another; None where one is not known, and where that is no finite number."""
    found = amount / of if amount is not None and of is not None and of > 0 else math.inf
    return found if math.isfinite(found) else None


def histogram_of(buckets: Mapping[float, float], total: float | None = None) -> Histogram | None:
    """A histogram of what a page says: counts by upper bound; None where that is none.

    Counts that fall, which no honest page has, are raised to the one before.
    """
    kept = {bound: count for bound, count in buckets.items() if not math.isnan(bound) and count >= 0}
    if not kept or not all(math.isfinite(count) for count in kept.values()):
        return None
    bounds = sorted(kept)
    below, most = [], 0.0
    for bound in bounds:
        most = max(most, kept[bound])
        below.append(most)
    if not math.isinf(bounds[-1]):
        bounds, below = [*bounds, math.inf], [*below, most]
    sane = total is not None and math.isfinite(total) and total >= 0
    return Histogram(tuple(bounds), tuple(below), total if sane else None)


def added(histograms: Iterable[Histogram]) -> Histogram | None:
    """Several as one; those with other bounds than the first are left out."""
    every = list(histograms)
    if not every:
        return None
    bounds = every[0].bounds
    alike = [h for h in every if h.bounds == bounds]
    below = tuple(sum(column) for column in zip(*(h.below for h in alike), strict=True))
    sums = [h.sum for h in alike]
    known = [value for value in sums if value is not None]
    return Histogram(bounds, below, sum(known) if len(known) == len(sums) else None)
