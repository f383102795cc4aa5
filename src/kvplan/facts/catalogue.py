"""The built-in models: config.json files as published, with where each was seen."""

from __future__ import annotations

import functools
import json
import re
from dataclasses import dataclass
from typing import Any

from kvplan.facts import store
from kvplan.facts.names import same_digits, squash, stem


@dataclass(frozen=True, slots=True)
class Entry:
    """One built-in model: its id, file, and how far the file can be trusted."""

    id: str
    file: str
    family: str
    model_type: str | None
    confidence: str
    source: str
    sidecar: str | None
    licence: str | None
    published_parameters: int | None
    published_source: str | None
    published_note: str | None
    notes: str | None

    def config(self) -> dict[str, Any]:
        """The config.json's content."""
        found: dict[str, Any] = json.loads((store.ROOT / "models" / self.file).read_text("utf-8"))
        return found

    def quantization_sidecar(self) -> dict[str, Any] | None:
        """The content of the hf_quant_config.json published beside it, if any."""
        path = store.ROOT / "models" / "sidecar" / f"{self.file[:-5]}.hf_quant_config.json"
        if not path.is_file():
            return None
        found: dict[str, Any] = json.loads(path.read_text("utf-8"))
        return found


@functools.cache
def entries() -> tuple[Entry, ...]:
    """Every built-in model, by id."""
    return tuple(
        Entry(
            id=row["id"],
            file=row["file"],
            family=row.get("family", ""),
            model_type=row.get("text_model_type") or row.get("model_type"),
            confidence=row["confidence"],
            source=row["source"],
            sidecar=row.get("sidecar"),
            licence=row.get("licence"),
            published_parameters=row.get("total_params_published"),
            published_source=row.get("total_params_source"),
            published_note=row.get("total_params_note"),
            notes=row.get("notes"),
        )
        for row in store.json_lines("models.jsonl")
    )


def find_model(name: str) -> Entry | None:
    """The built-in model a person means: id, unique tail, alias or short name; None when none is."""
    by_id = {entry.id.lower(): entry for entry in entries()}
    if name.lower() in by_id:
        return by_id[name.lower()]
    org, _, tail = name.rpartition("/")
    alias = _alias(org, tail)
    if alias is not None:
        return by_id[alias.lower()]
    pool = [e for e in entries() if not org or e.id.lower().startswith(f"{org.lower()}/")]
    for key in (squash, stem):
        alike = [e for e in pool if key(e.id.rpartition("/")[2]) == key(tail)]
        found = [e for e in alike if same_digits(tail, e.id.rpartition("/")[2])]
        if found:
            return _best(found)
    return None


def begin_with(name: str) -> list[str]:
    """Ids whose name, or a later word of it on, begins as that name does: the shortest first."""
    typed = squash(name)
    ids = [entry.id for entry in entries()]
    first = [id for id in ids if squash(id.rpartition("/")[2]).startswith(typed)]
    later = [id for id in ids if id not in first and any(s.startswith(typed) for s in _tails(id))]
    return [*sorted(first, key=len), *sorted(later, key=len)] if typed else []


def _tails(id: str) -> list[str]:
    """The squashed name from each of its words on."""
    words = re.split(r"[^A-Za-z0-9.]+", id.rpartition("/")[2])
    return [squash("".join(words[i:])) for i in range(len(words))]


def _alias(org: str, tail: str) -> str | None:
    """The id an alias stands for; a given owner must be the id's own or stand in the alias."""
    for short, id in store.toml("aliases.toml")["models"].items():
        owner, _, name = short.rpartition("/")
        owners = {owner.lower()} if owner else {"", id.partition("/")[0].lower()}
        if squash(name) == squash(tail) and same_digits(tail, name) and org.lower() in owners:
            return str(id)
    return None


def _best(found: list[Entry]) -> Entry:
    """One file for base, instruct and chat of the same model: the surest, then the shortest name."""
    return min(found, key=lambda e: (not e.confidence.startswith("exact"), len(e.id), e.id))
