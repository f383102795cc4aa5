"""A workload learned from counts: lengths out of histograms, arrivals out of a curve of rates.

A histogram knows how many lengths lie between two bounds, and the sum of all. Within each bucket lengths are
spread by one exponent, the one that gives the mean which is known.
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
    low, high, share = _buckets(histogram)
    wanted = histogram.mean
    exponent = 1.0 if wanted is None else _exponent(low, high, share, wanted)
    values, weights = _spread(low, high, share, exponent)
    met = wanted is None or abs(float((values * weights).sum()) - wanted) <= 1e-3 * wanted
    order = np.argsort(values, kind="stable")
    return LearnedLengths(values[order], weights[order], histogram.above, met)


def fixed_length(mean: float) -> LearnedLengths:
    """Where only the mean is known: the two whole lengths about it, in the shares that give it."""
    least = max(1.0, math.floor(mean))
    up = min(1.0, max(0.0, mean - least))
    return LearnedLengths(np.array([least, least + 1]), np.array([1 - up, up]))


def _buckets(histogram: Histogram) -> tuple[Floats, Floats, Floats]:
    """Lower and upper bounds of buckets with something in them, and their shares.

    Lengths beyond the last bound are taken to reach to twice it.
    """
    bounds = [max(0.0, math.floor(b)) if math.isfinite(b) else b for b in histogram.bounds]
    low, high, share = [], [], []
    for before, bound, count in zip([0.0, *bounds], bounds, histogram.counts, strict=False):
        if count > 0:
            top = bound if math.isfinite(bound) else 2 * max(1.0, before)
            low.append(before)
            high.append(max(top, before + 1))
            share.append(count / histogram.count)
    if not share:
        raise BadInput("--prometheus: no request has a length in that time; widen --since")
    return np.array(low), np.array(high), np.array(share)


def _spread(low: Floats, high: Floats, share: Floats, exponent: float) -> tuple[Floats, Floats]:
    """Whole lengths above each lower bound and up to each upper one, and their weights."""
    values, weights = [], []
    for a, b, part in zip(low, high, share, strict=True):
        count = int(min(_POINTS, b - a))
        at = ((np.arange(count) + 0.5) / count) ** exponent
        values.append(a + 1 + np.floor((b - a) * at * (1 - 1e-12)))
        weights.append(np.full(count, part / count))
    return np.concatenate(values), np.concatenate(weights)


def _exponent(low: Floats, high: Floats, share: Floats, wanted: float) -> float:
    """The exponent that gives the mean, found by halving; the nearest end where none does."""

    def mean(exponent: float) -> float:
        values, weights = _spread(low, high, share, exponent)
        return float((values * weights).sum())

    least, most = 1e-3, 1e3  # the mean falls as the exponent grows
    if mean(least) <= wanted:
        return least
    if mean(most) >= wanted:
        return most
    for _ in range(60):
        middle = math.sqrt(least * most)
        if mean(middle) > wanted:
            least = middle
        else:
            most = middle
    return math.sqrt(least * most)


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
    counts = curve.counts()
    total = int(counts.sum())
    if not total:
        raise BadInput("--prometheus: no request ended in that time; widen --since")
    if total > MOST_REQUESTS:
        raise BadInput(f"--since: {total:,} requests ended, more than {MOST_REQUESTS:,}; shorten it")
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
