"""A workload learned from counts: lengths out of histograms, arrivals out of a curve of rates.

A histogram knows how many lengths lie between two bounds, and the sum of all. Between the bounds a smooth
curve through the shares says how lengths are spread; tilted up or down, they have the mean, which is known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvplan.errors import BadInput
from kvplan.observe.histogram import Histogram
from kvplan.serve.lengths import Lengths, rng_of, weighted
from kvplan.serve.workload import Workload, workload_of

Floats = NDArray[np.float64]
_POINTS = 32  # of a bucket
_STEEPEST = 200.0
_ARRIVALS, _PROMPTS, _OUTPUTS = 41, 42, 43
MOST_REQUESTS = 5_000_000


@dataclass(frozen=True, slots=True, eq=False)
class LearnedLengths:
    """Lengths with their weights; `above`: the share beyond the last bound; `exact`: if the mean is met."""

    values: Floats
    weights: Floats
    above: float = 0.0
    exact: bool = True

    @property
    def mean(self) -> float:
        """The mean length, in tokens."""
        return float((self.values * self.weights).sum())

    def quantile(self, share: float) -> float:
        """The length that so many do not exceed."""
        place = int(np.searchsorted(np.cumsum(self.weights), share * (1 - 1e-12)))
        return float(self.values[min(place, len(self.values) - 1)])

    def lengths(self, text: str) -> Lengths:
        """The same, to be drawn from."""
        return weighted(self.values, self.weights, text)

    def rows(self) -> list[tuple[int, float]]:
        """Length and share, as histogram(FILE) reads them."""
        return [(int(v), float(w)) for v, w in zip(self.values, self.weights, strict=True)]


def learned_lengths(histogram: Histogram) -> LearnedLengths:
    """The lengths of a histogram of tokens, its mean met as far as its buckets allow."""
    spread = _Spread(*_edges(histogram))
    wanted = histogram.mean
    tilt = 0.0 if wanted is None else _tilt(spread, wanted)
    met = wanted is None or abs(spread.mean(tilt) - wanted) <= 1e-3 * wanted
    return LearnedLengths(spread.values, spread.weights(tilt), histogram.above, met)


def fixed_length(mean: float) -> LearnedLengths:
    """Where only the mean is known: the two whole lengths about it, in the shares that give it."""
    least = max(1.0, math.floor(mean))
    up = min(1.0, max(0.0, mean - least))
    return LearnedLengths(np.array([least, least + 1]), np.array([1 - up, up]))


def _edges(histogram: Histogram) -> tuple[Floats, Floats]:
    """The bounds of its buckets as whole lengths, and the share of lengths up to each.

    Lengths beyond the last bound are taken to reach to twice it.
    """
    if histogram.count <= 0:
        raise BadInput("--prometheus: no request has a length in that time; widen --since")
    edges, shares = [0.0], [0.0]
    for bound, below in zip(histogram.bounds, histogram.below, strict=True):
        at = math.floor(bound) if math.isfinite(bound) else 2 * max(1.0, edges[-1])
        share = below / histogram.count
        if at > edges[-1]:
            edges.append(float(at))
            shares.append(share)
        else:  # bounds within one whole length
            shares[-1] = share
    if shares[-1] <= shares[0]:
        raise BadInput("--prometheus: every request has a length of nothing in that time; widen --since")
    return np.array(edges), np.array(shares)


class _Spread:
    """Whole lengths within each bucket: weights by a smooth curve through the shares at its bounds."""

    def __init__(self, edges: Floats, shares: Floats) -> None:
        slopes = monotone_slopes(np.log1p(edges), shares)
        values: list[Floats] = []
        part: list[Floats] = []
        weights: list[Floats] = []
        bucket: list[Floats] = []
        for i in np.flatnonzero(np.diff(shares) > 0):
            width = edges[i + 1] - edges[i]
            count = int(min(_POINTS, width))
            cuts = edges[i] + width * np.arange(count + 1) / count
            curve = hermite(np.log1p(edges[i : i + 2]), shares[i : i + 2], slopes[i : i + 2], np.log1p(cuts))
            middle = (np.arange(count) + 0.5) / count
            values.append(edges[i] + 1 + np.floor(width * middle * (1 - 1e-12)))
            part.append(middle)
            weights.append(np.maximum(np.diff(curve), 1e-12))
            bucket.append(np.full(count, float(len(bucket))))
        self.values, self.part, self.base, bucket_of = (
            np.concatenate(column) for column in (values, part, weights, bucket)
        )
        self.bucket = bucket_of.astype(np.int64)
        self.shares = np.diff(shares)[np.diff(shares) > 0]
        self.shares = self.shares / self.shares.sum()

    def weights(self, tilt: float) -> Floats:
        """The weights of the lengths, those of each bucket tilted up or down; its share stays."""
        tilted = self.base * np.exp(tilt * (self.part - (tilt > 0)))  # at most 1: nothing overflows
        sums = np.bincount(self.bucket, tilted)
        found: Floats = tilted / sums[self.bucket] * self.shares[self.bucket]
        return found

    def mean(self, tilt: float) -> float:
        """The mean length so."""
        return float((self.values * self.weights(tilt)).sum())


def monotone_slopes(x: Floats, y: Floats) -> Floats:
    """Slopes of a curve through points that never falls where they do not (Fritsch and Butland 1984)."""
    steps, widths = np.diff(y) / np.diff(x), np.diff(x)
    slopes = np.zeros(len(x))
    before, after = steps[:-1], steps[1:]
    both = (before > 0) & (after > 0)
    w1, w2 = 2 * widths[1:] + widths[:-1], widths[1:] + 2 * widths[:-1]
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = (w1 + w2) / (w1 / before + w2 / after)
    slopes[1:-1] = np.where(both, mean, 0.0)
    return slopes


def hermite(x: Floats, y: Floats, slopes: Floats, at: Floats) -> Floats:
    """A cubic between two points with given slopes."""
    width = x[1] - x[0]
    t = (at - x[0]) / width
    found: Floats = (
        y[0] * (1 + 2 * t) * (1 - t) ** 2
        + slopes[0] * width * t * (1 - t) ** 2
        + y[1] * t**2 * (3 - 2 * t)
        + slopes[1] * width * t**2 * (t - 1)
    )
    return found


def _tilt(spread: _Spread, wanted: float) -> float:
    """The tilt that gives the mean, found by halving; the nearest end where none does."""
    least, most = -_STEEPEST, _STEEPEST  # the mean rises with the tilt
    if spread.mean(least) >= wanted:
        return least
    if spread.mean(most) <= wanted:
        return most
    for _ in range(60):
        middle = (least + most) / 2
        if spread.mean(middle) < wanted:
            least = middle
        else:
            most = middle
    return (least + most) / 2


@dataclass(frozen=True, slots=True)
class Curve:
    """Requests a second over time, in steps of so many seconds; None counts as none."""

    rates: Sequence[float | None]
    step: float

    @property
    def expected(self) -> float:
        """Requests in all."""
        return math.fsum(rate or 0.0 for rate in self.rates) * self.step

    def busiest(self, seconds: float) -> Curve:
        """The part of so long in which the most requests came."""
        count = min(len(self.rates), max(1, round(seconds / self.step)))
        sums = np.concatenate(([0.0], np.cumsum([rate or 0.0 for rate in self.rates])))
        at = int(np.argmax(sums[count:] - sums[:-count]))
        return Curve(self.rates[at : at + count], self.step)

    def counts(self) -> NDArray[np.int64]:
        """Whole requests of each step, whose running sum is never off by one."""
        sums = np.cumsum([(rate or 0.0) * self.step for rate in self.rates])
        whole = np.floor(sums + 0.5).astype(np.int64)
        return np.diff(whole, prepend=np.int64(0))


def learned_workload(
    curve: Curve,
    prompt: LearnedLengths,
    output: LearnedLengths,
    seed: int,
    shared_tokens: int = 0,
    source: str = "",
) -> Workload:
    """Requests by the curve, at random within each step, their lengths drawn apart from one another."""
    if curve.expected > MOST_REQUESTS:
        ended = f"{curve.expected:,.0f}" if curve.expected < 1e15 else f"{curve.expected:.3g}"
        raise BadInput(f"--since: {ended} requests ended, more than {MOST_REQUESTS:,}; shorten it")
    counts = curve.counts()
    total = int(counts.sum())
    if not total:
        raise BadInput("--prometheus: no request ended in that time; widen --since")
    rng = rng_of(seed, _ARRIVALS)
    starts = np.repeat(np.arange(len(counts)) * curve.step, counts)
    times = np.sort(starts + rng.random(total) * curve.step)
    lengths = prompt.lengths("learned").draw(rng_of(seed, _PROMPTS), total)
    more: dict[str, Any] = {}
    if shared_tokens > 0:  # one block that every prompt begins with, as much of it as it has
        more = {
            "prefix_start": np.arange(total + 1),
            "prefix_ids": np.zeros(total),
            "prefix_block_tokens": shared_tokens,
        }
    made = output.lengths("learned").draw(rng_of(seed, _OUTPUTS), total)
    return workload_of(times, lengths, made, source=source, **more)


def shared_for(prompt: LearnedLengths, hit_share: float) -> int:
    """The tokens that every prompt must begin with for that share of all prompt tokens to be found."""
    if hit_share <= 0:
        return 0
    total = prompt.mean

    def found(tokens: float) -> float:
        return float((np.minimum(prompt.values, tokens) * prompt.weights).sum()) / total

    low, high = 0, int(prompt.values[-1])
    while low < high:
        middle = (low + high) // 2
        if found(middle) < hit_share:
            low = middle + 1
        else:
            high = middle
    return low
