"""Why figures disagree: a setting stated otherwise, a version's rule, a drafter, others on the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvplan.observe.observed import Observed
from kvplan.verbs.verify_check import FLAGS, PARTS, STATED, Check
from kvplan.verbs.verify_deployment import Case
from kvplan.verbs.verify_engines import agrees_with, trial_of
from kvplan.verbs.verify_memory import memory_reasons
from kvplan.verbs.verify_outcome import Compared, explained
from kvplan.verbs.verify_tries import implied, tries

_NOT_CAPACITY = ("fits", "accelerator_bytes", "weight_bytes")


def reasons(
    case: Case, compared: Compared, rows: Sequence[Check]
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """What can be said of every row that disagrees, the surest first; and a change that explains them."""
    bad = [row for row in rows if not row.agrees]
    found = list(compared.explanations)
    held = [row.name for row in bad if _of_capacity(row, case.observed)]
    wrong = [row for row in bad if row.basis == STATED]
    changed: dict[str, Any] = {}
    if held or wrong:
        said, changed = _capacity(case, bad, held, wrong)
        found += said
    memory = memory_reasons(case, compared, [row for row in bad if row.basis in (FLAGS, PARTS)])
    return [*found, *memory], changed


def _of_capacity(row: Check, o: Observed) -> bool:
    """Whether a row says how the engine lays its cache out, rather than how much memory it finds."""
    if row.basis in (STATED, PARTS) or row.name in _NOT_CAPACITY:
        return False
    if row.basis != FLAGS:
        return True
    return o.engine == "llama.cpp" and not row.name.startswith(("compute_bytes", "weight_bytes"))


def _capacity(
    case: Case, rows: Sequence[Check], held: list[str], wrong: list[Check]
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The layout: settings stated otherwise than the log shows, then what was tried."""
    found = [
        explained(
            [row.name],
            f"the plan has {_typed(row.name, row.predicted)}, the log {_typed(row.name, row.reported)}",
            _option(row.name),
            row.reported,
        )
        for row in wrong
    ]
    if wrong and held and _as_printed(case.as_logged):
        settings = ", ".join(_option(row.name) for row in wrong)
        return [*found, explained(held, f"with the log's own {settings} these are as printed")], {}
    if not held:
        return found, {}
    stated = _stated_otherwise(case, held, [row.name for row in wrong])
    if stated:
        return [*found, *stated], {}
    draft = next((row for row in rows if row.name.startswith("draft") and row.predicted), None)
    if draft is not None:
        times = f"{draft.reported / draft.predicted:.3g} times the plan's"
        return [*found, explained(held, f"the log does not describe the drafter: its cache is {times}")], {}
    tried = tries(case)
    found += [explained(held, one.says, _option(one.flag), one.value) for one in tried]
    says = "" if tried else implied(case)
    if says:
        found.append(explained(held, says))
    return found, tried[0].changed if tried else {}


def _stated_otherwise(case: Case, held: list[str], known: list[str]) -> list[dict[str, Any]]:
    """The one setting without which all is as printed, though it has no row of its own; else all of them."""
    names = [name for name in case.given.settings if name not in known]
    alone = next((name for name in names if _as_printed(case.without(name))), None)
    if alone is not None:
        names = [alone]
    elif len(names) < 2 or not _as_printed(case.as_logged):
        return []
    verb, them = ("is", "it") if len(names) == 1 else ("are", "them")
    options = " and ".join(map(_option, names))
    says = f"the plan's {options} {verb} not the log's: without {them} these are as printed"
    return [explained(held, says, _option(name), _shown(case.observed, name)) for name in names]


def _as_printed(case: Case) -> bool:
    d = trial_of(case)()
    return d is not None and agrees_with(case)(d)


def _shown(o: Observed, name: str) -> Any:
    """A setting's value in the log; None where it shows none, and the plan should not have it."""
    return next((part[name] for part in (o.split, o.named, o.flags) if name in part), None)


def _typed(name: str, value: Any) -> str:
    """A setting as it is typed."""
    if isinstance(value, bool):
        return _option(name if value else f"no_{name}")
    return f"{_option(name)} {value}"


def _option(name: str) -> str:
    return "MODEL" if name == "model" else f"--{name.replace('_', '-')}"
