"""Options that commands share: in groups, and the engines' own flags, made from the facts that name them."""

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


def takes(*groups: Callable[..., None]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of these groups, and one for every engine setting, in place of its `**rest`.

    A group is a function whose parameters are options; it is never called. What a command has itself stays.
    """

    def wrap(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        first = [p for p in own if p.name == "model"]
        found = {p.name: p for p in first}
        for group in groups:
            options = inspect.signature(group, eval_str=True).parameters.values()
            found |= {p.name: p for p in options if p.name not in signature.parameters}
        found |= {p.name: p for p in own}
        added = [
            _parameter(flag) for flag in flags().values() if flag.name not in found and not flag.is_variable
        ]
        found |= {p.name: p for p in added}
        command.__signature__ = signature.replace(parameters=list(found.values()))  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in found.values()} | {"return": None}
        return command

    return wrap


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
