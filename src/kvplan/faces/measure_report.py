"""How `measure` looks in a terminal: rates, then a model's caches, prompts and decode steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvplan.units import bytes_text, count_text, decimal_text, seconds_text
from kvplan.verbs.answer import Answer

STEPS = ("", "", "measured", "estimate", "error", "at least", "of rates alone")


def measure(out: Console, answer: Answer, _asked: dict[str, Any]) -> None:
    """The report."""
    machine = answer["machine"]
    out.print(Text(machine["name"], style="bold"))
    out.print(Text(f"{machine['library']}, {machine['date']}; {machine['timed']}", style="dim"))
    out.print()
    _memory(out, answer)
    out.print()
    _products(out, answer["products"])
    if answer["model"]:
        _model(out, answer)
    else:
        out.print()
        out.print(Text("--model runs one here, and calibrates what a step takes beside these rates"))


def _table(out: Console, rows: Sequence[Sequence[str]]) -> None:
    table = Table.grid(padding=(0, 2), pad_edge=False)
    for number, _ in enumerate(rows[0]):
        table.add_column(justify="right" if number else "left")
    table.add_row(*(Text(cell, style="dim") for cell in rows[0]))
    for row in rows[1:]:
        table.add_row(*(Text(cell) for cell in row))
    out.print(table)


def _memory(out: Console, answer: Answer) -> None:
    best = decimal_text(answer["machine"]["bytes_per_second"], "B/s")
    out.print(Text(f"memory: {best}", style="bold"))
    rows: list[tuple[str, ...]] = [("arrays of", "read", "copied", "added")]
    for row in answer["memory"]:
        rates = [row[f"{name}_bytes_per_second"] for name in ("read", "copy", "add")]
        rows.append((bytes_text(row["bytes"]), *(decimal_text(rate, "B/s") for rate in rates)))
    _table(out, rows)


def _products(out: Console, products: list[dict[str, Any]]) -> None:
    first = products[0]
    out.print(Text(f"products of m × {first['k']:,} with {first['k']:,} × {first['n']:,}", style="bold"))
    rows = [("m", "in", "FLOP/s", "weights read")]
    for row in products:
        weights = decimal_text(row["weight_bytes_per_second"], "B/s")
        rate = decimal_text(row["flops_per_second"], "FLOP/s")
        rows.append((count_text(row["m"]), row["dtype"], rate, weights))
    _table(out, rows)


def _model(out: Console, answer: Answer) -> None:
    model, verdict = answer["model"], answer["verdict"]
    out.print()
    size = bytes_text(model["weight_bytes"])
    what = (
        f"{model['id']}, {model['layers']} layers in {model['dtype']}, {size} of {model['weights']} weights"
    )
    out.print(Text(f"{what}, transformers {model['transformers']}", style="bold"))
    _caches(out, answer["cache"])
    for name, rows in (("prefill", answer["prefill"]), ("decode", answer["decode"])):
        out.print()
        out.print(Text(headline(name, verdict[name]), style="bold"))
        _table(out, [STEPS, *(step_cells(row) for row in rows)])
    out.print()
    out.print(Text(calibration_text(answer["calibration"]), style="dim"))


def _caches(out: Console, rows: list[dict[str, Any]]) -> None:
    wrong = [row for row in rows if not row["agrees"]]
    if not wrong:
        out.print(Text(f"cache: {len(rows)} shapes hold exactly the bytes predicted"))
        return
    out.print(Text(f"cache: {len(wrong)} of {len(rows)} shapes hold other bytes than predicted", style="red"))
    _table(
        out,
        [
            ("sequences × tokens", "predicted", "held"),
            *(
                (f"{r['batch']:,} × {r['tokens']:,}", f"{r['predicted_bytes']:,}", f"{r['held_bytes']:,}")
                for r in wrong
            ),
        ],
    )


def headline(name: str, verdict: dict[str, Any]) -> str:
    """How the points that were kept apart came out."""
    if not verdict["points"]:
        return f"{name}: all points were fitted on, none is left to test"
    floor = "none is below its floor" if verdict["above_floor"] else "some are below their floors"
    mean, worst = verdict["mean_relative_error"], verdict["worst_relative_error"]
    apart = f"{verdict['points']} points that were not fitted on"
    return f"{name}: {apart} are {mean:.0%} off on average, {worst:.0%} at most; {floor}"


def step_cells(row: dict[str, Any]) -> tuple[str, ...]:
    """A prompt or a decode step: what it was, measured, estimated, floor; points fitted on are marked."""
    if "context" in row:
        what = f"{row['batch']:,} × {row['context']:,}"
    else:
        what = f"{row['prompt_tokens']:,} tokens"
    times = [row[f"{n}seconds"] for n in ("", "predicted_")]
    rest = [row[f"{n}_seconds"] for n in ("lower_bound", "from_machine")]
    mark = "fitted" if row["fitted"] else ""
    error = f"{row['relative_error']:+.1%}"
    return (what, mark, *map(seconds_text, times), error, *map(seconds_text, rest))


def calibration_text(found: dict[str, Any]) -> str:
    """The numbers of a calibration in words."""
    return (
        f"products reach {found['product_compute']:.0%} of the peak and {found['product_memory']:.0%} of the "
        f"bandwidth, attention {found['prompt_compute']:.0%} and {found['cache_memory']:.1%}; "
        f"a layer adds {seconds_text(found['layer_seconds'])}, a sequence "
        f"{seconds_text(found['sequence_seconds'])}"
    )
