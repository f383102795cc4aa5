"""`verify --log`: what a start-up log says, beside what kvplan predicts for the same deployment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kvplan.engines.deployment import Deployment
from kvplan.errors import BadInput, KvplanError, shown
from kvplan.observe.log import LogRead
from kvplan.observe.observed import Observed
from kvplan.observe.read import observe_log
from kvplan.units import bytes_text
from kvplan.verbs.given import ModelLike
from kvplan.verbs.verdict import would_start
from kvplan.verbs.verify_check import FLAGS, MEASURED, Check
from kvplan.verbs.verify_deployment import Case, Placed, case_of, printing_so
from kvplan.verbs.verify_engines import agrees_with, compared, trial_of
from kvplan.verbs.verify_failure import NOT_MEMORY, failure_answer
from kvplan.verbs.verify_outcome import Compared, Outcome, explained
from kvplan.verbs.verify_stated import stated_checks
from kvplan.verbs.verify_why import reasons

_APART = 0.001  # ranks' pools that differ by less are rounded differently
_FITS = "the weights load and one longest sequence passes the engine's start check"


def from_log(
    log: Any, model: ModelLike | None, words: Mapping[str, Any], flags: Mapping[str, Any]
) -> Outcome:
    """Every figure of a log's last complete start-up with its prediction, and what explains the rest.

    Raises BadInput where the log cannot be read or names no model that is known, and none is given.
    """
    read, o = observe_log(log)
    case = settled(case_of(o, model, words, flags))
    found = compared(case)
    stated, unseen = stated_checks(case, found.measured or found.planned)
    fits = _fits(read, o, found)
    rows = [*found.checks, *([fits] if fits is not None else []), *stated]
    if not rows and o.failure is None:
        why_not = "; ".join(found.notes) or "give the log from the engine's start until its cache is sized"
        raise BadInput(f"--log: {shown(read.name)}: no figure can be compared; {why_not}")
    why, changed = reasons(case, found, rows)
    likely = replace(case, overrides=changed) if changed else case
    failure = failure_answer(likely, compared(likely) if changed else found)
    why += [] if changed else _of_failure(fits, failure)
    return Outcome(
        source=_source(read),
        observed=observed_document(o, found),
        checks=rows,
        explanations=why,
        changes=changes_of(why),
        failure=failure,
        deployment=found.measured or found.planned,
        notes=_notes(read, o, case, found, unseen),
    )


def settled(case: Case) -> Case:
    """Where the log states no version: the newest whose rules give its figures, else the one taken."""
    o, at = case.observed, case.at
    if o.version or at.version is None:
        return case
    made, agrees = trial_of(case), agrees_with(case)
    for version in reversed(printing_so(o)):
        try:
            d = made(version=version)
            if d is None or not agrees(d):
                continue
        except KvplanError:
            continue
        if version == at.version:
            return case
        note = (
            f"the log states no version: the rules of {version} are taken, the newest that give its figures"
        )
        return replace(case, at=Placed(at.model, version, (*at.notes[1:], note)))
    return case


def _fits(read: LogRead, o: Observed, found: Compared) -> Check | None:
    """Whether it starts, as planned and as it was."""
    failed = o.failure.kind if o.failure is not None and o.failure.when == "start-up" else None
    if failed in NOT_MEMORY or (failed is None and not read.startup.complete):
        return None
    by_pool = o.engine in ("vllm", "tensorrt-llm") and failed in (None, "one_request_too_long")
    predicted = _starts(found.measured if by_pool else found.planned)
    if predicted is None:
        return None
    basis = MEASURED if by_pool else FLAGS
    return Check("fits", predicted, failed is None, "", predicted is (failed is None), basis, _FITS)


def _starts(d: Deployment | None) -> bool | None:
    if d is None:
        return None
    try:
        return would_start(d)
    except KvplanError:
        return None


def _of_failure(fits: Check | None, failure: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Why it did not start where the plan says that it does: what others hold goes into the plan."""
    if fits is None or fits.agrees or failure is None:
        return []
    held = failure["held_by_others_bytes"]
    if held is None:
        return [explained(["fits"], failure["says"])]
    return [explained(["fits"], failure["says"], "--memory-in-use", f"{held / 2**30:.2f}GiB")]


def _source(read: LogRead) -> dict[str, Any]:
    return {
        "kind": "log",
        "name": read.name,
        "lines": read.lines,
        "startups": read.startups,
        "from_line": read.startup.first_line,
        "to_line": read.startup.last_line,
    }


def observed_document(o: Observed, found: Compared) -> dict[str, Any]:
    """What was read, in bytes and counts, as the log has it."""
    d = found.measured or found.planned
    return {
        "engine": o.engine,
        "version": o.version,
        "rules_of": d.setup.version if d is not None else None,
        "launcher": o.launcher,
        "model": o.model,
        "taken_for": d.model.id if d is not None else None,
        "accelerator": o.gpu,
        "platform": o.platform,
        "ranks": dict(o.split),
        "settings": {**o.named, **o.flags},
        "drafting": o.drafting,
        "figures": {name: _number(said.value) for name, said in sorted(o.figures.items())},
        "pools": [{name: _number(said.value) for name, said in pool.figures.items()} for pool in o.pools],
    }


def _number(value: float) -> int | float:
    return round(value) if value == round(value) or abs(value) >= 1e6 else value


def changes_of(why: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What to put into the plan, each flag once."""
    found: dict[str, dict[str, Any]] = {}
    for one in why:
        if one["change"] is not None:
            found.setdefault(one["change"]["flag"], {**one["change"], "note": one["says"]})
    return list(found.values())


def _notes(read: LogRead, o: Observed, case: Case, found: Compared, unseen: list[str]) -> list[str]:
    notes = [*read.notes, *o.notes, *case.at.notes, *case.given.command.notes, *found.notes]
    if o.ranks_differ > _APART:
        pool = o.figures.get("kv_pool_bytes")
        least = f", {bytes_text(round(pool.value))}," if pool is not None else ""
        notes.append(f"{o.ranks} ranks, {o.ranks_differ:.1%} apart: the smallest pool{least} decides")
    if unseen:
        notes.append(f"the log does not show {', '.join(unseen)}: taken as you state it")
    return list(dict.fromkeys(notes))
