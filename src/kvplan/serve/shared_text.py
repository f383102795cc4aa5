"""What a cache that keeps everything would find of each prompt: the most that sharing can give."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from kvplan.serve.workload import Workload

Longs = NDArray[np.int64]
Ints = NDArray[np.int32]


def hit_tokens(w: Workload) -> Longs | None:
    """Prompt tokens of each request that stood in an earlier one; None where nothing is said of sharing.

    Requests count in their order, each as if the one before had finished.
    """
    if w.prefix_start is not None and w.prefix_ids is not None:
        return _of_blocks(w, w.prefix_start, w.prefix_ids)
    if w.stream is None or w.stream_tokens is None or w.stream_parent is None or w.parent_tokens is None:
        return None
    request = np.flatnonzero(w.stream >= 0)
    rows = _texts(request, w.stream[request], w.stream_tokens[request], w.stream_parent, w.parent_tokens)
    hits = np.zeros(len(w), np.int64)
    if rows:
        texts, requests, limits = (np.concatenate(column) for column in zip(*rows, strict=True))
        np.maximum.at(hits, requests, np.minimum(limits, _known_before(texts, requests, limits)))
    return np.minimum(hits, w.prompt_tokens.astype(np.int64))


def _of_blocks(w: Workload, start: Longs, ids: Ints) -> Longs:
    if not len(ids):
        return np.zeros(len(w), np.int64)
    counts = np.diff(start)
    request = np.repeat(np.arange(len(w)), counts)
    first = np.full(int(ids.max()) + 1, len(w), np.int64)
    np.minimum.at(first, ids, request)
    fresh = first[ids] == request  # not in an earlier request
    position = np.arange(len(ids)) - np.repeat(start[:-1], counts)
    leading = counts.copy()
    np.minimum.at(leading, request[fresh], position[fresh])
    found: Longs = np.minimum(leading * w.prefix_block_tokens, w.prompt_tokens.astype(np.int64))
    return found


def _texts(
    request: Longs, stream: Ints, tokens: Ints, parent: Ints, inherited: Ints
) -> list[tuple[Longs, Longs, Longs]]:
    """(text, request, how much of it) of each request: of its stream, of that one's parent, and so on up."""
    above, limit = stream.astype(np.int64), tokens.astype(np.int64)
    rows = []
    while len(request):
        rows.append((above, request, limit))
        limit = np.minimum(limit, inherited[above])
        above = parent[above].astype(np.int64)
        on = above >= 0
        request, above, limit = request[on], above[on], limit[on]
    return rows


def _known_before(texts: Longs, requests: Longs, limits: Longs) -> Longs:
    """The longest part of each text that earlier requests had, at every (text, request)."""
    order = np.lexsort((requests, texts))
    texts, values = texts[order], limits[order]
    step = int(values.max()) + 1
    most = (
        np.maximum.accumulate(values + texts * step) - texts * step
    )  # a text's own part only: step > any value
    before = np.zeros_like(most)
    before[1:] = np.where(texts[1:] == texts[:-1], most[:-1], 0)
    found = np.empty_like(before)
    found[order] = before
    return found
