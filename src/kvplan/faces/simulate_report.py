"""How a simulated run looks in a terminal: percentiles, what queued, the pool over time, another run."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from kvplan.faces.latency_report import grid
from kvplan.units import count_text, counted, seconds_text
from kvplan.verbs.answer import Answer

_KINDS = (
    ("ttft_seconds", "TTFT"),
    ("tpot_seconds", "TPOT"),
    ("e2e_seconds", "end to end"),
    ("queue_seconds", "queued"),
)
_COLUMNS = ("mean", "p50", "p90", "p99")
_BARS = " ▁▂▃▄▅▆▇█"
_WIDTH = 60


def simulate(out: Console, answer: Answer, asked: dict[str, Any]) -> None:
    """What users saw first, then what the engine went through, then the pool over time."""
    d, w = answer["deployment"], answer["workload"]
    replicas = f", {counted(d['replicas'], 'replica')}" if d["replicas"] > 1 else ""
    out.print(
        Text(f"{d['model']} on {d['accelerators']} × {d['accelerator']}{replicas}", style="bold"), end=""
    )
    out.print(Text(f", {d['engine']} {d['engine_version']}"))
    out.print(Text(load_text(w)))
    out.print()
    percentiles(out, answer)
    out.print()
    for sentence in went(answer):
        out.print(Text(sentence))
    if answer["timeline"]["seconds"]:
        out.print()
        over_time(out, answer)
    if asked.get("against"):
        out.print()
        beside(out, answer, asked["against"])


def load_text(w: dict[str, Any]) -> str:
    """The workload in a line."""
    rate = w.get("requests_per_second")
    pace = f", {rate:,.3g} a second" if rate else ""
    prompt, output = w["prompt_tokens"]["mean"], w["output_tokens"]["mean"]
    name = Path(w["source"]).name if Path(w["source"]).exists() else w["source"]
    return (
        f"{name}: {counted(w['requests'], 'request')}{pace}; prompts of {count_text(prompt)}, outputs of "
        f"{count_text(output)} tokens on average"
    )


def percentiles(out: Console, answer: Answer) -> None:
    """Mean and percentiles of every time."""
    table = grid("left", "right", "right", "right", "right")
    table.add_row(*(Text(word, style="dim") for word in ("", *_COLUMNS)))
    for key, name in _KINDS:
        table.add_row(f"  {name}", *(_seconds(answer[key][column]) for column in _COLUMNS))
    out.print(table)


def _seconds(value: float | None) -> str:
    return "–" if value is None else seconds_text(value)


def went(answer: Answer) -> list[str]:
    """What the engine went through, a sentence each."""
    done, of = answer["completed"], answer["requests"]
    found = []
    if done:
        rate = answer["output_tokens_per_second"] or 0
        within, pace = seconds_text(answer["duration_seconds"]), answer["requests_per_second"]
        found.append(
            f"{count_text(done)} of {counted(of, 'request')} answered in {within}: {count_text(rate)} output "
            f"tokens a second, {pace:,.3g} requests a second"
        )
    else:
        found.append(f"none of {counted(of, 'request')} answered")
    if answer["rejected"]:
        found.append(f"{counted(answer['rejected'], 'request')} rejected: too long")
    hit, full = answer["prefix_hit_rate"], answer["kv_peak_fraction"]
    found.append(
        f"{counted(answer['steps'], 'step')}, {counted(answer['preemptions'], 'preemption')}; {hit:.1%} of "
        f"prompt tokens found in the cache; the cache was {full:.0%} full at most"
    )
    return [*found, *_between(answer), *_goals(answer)]


def _between(answer: Answer) -> list[str]:
    between = answer["between"]
    if not between or between["ttft_seconds"][0] is None:
        return []
    low, high = between["step_times"]
    spans = [
        f"{name} {seconds_text(between[key][0])} to {seconds_text(between[key][1])}"
        for key, name in _KINDS[:3]
        if between[key][0] is not None
    ]
    return [
        f"with steps of {low:.2f} to {high:.2f} of the estimate (80 % of measurements): {', '.join(spans)}"
    ]


def _goals(answer: Answer) -> list[str]:
    goals = answer["goals"]
    if not goals:
        return []
    found = []
    for key, name in _KINDS:
        goal = goals.get(f"{key}_p99_goal")
        if goal is not None:
            p99 = answer[key]["p99"]
            verdict = "met" if p99 is not None and p99 <= goal else "missed"
            found.append(f"{name} p99 {_seconds(p99)} against {seconds_text(goal)}: {verdict}")
    rate = answer["goodput_requests_per_second"]
    return [*found, f"{rate:,.3g} requests a second are within all goals"]


def over_time(out: Console, answer: Answer) -> None:
    """Who ran, who waited and how full the cache was, as bars."""
    line, table = answer["timeline"], grid("left", "left", "right")
    for key, name in (("running", "running"), ("waiting", "waiting"), ("kv_fraction", "cache")):
        values = _narrowed(line[key])
        top = 1.0 if key == "kv_fraction" else max(values, default=0)
        most = f"{max(line[key]):.0%} at most" if key == "kv_fraction" else f"{max(line[key]):,.0f} at most"
        bars = "".join(_BARS[min(8, round(8 * value / top))] if top else " " for value in values)
        table.add_row(f"  {name}", Text(bars), Text(most, style="dim"))
    out.print(table)
    out.print(Text(f"  over {seconds_text(line['seconds'][-1])}", style="dim"))


def _narrowed(values: list[float]) -> list[float]:
    """As many values as a line holds: the largest of each stretch."""
    if len(values) <= _WIDTH:
        return values
    edges = [round(i * len(values) / _WIDTH) for i in range(_WIDTH + 1)]
    return [max(values[a:b]) for a, b in itertools.pairwise(edges)]


def beside(out: Console, answer: Answer, other: dict[str, Any]) -> None:
    """This run and another, side by side."""
    table = grid("left", "right", "right", "right")
    table.add_row(*(Text(word, style="dim") for word in ("", "this run", "the other", "")))
    rows = [(f"{name} {column}", key, column) for key, name in _KINDS for column in ("mean", "p99")]
    for name, key, column in rows:
        a, b = answer[key][column], other.get(key, {}).get(column)
        table.add_row(f"  {name}", _seconds(a), _seconds(b), Text(_ratio(a, b), style="dim"))
    for name, key in (("output tokens a second", "output_tokens_per_second"), ("preemptions", "preemptions")):
        a, b = answer[key], other.get(key)
        shown = [("–" if value is None else count_text(value)) for value in (a, b)]
        table.add_row(f"  {name}", *shown, Text(_ratio(a, b), style="dim"))
    out.print(table)


def _ratio(a: float | None, b: float | None) -> str:
    return f"× {a / b:.2f}" if a is not None and b else ""
