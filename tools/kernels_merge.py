"""One kernel of an accelerator, operation and format: the engine's whose fit is the quickest on all timings.

Engines take over one another's kernels before long, so that the quickest is what the others will reach. A fit
that misses a tenth of its own timings by four fifths is passed over where there is another.
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
POOR = 0.8  # of a fit: the 90th percentile of its own errors
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


def quickest(fits: list[Fitted], fields: tuple[str, ...]) -> tuple[Row, dict[str, float]]:
    """The fit that is the quickest on every engine's timings, and its figures; what it lacks is left out."""
    good = [one for one in fits if one.row["p90_error"] < POOR] or fits
    figures = [{name: one.row[name] for name in fields if one.row.get(name)} for one in good]
    speed = [float(np.mean(np.concatenate([other.errors(v) for other in good]))) for v in figures]
    first = min(range(len(good)), key=lambda i: speed[i])
    return good[first].row, figures[first]


def spread(errors: Array) -> list[float]:
    """Median error, bias and 90th percentile."""
    size = np.abs(np.expm1(errors))
    figures = np.median(size), np.expm1(np.median(errors)), np.quantile(size, 0.9)
    return [round(float(figure), 3) for figure in figures]


def merge(fits: list[Fitted]) -> Row:
    """One row from the fits of one accelerator, operation and format."""
    rows = [one.row for one in fits]
    first = rows[0]
    chosen, v = quickest(fits, LINK_FIELDS if first["operation"] in LINKS else FIELDS)
    return {
        **{name: first[name] for name in ("accelerator", "operation", "format")}, **v,
        "of": f"{chosen['engine']} {chosen['engine_version']}",
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
