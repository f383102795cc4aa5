"""Scenarios with answers that experts accept (data/scenarios.toml), asked and held against those."""

from __future__ import annotations

import contextlib
import io
import json
import shlex
import tomllib
from pathlib import Path
from typing import Any

from kvplan.faces.cli import main

FILE = Path(__file__).parent / "data" / "scenarios.toml"


def scenarios() -> list[dict[str, Any]]:
    """All of them, in their order."""
    found: list[dict[str, Any]] = tomllib.loads(FILE.read_text("utf-8"))["scenario"]
    return found


def asked(words: str) -> dict[str, Any]:
    """The document that `kvplan recommend` prints for these words."""
    said, noted = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(noted):
        try:
            main(["recommend", *shlex.split(words), "--json", "--workers", "1"])
        except SystemExit as ended:
            if ended.code:
                raise RuntimeError(f"{words}: {noted.getvalue()}") from None
    found: dict[str, Any] = json.loads(said.getvalue())
    return found


def is_one_of(row: dict[str, Any], accepted: list[dict[str, Any]]) -> bool:
    """Whether an answer has all that one of the tables says."""
    d = row["deployment"]
    has = {**d, "slots": d["settings"].get("parallel"), "accelerators": row["accelerators"]}
    return any(all(_within(has[name], value) for name, value in table.items()) for table in accepted)


def _within(value: Any, wanted: Any) -> bool:
    return value in wanted if isinstance(wanted, list) else bool(value == wanted)
