"""What a source of figures, a log or a running server, came to beside kvplan's: `verify`'s answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from kvplan.engines.deployment import Deployment
from kvplan.errors import KvplanError
from kvplan.figure import Leaf
from kvplan.verbs.answer import Answer
from kvplan.verbs.fit import fit_part
from kvplan.verbs.verify_check import Check


@dataclass(frozen=True, slots=True)
class Compared:
    """The checks of one engine: the deployment with what was measured put in, and from the flags alone."""

    checks: list[Check] = field(default_factory=list)
    measured: Deployment | None = None
    planned: Deployment | None = None
    notes: list[str] = field(default_factory=list)
    explanations: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Everything that `verify` says of one source.

    `source` and `observed` are plain documents: where the figures come from, and what was read there beside
    them. `explanations` have `figures`, `says` and `change`; `changes` are rows of `flag`, `value`, `note`:
    what to put into the plan.
    """

    source: dict[str, Any]
    observed: dict[str, Any]
    checks: Sequence[Check] = ()
    explanations: Sequence[dict[str, Any]] = ()
    changes: Sequence[dict[str, Any]] = ()
    failure: dict[str, Any] | None = None
    deployment: Deployment | None = None
    notes: Sequence[str] = ()


def answer_of(outcome: Outcome) -> Answer:
    """The contract's `verify` document, with the figures behind the prediction."""

    def compute(leaf: Leaf) -> dict[str, Any]:
        return {
            "agrees": bool(outcome.checks) and all(check.agrees for check in outcome.checks),
            "checks": [check.row() for check in outcome.checks],
            "source": outcome.source,
            "observed": outcome.observed,
            "explanations": list(outcome.explanations),
            "changes": list(outcome.changes),
            "failure": outcome.failure,
            "prediction": _prediction(outcome.deployment, leaf),
            "notes": list(outcome.notes),
        }

    return Answer(compute)


def _prediction(d: Deployment | None, leaf: Leaf) -> dict[str, Any] | None:
    """The `fit` document of the deployment that was compared, without its notes."""
    if d is None:
        return None
    try:
        part = fit_part(d, None, leaf)
    except KvplanError:
        return None
    return {name: part[name] for name in ("engine", "memory", "capacity")}


def explained(
    figures: Sequence[str], says: str, flag: str | None = None, value: Any = None
) -> dict[str, Any]:
    """A reason why figures disagree, with the flag that would make the plan agree."""
    change = {"flag": flag, "value": value} if flag else None
    return {"figures": list(figures), "says": says, "change": change}
