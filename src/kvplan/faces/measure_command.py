"""`kvplan measure`: the command and its flags."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

import kvplan
from kvplan.errors import BadInput, shown
from kvplan.faces import options, output


def _of(name: str, help: str, metavar: str | None = None, *, model: bool = False) -> Any:
    panel = "a model that is run here" if model else "the machine"
    return typer.Option(name, help=help, metavar=metavar, rich_help_panel=panel, show_default=False)


def can_keep(name: str) -> str:
    """Refuse, before anything is timed, a file that cannot be written or that --gpu would not read."""
    if not name:
        return name
    if not name.lower().endswith(".json"):
        raise BadInput(
            f"--save: {shown(name)} does not end in .json, as --gpu FILE.json must; name one that does"
        )
    file = Path(name)
    try:
        if file.is_dir():
            raise BadInput(f"--save: {shown(name)} is a folder; name a file, such as here.json")
        if not file.parent.is_dir():
            raise BadInput(f"--save: the folder {shown(str(file.parent))} is not there; make it first")
        part = file.with_name(f".{file.name}.{os.getpid()}")  # what output.save writes first
        part.touch()
        part.unlink()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise BadInput(f"--save: {shown(name)} cannot be written: {why}") from None
    return name


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
        typer.Option(
            "--save",
            metavar="FILE.json",
            help="keep it, for --gpu FILE.json",
            show_default=False,
            callback=can_keep,
        ),
    ] = "",
    check: Annotated[
        bool, typer.Option("--check", help="exit 1 when a cache or a decode step disagrees")
    ] = False,
) -> None:
    """Time this machine, and a real model on it, beside what kvplan says; --gpu reads what is kept."""
    if plot and not model:
        raise BadInput("--plot: draws the steps of a model; give --model")
    answer = kvplan.measure(**output.asked(), report=_told)
    output.draw(plot, answer, "measure")
    output.save(save, answer)
    output.show(answer, "measure", as_json, "", {})
    if check and not passes(answer["verdict"]):
        raise typer.Exit(1)


def passes(verdict: dict[str, Any] | None) -> bool:
    """Whether --check passes: something was tested, and agrees. Says so where nothing was."""
    if verdict is None:
        _told("--check: no model was run, so nothing was tested; give --model")
        return False
    if not verdict["decode"]["points"]:
        _told(
            "--check: all decode steps were fitted on, so none was tested; give more of --batch or --context"
        )
        return False
    return bool(verdict["cache_agrees"] and verdict["decode"]["agrees"])


def _told(what: str) -> None:
    """Say how far it is."""
    print(f"kvplan: {what}", file=sys.stderr, flush=True)
