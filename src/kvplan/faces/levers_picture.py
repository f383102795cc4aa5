"""The picture of `levers`: how many times better each makes what users see, on a logarithmic axis."""

from __future__ import annotations

from typing import Any

from kvplan.faces import picture

_FIGURES = {
    "TTFT": ("ttft_seconds", True),
    "TPOT": ("tpot_seconds", True),
    "tokens a second": ("output_tokens_per_second", False),
    "sequences at once": ("running_at_once", False),
}
_COLOURS = {
    "TTFT": "#4c78a8",
    "TPOT": "#f58518",
    "tokens a second": "#54a24b",
    "sequences at once": "#b279a2",
}
_SHAPES = {
    "TTFT": "triangle-up",
    "TPOT": "triangle-down",
    "tokens a second": "circle",
    "sequences at once": "square",
}
_ROW = 18


def points(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A point for every figure of a lever that changes something: above 1 is better."""
    found = []
    for row in rows:
        for figure, (name, less) in _FIGURES.items():
            ratio = (row["ratios"] or {}).get(name)
            if row["effect"] == "changed" and ratio:
                found.append({"lever": row["name"], "figure": figure, "times": 1 / ratio if less else ratio})
    return found


def gains(rows: list[dict[str, Any]], of: str) -> Any:
    """Levers in their order, a dot for each figure; right of the rule it is better than as it is."""
    alt = picture.altair()
    values = points(rows)
    names = list(dict.fromkeys(v["lever"] for v in values))
    base = alt.Chart(alt.Data(values=values), title=picture.headed("levers: times better than as it is", of))
    x = alt.X("times:Q", scale=alt.Scale(type="log", base=2), title="times better (right of 1), or worse")
    colour = alt.Scale(domain=list(_COLOURS), range=list(_COLOURS.values()))
    dots = base.mark_point(filled=True, size=70, opacity=0.85).encode(
        x=x,
        y=alt.Y("lever:N", sort=names, title=None, axis=alt.Axis(labelLimit=260, grid=True)),
        color=alt.Color("figure:N", title=None, scale=colour),
        shape=alt.Shape(
            "figure:N", title=None, scale=alt.Scale(domain=list(_SHAPES), range=list(_SHAPES.values()))
        ),
        tooltip=["lever:N", "figure:N", alt.Tooltip("times:Q", format=".2f")],
    )
    rule = alt.Chart(alt.Data(values=[{"times": 1}])).mark_rule(strokeDash=[4, 4]).encode(x="times:Q")
    return alt.layer(rule, dots).properties(width=520, height=_ROW * max(4, len(names)))
