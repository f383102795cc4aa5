"""SGLang's rules by version: which of the behaviours in facts/engines/sglang.toml a version shows."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvplan.facts import store
from kvplan.figure import Source, Trust

FACTS = "engines/sglang.toml"


@dataclass(frozen=True, slots=True)
class Rules:
    """What one version does: values by name, and the file and version each was read from."""

    version: str
    values: Mapping[str, Any]
    sources: Mapping[str, str]

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def source(self, name: str) -> Source:
        """Where the rule of that name was read."""
        return Source(Trust.ENGINE_RULE, f"SGLang {self.sources[name]}")


def version_key(version: str) -> tuple[int, ...]:
    """A version as numbers that compare: `0.4.6.post5` lies between 0.4.6 and 0.4.7."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:5])


def newest() -> str:
    """The newest version whose source was read."""
    return str(store.toml(FACTS)["newest"])


@functools.cache
def rules_of(version: str) -> Rules:
    """The rules of that version, of the newest one when the text names none."""
    known = version if re.match(r"v?\d+\.\d+", version) else newest()
    key = version_key(known)
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for entry in store.toml(FACTS)["change"]:
        if version_key(entry["from"]) <= key:
            found = {k: v for k, v in entry.items() if k not in ("from", "source")}
            values |= found
            sources |= dict.fromkeys(found, entry["source"])
    return Rules(known.removeprefix("v"), values, sources)


def memory_rules(version: str) -> dict[str, Any]:
    """The memory tiers of that version."""
    key = version_key(rules_of(version).version)
    rows = [row for row in store.toml(FACTS)["memory"] if version_key(row["from"]) <= key]
    found: dict[str, Any] = rows[-1]
    return found


def defaults() -> dict[str, Any]:
    """Settings that hold when no flag is given, with their `source`."""
    found: dict[str, Any] = store.toml(FACTS)["defaults"]
    return found
