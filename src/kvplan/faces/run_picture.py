"""A run over time, drawn: who runs, who waits, how full the cache is; measured points beside, where given."""

from __future__ import annotations

from typing import Any

from kvplan.faces.picture import altair, headed

_PANELS = (
    ("running", "running requests"),
    ("waiting", "waiting requests"),
    ("kv_fraction", "share of the cache"),
)


def over_time(
    line: dict[str, list[float]], of: str, measured: dict[str, list[float]] | None = None
) -> list[Any]:
    """Three charts, one below the other; `measured` has the same keys."""
    alt = altair()
    charts = []
    for i, (key, name) in enumerate(_PANELS):
        rows = _rows(line, key, "simulated") + (_rows(measured, key, "measured") if measured else [])
        colours = {"simulated": "#1f77b4", "measured": "#e4572e"}
        shown = [word for word in colours if any(row["run"] == word for row in rows)]
        scale = alt.Scale(domain=shown, range=[colours[word] for word in shown])
        legend = alt.Legend(orient="top") if measured and i == 0 else None
        color = alt.Color("run:N", title=None, scale=scale, legend=legend)
        chart = alt.Chart(alt.Data(values=rows)).mark_line(interpolate="step-after").encode(
            x=alt.X("seconds:Q", title="seconds" if i == len(_PANELS) - 1 else None),
            y=alt.Y("value:Q", title=name),
            color=color,
        )  # fmt: skip
        head = headed("A run over time", of) if i == 0 else None
        charts.append(chart.properties(width=640, height=150, **({"title": head} if head else {})))
    return charts


def _rows(line: dict[str, list[float]], key: str, run: str) -> list[dict[str, Any]]:
    return [{"seconds": x, "value": y, "run": run} for x, y in zip(line["seconds"], line[key], strict=True)]
