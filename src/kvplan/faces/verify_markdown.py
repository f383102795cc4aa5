"""`verify` as Markdown, for pasting into an issue."""

from __future__ import annotations

from typing import Any

from kvplan.faces import verify_words as words
from kvplan.units import bytes_text
from kvplan.verbs.answer import Answer

_SPECIAL = str.maketrans({"|": "\\|", "<": "&lt;", "\n": " ", "`": "'", "*": "\\*", "[": "\\["})


def document(answer: Answer) -> str:
    """The whole report."""
    parts = [
        f"### {_text(words.headline(answer))}",
        f"{_text(words.source(answer))}: **{words.verdict(answer)}**",
    ]
    if answer["checks"]:
        parts.append(_checks(answer["checks"]))
    parts += _listed("Why", [one["says"] for one in answer["explanations"]])
    parts += _listed(
        "Change in the plan", [f"`{_code(words.to_do(row))}`" for row in answer["changes"]], False
    )
    if answer["failure"]:
        parts += _failure(answer["failure"])
    parts += _listed("Notes", answer["notes"])
    return "\n\n".join(parts)


def _checks(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| figure | predicted | reported | error | may be off | | from | because |",
        "|---|--:|--:|--:|--:|---|---|---|",
    ]
    for row in rows:
        cells = [*words.cells(row), row["basis"], row["note"]]
        lines.append(f"| {' | '.join(_text(cell) for cell in cells)} |")
    return "\n".join(lines)


def _failure(failure: dict[str, Any]) -> list[str]:
    parts = [
        f"**{_text(failure['kind'].replace('_', ' '))}**, line {failure['line']}: {_text(failure['text'])}"
    ]
    parts.append(_text(failure["says"]))
    if failure["fixes"]:
        lines = ["| flag | enough | note |", "|---|---|---|"]
        for row in failure["fixes"]:
            flag = f"`{_code(words.change(row))}`"
            lines.append(f"| {flag} | {words.enough(row)} | {_text(row['note'])} |")
        parts.append("\n".join(lines))
    if failure["short_bytes"]:
        parts.append(f"short by {bytes_text(failure['short_bytes'])}")
    return parts


def _listed(title: str, lines: list[str], escaped: bool = True) -> list[str]:
    if not lines:
        return []
    shown = [_text(line) if escaped else line for line in dict.fromkeys(lines)]
    return ["\n".join([f"**{title}**", "", *(f"- {line}" for line in shown)])]


def _text(value: str) -> str:
    return str(value).translate(_SPECIAL)


def _code(value: str) -> str:
    return value.replace("`", "'").replace("|", "\\|").replace("\n", " ")
