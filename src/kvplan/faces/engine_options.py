"""The engines' own flags as command-line options, made from the facts that name them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from kvplan.facts.flags import Flag, flags

_SHOWN = {
    "count": "N",
    "counts": "N,N",
    "length": "N",
    "layers": "N",
    "number": "X",
    "share": "0..1",
    "shares": "0..1,…",
    "size": "SIZE",
    "word": "WORD",
    "json": "JSON",
}


def takes_engine_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command one option for every engine setting, in place of its `**engine_flags`."""
    signature = inspect.signature(command, eval_str=True)
    own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    taken = {p.name for p in own}
    added = [_parameter(flag) for flag in flags().values() if flag.name not in taken and not flag.is_variable]
    command.__signature__ = signature.replace(parameters=[*own, *added])  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in (*own, *added)} | {"return": None}
    return command


def _parameter(flag: Flag) -> inspect.Parameter:
    panel = f"{flag.engines[0]} settings"
    if flag.type == "yes":
        names = f"{flag.option}/--no-{flag.option.removeprefix('--')}"
        option = typer.Option(names, help=flag.help, rich_help_panel=panel, show_default=False)
        kind: Any = bool | None
    else:
        option = typer.Option(
            flag.option, metavar=_SHOWN[flag.type], help=flag.help, rich_help_panel=panel, show_default=False
        )
        kind = str | None
    return inspect.Parameter(
        flag.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, option]
    )
