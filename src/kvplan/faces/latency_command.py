"""`kvplan latency`: the command and its flags."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

import kvplan
from kvplan.errors import BadInput
from kvplan.faces import options, output
from kvplan.faces.engine_options import takes


@takes(options.deployment, options.links, options.load, options.measured, options.later)
def latency(
    model: options.MaybeModel = "",
    cases: Annotated[
        str,
        typer.Option(metavar="FILE", help="many cases, a JSON line each"),
    ] = "",
    as_json: options.Json = False,
    explain: options.Explain = "",
    plot: options.Plot = "",
    save: options.Save = "",
    check: Annotated[
        bool, typer.Option("--check", help="exit 1 when it does not fit or misses a goal")
    ] = False,
    **rest: Any,
) -> None:
    """Prefill and decode times, what binds each, and TTFT, TPOT and throughput at a load."""
    if cases:
        _cases(cases, as_json)
        return
    answer = kvplan.latency(**output.asked())
    output.draw(plot, answer, "latency")
    output.save(save, answer)
    output.show(answer, "latency", as_json, explain, {})
    if check and not met(answer):
        raise typer.Exit(1)


def met(answer: dict[str, Any]) -> bool:
    """Whether the load is served within the goals."""
    serving, goal = answer["serving"], answer["batches"]["goal"] or {}
    for name in ("ttft_seconds", "tpot_seconds"):
        wanted, found = goal.get(name.replace("_seconds", "_goal_seconds")), serving[name]
        later = name == "tpot_seconds" and answer["load"]["output_tokens"] == 1
        if wanted is not None and not later and (found is None or found > wanted):
            return False
    return serving["output_tokens_per_second"] is not None


def _cases(path: str, as_json: bool) -> None:
    """Answer every line of a file: a JSON line each, or a table."""
    others = sorted(output.asked())
    if others:
        raise BadInput(f"--{others[0].replace('_', '-')}: a line of --cases says it; drop the option")
    from kvplan.verbs.case_lines import answered

    if as_json:
        for _, found in answered(path):
            print(json.dumps(found), flush=False)
        return
    from kvplan.faces import latency_report

    latency_report.cases(answered(path))
