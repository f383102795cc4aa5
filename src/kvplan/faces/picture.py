"""Pictures: one chart definition each, drawn by Altair, rendered offline by vl-convert.

The same definitions serve `--plot FILE.svg|png|html`, notebooks and, later, the page.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from kvplan.errors import BadInput, shown
from kvplan.units import bytes_text, count_text

GiB, MiB = 2**30, 2**20
ENDINGS = (".svg", ".png", ".html")
_WIDTH, _HEIGHT = 560, 260
# One colour per thing, whatever else a chart shows.
_PHASES = {"prefill": "#4c78a8", "decode": "#f58518", "mixed": "#54a24b", "idle": "#bab0ac"}
_PARTS = {
    "weights": "#4c78a8",
    "activations": "#f58518",
    "graphs": "#e45756",
    "overhead": "#b279a2",
    "KV cache": "#54a24b",
    "unused": "#e0dcd8",
}
_PART_NAMES = {"weight": "weights", "activation": "activations", "graph": "graphs", "kv_pool": "KV cache"}
_KINDS = {
    "full": "#4c78a8",
    "latent": "#439894",
    "compressed": "#83bcb6",
    "sliding": "#f58518",
    "chunked": "#ffbf79",
    "index keys": "#b279a2",
    "state": "#9d755d",
}
_BINDS = {"compute": "#b279a2", "memory": "#439894"}


def check_plot(name: str) -> Path:
    """The file to draw to; an error, before any work, when it cannot be drawn or written."""
    path = Path(name)
    if path.suffix.lower() not in ENDINGS:
        raise BadInput(f"--plot: {shown(name)} ends in none of {', '.join(ENDINGS)}; name a file that does")
    try:
        if not path.parent.is_dir():
            raise BadInput(f"--plot: the folder {shown(str(path.parent))} is not there; make it first")
        if path.is_dir():
            raise BadInput(f"--plot: {shown(name)} is a folder; name a file")
        with suppress(FileNotFoundError):
            path.lstat()
        _part(path).touch()
        _part(path).unlink()
    except (OSError, ValueError) as error:
        raise _cannot_write(path, error) from None
    altair()
    return path


def _part(path: Path) -> Path:
    """The file that is written first, beside the picture; its name is short whatever the picture's."""
    return path.with_name(f".kvplan-{os.getpid()}{path.suffix.lower()}")


def _cannot_write(path: Path, error: Exception) -> BadInput:
    reason = getattr(error, "strerror", None) or str(error)
    return BadInput(f"--plot: cannot write {shown(str(path))} ({reason}); name another file")


def altair() -> Any:
    """The drawing library. Raises BadInput where it is not installed."""
    try:
        import altair
        import vl_convert  # noqa: F401
    except ImportError:
        raise BadInput("--plot: drawing needs altair and vl-convert; pip install 'kvplan[plot]'") from None
    return altair


def save(chart: Any, path: Path) -> None:
    """Write the chart whole or not at all."""
    kind, part = path.suffix.lower()[1:], _part(path)
    try:
        if kind == "html":
            part.write_text(chart.to_html(inline=True), encoding="utf-8")
        else:
            chart.save(str(part), format=kind, **({"scale_factor": 2} if kind == "png" else {}))
        part.replace(path)
    except OSError as error:
        raise _cannot_write(path, error) from None
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


def memory_split(rows: list[dict[str, Any]], device_bytes: int | None, of: str) -> Any:
    """One bar of a rank's weights, activations, graphs, overhead, cache and what is left, in GiB.

    Where the device's memory is known a rule stands at it, which a bar that does not fit runs past.
    """
    alt = altair()
    values = [
        {"part": _PART_NAMES.get(row["part"], row["part"]), "GiB": row["bytes"] / GiB, "order": i}
        for i, row in enumerate(rows)
        if row["bytes"]
    ]
    title = headed("memory of one rank", of, offset=18)
    bar = alt.Chart(alt.Data(values=values), title=title, width=_WIDTH, height=60).mark_bar()
    drawn = bar.encode(
        x=alt.X("GiB:Q", title="GiB", stack="zero", axis=_axis()),
        color=_color("part", values, _PARTS),
        order=alt.Order("order:Q"),
        tooltip=["part:N", alt.Tooltip("GiB:Q", format=".2f")],
    )
    if device_bytes is None:
        return drawn
    over = sum(row["GiB"] for row in values) > device_bytes / GiB * 1.0001
    label = f"{bytes_text(device_bytes)} of the device" + (": does not fit" if over else "")
    return alt.layer(drawn, *_rule({"GiB": device_bytes / GiB}, "GiB", label, "right", above=True))


def cache_growth(rows: list[dict[str, Any]], of: str) -> Any:
    """Bytes that one sequence holds over its tokens, an area per kind of cache."""
    alt = altair()
    values, unit = _scaled(rows)
    title = headed("cache of one sequence on one rank", of)
    return (
        alt.Chart(alt.Data(values=values), title=title, width=_WIDTH, height=_HEIGHT)
        .mark_area(interpolate="linear")
        .encode(
            x=alt.X("x:Q", title="tokens of the sequence", axis=_axis(), scale=alt.Scale(nice=False)),
            y=alt.Y("held:Q", title=f"cache held, {unit}", stack="zero"),
            color=_color("kind", values, _KINDS),
            tooltip=["kind:N", "x:Q", alt.Tooltip("held:Q", format=".3f")],
        )
    )


def cache_held(rows: list[dict[str, Any]], of: str) -> Any:
    """Bytes held after each step, a level per step, coloured by what ran."""
    alt = altair()
    values, unit = _scaled(rows)
    title = headed("cache held after each step", of)
    axis = _axis(format=",d") if values[-1]["x"] > 1 else _axis(format="d", values=[0, 1])
    return (
        alt.Chart(alt.Data(values=values), title=title, width=_WIDTH, height=_HEIGHT)
        .mark_area(interpolate="step-after", strokeWidth=0.5)
        .encode(
            x=alt.X("x:Q", title="step", axis=axis, scale=alt.Scale(nice=False)),
            y=alt.Y("held:Q", title=f"cache held, {unit}", stack=None),
            color=_color("kind", values, _PHASES),
            stroke=alt.Stroke("kind:N", title=None, scale=_scale("kind", values, _PHASES)),
            detail="run:N",
            tooltip=["kind:N", "x:Q", alt.Tooltip("held:Q", format=".3f")],
        )
    )


def decode_over_batch(rows: list[dict[str, Any]], of: str) -> Any:
    """The floor of a decode step over batch, its compute and memory parts, and where the cache is full."""
    alt = altair()
    lines = [
        {"batch": row["batch"], "ms": row[f"{part}_seconds"] * 1e3, "part": part}
        for row in rows
        for part in _BINDS
    ]
    title = headed("decode step: lower bound over batch", of)
    base = alt.Chart(alt.Data(values=lines), title=title, width=_WIDTH, height=_HEIGHT)
    drawn = base.mark_line(point=True).encode(
        x=alt.X("batch:Q", scale=alt.Scale(type="log", base=2), title="sequences", axis=_axis(tickCount=12)),
        y=alt.Y("ms:Q", title="time of a step, at least, ms"),
        color=_color("part", lines, _BINDS),
        tooltip=["batch:Q", "part:N", alt.Tooltip("ms:Q", format=".3f")],
    )
    held = [row["batch"] for row in rows if row["fits"]]
    if len(held) == len(rows):
        return drawn
    full = held[-1] if held else rows[0]["batch"]
    label = f"the cache holds {count_text(full)}" if held else "the cache holds none"
    return alt.layer(drawn, *_rule({"batch": full}, "batch", label, "right" if full > 16 else "left"))


def served_over_batch(rows: list[dict[str, Any]], marks: dict[str, float | None], of: str) -> list[Any]:
    """Throughput and time of a token over users, with where the cache is full and where compute binds."""
    alt = altair()
    values = [{**row, "ms": row["tpot_seconds"] * 1e3} for row in rows]
    rules = _marked(marks, values[-1]["batch"])
    found = []
    for field, title, name in (
        ("output_tokens_per_second", "throughput over users", "output tokens a second"),
        ("ms", "time of a token over users", "TPOT, mean, ms"),
    ):
        base = alt.Chart(alt.Data(values=values), title=headed(title, of), width=_WIDTH, height=_HEIGHT)
        line = base.mark_line(point=True, color=_PHASES["decode"]).encode(
            x=alt.X("batch:Q", scale=alt.Scale(type="log", base=2), title="users", axis=_axis(tickCount=12)),
            y=alt.Y(f"{field}:Q", title=name),
            tooltip=["batch:Q", alt.Tooltip(f"{field}:Q", format=",.2f")],
        )
        layers = [line]
        for row, (at, label, side) in enumerate(rules):
            layers += _rule({"batch": at}, "batch", label, side, above=True, row=row)
        found.append(alt.layer(*layers))
    return found


def _marked(marks: dict[str, float | None], last: float) -> list[tuple[float, str, str]]:
    """(batch, label, side) of every mark within the curve, so ordered that no rule crosses a label."""
    labels = {
        "capacity": "{} run at once",
        "compute": "decode waits for compute from {}",
        "weights": "weights wait for compute from {}",
    }
    found = []
    for mark, label in labels.items():
        at = marks[mark]
        if at and at <= last and not (mark == "weights" and marks["compute"]):
            side = "right" if at > last**0.5 else "left"
            found.append((at, label.format(count_text(at)), side))
    return sorted(found, key=lambda rule: (rule[2] == "left", rule[0] if rule[2] == "right" else -rule[0]))


def roofline(points: list[dict[str, Any]], peak: float, rate: float, of: str) -> Any:
    """The roof of the accelerator, and where prefill and decode stand under it."""
    alt = altair()
    ridge = peak / rate
    xs = [ridge * 4.0**k for k in range(-5, 5)]
    roof = [{"intensity": x, "tflops": min(peak, x * rate) / 1e12} for x in sorted([*xs, ridge])]
    dots = [{**p, "tflops": min(peak, p["intensity"] * rate) / 1e12} for p in points]
    axis = alt.Axis(tickCount=6, labelFlush=False, labelOverlap="greedy", labelSeparation=8)
    x = alt.X("intensity:Q", scale=alt.Scale(type="log"), title="FLOP per byte read", axis=axis)
    y = alt.Y("tflops:Q", scale=alt.Scale(type="log"), title="rate of one rank, at most, TFLOP/s", axis=axis)
    title = headed(f"roofline: ridge at {count_text(ridge)} FLOP per byte", of)
    line = alt.Chart(alt.Data(values=roof), title=title, width=_WIDTH, height=_HEIGHT).mark_line(color="#888")
    marks = alt.Chart(alt.Data(values=dots)).mark_point(size=90, filled=True, opacity=1)
    color = _color("phase", dots, _PHASES)
    tooltip = ["phase:N", alt.Tooltip("intensity:Q", format=",.1f")]
    return alt.layer(line.encode(x=x, y=y), marks.encode(x=x, y=y, color=color, tooltip=tooltip))


def page(charts: list[Any]) -> Any:
    """Several charts under one another, each with its own colours."""
    return altair().vconcat(*charts).resolve_scale(color="independent", stroke="independent")


def headed(what: str, of: str, offset: int = 8) -> Any:
    """What a chart shows and, below, of which model, accelerators and load, a line each."""
    return altair().TitleParams(
        what, subtitle=of.split("; "), anchor="start", frame="group", subtitleColor="#555", offset=offset
    )


def _axis(**given: Any) -> Any:
    """An axis whose labels stand at their ticks and never run together."""
    rest = {"tickCount": 6, "labelFlush": False, "labelOverlap": "greedy", "labelSeparation": 8, **given}
    return altair().Axis(**rest)


def _color(field: str, values: list[dict[str, Any]], colours: dict[str, str]) -> Any:
    """A thing's colour, and the legend."""
    return altair().Color(f"{field}:N", title=None, scale=_scale(field, values, colours))


def _scale(field: str, values: list[dict[str, Any]], colours: dict[str, str]) -> Any:
    """The colours of the things that occur, in their fixed order."""
    found = {row[field] for row in values}
    names = [name for name in colours if name in found]
    return altair().Scale(domain=names, range=[colours[name] for name in names])


def _rule(
    at: dict[str, float], field: str, text: str, align: str, *, above: bool = False, row: int = 0
) -> tuple[Any, Any]:
    """A dashed rule across the chart at a value of its x axis, with a label beside its end.

    `above` the chart the label stands in a row of its own, and the rule reaches up to it.
    """
    alt = altair()
    place = alt.Chart(alt.Data(values=[at])).encode(x=f"{field}:Q")
    centred = above and not row
    aside = 0 if centred else -5 if align == "right" else 5
    label = place.mark_text(align=align, baseline="bottom" if above else "top", dx=aside, fontWeight="bold")
    top = alt.value(-3 - 14 * row if above else 4)
    rule = place.mark_rule(strokeDash=[4, 4])
    if row:
        rule = rule.encode(y=alt.value(-3 - 14 * row), y2=alt.value(_HEIGHT))
    return rule, label.encode(y=top, text=alt.value(text))


def _scaled(rows: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], str]:
    """Rows with their bytes in the unit that reads best, and its name."""
    unit, name = (GiB, "GiB") if max(row["bytes"] for row in rows) >= GiB else (MiB, "MiB")
    return [{**row, "held": row["bytes"] / unit} for row in rows], name
