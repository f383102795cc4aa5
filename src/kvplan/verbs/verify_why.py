"""Why figures disagree: a setting stated otherwise, a version's rule, a drafter, others on the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvplan.errors import KvplanError
from kvplan.observe.observed import Observed
from kvplan.verbs.verify_check import FLAGS, PARTS, STATED, Check
from kvplan.verbs.verify_deployment import Case
from kvplan.verbs.verify_engines import compared as compared_again
from kvplan.verbs.verify_memory import memory_reasons
from kvplan.verbs.verify_outcome import Compared, explained
from kvplan.verbs.verify_stated import NONE
from kvplan.verbs.verify_tries import implied, tries

_NOT_CAPACITY = ("fits", "accelerator_bytes", "weight_bytes")


def reasons(
    case: Case, compared: Compared, rows: Sequence[Check]
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """What can be said of every row that disagrees, the surest first; and a change that explains them."""
    bad = [row for row in rows if not row.agrees]
    wrong = [row for row in bad if row.basis == STATED]
    found = [*compared.explanations, *map(_otherwise, wrong)]
    if any(row.name == "model" for row in wrong):
        return found, {}  # of another model every figure is another
    said, left = _stated_otherwise(case, bad, [row.name for row in wrong])
    found += said
    case, compared, left = _put_right(case, compared, left, [row.name for row in wrong])
    held = [row.name for row in left if _of_capacity(row, case.observed)]
    changed: dict[str, Any] = {}
    if held:
        said, changed = _capacity(case, left, held)
        found += said
    memory = memory_reasons(case, compared, [row for row in left if row.basis in (FLAGS, PARTS)])
    return [*found, *memory], changed


def _of_capacity(row: Check, o: Observed) -> bool:
    """Whether a row says how the engine lays its cache out, rather than how much memory it finds."""
    if row.basis in (STATED, PARTS) or row.name in _NOT_CAPACITY:
        return False
    if row.basis != FLAGS:
        return True
    return o.engine == "llama.cpp" and not row.name.startswith(("compute_bytes", "weight_bytes"))


def _otherwise(row: Check) -> dict[str, Any]:
    """A setting that is stated otherwise than the log shows it."""
    ours, theirs = (_in_unit(row, value) for value in (row.predicted, row.reported))
    says = f"the plan has {_typed(row.name, ours)}, the log {_typed(row.name, theirs)}"
    value = None if row.reported == NONE and row.name != "quantization" else theirs
    return explained([row.name], says, _option(row.name), value)


def _in_unit(row: Check, value: Any) -> Any:
    """Bytes as they are typed."""
    return f"{value / 2**30:.2f}GiB" if row.unit == "B" else value


def _stated_otherwise(
    case: Case, bad: Sequence[Check], known: Sequence[str]
) -> tuple[list[dict[str, Any]], list[Check]]:
    """The fewest of the user's settings without which rows are as printed, and the rows that they leave.

    `known` have rows of their own, so that only the others are changes to make.
    """
    left = [row for row in bad if row.basis != STATED and row.name != "fits"]
    for rows in (left, [row for row in left if _of_capacity(row, case.observed)]):
        names = {row.name for row in rows}
        dropped = _fewest(case, names, known) if names else []
        if dropped:
            return _without(case, sorted(names), dropped, known), [r for r in left if r.name not in names]
    return [], left


def _put_right(
    case: Case, compared: Compared, left: list[Check], wrong: Sequence[str]
) -> tuple[Case, Compared, list[Check]]:
    """The case with the log's own settings where the user's are wrong, and what disagrees then still."""
    names = [name for name in wrong if name in case.settings]
    if not names or not left:
        return case, compared, left
    right = case.without(names)
    try:
        again = compared_again(right)
    except KvplanError:
        return case, compared, left
    rows = {row.name: row for row in again.checks}
    return right, again, [rows[r.name] for r in left if r.name in rows and not rows[r.name].agrees]


def _fewest(case: Case, rows: set[str], known: Sequence[str]) -> list[str]:
    """The settings to leave out: of all that are stated each is put back while the rows stay as printed."""
    dropped = sorted(case.settings, key=lambda name: name in known)
    if not dropped or not _as_printed(case, dropped, rows):
        return []
    for name in list(dropped):
        fewer = [other for other in dropped if other != name]
        if _as_printed(case, fewer, rows):
            dropped = fewer
    return dropped


def _as_printed(case: Case, dropped: Sequence[str], rows: set[str]) -> bool:
    try:
        found = {row.name: row.agrees for row in compared_again(case.without(dropped)).checks}
    except KvplanError:
        return False
    return all(found.get(name, False) for name in rows)


def _without(
    case: Case, rows: list[str], dropped: Sequence[str], known: Sequence[str]
) -> list[dict[str, Any]]:
    """The sentence on settings that were left out, and of those without a row of their own the change."""
    others = [name for name in dropped if name not in known]
    options = " and ".join(map(_option, dropped))
    if not others:
        return [explained(rows, f"with the log's own {options} these are as printed")]
    verb, them = ("is", "it") if len(dropped) == 1 else ("are", "them")
    says = f"the plan's {options} {verb} not the log's: without {them} these are as printed"
    return [explained(rows, says, _option(name), _shown(case.observed, name)) for name in others]


def _capacity(
    case: Case, rows: Sequence[Check], held: list[str]
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The layout: a drafter that the log does not describe, else what was tried."""
    draft = next((row for row in rows if row.name.startswith("draft") and row.predicted), None)
    if draft is not None:
        times = f"{draft.reported / draft.predicted:.3g} times the plan's"
        return [explained(held, f"the log does not describe the drafter: its cache is {times}")], {}
    tried = tries(case)
    found = [explained(held, one.says, _option(one.flag), one.value) for one in tried]
    says = "" if tried else implied(case)
    if says:
        found.append(explained(held, says))
    return found, tried[0].changed if tried else {}


def _shown(o: Observed, name: str) -> Any:
    """A setting's value in the log; None where it shows none, and the plan should not have it."""
    if name == "gpu":
        return "cpu" if o.platform == "cpu" else o.gpu
    if name == "engine_version":
        return o.version
    return next((part[name] for part in (o.split, o.named, o.flags) if name in part), None)


def _typed(name: str, value: Any) -> str:
    """A setting as it is typed."""
    if name == "model" or value == NONE:
        return str(value) if value != NONE else "has none"
    if isinstance(value, bool):
        return _option(name if value else f"no_{name}")
    return f"{_option(name)} {value}"


def _option(name: str) -> str:
    return "MODEL" if name == "model" else f"--{name.replace('_', '-')}"
