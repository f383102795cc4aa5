"""Two versions of an engine side by side: which figures change, at which release, by which rule."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

from kvplan.engines.budget import memory_of
from kvplan.engines.deployment import Deployment
from kvplan.engines.engine import FIGURES
from kvplan.engines.registry import capacity_of, rules_between
from kvplan.facts.engine_versions import find_version, key, versions_of
from kvplan.figure import bare

MEMORY = ("activation_bytes", "graph_bytes", "overhead_bytes", "kv_pool_bytes")
CAPACITY = ("fits", *FIGURES)


def figures_of(d: Deployment) -> dict[str, Any]:
    """The figures that two versions are compared by, as bare numbers."""
    memory = memory_of(d, bare)
    capacity = capacity_of(d, memory["kv_pool_bytes"], bare)
    return {name: memory[name] for name in MEMORY} | {name: getattr(capacity, name) for name in CAPACITY}


def with_version(d: Deployment, version: str) -> Deployment:
    """The same deployment under another version of its engine."""
    return replace(d, setup=replace(d.setup, version=version))


def compare(d: Deployment, other: str) -> dict[str, Any]:
    """What changes from this version to `other`: every release between at which a figure moves.

    `changes` rows: `version` (the first with the new value), `figure`, `before`, `after`, and the
    `rules` that changed in that release with where each was read.
    """
    target = find_version(d.setup.engine, other)
    known = versions_of(d.setup.engine)
    low, high = sorted((known.index(d.setup.version), known.index(target)))
    path = known[low : high + 1]
    rows = []
    before = figures_of(with_version(d, path[0]))
    first = before
    for older, newer in pairwise(path):
        after = figures_of(with_version(d, newer))
        moved = [name for name in after if after[name] != before[name]]
        if moved:
            rules = rules_between(d.setup.engine, older, newer)
            rows += [_change(newer, name, before, after, rules) for name in moved]
        before = after
    newest = before
    mine, theirs = (first, newest) if key(d.setup.version) <= key(target) else (newest, first)
    same = [name for name in mine if mine[name] == theirs[name]]
    return {"version": target, "figures": theirs, "unchanged": same, "changes": rows}


def _change(
    version: str, name: str, before: dict[str, Any], after: dict[str, Any], rules: list[str]
) -> dict[str, Any]:
    return {"version": version, "figure": name, "before": before[name], "after": after[name], "rules": rules}
