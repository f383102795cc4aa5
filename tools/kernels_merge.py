"""One kernel of an accelerator, operation and format: the best of every figure over the engines' fits.

Engines take over one another's kernels before long, so that the best of each is what one of them will reach.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from kernels_read import Array

Row = dict[str, Any]
FIELDS = ("launch_seconds", "compute", "memory", "pad", "depth_seconds", "moved_bytes", "tile_seconds")
LINK_FIELDS = ("launch_seconds", "rank_seconds", "link", "one_shot", "ring_seconds", "share")
MORE_IS_BETTER = ("compute", "memory", "link", "one_shot")
LINKS = ("all_reduce", "all_gather", "reduce_scatter")
READ = (
    "matmul", "experts", "attention_prefill", "attention_decode", "mla_prefill", "mla_decode", "state_decode",
    *LINKS,
)  # fmt: skip


@dataclass
class Fitted:
    """What one engine's timings gave: a row, and the error of any parameters on those timings."""

    row: Row
    errors: Callable[[dict[str, float]], Array]  # in log time


def best(rows: list[Row], fields: tuple[str, ...]) -> dict[str, float]:
    """The best of every figure; one that a fit lacks is nothing there, and nothing is left out."""
    found = {}
    for name in fields:
        values = [row.get(name, 0.0) for row in rows]
        found[name] = max(values) if name in MORE_IS_BETTER else min(values)
    return {name: value for name, value in found.items() if value}


def spread(errors: Array) -> list[float]:
    """Median error, bias and 90th percentile."""
    size = np.abs(np.expm1(errors))
    figures = np.median(size), np.expm1(np.median(errors)), np.quantile(size, 0.9)
    return [round(float(figure), 3) for figure in figures]


def merge(fits: list[Fitted]) -> Row:
    """One row from the fits of one accelerator, operation and format."""
    rows = [one.row for one in fits]
    first = rows[0]
    v = best(rows, LINK_FIELDS if first["operation"] in LINKS else FIELDS)
    return {
        **{name: first[name] for name in ("accelerator", "operation", "format")}, **v,
        "fits": {
            f"{row['engine']} {row['engine_version']}": [row["rows"], row["median_error"], row["p90_error"]]
            for row in rows
        },
        "merged": spread(np.concatenate([one.errors(v) for one in fits])),
    }  # fmt: skip


def merged(fits: Iterable[Fitted]) -> list[Row]:
    """A row of each accelerator, operation and format that is read, shared and own links apart."""
    groups: dict[tuple[str, str, str, bool], list[Fitted]] = {}
    for one in fits:
        row = one.row
        if row["operation"] in READ:
            key = (row["accelerator"], row["operation"], row["format"], "share" in row)
            groups.setdefault(key, []).append(one)
    return [merge(group) for group in groups.values()]
