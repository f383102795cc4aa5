"""`kvplan recommend`: the command and its flags."""

from __future__ import annotations

from typing import Annotated, Any

import typer

import kvplan
from kvplan.advise.executor import processors
from kvplan.faces import load_options as load
from kvplan.faces import options, output
from kvplan.faces.engine_options import takes
from kvplan.faces.progress import progress

_SEARCH = "what may be used: names with commas"
_WORK = "who does the work"
_GPUS = "h100,l40s, …; all that have a price else"
_KEPT = "keep what is found in FILE.parquet, and go on from there"
_OWN = "own, fp8, awq, … the checkpoint's own else"


@takes(load.traffic)
def recommend(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="an id, a path or a repo")],
    gpu: Annotated[str, load.option("--gpu", _GPUS, _SEARCH, "NAMES")] = "",
    engine: Annotated[str, load.option("--engine", "vllm,sglang, …; vllm else", _SEARCH, "NAMES")] = "",
    engine_version: options.Version = "",
    quantization: Annotated[str, load.option("--quantization", _OWN, _SEARCH, "NAMES")] = "",
    kv_cache_dtype: Annotated[
        str, load.option("--kv-cache-dtype", "auto,fp8, …; auto else", _SEARCH, "NAMES")
    ] = "",
    max_accelerators: Annotated[
        int, load.option("--max-accelerators", "at most so many in all; 16 else", _SEARCH)
    ] = 16,
    price: Annotated[
        list[str], typer.Option(metavar="GPU=RATE", help="dollars an hour, in place of the list price")
    ] = [],  # noqa: B006
    answers: Annotated[int, typer.Option(help="how many are shown at most")] = 5,
    workers: Annotated[int, load.option("--workers", "processes; as many as processors else", _WORK)] = 0,
    ray: Annotated[
        str, load.option("--ray", "a Ray cluster that runs: auto, or its address", _WORK, "ADDRESS")
    ] = "",
    resume: Annotated[
        str,
        load.option("--resume", "keep what is found in FILE.parquet, and go on from there", _WORK, "FILE"),
    ] = "",
    as_json: options.Json = False,
    plot: options.Plot = "",
    save: options.Save = "",
    check: Annotated[bool, typer.Option("--check", help="exit 1 when nothing meets the goals")] = False,
    **rest: Any,
) -> None:
    """The cheapest deployments that meet the goals, with reasons and launch commands."""
    asked = {"workers": processors(), **output.asked()}
    with progress("looking for what fits") as report:
        answer = kvplan.recommend(**asked, report=report)
    output.draw(plot, answer, "recommend")
    output.save(save, answer)
    output.show(answer, "recommend", as_json, "", {})
    if check and not answer["met"]:
        raise typer.Exit(1)
