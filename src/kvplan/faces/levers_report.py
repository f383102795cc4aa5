"""How levers look in a terminal: what helps most first, then memory, then what changes nothing."""

from __future__ import annotations

import textwrap
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvplan.faces.latency_report import grid, load_text
from kvplan.units import bytes_text, count_text, seconds_text
from kvplan.verbs.answer import Answer

WIDTH = 100
_GiB = 2**30
_TIMES = ("", "GPUs", "at once", "TTFT", "TPOT", "tokens/s", "$/Mtoken", "gain")
_MEMORY = ("", "weights", "cache", "a token", "tokens", "longest", "fits")
_OF_MEMORY = ("weight_bytes", "kv_pool_bytes", "bytes_per_token", "kv_tokens", "max_concurrency")


def levers(out: Console, answer: Answer, _asked: dict[str, Any]) -> None:
    """The table of times, that of memory, then in words what each costs and what has no effect."""
    deployed, base = answer["deployment"], answer["baseline"]
    on = f"{deployed['accelerators']} × {deployed['accelerator']}"
    out.print(Text(f"{deployed['model']} on {on}", style="bold"), end="")
    out.print(Text(f", {deployed['engine']} {deployed['engine_version']}"))
    out.print(Text(load_text(answer["load"])))
    _wrapped(out, answer["binds"]["says"], "")
    if answer["makes_it_fit"]:
        _wrapped(out, f"makes it fit: {', '.join(answer['makes_it_fit'])}", "")
    out.print()
    changed = [row for row in answer["levers"] if row["effect"] == "changed"]
    out.print(_times([base, *changed], answer["binds"]["figure"]))
    out.print()
    _memory(out, base, changed)
    _notes(out, changed)
    _listed(out, "no effect", [r for r in answer["levers"] if r["effect"] == "none"], "no effect, because ")
    _listed(out, "not to be had here", [r for r in answer["levers"] if r["effect"] == "refused"], "")
    _costs(out, changed)


def _head(table: Table, words: tuple[str, ...]) -> None:
    table.add_row(*(Text(word, style="dim") for word in words))


def _times(rows: list[dict[str, Any]], figure: str) -> Table:
    table = grid("left", *["right"] * (len(_TIMES) - 1))
    _head(table, _TIMES)
    for row in rows:
        gain = row.get("gain")
        table.add_row(
            Text(row["name"], style="bold" if row["effect"] == "baseline" else ""),
            _count(row["accelerators"]),
            _count(row["running_at_once"]),
            _seconds(row["ttft_seconds"]),
            _seconds(row["tpot_seconds"]),
            _count(row["output_tokens_per_second"]),
            _dollars(row["cost_per_million_output_tokens"]),
            f"×{gain:.2f}" if gain is not None and figure != "fits" else "",
        )
    return table


def _memory(out: Console, base: dict[str, Any], changed: list[dict[str, Any]]) -> None:
    """Of one rank: only the levers that change it."""
    if base["memory"] is None:
        return
    out.print(Text("memory of one rank", style="bold"), end="")
    out.print(Text(" (GiB; sequences of the maximum length as the engine counts them)", style="dim"))
    table = grid("left", *["right"] * (len(_MEMORY) - 2), "left")
    _head(table, _MEMORY)
    for row in (base, *(r for r in changed if _differs(r, base))):
        memory = row["memory"]
        table.add_row(
            Text(row["name"], style="bold" if row["effect"] == "baseline" else ""),
            _gib(memory["weight_bytes"]),
            _gib(memory["kv_pool_bytes"]),
            bytes_text(row["bytes_per_token"]),
            _count(row["kv_tokens"]),
            "–" if row["max_concurrency"] is None else f"{row['max_concurrency']:,.2f}",
            {True: "", False: "does not fit", None: "not known"}[row["fits"]],
        )
    out.print(table)


def _differs(row: dict[str, Any], base: dict[str, Any]) -> bool:
    ratios = row["ratios"]
    return row["fits"] != base["fits"] or any(ratios[name] not in (None, 1.0) for name in _OF_MEMORY)


def _notes(out: Console, rows: list[dict[str, Any]]) -> None:
    _listed(out, "what the figures take for granted", [r for r in rows if r["note"]], "")


def _listed(out: Console, title: str, rows: list[dict[str, Any]], prefix: str) -> None:
    if not rows:
        return
    out.print()
    out.print(Text(title, style="bold"))
    for row in rows:
        _wrapped(out, f"{row['name']}: {row['note'].removeprefix(prefix)}", "  ")


def _costs(out: Console, rows: list[dict[str, Any]]) -> None:
    """What each kind of lever costs, once, with its source."""
    kinds: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        kinds.setdefault(row["kind"], []).append(row)
    out.print()
    out.print(Text("what they cost beside", style="bold"))
    for alike in kinds.values():
        names = ", ".join(row["name"] for row in alike)
        _wrapped(out, f"{names}: {alike[0]['costs_you']} ({alike[0]['source']})", "  ")


def _wrapped(out: Console, text: str, pad: str) -> None:
    for line in textwrap.wrap(text, WIDTH, initial_indent=pad, subsequent_indent=f"{pad}  "):
        out.print(Text(line))


def _count(value: float | None) -> str:
    return "–" if value is None else count_text(value)


def _seconds(value: float | None) -> str:
    return "–" if value is None else seconds_text(value)


def _dollars(value: float | None) -> str:
    return "–" if value is None else f"{value:,.2f}"


def _gib(value: float | None) -> str:
    return "–" if value is None else f"{value / _GiB:,.2f}"
