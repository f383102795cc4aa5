"""How `workload` looks in a terminal: rates over time, lengths, what was lost, how to simulate it."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console
from rich.text import Text

from kvplan.faces.table import Row, lines
from kvplan.units import count_text, counted, seconds_text
from kvplan.verbs.answer import Answer

_BARS = " ▁▂▃▄▅▆▇█"
_WIDTH = 96


def workload(out: Console, answer: Answer, _asked: dict[str, Any]) -> None:
    """The report of a workload."""
    out.print(Text(_headline(answer), style="bold"))
    rates = answer["requests_per_second"]
    if answer["rate"] and rates["max"]:
        out.print()
        out.print(Text(curve([rate for _, rate in answer["rate"]], rates["max"])))
        each = seconds_text(answer["rate"][1][0]) if len(answer["rate"]) > 1 else "all of it"
        out.print(Text(f"requests a second, up to {rates['max']:.3g}; a step is {each}", style="dim"))
    out.print()
    lines(out, _rows(answer))
    _listed(out, "lost", answer["lost"])
    for name, written in answer["written"].items():
        out.print()
        what = f"{counted(written['requests'], 'request')}" if name == "trace" else name.replace("_", " ")
        out.print(Text(f"written: {written['file']}, {what}"))
    _listed(out, "simulate it" if answer["written"] else "", answer["commands"])


def _headline(answer: Answer) -> str:
    at = answer["source"]
    span = seconds_text(answer["seconds"]) if answer["seconds"] else "no time"
    what = f"{counted(answer['requests'], 'request')} in {span}"
    if at["kind"] == "trace":
        return f"{what}: {at['name']}"
    until = time.strftime("%d %b %Y %H:%M", time.gmtime(at["to"]))
    model = f" {at['model']}" if at["model"] else ""
    return f"{what} until {until} UTC: {at['engine']}{model}, {counted(at['instances'], 'instance')}"


def curve(rates: list[float | None], most: float) -> str:
    """A line of bars, the highest of each part."""
    each = max(1, -(-len(rates) // _WIDTH))
    parts = [rates[i : i + each] for i in range(0, len(rates), each)]
    highest = [max((rate or 0.0) for rate in part) for part in parts]
    return "".join(_BARS[min(8, round(8 * value / most))] for value in highest)


def _rows(answer: Answer) -> list[Row]:
    rates = answer["requests_per_second"]
    rows: list[Row] = []
    if rates["mean"] is not None:
        rows.append(("requests", f"{rates['mean']:.4g}", "a second, on the average"))
    for name in ("prompt_tokens", "output_tokens"):
        found = answer[name]
        ends = ", ".join(f"{q} {count_text(found[q])}" for q in ("p50", "p90", "p99"))
        rows.append((name.replace("_tokens", "s"), f"{found['mean']:,.1f}", f"tokens; {ends}"))
    if answer["prefix_hit_rate"] is not None:
        shared = answer["shared_prefix_tokens"]
        remark = f"of prompt tokens; as {count_text(shared)} that all prompts begin with" if shared else ""
        rows.append(("prefix hits", f"{answer['prefix_hit_rate']:.1%}", remark or "of prompt tokens"))
    running = answer["concurrency"]
    if running["mean"] is not None:
        rows.append(("at once", f"{running['mean']:.1f}", f"up to {running['max']:.1f} in a step"))
    for name, what in (("ttft_seconds", "TTFT"), ("tpot_seconds", "TPOT"), ("e2e_seconds", "end to end")):
        found = answer.get("measured", {}).get(name)
        if found and found["mean"] is not None:
            end = f"p99 {seconds_text(found['p99'])}, " if found["p99"] is not None else ""
            rows.append((what, seconds_text(found["mean"]), f"{end}as measured"))
    return rows


def _listed(out: Console, title: str, found: list[str]) -> None:
    if not found or not title:
        return
    out.print()
    out.print(Text(title, style="bold"))
    for line in found:
        out.print(Text(f"  {line}"))
