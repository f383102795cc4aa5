"""`--launch FILE` and `--launch-as FORM`: in which form a launch leaves, and the file it is written to."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvplan.errors import BadInput, shown

_SCRIPTS = (".sh", ".bash", "")
_YAML = (".yaml", ".yml")


def form_of(file: str, form: str) -> dict[str, str]:
    """The form that `plan` is asked for: the one named, else what the file's name says; none without both."""
    if form:
        return {"launch_as": form}
    if not file:
        return {}
    name = Path(file).name.lower()
    if not name.endswith(_YAML):
        if Path(name).suffix not in _SCRIPTS:
            raise BadInput(
                f"--launch: {shown(file)} does not say its form; "
                "end it in .sh, compose.yaml or .yaml, or give --launch-as"
            )
        return {"launch_as": "command"}
    return {"launch_as": "compose" if "compose" in name else "kubernetes"}


def check(file: str) -> None:
    """Refuse, before any work, a file that cannot be written. Raises BadInput."""
    target = Path(file)
    try:
        if target.is_dir():
            raise BadInput(f"--launch: {shown(file)} is a folder; name a file, such as launch.sh")
        if not target.parent.is_dir():
            raise BadInput(f"--launch: the folder {shown(str(target.parent))} is not there; make it first")
    except (OSError, ValueError) as error:
        raise _cannot(file, error) from None


def write(file: str, answer: Mapping[str, Any]) -> None:
    """Write the launch, whole or not at all; a script may be run."""
    if not file:
        return
    target, text = Path(file), str(answer["launch_text"])
    part = target.with_name(f".kvplan-{os.getpid()}.part")
    try:
        part.write_text(text, "utf-8", errors="surrogateescape")
        if text.startswith("#!"):
            part.chmod(part.stat().st_mode | 0o111)
        part.replace(target)
    except (OSError, ValueError) as error:
        raise _cannot(file, error) from None
    finally:
        part.unlink(missing_ok=True)


def _cannot(file: str, error: Exception) -> BadInput:
    reason = getattr(error, "strerror", None) or str(error)
    return BadInput(f"--launch: cannot write {shown(file)} ({reason}); name another file")


def show(answer: Mapping[str, Any]) -> None:
    """Print the launch alone; notes go to standard error."""
    for note in answer["notes"]:
        print(f"kvplan: note: {note}", file=sys.stderr)
    print(answer["launch_text"], end="")
