"""What deployments cost against how long an answer takes: the front that none of the others beats."""

from __future__ import annotations

from typing import Any

from kvplan.faces.picture import altair, headed


def cost_and_time(rows: list[dict[str, Any]], of: str) -> Any:
    """Points and the line that joins them; those that meet every goal are filled."""
    alt = altair()
    priced = any(row["cost_per_hour"] is not None for row in rows)
    points = [
        {
            "cost": row["cost_per_hour"] if priced else row["accelerators"],
            "seconds": row["e2e_mean_seconds"],
            "name": f"{row['accelerators']} × {row['deployment']['accelerator']}",
            "goals": "met" if row["met"] else "missed",
        }
        for row in rows
    ]
    base = alt.Chart(alt.Data(values=points)).encode(
        x=alt.X("cost:Q", title="US dollars an hour" if priced else "accelerators, of no known price"),
        y=alt.Y("seconds:Q", title="mean seconds to the last token", scale=alt.Scale(zero=False)),
    )
    scale = alt.Scale(domain=["met", "missed"], range=["#1f77b4", "#c7c7c7"])
    color = alt.Color("goals:N", title="goals", scale=scale, legend=alt.Legend(orient="top"))
    line = base.mark_line(interpolate="step-after", color="#c7c7c7")
    marks = base.mark_circle(size=90, opacity=1).encode(color=color)
    names = base.mark_text(align="left", dx=7, dy=-7, fontSize=10).encode(text="name:N")
    return (line + marks + names).properties(width=640, height=360, title=headed("Cost against time", of))
