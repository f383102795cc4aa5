"""`compare`: two kept answers of a verb side by side, what was asked and what came out."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvplan.errors import BadInput, shown
from kvplan.facts import store
from kvplan.verbs.answer import Answer

_LARGEST = 64 << 20  # bytes of a kept answer
Kept = str | os.PathLike[str] | Mapping[str, Any]


def compare(a: Kept, b: Kept) -> Answer:
    """Two answers of the same verb: files that `--save` or `--json` wrote, or the documents themselves.

    Returns `asked`, rows (name, a, b) of what differs in the question, and `figures`, rows (name, unit, a,
    b, ratio of b to a, better: "a", "b" or "") of what both answer; None where one does not know a figure.
    Raises BadInput for a file that is no answer, or where the two have no figure in common.
    """
    first, second = _read(a, "A"), _read(b, "B")
    table = store.toml("compared.toml")
    figures = [row for entry in table["figure"] if (row := _row(entry, first, second)) is not None]
    known = [any(row[side] is not None for row in figures) for side in ("a", "b")]
    if not figures or not all(known):
        raise BadInput("B: has no figure in common with A; compare two answers of the same verb")
    asked = []
    for name, paths in table["asked"].items():
        mine, theirs = (
            next((x for p in paths if (x := _at(d, p)) is not None), None) for d in (first, second)
        )
        if mine != theirs:
            asked.append({"name": name, "a": mine, "b": theirs})
    asked += _settings(first, second)
    part = {"a": _name(a), "b": _name(b), "asked": asked, "figures": figures}
    return Answer(lambda _: part)


def _read(kept: Kept, field: str) -> Mapping[str, Any]:
    if isinstance(kept, Mapping):
        return kept
    path = Path(kept)
    try:
        if path.stat().st_size > _LARGEST:
            raise BadInput(f"{field}: {shown(str(kept))} is too large for an answer; give a file of --save")
        found = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise BadInput(f"{field}: {shown(str(kept))} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise BadInput(f"{field}: {shown(str(kept))} is no kept answer; write one with --save") from None
    if not isinstance(found, dict):
        raise BadInput(f"{field}: {shown(str(kept))} is no kept answer; write one with --save")
    return found


def _name(kept: Kept) -> str:
    return "" if isinstance(kept, Mapping) else Path(kept).name


def _at(document: Any, path: str) -> Any:
    """What stands at a path, None where nothing does."""
    for part in path.split("."):
        if isinstance(document, Mapping):
            document = document.get(part)
        elif isinstance(document, list) and part.isdigit() and int(part) < len(document):
            document = document[int(part)]
        else:
            return None
    return document


def _row(entry: Mapping[str, str], a: Any, b: Any) -> dict[str, Any] | None:
    """A figure of both; None where neither has it."""
    mine, theirs = (_number(_at(document, entry["path"])) for document in (a, b))
    if mine is None and theirs is None:
        return None
    ratio = theirs / mine if mine and theirs is not None else None
    better = ""
    if entry["better"] and mine is not None and theirs is not None and mine != theirs:
        better = "a" if (mine < theirs) == (entry["better"] == "less") else "b"
    return {
        "name": entry["name"],
        "unit": entry["unit"],
        "a": mine,
        "b": theirs,
        "ratio": ratio,
        "better": better,
    }


def _number(value: Any) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _settings(a: Any, b: Any) -> list[dict[str, Any]]:
    """Engine settings that differ."""
    found = []
    for path in ("fit.engine.settings", "engine.settings"):
        mine, theirs = _at(a, path), _at(b, path)
        if not isinstance(mine, Mapping) or not isinstance(theirs, Mapping):
            continue
        names = dict.fromkeys([*mine, *theirs])
        differ = [name for name in names if mine.get(name) != theirs.get(name)]
        found += [{"name": name, "a": mine.get(name), "b": theirs.get(name)} for name in differ]
    return found
