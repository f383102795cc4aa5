"""`kvplan measure`: the command and its flags."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

import kvplan
from kvplan.faces import options, output


def _of(name: str, help: str, metavar: str | None = None, *, model: bool = False) -> Any:
    panel = "a model that is run here" if model else "the machine"
    return typer.Option(name, help=help, metavar=metavar, rich_help_panel=panel, show_default=False)


def measure(
    device: Annotated[str, _of("--device", "cpu or cuda; the GPU where torch sees one", "NAME")] = "",
    threads: Annotated[int, _of("--threads", "of torch on the CPU; 1: only its own time counts", "N")] = 0,
    size: Annotated[str, _of("--size", "of the arrays: 16MiB,64MiB,256MiB else", "SIZE,SIZE")] = "",
    dtypes: Annotated[str, _of("--dtypes", "of products: float32,bfloat16,float16", "NAME,NAME")] = "",
    m: Annotated[str, _of("--m", "rows of products; 1,4,16,64,256,1024 else", "N,N")] = "",
    rounds: Annotated[int, _of("--rounds", "times that everything is timed; 3 else", "N")] = 3,
    model: Annotated[
        str, _of("--model", "a config, with random weights, or a folder's own", "MODEL", model=True)
    ] = "",
    layers: Annotated[int, _of("--layers", "the first so many of its layers", "N", model=True)] = 0,
    dtype: Annotated[str, _of("--dtype", "bfloat16, float16 or float32; the config's else", model=True)] = "",
    batch: Annotated[str, _of("--batch", "sequences of a step; 1,2,4,8,16 else", "N,N", model=True)] = "",
    context: Annotated[
        str, _of("--context", "tokens in their caches; 128,256,512,1024 else", "N,N", model=True)
    ] = "",
    prompt_tokens: Annotated[
        str, _of("--prompt-tokens", "of prompts; 64,128,256,512,1024 else", "N,N", model=True)
    ] = "",
    steps: Annotated[int, _of("--steps", "that a round times of each cell; 5 else", "N", model=True)] = 5,
    as_json: options.Json = False,
    plot: options.Plot = "",
    save: Annotated[
        str,
        typer.Option("--save", metavar="FILE.json", help="keep it, for --gpu FILE.json", show_default=False),
    ] = "",
    check: Annotated[
        bool, typer.Option("--check", help="exit 1 when a cache or a decode step disagrees")
    ] = False,
) -> None:
    """Time this machine, and a real model on it, beside what kvplan says; --gpu reads what is kept."""
    answer = kvplan.measure(**output.asked(), report=_told)
    output.draw(plot, answer, "measure")
    output.save(save, answer)
    output.show(answer, "measure", as_json, "", {})
    verdict = answer["verdict"]
    if check and verdict and not (verdict["cache_agrees"] and verdict["decode"]["agrees"]):
        raise typer.Exit(1)


def _told(what: str) -> None:
    """Say how far it is."""
    print(f"kvplan: {what}", file=sys.stderr, flush=True)
