"""When requests arrive: at random, in bursts, evenly, faster and faster, all at once, or as users return."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kvplan.errors import BadInput, shown
from kvplan.serve.lengths import rng_of

Floats = NDArray[np.float64]
Kind = Literal["poisson", "gamma", "constant", "ramp", "at-once", "closed"]
_ARRIVALS, _THINKS = 1, 2
MOST_REQUESTS = 20_000_000


@dataclass(frozen=True, slots=True)
class Think:
    """Seconds that a user waits before the next request: always so many, or exponential with that mean."""

    mean_seconds: float = 0.0
    exponential: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.mean_seconds < 1e9:
            raise BadInput(f"think time: {shown(self.mean_seconds)} is not a time; give seconds from 0")

    def draw(self, rng: np.random.Generator, count: int) -> Floats:
        """`count` times in seconds."""
        if self.exponential:
            return rng.exponential(self.mean_seconds, count)
        return np.full(count, self.mean_seconds)


AT_ONCE = Think()


@dataclass(frozen=True, slots=True)
class Arrivals:
    """A law of arrival. Made by the functions below, which check it."""

    kind: Kind
    rate: float = 0.0
    variation: float = 1.0
    last_rate: float = 0.0
    ramp_seconds: float = 0.0
    users: int = 0
    think: Think = AT_ONCE

    def times(self, count: int, seed: int) -> Floats:
        """The first `count` arrivals in seconds, non-decreasing; of a closed loop those of its users, at 0.

        The same seed gives the same times, and more of them begin with the same.
        """
        if self.kind in ("at-once", "closed"):
            return np.zeros(count)
        if self.kind == "constant":
            return np.arange(count) / self.rate
        rng = rng_of(seed, _ARRIVALS)
        if self.kind == "gamma":
            shape = 1 / self.variation**2
            return np.cumsum(rng.gamma(shape, 1 / (shape * self.rate), count))
        events = np.cumsum(rng.exponential(1.0, count))
        return events / self.rate if self.kind == "poisson" else self._ramped(events)

    def _ramped(self, events: Floats) -> Floats:
        """When that many requests are expected to have come: the rate's integral, solved for time."""
        a, b, span = self.rate, self.last_rate, self.ramp_seconds
        within = (a + b) / 2 * span
        slope = (b - a) / span
        root = np.sqrt(np.maximum(a * a + 2 * slope * np.minimum(events, within), 0.0))
        on_ramp = 2 * np.minimum(events, within) / (a + root)
        return np.where(events <= within, on_ramp, span + (events - within) / b)

    def until(self, seconds: float, seed: int) -> Floats:
        """Every arrival before `seconds`. Raises BadInput where no clock says when requests arrive."""
        if self.kind in ("at-once", "closed"):
            raise BadInput(f"duration: requests that arrive {self.kind} have none; give a number of requests")
        if not 0 < seconds < 1e12:
            raise BadInput(f"duration: {shown(seconds)} is not a time; give seconds above 0")
        expected = seconds * max(self.rate, self.last_rate)
        count = int(expected + 10 * expected**0.5 * max(1.0, self.variation)) + 16
        while count <= MOST_REQUESTS:
            times = self.times(count, seed)
            if times[-1] >= seconds:
                return times[times < seconds]
            count *= 2
        raise BadInput(f"duration: {seconds:g} s hold more than {MOST_REQUESTS:,} requests; shorten it")

    def thinks(self, count: int, seed: int) -> Floats:
        """Think times in seconds, one a request."""
        return self.think.draw(rng_of(seed, _THINKS), count)


def poisson(rate: float) -> Arrivals:
    """`rate` requests a second, each independent of the others."""
    return Arrivals("poisson", rate=_rate(rate))


def gamma(rate: float, variation: float) -> Arrivals:
    """Bursts: gamma gaps with that coefficient of variation (1: Poisson, below: more even)."""
    if not 0.01 <= variation <= 1000:
        raise BadInput(
            f"--arrivals gamma: {shown(variation)} is no variation; give a number from 0.01 to 1000"
        )
    return Arrivals("gamma", rate=_rate(rate), variation=float(variation))


def constant(rate: float) -> Arrivals:
    """One request every 1 / `rate` seconds, the first at 0."""
    return Arrivals("constant", rate=_rate(rate))


def ramp(first_rate: float, last_rate: float, seconds: float) -> Arrivals:
    """Poisson, its rate growing (or falling) evenly from one to the other, where it then stays."""
    if not 0 < seconds < 1e9:
        raise BadInput(f"ramp: {shown(seconds)} is not a time; give seconds above 0")
    first = 0.0 if first_rate == 0 else _rate(first_rate)
    return Arrivals("ramp", rate=first, last_rate=_rate(last_rate), ramp_seconds=float(seconds))


def at_once() -> Arrivals:
    """All at the start."""
    return Arrivals("at-once")


def closed(users: int, think: Think = AT_ONCE) -> Arrivals:
    """So many users, each sending the next request when the last has finished and `think` has passed."""
    if isinstance(users, bool) or not isinstance(users, (int, np.integer)) or not 1 <= users <= 10**7:
        raise BadInput(f"users: {shown(users)} is no number of users; give a whole number from 1")
    return Arrivals("closed", users=int(users), think=think)


def _rate(rate: float) -> float:
    if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not 0 < rate < 1e9:
        raise BadInput(f"rate: {shown(rate)} is not requests a second; give a number above 0")
    return float(rate)
