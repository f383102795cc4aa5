"""The fewest replicas of a family that meet the goals when its requests are played through its scheduler."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from kvplan.advise.families import Family
from kvplan.advise.goals import KINDS, Goals
from kvplan.engines.deployment import Deployment
from kvplan.errors import KvplanError
from kvplan.model.model import Model
from kvplan.serve.calibrated import Factors, scaled
from kvplan.serve.outcome import Seen, duration_seconds, seen
from kvplan.serve.simulation import Fleet
from kvplan.serve.simulation import simulate as run
from kvplan.serve.step_times import StepTimes
from kvplan.serve.workload import Workload
from kvplan.verbs.instance import Instance, instance_of
from kvplan.verbs.phases import spread_of
from kvplan.verbs.screening import Candidate, Screened, Setting, Want, built
from kvplan.verbs.timing import clock_of

_BETTER = 0.95  # of the worst goal: what another setting must bring to be played


@dataclass(frozen=True, slots=True)
class Tried:
    """One simulated deployment: percentiles and means in seconds by kind, tokens a second of the whole.

    Fewer than `least` replicas are overrun by such a load, if it goes on, whatever so many requests show.
    `again` are the percentiles of other requests drawn alike (None: there are none), `slow` those with steps
    at the slow end of their 80 % interval (None: it is not known, or the goals are missed anyhow).
    """

    family: Family
    setting: Setting
    replicas: int
    p99: dict[str, float | None]
    mean: dict[str, float | None]
    output_tokens_per_second: float
    rejected: int
    preemptions: int
    least: int = 1
    again: dict[str, float | None] | None = None
    slow: dict[str, float | None] | None = None
    reason: str = ""

    @property
    def accelerators(self) -> int:
        """All of them."""
        return self.family.ranks * self.replicas

    def worst_times(self) -> dict[str, float | None]:
        """The longer of both draws' percentiles."""
        if self.again is None:
            return self.p99
        both = ((kind, self.p99.get(kind), self.again.get(kind)) for kind in KINDS)
        return {kind: None if a is None or b is None else max(a, b) for kind, a, b in both}

    def met(self, goals: Goals) -> bool:
        """Whether every request is answered and 99 of 100 stay within every goal, each time it was tried."""
        return not self.reason and not self.rejected and goals.met(self.worst_times())

    def at_risk(self, goals: Goals) -> bool:
        """Whether slow steps would miss a goal."""
        return self.slow is not None and not goals.met(self.slow)


class _Trials:
    """Runs of one family with one setting, each number of replicas at most once."""

    def __init__(
        self, model: Model, candidate: Candidate, want: Want, workloads: tuple[Workload, ...], routing: str
    ) -> None:
        self.family, self.setting = candidate.family, candidate.setting
        self.least = candidate.least if len(workloads) > 1 else 1  # a trace is all of its load
        self.want, self.workloads, self.routing = want, workloads, routing
        self.d: Deployment = built(model, candidate.family, want, candidate.setting)
        self.times: StepTimes | None = None
        self.done: dict[int, Tried] = {}

    def instance(self, replicas: int, workload: Workload) -> Instance:
        """So many replicas, with tables of step times that are made once."""
        fleet = Fleet(replicas, self.routing)
        found = instance_of(self.d, workload, self.want.load, fleet, self.times)
        self.times = found.times
        return found

    def at(self, replicas: int) -> Tried:
        """What so many replicas give."""
        if replicas not in self.done:
            self.done[replicas] = self._run(replicas)
        return self.done[replicas]

    def met(self, replicas: int) -> bool:
        """Whether so many replicas meet the goals, whichever requests are drawn."""
        one = self.at(replicas)
        if len(self.workloads) == 1 or not one.met(self.want.goals):
            return one.met(self.want.goals)
        return self.twice(replicas).met(self.want.goals)

    def twice(self, replicas: int) -> Tried:
        """The same with the other draw's percentiles."""
        one = self.at(replicas)
        if len(self.workloads) > 1 and one.again is None:
            workload = self.workloads[1]
            one = replace(one, again=self._p99(self.instance(replicas, workload), workload))
            self.done[replicas] = one
        return one

    def _run(self, replicas: int) -> Tried:
        workload = self.workloads[0]
        instance = self.instance(replicas, workload)
        outcome = run(workload, instance.pool, instance.scheduling, instance.times, instance.fleet)
        found = seen(workload, outcome, instance.front_seconds)
        made = int(workload.output_tokens[found.finished].sum())
        seconds = duration_seconds(outcome)
        return Tried(
            self.family,
            self.setting,
            replicas,
            _of(found, "p99"),
            _of(found, "mean"),
            made / seconds if seconds else 0.0,
            int(outcome.rejected.sum()),
            outcome.preemptions,
            self.least,
        )

    def _p99(self, instance: Instance, workload: Workload) -> dict[str, float | None]:
        outcome = run(workload, instance.pool, instance.scheduling, instance.times, instance.fleet)
        return _of(seen(workload, outcome, instance.front_seconds), "p99")

    def slow(self, tried: Tried) -> Tried:
        """The same with what it gives where steps take as long as 80 % of measurements allow."""
        known = spread_of(clock_of(self.d), "tpot")
        if known is None:
            return tried
        instance = self.instance(tried.replicas, self.workloads[0])
        factors = Factors(known.high, known.high, known.high)
        times = scaled(instance.times, factors, instance.pool.max_running)
        return replace(tried, slow=self._p99(replace(instance, times=times), self.workloads[0]))


def _of(found: Seen, name: str) -> dict[str, float | None]:
    return {kind: found.spread(kind)[name] for kind in KINDS}


def tried(
    model: Model, screened: Screened, want: Want, workloads: tuple[Workload, ...], routing: str
) -> list[Tried]:
    """The family's best that meets the goals, or else what came nearest, first.

    More replicas are taken as long as the goals are missed, fewer as long as they are met.
    """
    found, goals = [], want.goals
    for candidate in _candidates(screened, goals):
        try:
            trials = _Trials(model, candidate, want, workloads, routing)
            best = trials.twice(
                _fewest(trials, candidate.replicas, max(1, want.most // candidate.family.ranks))
            )
            found.append(trials.slow(best) if best.met(goals) else best)
        except KvplanError as error:
            found.append(_refused(candidate, str(error)))
    return sorted(found, key=lambda t: _order(t, goals))


def _candidates(screened: Screened, goals: Goals) -> list[Candidate]:
    """Those with the fewest replicas by arithmetic: with the simplest setting, and with the best one."""
    if not screened.able:
        return [screened.nearest] if screened.nearest else []
    fewest = [c for c in screened.able if c.replicas == screened.able[0].replicas]
    worst = {c: goals.worst(c.times())[1] for c in fewest}
    best = min(fewest, key=lambda c: worst[c])
    return [fewest[0]] if worst[best] > _BETTER * worst[fewest[0]] else [fewest[0], best]


def _order(t: Tried, goals: Goals) -> tuple[float, ...]:
    """Of a family's settings the simplest of those that need the fewest replicas and are nearly as quick."""
    worst = goals.worst(t.worst_times())[1]
    whole = round(10 * math.log(t.p99.get("e2e_seconds") or 1.0))
    slots = t.setting.slots or 0
    return not t.met(goals), t.replicas, t.at_risk(goals), t.setting.changed, whole, slots, worst


def played(
    model: Model, candidate: Candidate, want: Want, workloads: tuple[Workload, ...], routing: str
) -> list[Tried]:
    """One candidate as it is, played."""
    try:
        return [_Trials(model, candidate, want, workloads, routing).twice(candidate.replicas)]
    except KvplanError as error:
        return [_refused(candidate, str(error))]


def _refused(candidate: Candidate, reason: str) -> Tried:
    return Tried(candidate.family, candidate.setting, candidate.replicas, {}, {}, 0.0, 0, 0, reason=reason)


def _fewest(trials: _Trials, start: int, most: int) -> int:
    """The fewest replicas, of at most so many, that meet the goals; the nearest number where none do.

    One fewer misses, or is overrun. From `start` in steps that double, then by halves.
    """
    missed, good, step = trials.least - 1, min(start, most), 1
    if trials.met(good):
        while good > trials.least:
            below = max(trials.least, good - step)
            if not trials.met(below):
                missed = below
                break
            good, step = below, 2 * step
    else:
        while not trials.met(good):
            if good == most or trials.at(good).rejected:  # which more replicas would reject too
                goals = trials.want.goals
                return min(trials.done, key=lambda n: (goals.worst(trials.done[n].worst_times())[1], n))
            missed, good, step = good, min(most, good + step), 2 * step
    while good - missed > 1:
        middle = (missed + good) // 2
        missed, good = (missed, middle) if trials.met(middle) else (middle, good)
    return good
