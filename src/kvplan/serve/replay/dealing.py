"""Requests come, are dealt to replicas, and are over: what happens between steps."""

from __future__ import annotations

from typing import Any

from kvplan.serve.replay.blocks import blocks_of, found, release
from kvplan.serve.replay.compiled import compiled
from kvplan.serve.replay.events import pop, push
from kvplan.serve.replay.tables import (
    ARRIVES,
    DECODES,
    IS_PREFILLED,
    REJECTED,
    RUNNING,
    Deal,
    Links,
    Rules,
)
from kvplan.serve.replay.turns import push_tail


@compiled
def ended(q: Any, w: Links, d: Deal, r: int, when: float) -> None:
    """A request is over: those who wait for it come after their think time."""
    if d.users > 0:
        if w.counters[1] < len(q):
            i = w.counters[1]
            w.counters[1] += 1
            push(w, when + q[i].think, i * 4 + ARRIVES)
        return
    i = q[r].child
    while i >= 0:
        push(w, when + q[i].think, i * 4 + ARRIVES)
        i = q[i].sibling


@compiled
def load(s: Any, v: int) -> int:
    """Requests that a replica has."""
    return int(s[v].waiting) + int(s[v].count)


@compiled
def least_loaded(s: Any, role: int) -> int:
    """The replica of that role with the fewest requests, the first of equals."""
    best = -1
    for v in range(len(s)):
        if s[v].role == role and (best < 0 or load(s, v) < load(s, best)):
            best = v
    return best


@compiled
def dealt(q: Any, s: Any, w: Links, u: Rules, d: Deal, r: int, role: int) -> int:
    """The replica that a request goes to.

    Prefix-aware routing is the one of SGLang's router: the longest prefix found, if at least 0.3 of the
    prompt, while no replica has 64 requests and half as many again more than another; else the least loaded.
    """
    replicas = len(s)
    if d.routing == 0:
        v = w.counters[2]
        while True:
            v = (v + 1) % replicas
            if s[v].role == role:
                w.counters[2] = v
                return int(v)
    calmest = least_loaded(s, role)
    if d.routing == 1:
        return calmest
    most, best, best_units = load(s, calmest), calmest, 0
    for v in range(replicas):
        if s[v].role == role:
            most = max(most, load(s, v))
            shared = found(q, w, u, d, v, r)[0]
            if shared > best_units:
                best, best_units = v, shared
    unbalanced = most - load(s, calmest) > 64 and most > 1.5 * load(s, calmest)
    if unbalanced or best_units * u.unit_tokens < 0.3 * q[r].prompt:
        return calmest
    return best


@compiled
def wake(s: Any, v: int, when: float) -> None:
    """Something happened to a replica: if it was idle, it is then."""
    if s[v].clock < when:
        s[v].clock = when
        s[v].busy = False
    s[v].stalled = False


@compiled
def arrive(q: Any, s: Any, w: Links, u: Rules, d: Deal, r: int, when: float) -> None:
    """A request joins a queue, or is refused."""
    q[r].arrived = when
    longest = int(q[r].prompt) + int(q[r].output) - 1 + u.positions - 1
    if q[r].prompt + q[r].output > u.max_model_len or blocks_of(u, longest) > u.blocks:
        q[r].status = REJECTED
        ended(q, w, d, r, when)
        return
    v = dealt(q, s, w, u, d, r, s[0].role)
    q[r].replica = v
    wake(s, v, when)
    push_tail(q, s, v, r)


@compiled
def happen(q: Any, s: Any, w: Links, u: Rules, d: Deal, when: float) -> None:
    """The next event of the heap."""
    what = pop(w)
    r, kind = what // 4, what % 4
    if kind == ARRIVES:
        arrive(q, s, w, u, d, r, when)
    elif kind == IS_PREFILLED:
        v = least_loaded(s, DECODES)
        q[r].replica = v
        q[r].goal = 0
        wake(s, v, when)
        # what it holds where it was computed stays held until it is moved
        q[r].kept = -1
        q[r].moved_blocks = q[r].held
        q[r].moved_units = q[r].units
        q[r].held, q[r].room, q[r].units = 0, 0, 0
        push_tail(q, s, v, r)
    else:
        from_there, here = q[r].source, q[r].replica
        held, room, units = q[r].held, q[r].room, q[r].units
        q[r].held, q[r].units = q[r].moved_blocks, q[r].moved_units
        release(q, s, w, u, d, from_there, r)
        q[r].held, q[r].room, q[r].units = held, room, units
        q[r].source, q[r].status = -1, RUNNING
        wake(s, from_there, when)
        wake(s, here, when)
