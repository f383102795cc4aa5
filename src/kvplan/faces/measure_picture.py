"""Decode steps that were timed beside their estimates and floors, over the tokens in their caches."""

from __future__ import annotations

from typing import Any

from kvplan.errors import BadInput
from kvplan.faces.picture import altair, headed

_WIDTH, _HEIGHT = 460, 300
_LINES = {"estimate": [1, 0], "floor": [4, 3]}
_POINTS = {"fitted on": "cross", "kept apart": "circle"}


def steps(answer: dict[str, Any]) -> Any:
    """Points measured, lines estimated and least, a colour a batch; both axes logarithmic."""
    if not answer["decode"]:
        raise BadInput("--plot: no model was run, so there is nothing to draw; give --model")
    alt, model, machine = altair(), answer["model"], answer["machine"]
    timed, lines = [], []
    for row in answer["decode"]:
        at = {"context": row["context"], "batch": str(row["batch"]), "order": row["batch"]}
        point = "fitted on" if row["fitted"] else "kept apart"
        timed.append({**at, "ms": row["seconds"] * 1e3, "point": point})
        for line, name in (("estimate", "predicted_seconds"), ("floor", "lower_bound_seconds")):
            lines.append({**at, "ms": row[name] * 1e3, "line": line})
    of = (
        f"{model['id']}, {model['layers']} layers in {model['dtype']}, transformers {model['transformers']}; "
    )
    title = headed("decode step, measured and estimated", f"{of}{machine['name']}, {machine['date']}")
    log = alt.Scale(type="log", base=2, nice=False)
    x = alt.X("context:Q", scale=log, title="tokens in each cache")
    y = alt.Y("ms:Q", scale=alt.Scale(type="log"), title="ms a step")
    batches = [str(b) for b in sorted({row["batch"] for row in answer["decode"]})]
    color = alt.Color("batch:N", title="sequences", sort=batches, scale=alt.Scale(scheme="viridis"))
    dash = alt.StrokeDash(
        "line:N", title=None, scale=alt.Scale(domain=list(_LINES), range=list(_LINES.values()))
    )
    shape = alt.Shape(
        "point:N", title="measured", scale=alt.Scale(domain=list(_POINTS), range=list(_POINTS.values()))
    )
    drawn = alt.Chart(alt.Data(values=lines), title=title, width=_WIDTH, height=_HEIGHT).mark_line()
    marks = alt.Chart(alt.Data(values=timed)).mark_point(filled=True, size=55, opacity=1)
    return alt.layer(
        drawn.encode(x=x, y=y, color=color, strokeDash=dash),
        marks.encode(x=x, y=y, color=color, shape=shape),
    )
