"""Hashes of prompt blocks, as traces give them, to ids: dense, and each standing for all before it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvplan.serve.traces_table import polars

Longs = NDArray[np.int64]
Ints = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Prefixes:
    """Ids of request i are `ids[start[i]:start[i + 1]]`; `chained` hashes came after different beginnings."""

    start: Longs
    ids: Ints
    chained: int


def hash_lists(column: Any) -> Any:
    """The column as lists, None where it holds none. A text `1 2`, `1,2` or `[1, 2]` is a list."""
    library = polars()
    kind = column.dtype
    if kind == library.Null:
        return library.Series(column.name, [[]] * len(column), dtype=library.List(library.Int64))
    if isinstance(kind, library.Array):
        column, kind = column.arr.to_list(), library.List(kind.inner)
    if kind.is_integer():
        column, kind = column.cast(library.String), library.String
    if kind == library.String:
        marks = column.fill_null("").str.replace_all(r"""[\[\](){}"',;\s]+""", " ").str.strip_chars()
        column = marks.str.split(" ").list.eval(library.element().filter(library.element() != ""))
        kind = column.dtype
    if not isinstance(kind, library.List) or kind.inner.is_nested():
        return None
    return column.fill_null([])


def prefixes_of(lists: Any) -> Prefixes:
    """The ids of each list's hashes. Equal hashes after different beginnings become different ids."""
    counts = lists.list.len().to_numpy().astype(np.int64)
    start = np.concatenate(([0], np.cumsum(counts)))
    if not start[-1]:
        return Prefixes(start, np.zeros(0, np.int32), 0)
    ids = _dense(lists.filter(lists.list.len() > 0).explode())
    before = np.concatenate(([-1], ids[:-1]))
    before[start[:-1][counts > 0]] = -1
    predecessor = np.full(int(ids.max()) + 1, -2, np.int64)
    predecessor[ids] = before
    wrong = predecessor[ids] != before
    if not wrong.any():
        return Prefixes(start, ids.astype(np.int32), 0)
    return Prefixes(start, _chained(ids, start, counts), len(np.unique(ids[wrong])))


def _dense(hashes: Any) -> Longs:
    library = polars()
    if not hashes.dtype.is_integer():
        whole = hashes.cast(library.Int64, strict=False) if hashes.dtype == library.String else hashes
        if not whole.dtype.is_integer() or whole.null_count():
            whole = hashes.cast(library.String).cast(library.Categorical).to_physical()
        hashes = whole
    values = hashes.to_numpy()
    if values.min() >= 0 and values.max() < 8 * len(values) + 1024:  # no need to sort
        used = np.zeros(int(values.max()) + 1, np.int64)
        used[values] = 1
        found: Longs = (np.cumsum(used) - 1)[values]
        return found
    return np.unique(values, return_inverse=True)[1].astype(np.int64)


def _chained(ids: Longs, start: Longs, counts: Longs) -> Ints:
    """An id for each (id of the block before, hash), one block after the other of all requests at once."""
    chained = np.empty_like(ids)
    rows = np.flatnonzero(counts > 0)
    last, used, size = np.zeros(len(rows), np.int64), 0, int(ids.max()) + 1
    for depth in range(int(counts.max())):
        on = counts[rows] > depth
        rows, last = rows[on], last[on]
        places = start[rows] + depth
        fresh = np.unique(last * size + ids[places], return_inverse=True)[1]
        last = used + fresh
        used += int(fresh.max()) + 1
        chained[places] = last
    return chained.astype(np.int32)
