"""`models`, `accelerators` and `engines`: what is built in, with sources."""

from __future__ import annotations

from typing import Any

from kvplan.errors import BadInput, shown
from kvplan.facts.accelerators import accelerators as built_in
from kvplan.facts.accelerators import source_names
from kvplan.facts.catalogue import entries
from kvplan.facts.engine_versions import ENGINES, source_of, versions_of


def models(filter: str = "") -> list[dict[str, Any]]:
    """Built-in models whose id, family or model type contains `filter`, each with its provenance."""
    _text(filter)
    return [
        {
            "id": e.id,
            "family": e.family,
            "model_type": e.model_type,
            "confidence": e.confidence,
            "licence": e.licence,
            "published_parameters": e.published_parameters,
            "source": e.source,
            "notes": e.notes,
        }
        for e in entries()
        if filter.lower() in f"{e.id} {e.family} {e.model_type}".lower()
    ]


def accelerators(filter: str = "") -> list[dict[str, Any]]:
    """Built-in accelerators whose key, name or vendor contains `filter`, in SI units, with sources."""
    _text(filter)
    return [
        {
            "key": a.key,
            "name": a.name,
            "vendor": a.vendor,
            "arch": a.arch,
            "memory_bytes": a.memory_bytes,
            "memory_source": a.memory_source,
            "bytes_per_second": a.bytes_per_second,
            "peak_flops_per_second": a.peaks,
            "link_bytes_per_second": a.link_bytes_per_second,
            "power_watts": a.power_watts,
            "sources": [source_names().get(s, s) for s in a.sources],
            "unsure": list(a.unsure),
            "notes": a.notes,
        }
        for a in built_in()
        if filter.lower() in f"{a.key} {a.name} {a.vendor}".lower()
    ]


def engines(filter: str = "") -> list[dict[str, Any]]:
    """Engines whose name contains `filter`: the versions whose rules are known, oldest first."""
    _text(filter)
    return [
        {
            "name": name,
            "oldest": versions_of(name)[0],
            "newest": versions_of(name)[-1],
            "versions": versions_of(name),
            "source": source_of(name),
        }
        for name in ENGINES
        if filter.lower() in name
    ]


def _text(filter: object) -> None:
    if not isinstance(filter, str):
        raise BadInput(f"FILTER: {shown(filter)} is not text")
