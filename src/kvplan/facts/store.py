"""Reading the data files that ship inside the package."""

from __future__ import annotations

import functools
import json
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent


@functools.cache
def toml(name: str) -> dict[str, Any]:
    """A TOML data file, parsed once. `name` is relative to the facts folder."""
    return tomllib.loads((ROOT / name).read_text(encoding="utf-8"))


@functools.cache
def json_lines(name: str) -> tuple[dict[str, Any], ...]:
    """A JSON-lines data file, parsed once."""
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    return tuple(json.loads(line) for line in lines)


@functools.cache
def json_file(name: str) -> Any:
    """A JSON data file, parsed once."""
    return json.loads((ROOT / name).read_text(encoding="utf-8"))


def exists(name: str) -> bool:
    """Whether such a data file ships."""
    return (ROOT / name).is_file()
