"""How a row of `verify` is put into words: in a terminal and in Markdown alike."""

from __future__ import annotations

from typing import Any

from kvplan.units import bytes_text, count_text, counted, seconds_text
from kvplan.verbs.answer import Answer

_WIDE = 0.25
COLUMNS = ("figure", "predicted", "reported", "error", "may be off", "")


def headline(answer: Answer) -> str:
    """What runs: engine, version, model and device."""
    seen = answer["observed"]
    version = seen.get("version") or seen.get("rules_of") or ""
    model = seen.get("taken_for") or seen.get("model") or "a model that is not known"
    device = f" on {seen['accelerator']}" if seen.get("accelerator") else ""
    return f"{seen['engine']} {version}".strip() + f": {model}{device}"


def source(answer: Answer) -> str:
    """Where the figures come from."""
    at = answer["source"]
    if at["kind"] != "log":
        return f"{at['kind']} {at['name']}"
    name = "standard input" if at["name"] == "-" else at["name"]
    which = f"; lines {at['from_line']:,} to {at['to_line']:,}" if at["startups"] > 1 else ""
    return f"log {name}, {counted(at['lines'], 'line')}{which}"


def verdict(answer: Answer) -> str:
    """How many figures agree."""
    rows = answer["checks"]
    off = sum(not row["agrees"] for row in rows)
    if not rows:
        return "no figure to compare"
    if not off:
        return f"every figure agrees ({len(rows)} compared)" if len(rows) > 1 else "the figure agrees"
    return f"{off} of {counted(len(rows), 'figure')} {'disagrees' if off == 1 else 'disagree'}"


def by_basis(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The rows by what their prediction rests on, in order."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(row["basis"], []).append(row)
    return found


def cells(row: dict[str, Any]) -> tuple[str, str, str, str, str, str]:
    """One row: figure, predicted, reported, error, tolerance, whether it agrees."""
    verdict = "agrees" if row["agrees"] else "DISAGREES"
    pair = [shown(row[name], row["unit"]) for name in ("predicted", "reported")]
    if pair[0] == pair[1] and row["predicted"] != row["reported"] and not row["agrees"]:
        pair = [f"{row[name]:,}" for name in ("predicted", "reported")]
    return row["name"], *pair, _error(row["relative_error"]), _allowed(row), verdict


def shown(value: Any, unit: str) -> str:
    """A figure in its unit."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        if unit == "B":
            return bytes_text(round(value))
        if unit == "s":
            return seconds_text(value)
        return f"{value:,.2f}{unit}" if isinstance(value, float) else count_text(value)
    return str(value)


def change(row: dict[str, Any]) -> str:
    """A flag with its value, as it is typed; a flag alone where no value is known."""
    flag, value = str(row["flag"]), row["value"]
    if value is None or value is True:
        return flag
    return f"--no-{flag.removeprefix('--')}" if value is False else f"{flag} {value}"


def enough(row: dict[str, Any]) -> str:
    """Whether a change is enough."""
    return "not known" if row["fits"] is None else "enough" if row["fits"] else "not enough"


def to_do(row: dict[str, Any]) -> str:
    """The same as a change to the plan: without a value the flag is left out."""
    return f"leave out {row['flag']}" if row["value"] is None else change(row)


def _error(value: float | None) -> str:
    if value is None:
        return ""
    return "0" if value == 0 else f"{value:+.2%}" if abs(value) >= 5e-5 else f"{value:+.0e}"


def _allowed(row: dict[str, Any]) -> str:
    """How far it may be off: as a share, and where that says little the bounds themselves."""
    wide = row["tolerance"] is not None and row["tolerance"] > _WIDE
    if not wide or row.get("low") is None:
        return _tolerance(row["tolerance"])
    return " to ".join(shown(_whole(row[end], row["unit"]), row["unit"]) for end in ("low", "high"))


def _whole(value: float, unit: str) -> float:
    return value if unit == "s" else round(value)


def _tolerance(value: float | None) -> str:
    if value is None:
        return ""
    return "exact" if value == 0 else f"{value:.2%}" if value >= 5e-5 else f"{value:.0e}"
