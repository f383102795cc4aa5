"""Pictures: one chart definition each, drawn by Altair, rendered offline by vl-convert.

The same definitions serve `--plot FILE.svg|png|html`, notebooks and, later, the page.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvplan.errors import BadInput, shown

GiB, MiB = 2**30, 2**20
ENDINGS = (".svg", ".png", ".html")
_WIDTH, _HEIGHT = 560, 260


def check_plot(name: str) -> Path:
    """The file to draw to; an error, before any work, when it cannot be drawn or written."""
    path = Path(name)
    if path.suffix.lower() not in ENDINGS:
        raise BadInput(f"--plot: {shown(name)} ends in none of {', '.join(ENDINGS)}; name a file that does")
    if not path.parent.is_dir():
        raise BadInput(f"--plot: the folder {shown(str(path.parent))} is not there; make it first")
    if path.is_dir():
        raise BadInput(f"--plot: {shown(name)} is a folder; name a file")
    _altair()
    return path


def _altair() -> Any:
    try:
        import altair
        import vl_convert  # noqa: F401
    except ImportError:
        raise BadInput("--plot: drawing needs altair and vl-convert; pip install 'kvplan[plot]'") from None
    return altair


def save(chart: Any, path: Path) -> None:
    """Write the chart whole or not at all."""
    kind = path.suffix.lower()[1:]
    part = path.with_name(f".{path.name}.part.{kind}")
    try:
        if kind == "html":
            part.write_text(chart.to_html(inline=True), encoding="utf-8")
        else:
            chart.save(str(part), format=kind, **({"scale_factor": 2} if kind == "png" else {}))
        part.replace(path)
    except OSError as error:
        raise BadInput(f"--plot: cannot write {shown(str(path))}: {error.strerror or error}") from None
    finally:
        part.unlink(missing_ok=True)


def memory_split(rows: list[dict[str, Any]]) -> Any:
    """One bar per rank: weights, activations, graphs, overhead, cache, unused, in GiB."""
    alt = _altair()
    values = [{**row, "GiB": row["bytes"] / GiB, "order": i} for i, row in enumerate(rows)]
    names = [row["part"] for row in rows]
    return (
        alt.Chart(alt.Data(values=values), title="memory of one rank", width=_WIDTH, height=60)
        .mark_bar()
        .encode(
            x=alt.X("sum(GiB):Q", title="GiB"),
            color=alt.Color(
                "part:N", sort=names, title=None, scale=alt.Scale(scheme="tableau10", domain=names)
            ),
            order=alt.Order("order:Q"),
            tooltip=["part:N", alt.Tooltip("GiB:Q", format=".2f")],
        )
    )


def cache_growth(rows: list[dict[str, Any]], title: str) -> Any:
    """Bytes held against tokens or steps, an area per kind of cache."""
    alt = _altair()
    largest = max((row["bytes"] for row in rows), default=0)
    unit, name = (GiB, "GiB") if largest >= GiB else (MiB, "MiB")
    values = [{**row, "held": row["bytes"] / unit} for row in rows]
    return (
        alt.Chart(alt.Data(values=values), title=title, width=_WIDTH, height=_HEIGHT)
        .mark_area(interpolate="step-after")
        .encode(
            x=alt.X("x:Q", title=rows[0]["x_title"] if rows else ""),
            y=alt.Y("held:Q", title=name, stack=True),
            color=alt.Color("kind:N", title=None, scale=alt.Scale(scheme="tableau10")),
            tooltip=["kind:N", "x:Q", alt.Tooltip("held:Q", format=".3f")],
        )
    )


def decode_over_batch(rows: list[dict[str, Any]]) -> Any:
    """The floor of a decode step over batch, its compute and memory parts, to where the cache runs out."""
    alt = _altair()
    lines = [
        {"batch": row["batch"], "ms": row[part] * 1e3, "part": name}
        for row in rows
        for part, name in (("compute_seconds", "compute"), ("memory_seconds", "memory"))
    ]
    fits = [{"batch": row["batch"]} for row in rows if row["fits"]][-1:]
    base = alt.Chart(
        alt.Data(values=lines), title="decode step: lower bound over batch", width=_WIDTH, height=_HEIGHT
    )
    drawn = base.mark_line(point=True).encode(
        x=alt.X("batch:Q", scale=alt.Scale(type="log", base=2), title="sequences"),
        y=alt.Y("ms:Q", title="ms"),
        color=alt.Color("part:N", title=None, scale=alt.Scale(scheme="tableau10")),
        tooltip=["batch:Q", "part:N", alt.Tooltip("ms:Q", format=".3f")],
    )
    end = alt.Chart(alt.Data(values=fits)).mark_rule(strokeDash=[4, 4])
    label = alt.Chart(alt.Data(values=fits)).mark_text(align="right", dx=-4, dy=-110)
    return alt.layer(
        drawn, end.encode(x="batch:Q"), label.encode(x="batch:Q", text=alt.value("cache full beyond"))
    )


def roofline(points: list[dict[str, Any]], peak: float, rate: float) -> Any:
    """The roof of the accelerator, and where prefill and decode stand under it."""
    alt = _altair()
    ridge = peak / rate
    xs = [ridge * 4.0**k for k in range(-5, 5)]
    roof = [{"intensity": x, "tflops": min(peak, x * rate) / 1e12} for x in sorted([*xs, ridge])]
    dots = [{**p, "tflops": min(peak, p["intensity"] * rate) / 1e12} for p in points]
    x = alt.X("intensity:Q", scale=alt.Scale(type="log"), title="FLOP per byte")
    y = alt.Y("tflops:Q", scale=alt.Scale(type="log"), title="TFLOP/s")
    line = alt.Chart(alt.Data(values=roof), title="roofline", width=_WIDTH, height=_HEIGHT).mark_line(
        color="#888"
    )
    marks = alt.Chart(alt.Data(values=dots)).mark_point(size=90, filled=True)
    color = alt.Color("phase:N", title=None, scale=alt.Scale(scheme="tableau10"))
    tooltip = ["phase:N", alt.Tooltip("intensity:Q", format=",.1f")]
    return alt.layer(line.encode(x=x, y=y), marks.encode(x=x, y=y, color=color, tooltip=tooltip))


def page(charts: list[Any]) -> Any:
    """Several charts under one another, each with its own colours."""
    return _altair().vconcat(*charts).resolve_scale(color="independent")
