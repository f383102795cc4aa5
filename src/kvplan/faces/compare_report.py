"""How two kept answers look side by side in a terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text

from kvplan.faces.latency_report import grid
from kvplan.units import bytes_text, count_text, seconds_text
from kvplan.verbs.answer import Answer


def compare(out: Console, answer: Answer, _asked: dict[str, Any]) -> None:
    """What differs in the question, then what came out; the better of two is bold."""
    heads = answer["a"] or "A", answer["b"] or "B"
    if answer["asked"]:
        table = grid("left", "left", "left")
        table.add_row(*(Text(word, style="dim") for word in ("asked", *heads)))
        for row in answer["asked"]:
            table.add_row(row["name"], _said(row["a"]), _said(row["b"]))
        out.print(table)
        out.print()
    table = grid("left", "right", "right", "right")
    table.add_row(*(Text(word, style="dim") for word in ("answered", *heads, "B ÷ A")))
    for row in answer["figures"]:
        mine, theirs = (
            Text(_shown(row[side], row["unit"]), style="bold" if row["better"] == side else "")
            for side in ("a", "b")
        )
        table.add_row(row["name"], mine, theirs, "" if row["ratio"] is None else f"{row['ratio']:.3g}")
    out.print(table)


def _said(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_said(inner)}" for name, inner in value.items())
    return "–" if value is None else str(value)


def _shown(value: float | None, unit: str) -> str:
    if value is None:
        return "–"
    if unit == "B":
        return bytes_text(value)
    if unit == "s":
        return seconds_text(value)
    if unit == "$":
        return f"{value:,.2f}"
    return count_text(value) if value == int(value) else f"{value:,.4g}"
