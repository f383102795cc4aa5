"""Which families are simulated, in what order, and when those that are left cannot change the answer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from kvplan.advise import cost
from kvplan.advise.families import Family
from kvplan.advise.front import front
from kvplan.advise.goals import Goals
from kvplan.advise.ranking import Rank, groups_of, known_or_last, lost_by, weighted
from kvplan.facts.prices import Price, price_of
from kvplan.verbs.screening import Candidate, Screened
from kvplan.verbs.trial import Tried

WAVE = 16  # families simulated together, whoever does the work, so that all of them find the same
_LEAST = 0.75  # simulation may need this much of the accelerators that arithmetic says, hardly less
_NEAR = 1.1  # times its goals: arithmetic is not the last word
_MOST = 96  # families simulated, once one meets the goals
_FAR = 12  # families simulated where arithmetic finds none that meets them
Kind = tuple[str, str, str, str]  # accelerator, engine, weights, cache


def kind_of(f: Family) -> Kind:
    """What families are told apart by for a reader: not by how they are divided."""
    return f.accelerator, f.engine, f.quantization, f.kv_cache_dtype


class Priced:
    """Prices by accelerator, the user's before the list's, and what follows from them."""

    def __init__(self, given: Mapping[str, Price], goals: Goals) -> None:
        self.given, self.goals = given, goals

    def of(self, accelerator: str) -> Price | None:
        """The price of one, None where it is not known."""
        return self.given.get(accelerator) or price_of(accelerator)

    def per_hour(self, one: Candidate | Tried) -> float | None:
        """Dollars an hour of all its accelerators."""
        price = self.of(one.family.accelerator)
        return None if price is None else float(cost.usd_per_hour(one.accelerators, price.usd_per_hour))

    def rank(self, one: Candidate | Tried) -> Rank:
        """The order of two deployments that both meet the goals."""
        played = one if isinstance(one, Tried) else None
        seconds = one.p99.get("e2e_seconds") if isinstance(one, Tried) else one.e2e_seconds
        return Rank(
            known_or_last(self.per_hour(one)),
            one.accelerators,
            played is not None and played.at_risk(self.goals),
            lost_by(one.family),
            math.inf if seconds is None else weighted(seconds, one.family),
            one.setting.changed,
            f"{one.family.name} {one.setting.budget or 0:06} {one.setting.slots or 0:04}",
        )

    def weights(self, found: Sequence[Candidate | Tried]) -> list[float | None]:
        """What each costs; the number of its accelerators where no price of any is known."""
        usd = [self.per_hour(one) for one in found]
        return usd if any(x is not None for x in usd) else [float(one.accelerators) for one in found]

    def fastest(self, screened: Sequence[Screened], count: int) -> list[Candidate]:
        """The front of cost against time by arithmetic, thinned to about so many."""
        everyone = [c for s in screened for c in s.curve]
        mask = front([(w, c.e2e_seconds) for w, c in zip(self.weights(everyone), everyone, strict=True)])
        best = sorted((c for c, on in zip(everyone, mask, strict=True) if on), key=lambda c: c.e2e_seconds)
        unique = [group[0] for group in groups_of(best, lambda c: c.e2e_seconds).values()]
        step = max(1, -(-len(unique) // count))
        return unique[::step]


class Order:
    """Families in waves: the cheapest first, until `wanted` kinds that meet the goals are found.

    A family is passed over once its kind has an answer that this one could not beat, and the search ends
    where all that is left is dearer than the answers that are shown.
    """

    def __init__(self, screened: Sequence[Screened], priced: Priced, wanted: int) -> None:
        self.priced, self.wanted, goals = priced, wanted, priced.goals
        self.goals = goals
        able = [(priced.rank(s.able[0]), s) for s in screened if s.able]
        misses = [(goals.worst(s.nearest.times())[1], s) for s in screened if s.nearest and not s.able]
        near = [(priced.rank(s.nearest), s) for ratio, s in misses if s.nearest and ratio <= _NEAR]
        self.left = sorted([*able, *near], key=lambda pair: pair[0])
        far = sorted(misses, key=lambda pair: (pair[0], pair[1].family))
        self.far = [s for ratio, s in far if ratio > _NEAR][:_FAR]
        self.best: dict[Kind, Rank] = {}
        self.played = 0

    def wave(self) -> list[Screened]:
        """The next ones to simulate; none where they would not change the answer."""
        taken: list[Screened] = []
        while self.left and len(taken) < WAVE and not self._enough(self.left[0][0]):
            rank, one = self.left.pop(0)
            if not self._beaten(rank, one):
                taken.append(one)
        if not taken and not self.best:
            taken, self.far = self.far, []
        self.played += len(taken)
        return taken

    def take(self, found: Sequence[Tried]) -> None:
        """What a wave has found."""
        for t in found:
            if t.met(self.goals):
                kind, rank = kind_of(t.family), self.priced.rank(t)
                self.best[kind] = min(rank, self.best.get(kind, rank))

    def _beaten(self, rank: Rank, s: Screened) -> bool:
        """Whether its kind has an answer with far fewer of the same accelerators."""
        best = self.best.get(kind_of(s.family))
        return best is not None and rank.accelerators * _LEAST > best.accelerators

    def _enough(self, rank: Rank) -> bool:
        """Whether this one, and so all after it, is dearer than all answers that are shown."""
        costs = sorted(rank.cost_per_hour for rank in self.best.values())
        shown = costs[self.wanted - 1] if len(costs) >= self.wanted else math.inf
        if self.played >= _MOST and costs:
            shown = costs[0]
        return rank.cost_per_hour * _LEAST > shown
