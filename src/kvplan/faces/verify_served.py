"""What a running server was at, above the figures that are compared."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from kvplan.faces.table import Row, lines
from kvplan.units import count_text, counted, seconds_text

_TIMES = (
    ("ttft_seconds", "TTFT"), ("tpot_seconds", "TPOT"), ("itl_seconds", "between tokens"),
    ("e2e_seconds", "end to end"), ("queue_seconds", "queue"),
)  # fmt: skip


def traffic(out: Console, seen: dict[str, Any]) -> None:
    """Requests now and so far, their lengths and times, as the server has them."""
    rows = rows_of(seen)
    if rows:
        out.print()
        lines(out, rows)


def rows_of(seen: dict[str, Any]) -> list[Row]:
    """The same as rows of name, value and remark."""
    found = seen.get("traffic")
    rows: list[Row] = [] if not found else [*_now(found), *_requests(found), *_times(found)]
    for level in (seen.get("probe") or {}).get("levels", ()):
        mean = {n: level[n]["mean"] for n in ("ttft_seconds", "tpot_seconds")}
        remark = f"TPOT {seconds_text(mean['tpot_seconds'])}" if mean["tpot_seconds"] is not None else ""
        what = f"{remark}, {counted(level['requests'], 'request')}, means".lstrip(", ")
        rows.append((f"probed at {level['concurrency']}", f"TTFT {seconds_text(mean['ttft_seconds'])}", what))
    return rows


def _now(found: dict[str, Any]) -> list[Row]:
    if found["running"] is None:
        return []
    parts = [f"{found['waiting']:,.0f} waiting"] if found["waiting"] is not None else []
    if found["kv_usage"] is not None:
        parts.append(f"cache {found['kv_usage']:.1%} full")
    return [("running", f"{found['running']:,.4g}", ", ".join(parts))]


def _requests(found: dict[str, Any]) -> list[Row]:
    if not found["requests"]:
        return []
    rate = found["requests_per_second"]
    parts = [f"{rate:.3g} a second"] if rate is not None else ["since its start"]
    if found["mean_prompt_tokens"] and found["mean_output_tokens"]:
        lengths = (found["mean_prompt_tokens"], found["mean_output_tokens"])
        parts.append("prompts of {:,.0f}, outputs of {:,.0f} tokens".format(*lengths))
    if found["prefix_hit_rate"] is not None:
        parts.append(f"{found['prefix_hit_rate']:.1%} of prompts found")
    if found["preemptions"]:
        parts.append(f"{count_text(found['preemptions'])} preemptions")
    return [("requests", count_text(round(found["requests"])), ", ".join(parts))]


def _times(found: dict[str, Any]) -> list[Row]:
    rows = []
    for name, what in _TIMES:
        one = found["histograms"].get(name)
        if one and one["mean"] is not None:
            ends = ", ".join(
                f"{q} {seconds_text(one[q])}" for q in ("p50", "p90", "p99") if one[q] is not None
            )
            rows.append(
                (what, seconds_text(one["mean"]), f"{ends} within buckets" if ends else "on the average")
            )
    return rows
