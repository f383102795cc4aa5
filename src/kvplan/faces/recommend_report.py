"""How a recommendation looks in a terminal: answers, why they are, what starts them, what was rejected."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text

from kvplan.faces.latency_report import grid
from kvplan.units import count_text, counted, seconds_text
from kvplan.verbs.answer import Answer

_REJECTED = 8  # lines shown; --json has all


def recommend(out: Console, answer: Answer, asked: dict[str, Any]) -> None:  # noqa: ARG001 - as every verb's
    """The answers in a table, then the first in full, then the nearest of the others."""
    load = answer["load"]
    goals = ", ".join(f"{name} {seconds_text(goal)}" for name, goal in answer["goals"].items())
    out.print(Text(f"{load['source']}; goals {goals}"))
    out.print(
        Text(
            f"{answer['looked_at']:,} candidates of {answer['families']:,} families by arithmetic, "
            f"{answer['simulated']:,} simulated",
            style="dim",
        )
    )
    out.print()
    if answer["answers"]:
        table(out, answer["answers"])
        out.print()
        for i, row in enumerate(answer["answers"]):
            one(out, i + 1, row)
    else:
        nothing(out, answer["nearest"])
    rejected(out, answer["rejected"])


def table(out: Console, rows: list[dict[str, Any]]) -> None:
    """A line an answer."""
    shown = grid("right", "left", "right", "right", "right", "right", "right", "right")
    heads = ("", "deployment", "$ an hour", "$ a Mtoken", "TTFT p99", "TPOT p99", "end to end", "token/s")
    shown.add_row(*(Text(word, style="dim") for word in heads))
    for i, row in enumerate(rows):
        shown.add_row(
            str(i + 1),
            name(row),
            _usd(row["cost_per_hour"]),
            _usd(row["cost_per_million_output_tokens"]),
            *(_seconds(row[f"{kind}_p99_seconds"]) for kind in ("ttft", "tpot", "e2e")),
            count_text(round(row["output_tokens_per_second"])),
        )
    out.print(shown)


def name(row: dict[str, Any]) -> str:
    """A deployment in a few words."""
    d = row["deployment"]
    split = " ".join(f"{part}{d[part]}" for part in ("tp", "pp", "dp", "ep") if d[part] > 1)
    split += f" attention-dp{d['attention_dp']}" if d["attention_dp"] > 1 else ""
    formats = [d["quantization"] or "", "" if d["kv_cache_dtype"] == "auto" else f"kv {d['kv_cache_dtype']}"]
    replicas = counted(d["replicas"], "replica") if d["replicas"] > 1 else ""
    inside = ", ".join(part for part in (replicas, split, *formats, d["engine"]) if part)
    return f"{row['accelerators']} × {d['accelerator']} ({inside})"


def one(out: Console, number: int, row: dict[str, Any]) -> None:
    """An answer's reasons and its launch."""
    out.print(Text(f"{number}  {name(row)}", style="bold"))
    for reason in row["reason"].split("; "):
        out.print(Text(f"   {reason}"))
    out.print(Text(f"   {row['launch']}", style="cyan"), soft_wrap=True)
    out.print()


def nothing(out: Console, near: dict[str, Any] | None) -> None:
    """What comes nearest, and which goal it would meet."""
    if near is None:
        out.print(Text("nothing meets the goals, and nothing was near enough to be simulated", style="bold"))
        return
    out.print(Text(f"nothing meets the goals; the nearest is {name(near)}", style="bold"))
    for option, seconds in near["relax"].items():
        out.print(Text(f"   it would with {option} {seconds_text(seconds)}"))
    table(out, [near])
    out.print(Text(f"   {near['launch']}", style="cyan"), soft_wrap=True)
    out.print()


def rejected(out: Console, rows: list[dict[str, Any]]) -> None:
    """The nearest of those that are not among the answers."""
    if not rows:
        return
    out.print(Text("not among them", style="dim"))
    for row in rows[:_REJECTED]:
        out.print(Text(f"   {row['reason']}"))
    if len(rows) > _REJECTED:
        out.print(Text(f"   and {len(rows) - _REJECTED} more kinds, in --json", style="dim"))


def _usd(value: float | None) -> str:
    return "–" if value is None else f"{value:,.2f}"


def _seconds(value: float | None) -> str:
    return "–" if value is None else seconds_text(value)
