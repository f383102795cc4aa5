"""Which versions of an engine are known, and which one a prefix means."""

from __future__ import annotations

import functools
import re
from typing import Any

from kvplan.errors import UnknownName, did_you_mean, shown
from kvplan.facts import store

ENGINES = ("vllm", "sglang", "tensorrt-llm", "llama.cpp", "transformers")


def versions_of(engine: str) -> list[str]:
    """Every known version of an engine, oldest first."""
    found: list[str] = store.toml("engines/versions.toml")[engine]["versions"]
    return found


def source_of(engine: str) -> str:
    """Where the list of an engine's versions was read."""
    return str(store.toml("engines/versions.toml")[engine]["source"])


def find_engine(name: str) -> str:
    """The engine of that name; raises UnknownName with the known ones."""
    if not isinstance(name, str):
        raise UnknownName(f"--engine: {shown(name)} is not a name; known: {', '.join(ENGINES)}")
    folded = {re.sub(r"[^a-z]", "", engine): engine for engine in ENGINES} | {"trtllm": "tensorrt-llm"}
    found = folded.get(re.sub(r"[^a-z]", "", name.lower()))
    if found is None:
        hint = did_you_mean(name, ENGINES) or f"known: {', '.join(ENGINES)}"
        raise UnknownName(f"--engine: {shown(name)} is not known; {hint}")
    return found


def find_version(engine: str, text: str | None) -> str:
    """The newest known version that starts with `text`, or the newest of all.

    Raises UnknownName naming the known ones for anything else, such as a date.
    """
    known = versions_of(engine)
    if not text:
        return known[-1]
    if not isinstance(text, str):
        raise UnknownName(f"--engine-version: {shown(text)} is not text; write it as such, as in '0.19'")
    wanted = text.lower().removeprefix("v")
    fitting = [v for v in known if v == wanted or v.startswith((f"{wanted}.", f"{wanted}post"))]
    if wanted in known:
        return wanted
    if not fitting:
        minors = list(dict.fromkeys(".".join(v.split(".")[:2]) for v in known))
        raise UnknownName(
            f"--engine-version: {shown(text)} is no known version of {engine}; known: {', '.join(minors)}"
        )
    return fitting[-1]


@functools.lru_cache(maxsize=4096)
def key(version: str) -> tuple[int, ...]:
    """A version as numbers, for comparing."""
    return tuple(int(part) for part in re.findall(r"\d+", version))


def entry_for(rows: list[dict[str, Any]], version: str) -> dict[str, Any]:
    """Of rows that each name the first version they hold `from`, newest first, the one in force."""
    return next(row for row in rows if key(version) >= key(row["from"]))
