"""What must hold between the arrays of a workload, whoever made it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvplan.errors import BadInput

if TYPE_CHECKING:
    from kvplan.serve.workload import Workload

_LATEST = 1e10  # seconds, three centuries: beyond, steps are lost in rounding


def check(w: Workload) -> None:
    """Raise BadInput that names the array and the first request (from 0) that cannot be."""
    _sizes(w)
    _at(w, "prompt_tokens", w.prompt_tokens < 1, "a request has at least 1 token of prompt")
    _at(w, "output_tokens", w.output_tokens < 1, "a request makes at least 1 token")
    _waits(w)
    if w.prefix_start is not None and w.stream is not None:
        raise BadInput(f"{w.source}: prefix ids and streams are two ways to say one thing; give one")
    _prefixes(w)
    _streams(w)


def _at(w: Workload, name: str, wrong: Any, why: str) -> None:
    if wrong.any():
        place = int(np.argmax(wrong))
        raise BadInput(f"{w.source}: {name}[{place}] is {getattr(w, name)[place]}; {why}")


def _sizes(w: Workload) -> None:
    count = len(w.prompt_tokens)
    if not count:
        raise BadInput(f"{w.source}: there is no request; give at least one")
    for name in ("arrival_seconds", "output_tokens", "after", "think_seconds", "stream", "stream_tokens"):
        found = getattr(w, name)
        if found is not None and found.shape != (count,):
            raise BadInput(f"{w.source}: {name} has shape {found.shape} for {count} prompts; give one each")


def _waits(w: Workload) -> None:
    count, order = len(w), np.arange(len(w))
    _at(w, "after", (w.after < -1) | (w.after >= order), "a request waits for an earlier one, or -1")
    _at(w, "think_seconds", ~((w.think_seconds >= 0) & (w.think_seconds < np.inf)), "give a time from 0")
    if w.users < 0 or (w.users and (w.after >= 0).any()):
        raise BadInput(
            f"{w.source}: users is {w.users}; a closed loop has 1 or more, and no request with `after`"
        )
    unknown = np.isnan(w.arrival_seconds)
    waits = (order >= w.users) if w.users else (w.after >= 0)
    _at(w, "arrival_seconds", unknown != waits, "a time, or NaN where a request waits for another, not both")
    known = w.arrival_seconds[~unknown]
    if count and not ((known >= 0) & (known < _LATEST)).all():
        wrong = known[~((known >= 0) & (known < _LATEST))][0]
        raise BadInput(
            f"{w.source}: arrival_seconds has {wrong:g}; times start at 0 and end before {_LATEST:g}"
        )
    if (np.diff(known) < 0).any():
        raise BadInput(f"{w.source}: arrival_seconds goes back in time; sort the requests")


def _prefixes(w: Workload) -> None:
    start, ids = w.prefix_start, w.prefix_ids
    if start is None or ids is None:
        if start is not ids:
            raise BadInput(f"{w.source}: prefix_start and prefix_ids belong together; give both")
        return
    counts = np.diff(start)
    if start.shape != (len(w) + 1,) or start[0] != 0 or start[-1] != len(ids) or (counts < 0).any():
        raise BadInput(
            f"{w.source}: prefix_start does not divide {len(ids)} prefix_ids among {len(w)} requests"
        )
    if w.prefix_block_tokens < 1:
        raise BadInput(f"{w.source}: prefix_block_tokens is {w.prefix_block_tokens}; give 1 or more")
    _at(w, "prompt_tokens", counts > -(-w.prompt_tokens // w.prefix_block_tokens), "more blocks than it has")
    if len(ids) and (ids.min() < 0 or np.bincount(ids).min() < 1):
        raise BadInput(f"{w.source}: prefix_ids leave numbers out; number them densely from 0")


def _streams(w: Workload) -> None:
    parts = (w.stream, w.stream_tokens, w.stream_parent, w.parent_tokens)
    stream, tokens, parent, inherited = parts
    if stream is None or tokens is None or parent is None or inherited is None:
        if any(part is not None for part in parts):
            raise BadInput(
                f"{w.source}: stream, its tokens, parents and their tokens belong together; give all"
            )
        return
    _at(w, "stream", (stream < -1) | (stream >= len(parent)), f"there are {len(parent)} streams, -1 is none")
    whole = w.prompt_tokens.astype(np.int64) + w.output_tokens
    _at(w, "stream_tokens", (tokens < 0) | (tokens > whole), "it is at most prompt and output")
    if parent.shape != inherited.shape or (inherited < 0).any():
        raise BadInput(f"{w.source}: parent_tokens must be from 0, one for each stream_parent")
    _at(
        w,
        "stream_parent",
        (parent < -1) | (parent >= np.arange(len(parent))),
        "a parent comes first, or is -1",
    )
