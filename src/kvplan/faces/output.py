"""What a command was given, and how its answer leaves: a report, a document, an explanation, a picture."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvplan.errors import BadInput, shown
from kvplan.faces import usage

if TYPE_CHECKING:
    from kvplan.verbs.answer import Answer

_FACE = ("as_json", "explain", "plot", "check", "cases", "markdown", "save", "launch")  # the face's own


def given() -> set[str]:
    """The options the user wrote, as opposed to those left at their default."""
    context: Any = _context()
    return {name for name in context.params if context.get_parameter_source(name).name == "COMMANDLINE"}


def asked() -> dict[str, Any]:
    """The options the user wrote with their values, those of the face alone left out."""
    values = _context().params
    return {name: values[name] for name in given() if name not in _FACE}


def _context() -> Any:
    from typer._click.globals import get_current_context

    return get_current_context()


def show(answer: Answer, verb: str, as_json: bool, explain: str, asked: dict[str, Any]) -> None:
    """Print the answer as it was asked for; notes go to standard error."""
    for note in answer.get("notes", ()):
        print(f"kvplan: note: {note}", file=sys.stderr)
    if explain:
        text = answer.explain(None if explain == usage.ALL else explain)
        if as_json:
            raise BadInput("--explain: prints text, --json a document; give one of them")
        print(text)
    elif as_json:
        print(json.dumps(answer, indent=1))
    else:
        from kvplan.faces import text as face

        face.show(verb, answer, asked)


def save(path: str, answer: Answer) -> None:
    """Keep the answer's document in the file that --save names, whole or not at all."""
    if not path:
        return
    file = Path(path)
    if file.is_dir():
        raise BadInput(f"--save: {shown(path)} is a folder; name a file, such as plan.json")
    part = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        part.write_text(json.dumps(answer, indent=1) + "\n", "utf-8")
        part.replace(file)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise BadInput(f"--save: {shown(path)} cannot be written: {error.strerror}") from None


def draw(plot: str, answer: Answer, verb: str) -> None:
    """Draw the answer's pictures to the file that --plot names."""
    if plot:
        from kvplan.faces import draw

        draw.draw(plot, verb, answer)
