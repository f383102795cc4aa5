"""Refusing a quantisation config whose numbers cannot be meant, before any scheme is read from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvplan.errors import BadConfig, shown


def check_quantization(q: Mapping[str, Any], file: str) -> None:
    """Raise BadConfig for group sizes, blocks or groups that are no such thing; null means absent."""
    _check_group(q, "quantization_config.group_size", file)
    block = q.get("weight_block_size")
    sizes = block if isinstance(block, list) else [block]
    if block is not None and (not sizes or not all(_positive(size) for size in sizes)):
        raise _wrong("quantization_config.weight_block_size", block, file, "whole numbers of at least 1")
    groups = q.get("config_groups")
    if groups is None:
        return
    if not isinstance(groups, Mapping):
        raise _wrong("quantization_config.config_groups", groups, file, "an object with one entry per group")
    for name, entry in groups.items():
        where = f"quantization_config.config_groups.{name}"
        if not isinstance(entry, Mapping):
            raise _wrong(where, entry, file, "an object")
        weights = entry.get("weights")
        if weights is not None and not isinstance(weights, Mapping):
            raise _wrong(f"{where}.weights", weights, file, "an object or null")
        _check_group(weights or {}, f"{where}.weights.group_size", file)


def _check_group(table: Mapping[str, Any], name: str, file: str) -> None:
    size = table.get("group_size")
    if size is not None and size != -1 and not _positive(size):
        raise _wrong(name, size, file, "a whole number of at least 1, or -1 for one group a row")


def _positive(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= 1 << 20


def _wrong(name: str, value: object, file: str, expected: str) -> BadConfig:
    return BadConfig(f"{name}: {shown(value)} in {file}; expected {expected}; correct the file")
