"""`kvplan levers`: the command and its flags."""

from __future__ import annotations

from typing import Annotated, Any

import typer

import kvplan
from kvplan.faces import options, output
from kvplan.faces.engine_options import takes


def _of_levers(name: str, help: str, metavar: str | None = None) -> Any:
    return typer.Option(name, help=help, metavar=metavar, rich_help_panel="levers", show_default=False)


@takes(options.deployment, options.links, options.load, options.measured, options.later)
def levers(
    model: options.MaybeModel = "",
    prefix_hit_rate: Annotated[
        float, _of_levers("--prefix-hit-rate", "share of prompt tokens found in a cache; half else", "0..1")
    ] = 0.0,
    host_cache: Annotated[
        str, _of_levers("--host-cache", "host memory for caches, all ranks; twice the device's else", "SIZE")
    ] = "",
    price: Annotated[
        list[str] | None,
        _of_levers("--price", "dollars an hour of one, for each: h100=2.49; listed ones else", "GPU=RATE"),
    ] = None,
    as_json: options.Json = False,
    explain: options.Explain = "",
    plot: options.Plot = "",
    save: options.Save = "",
    check: Annotated[
        bool, typer.Option("--check", help="exit 1 when it does not fit or misses a goal as it is")
    ] = False,
    **rest: Any,
) -> None:
    """Every what-if side by side: memory, times, cost against the deployment as it is, and at what price."""
    answer = kvplan.levers(**output.asked())
    output.draw(plot, answer, "levers")
    output.save(save, answer)
    output.show(answer, "levers", as_json, explain, {})
    if check and answer["binds"]["figure"] in ("fits", "goals"):
        raise typer.Exit(1)
