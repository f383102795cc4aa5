"""A search for deployments: its question, the screening of every family, and the trials of the best."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from kvplan.advise.executor import Executor
from kvplan.advise.families import Family
from kvplan.advise.ledger import Ledger
from kvplan.model.model import Model
from kvplan.serve.workload import Workload
from kvplan.verbs.screening import Candidate, Screened, Want, screened
from kvplan.verbs.trial import Tried, played, tried

Report = Callable[[str, int, int], None]
_NUMBERS = ("ttft_seconds", "tpot_seconds", "e2e_seconds", "output_tokens_per_second")


@dataclass(frozen=True, slots=True)
class Question:
    """What is searched for: a model under a load, played with these requests."""

    model: Model
    want: Want
    workloads: tuple[Workload, ...]

    def digest(self, version: str) -> str:
        """The same for the same question and version alone."""
        found = hashlib.sha256(version.encode())
        m = self.model
        found.update(repr((m.id, m.dtype, m.quantization, len(m.layers), m.layers)).encode())
        found.update(repr(self.want).encode())
        for workload in self.workloads:
            for name in ("arrival_seconds", "prompt_tokens", "output_tokens", "after", "think_seconds"):
                found.update(getattr(workload, name).tobytes())
            found.update(str(workload.users).encode())
        return found.hexdigest()[:16]


def _screen(question: Question, chunk: Sequence[Family]) -> list[Screened]:
    return [screened(question.model, family, question.want) for family in chunk]


def _try(question: Question, job: Screened) -> list[Tried]:
    return tried(question.model, job, question.want, question.workloads)


def _play(question: Question, job: Candidate) -> list[Tried]:
    return played(question.model, job, question.want, question.workloads)


def screen_all(
    question: Question, families: Sequence[Family], by: Executor, ledger: Ledger, report: Report | None
) -> list[Screened]:
    """Every family by arithmetic, in the order given; what the ledger has is not done again."""
    found = {f.name: _screened_of(kept) for f in families if (kept := ledger.get("screened", f.name))}
    left = [f for f in families if f.name not in found]
    chunks = [left[i : i + 8] for i in range(0, len(left), 8)]
    looked_at = sum(s.looked_at for s in found.values())
    for _, part in by.each(_screen, question, chunks):
        for one in part:
            found[one.family.name] = one
            looked_at += one.looked_at
            best = one.able[0] if one.able else one.nearest
            ledger.add("screened", one.family.name, json.dumps(asdict(one)), **_columns(best))
        if report is not None:
            report(f"screened, {looked_at:,} candidates", len(found), len(families))
    return [found[f.name] for f in families]


def try_all(
    question: Question, jobs: Sequence[Screened], by: Executor, ledger: Ledger, report: Report | None
) -> list[Tried]:
    """The best of each family that arithmetic has left, played through its scheduler."""
    return list(_kept_or_done("tried", jobs, by.each, _try, question, ledger, report, _family))


def play_all(
    question: Question, jobs: Sequence[Candidate], by: Executor, ledger: Ledger, report: Report | None
) -> list[Tried]:
    """These very candidates, played once each."""
    return list(_kept_or_done("played", jobs, by.each, _play, question, ledger, report, _candidate))


def _family(job: Screened) -> str:
    return job.family.name


def _candidate(job: Candidate) -> str:
    return f"{job.family.name} × {job.replicas} of {job.budget or 'its own'} tokens"


def _kept_or_done(
    stage: str,
    jobs: Sequence[Any],
    each: Callable[..., Iterator[tuple[int, list[Tried]]]],
    work: Callable[[Question, Any], list[Tried]],
    question: Question,
    ledger: Ledger,
    report: Report | None,
    name: Callable[[Any], str],
) -> Iterable[Tried]:
    kept = [ledger.get(stage, name(job)) for job in jobs]
    found: list[list[Tried] | None] = [_tried_of(text) if text is not None else None for text in kept]
    left = [place for place, one in enumerate(found) if one is None]
    for n, (place, one) in enumerate(each(work, question, [jobs[i] for i in left]), start=1):
        found[left[place]] = one
        record = json.dumps([asdict(t) for t in one])
        ledger.add(stage, name(jobs[left[place]]), record, **_columns(one[0] if one else None))
        if report is not None:
            report("simulated", len(jobs) - len(left) + n, len(jobs))
    return [t for one in found for t in one or []]


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
    family = Family(**row["family"])
    for name in ("able", "curve"):
        row[name] = tuple(Candidate(**{**c, "family": family}) for c in row[name])
    nearest = row["nearest"]
    row["nearest"] = nearest and Candidate(**{**nearest, "family": family})
    return replace(Screened(family), **{**row, "family": family})


def _tried_of(text: str) -> list[Tried]:
    return [Tried(**{**row, "family": Family(**row["family"])}) for row in json.loads(text)]
