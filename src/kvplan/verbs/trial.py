"""The fewest replicas of a family that meet the goals when its requests are played through its scheduler."""

from __future__ import annotations

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
from kvplan.verbs.screening import Candidate, Screened, Want, built
from kvplan.verbs.timing import clock_of

ROUTING = "least-loaded"
_MOST_RUNS = 8  # of one budget


@dataclass(frozen=True, slots=True)
class Tried:
    """One simulated deployment: percentiles and means in seconds by kind, tokens a second of the whole.

    `again` are the percentiles of other requests drawn alike (None: there are none), `slow` those with steps
    at the slow end of their 80 % interval (None: it is not known).
    """

    family: Family
    budget: int | None
    replicas: int
    p99: dict[str, float | None]
    mean: dict[str, float | None]
    output_tokens_per_second: float
    rejected: int
    preemptions: int
    again: dict[str, float | None] | None = None
    slow: dict[str, float | None] | None = None
    reason: str = ""

    @property
    def accelerators(self) -> int:
        """All of them."""
        return self.family.ranks * self.replicas

    def met(self, goals: Goals) -> bool:
        """Whether every request is answered and 99 of 100 stay within every goal, each time it was tried."""
        runs = [self.p99, *([self.again] if self.again else [])]
        return not self.rejected and all(goals.met(times) for times in runs)


class _Trials:
    """Runs of one family with one budget, each number of replicas at most once."""

    def __init__(
        self, model: Model, candidate: Candidate, want: Want, workloads: tuple[Workload, ...]
    ) -> None:
        self.family, self.budget, self.want, self.workloads = (
            candidate.family,
            candidate.budget,
            want,
            workloads,
        )
        self.d: Deployment = built(model, candidate.family, want, candidate.budget)
        self.times: StepTimes | None = None
        self.done: dict[int, Tried] = {}

    def instance(self, replicas: int, workload: Workload) -> Instance:
        """So many replicas, with tables of step times that are made once."""
        fleet = Fleet(replicas, ROUTING)
        found = instance_of(self.d, workload, self.want.load, fleet, self.times)
        self.times = found.times
        return found

    def at(self, replicas: int) -> Tried:
        """What so many replicas give."""
        if replicas not in self.done:
            self.done[replicas] = self._run(replicas)
        return self.done[replicas]

    def _run(self, replicas: int) -> Tried:
        workload, *others = self.workloads
        instance = self.instance(replicas, workload)
        outcome = run(workload, instance.pool, instance.scheduling, instance.times, instance.fleet)
        found = seen(workload, outcome, instance.front_seconds)
        made = int(workload.output_tokens[found.finished].sum())
        seconds = duration_seconds(outcome)
        first = Tried(
            self.family,
            self.budget,
            replicas,
            _of(found, "p99"),
            _of(found, "mean"),
            made / seconds if seconds else 0.0,
            int(outcome.rejected.sum()),
            outcome.preemptions,
        )
        if not others or not first.met(self.want.goals):
            return first
        return replace(first, again=self._p99(instance, others[0]))

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


def tried(model: Model, screened: Screened, want: Want, workloads: tuple[Workload, ...]) -> list[Tried]:
    """The family's best that meets the goals, or else what came nearest, first.

    The budgets with the fewest replicas by arithmetic are played; more replicas are taken as long as the
    goals are missed, fewer as long as they are met.
    """
    found = []
    for candidate in screened.able[:2] or ([screened.nearest] if screened.nearest else []):
        trials = None
        try:
            trials = _Trials(model, candidate, want, workloads)
            best = _fewest(trials, candidate.replicas, max(1, want.most // candidate.family.ranks))
            found.append(trials.slow(best) if best.met(want.goals) else best)
        except KvplanError as error:
            found.append(_refused(candidate, str(error)))
    return sorted(found, key=lambda t: (not t.met(want.goals), t.replicas, want.goals.worst(t.p99)[1]))


def played(model: Model, candidate: Candidate, want: Want, workloads: tuple[Workload, ...]) -> list[Tried]:
    """One candidate as it is, played."""
    try:
        return [_Trials(model, candidate, want, workloads).at(candidate.replicas)]
    except KvplanError as error:
        return [_refused(candidate, str(error))]


def _refused(candidate: Candidate, reason: str) -> Tried:
    return Tried(candidate.family, candidate.budget, candidate.replicas, {}, {}, 0.0, 0, 0, reason=reason)


def _fewest(trials: _Trials, start: int, most: int) -> Tried:
    """The fewest replicas, of at most so many, that meet the goals; the nearest where none do."""
    goals, n = trials.want.goals, min(start, most)
    if trials.at(n).met(goals):
        while n > 1 and len(trials.done) < _MOST_RUNS and trials.at(n - 1).met(goals):
            n -= 1
        return trials.at(n)
    low = n  # misses
    while not trials.at(n).met(goals) and n < most and len(trials.done) < _MOST_RUNS:
        low, n = n, min(most, max(n + 1, n * 5 // 4))
    if not trials.at(n).met(goals):
        return min(trials.done.values(), key=lambda t: goals.worst(t.p99)[1])
    while n - low > 1 and len(trials.done) < 2 * _MOST_RUNS:
        middle = (low + n) // 2
        low, n = (low, middle) if trials.at(middle).met(goals) else (middle, n)
    return trials.at(n)
