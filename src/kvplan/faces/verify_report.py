"""How `verify` looks in a terminal: every figure, then what explains, what to change, and what failed."""

from __future__ import annotations

import textwrap
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvplan.faces import verify_served
from kvplan.faces import verify_words as words
from kvplan.units import bytes_text
from kvplan.verbs.answer import Answer

WIDTH = 100


def verify(out: Console, answer: Answer, _asked: dict[str, Any]) -> None:
    """The report of a log or of a server."""
    out.print(Text(words.headline(answer), style="bold"))
    out.print(Text(words.source(answer), style="dim"))
    agreed = "bold" if answer["agrees"] else "bold red"
    out.print(Text(words.verdict(answer), style=agreed))
    verify_served.traffic(out, answer["observed"])
    for basis, rows in words.by_basis(answer["checks"]).items():
        out.print()
        out.print(
            Text(f"from {basis}" if basis != "as stated" else "settings as you state them", style="bold")
        )
        out.print(_table(rows))
    _listed(out, "why", [one["says"] for one in answer["explanations"]])
    _listed(out, "change in the plan", [words.to_do(row) for row in answer["changes"]])
    if answer["failure"]:
        _failure(out, answer["failure"])


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table.grid(padding=(0, 2), pad_edge=False)
    for side in ("left", "right", "right", "right", "right", "left", "left"):
        table.add_column(justify=side)
    table.add_row(*(Text(name, style="dim") for name in (*words.COLUMNS, "because")))
    for row in rows:
        *cells, agrees = words.cells(row)
        style = "" if row["agrees"] else "red"
        note = Text(row["note"], style="dim")
        table.add_row(*(Text(cell) for cell in cells), Text(agrees, style=style), note)
    return table


def _failure(out: Console, failure: dict[str, Any]) -> None:
    out.print()
    phase = failure["phase"]
    at = "" if not phase else f", during {phase}" if phase.startswith("the ") else f", while {phase}"
    where = f"line {failure['line']:,}{at}"
    when = "the start-up failed" if failure["when"] == "start-up" else "it failed while it ran"
    out.print(Text(f"{when} ({where})", style="bold red"))
    _wrapped(out, failure["text"])
    _wrapped(out, failure["says"])
    if failure["short_bytes"]:
        sizes = [bytes_text(failure[name]) for name in ("needed_bytes", "available_bytes", "short_bytes")]
        _wrapped(out, f"needed {sizes[0]}, there {sizes[1]}, short {sizes[2]}")
    if not failure["fixes"]:
        return
    out.print()
    out.print(Text("what fixes it, one at a time", style="bold"))
    table = Table.grid(padding=(0, 2), pad_edge=False)
    for row in failure["fixes"]:
        enough = Text(words.enough(row), style="" if row["fits"] else "dim")
        table.add_row(Text(words.change(row), style="bold"), enough, Text(row["note"], style="dim"))
    out.print(table)


def _listed(out: Console, title: str, lines: list[str]) -> None:
    if not lines:
        return
    out.print()
    out.print(Text(title, style="bold"))
    for line in dict.fromkeys(lines):
        _wrapped(out, line)


def _wrapped(out: Console, text: str) -> None:
    for line in textwrap.wrap(text, WIDTH, initial_indent="  ", subsequent_indent="    "):
        out.print(Text(line))
