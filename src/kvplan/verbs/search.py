"""A search for deployments: its question, the screening of every family, and the trials of the best."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from kvplan.advise.executor import Executor
from kvplan.advise.families import Family
from kvplan.advise.ledger import Ledger
from kvplan.model.model import Model
from kvplan.serve.workload import Workload
from kvplan.verbs.order import Order
from kvplan.verbs.screening import Candidate, Screened, Setting, Want, screened
from kvplan.verbs.trial import Tried, played, tried

Report = Callable[[str, int, int], None]
_CHUNK = 8  # families screened as one job
_ARRAYS = (
    "arrival_seconds", "prompt_tokens", "output_tokens", "after", "think_seconds", "prefix_start",
    "prefix_ids", "stream", "stream_tokens", "stream_parent", "parent_tokens",
)  # fmt: skip
_NUMBERS = ("ttft_seconds", "tpot_seconds", "e2e_seconds", "output_tokens_per_second")


@dataclass(frozen=True, slots=True)
class Question:
    """What is searched for: a model under a load, played with these requests, dealt by `routing`."""

    model: Model
    want: Want
    workloads: tuple[Workload, ...]
    routing: str

    def digest(self, version: str) -> str:
        """The same for the same question and version alone."""
        found = hashlib.sha256(version.encode())
        m = self.model
        found.update(repr((m.id, m.dtype, m.quantization, len(m.layers), m.layers, m.weights)).encode())
        found.update(repr((self.want, self.routing)).encode())
        for workload in self.workloads:
            for name in _ARRAYS:
                array = getattr(workload, name)
                found.update(b"none" if array is None else array.tobytes())
            found.update(f"{workload.users} {workload.prefix_block_tokens}".encode())
        return found.hexdigest()[:16]


def _screen(question: Question, chunk: Sequence[Family]) -> list[Screened]:
    return [screened(question.model, family, question.want) for family in chunk]


def _try(question: Question, job: Screened) -> list[Tried]:
    return tried(question.model, job, question.want, question.workloads, question.routing)


def _play(question: Question, job: Candidate) -> list[Tried]:
    return played(question.model, job, question.want, question.workloads, question.routing)


class Search:
    """A question in hand: who does the work, where what is found is kept, and who is told."""

    def __init__(self, question: Question, by: Executor, ledger: Ledger, report: Report | None) -> None:
        self.question, self.by, self.ledger = question, by, ledger
        self.report: Report = report or (lambda _what, _done, _of: None)
        self.asked = self.done = 0  # simulations

    def screen(self, families: Sequence[Family]) -> list[Screened]:
        """Every family by arithmetic, in the order given; what the ledger has is not done again."""
        kept = ((f, self.ledger.get("screened", f.name)) for f in families)
        found = {f.name: _screened_of(text) for f, text in kept if text is not None}
        left = [f for f in families if f.name not in found]
        chunks = [left[i : i + _CHUNK] for i in range(0, len(left), _CHUNK)]
        looked_at = sum(s.looked_at for s in found.values())
        for _, part in self.by.each(_screen, chunks):
            for one in part:
                found[one.family.name] = one
                looked_at += one.looked_at
                best = one.able[0] if one.able else one.nearest
                self.ledger.add("screened", one.family.name, json.dumps(asdict(one)), **_columns(best))
            self.report(f"screened, {looked_at:,} candidates", len(found), len(families))
        return [found[f.name] for f in families]

    def simulate(self, order: Order) -> list[Tried]:
        """The best of each family that arithmetic has left, played through its scheduler, in waves."""
        found: list[Tried] = []
        while wave := order.wave():
            part = self._kept_or_done("tried", wave, _try, _family)
            order.take(part)
            found += part
        return found

    def play(self, jobs: Sequence[Candidate]) -> list[Tried]:
        """These very candidates, played once each."""
        return self._kept_or_done("played", jobs, _play, _candidate)

    def _kept_or_done(
        self,
        stage: str,
        jobs: Sequence[Any],
        work: Callable[[Question, Any], list[Tried]],
        name: Callable[[Any], str],
    ) -> list[Tried]:
        kept = [self.ledger.get(stage, name(job)) for job in jobs]
        found = [_tried_of(text) if text is not None else None for text in kept]
        left = [place for place, one in enumerate(found) if one is None]
        self.asked += len(jobs)
        self.done += len(jobs) - len(left)
        for place, one in self.by.each(work, [jobs[i] for i in left]):
            self.done += 1
            found[left[place]] = one
            record = json.dumps([asdict(t) for t in one])
            self.ledger.add(stage, name(jobs[left[place]]), record, **_columns(one[0] if one else None))
            self.report("simulated", self.done, self.asked)
        return [t for one in found for t in one or []]


def _family(job: Screened) -> str:
    return job.family.name


def _candidate(job: Candidate) -> str:
    budget, slots = job.setting
    return f"{job.family.name} × {job.replicas} of {budget or 'its own'} tokens, {slots or 'its own'} slots"


def _columns(best: Candidate | Tried | None) -> dict[str, Any]:
    """What a reader of the file may want to see at once."""
    if best is None:
        return {"accelerators": None, "replicas": None, **dict.fromkeys(_NUMBERS)}
    times: Mapping[str, Any] = best.p99 if isinstance(best, Tried) else best.times()
    return {
        "accelerators": best.accelerators,
        "replicas": best.replicas,
        **{name: times.get(name) for name in _NUMBERS[:3]},
        "output_tokens_per_second": best.output_tokens_per_second,
    }


def _screened_of(text: str) -> Screened:
    row = json.loads(text)
    nearest = row["nearest"]
    row |= {name: tuple(Candidate(**_named(c)) for c in row[name]) for name in ("able", "curve")}
    row["nearest"] = Candidate(**_named(nearest)) if nearest else None
    return Screened(**{**row, "family": Family(**row["family"])})


def _tried_of(text: str) -> list[Tried]:
    return [Tried(**_named(row)) for row in json.loads(text)]


def _named(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "family": Family(**row["family"]), "setting": Setting(*row["setting"])}
