"""How engines are started: their own spellings by version, their images, and the lines they print."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from kvplan.facts import store
from kvplan.facts.engine_versions import key

_HOW = "engines/launch.toml"
_IMAGES = "engines/images.toml"
_LINES = "engines/startup.toml"


def how(engine: str) -> Mapping[str, Any]:
    """How that engine is started: `program`, `ranks`, and what its versions have."""
    found: Mapping[str, Any] = store.toml(_HOW)[engine]
    return found


@functools.cache
def has(engine: str, setting: str, version: str) -> bool:
    """Whether that version's command line has the setting."""
    table = how(engine)
    since, gone = (table.get(part, {}).get(setting) for part in ("since", "gone"))
    if setting in table.get("no_flag", ()):
        return False
    return (since is None or key(version) >= key(since)) and (gone is None or key(version) < key(gone))


def container(engine: str) -> Mapping[str, Any]:
    """How the engine runs in its image: port, health path, where models are cached."""
    found: Mapping[str, Any] = store.toml(_IMAGES)[engine]
    return found


def image_of(engine: str, platform: str, version: str, arch: str | None) -> str | None:
    """The image of that version, or None where the engine publishes none that is known."""
    rows = container(engine).get(platform, ()) if engine in store.toml(_IMAGES) else ()
    for row in rows:
        if key(version) < key(row["from"]):
            continue
        family = row.get("family", {}).get(arch) if "family" in row else ""
        return None if family is None else str(row["image"]).format(version=version, family=family)
    return None


def machine() -> Mapping[str, Any]:
    """What a container needs of its machine."""
    found: Mapping[str, Any] = store.toml(_IMAGES)["machine"]
    return found


def allowance() -> Mapping[str, Any]:
    """How long a start may take."""
    found: Mapping[str, Any] = store.toml(_IMAGES)["allowance"]
    return found


def accelerators_of_a_machine(accelerator: str | None) -> int:
    """How many of that accelerator one machine has at most."""
    own = machine()["accelerators"].get(accelerator) if accelerator else None
    node = store.toml("efficiency/classes.toml")["node"]["accelerators"]
    return int(node if own is None else own)


def printed_by(engine: str, version: str) -> Mapping[str, Any]:
    """The lines which that version prints at start-up, as templates; empty for a library."""
    rows = store.toml(_LINES).get(engine, ())
    return next((row for row in rows if key(version) >= key(row["from"])), {})


def before(version: str, other: str) -> bool:
    """Whether a version is older than another."""
    return key(version) < key(other)
