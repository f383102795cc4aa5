"""What happens next: a heap by time, then by request."""

from __future__ import annotations

from kvplan.serve.replay.compiled import compiled
from kvplan.serve.replay.tables import Links


@compiled
def earlier(w: Links, a: int, b: int) -> bool:
    """Whether the event at place `a` of the heap comes before that at `b`."""
    if w.event_at[a] != w.event_at[b]:
        return bool(w.event_at[a] < w.event_at[b])
    return bool(w.event[a] < w.event[b])


@compiled
def swap(w: Links, a: int, b: int) -> None:
    """Two places of the heap change."""
    at, what = w.event_at[a], w.event[a]
    w.event_at[a], w.event[a] = w.event_at[b], w.event[b]
    w.event_at[b], w.event[b] = at, what


@compiled
def push(w: Links, at: float, what: int) -> None:
    """Something will happen at that time."""
    i = w.counters[0]
    w.event_at[i], w.event[i] = at, what
    w.counters[0] += 1
    while i > 0 and earlier(w, i, (i - 1) // 2):
        swap(w, i, (i - 1) // 2)
        i = (i - 1) // 2


@compiled
def pop(w: Links) -> int:
    """What happens next, taken from the heap."""
    what = w.event[0]
    w.counters[0] -= 1
    count = w.counters[0]
    swap(w, 0, count)
    i = 0
    while True:
        least = i
        for child in (2 * i + 1, 2 * i + 2):
            if child < count and earlier(w, child, least):
                least = child
        if least == i:
            return int(what)
        swap(w, i, least)
        i = least
