"""The pool: what a request holds, the free queue with what its blocks still contain, prefixes found there.

The free queue is a linked list per replica. Its nodes are cached units (one key each) and runs of blocks that
one request gave back, so that a request costs a node, not a node a block. Blocks that contain nothing are a
count and are taken first.
"""

from __future__ import annotations

from typing import Any

from kvplan.serve.replay.compiled import compiled
from kvplan.serve.replay.tables import Deal, Links, Rules


@compiled
def blocks_of(u: Rules, tokens: int) -> int:
    """Pool blocks that a request of so many tokens holds."""
    tables = (tokens + u.block_tokens - 1) // u.block_tokens
    return u.full * tables + u.window_blocks * min(tables, u.window_cap) + u.fixed


@compiled
def keyed_units(q: Any, u: Rules, d: Deal, r: int) -> int:
    """Leading units of a request that have a key: others may find them."""
    if not u.caching:
        return 0
    if len(d.ids_start) > 1:
        ids = int(d.ids_start[r + 1] - d.ids_start[r])
        return min(int(q[r].prompt), ids * d.block_tokens_of_ids) // u.unit_tokens
    if len(d.stream_base) == 0 or q[r].stream < 0:
        return 0
    return min(int(q[r].stream_tokens), int(q[r].prompt) + int(q[r].output)) // u.unit_tokens


@compiled
def key_of(q: Any, u: Rules, d: Deal, r: int, unit: int) -> int:
    """The key of a request's unit of that number."""
    end = (unit + 1) * u.unit_tokens
    if len(d.ids_start) > 1:
        block = (end - 1) // d.block_tokens_of_ids
        first = block * d.block_tokens_of_ids // u.unit_tokens
        return int(d.ids[d.ids_start[r] + block]) * d.keys_per_id + unit - first
    s = int(q[r].stream)
    while d.stream_parent[s] >= 0 and end <= d.parent_tokens[s]:
        s = int(d.stream_parent[s])
    return int(d.stream_base[s]) + unit


@compiled
def unlink(s: Any, w: Links, v: int, node: int) -> None:
    """Take a node out of the free queue."""
    before, after = w.before[v, node], w.after[v, node]
    if before >= 0:
        w.after[v, before] = after
    else:
        s[v].head = after
    if after >= 0:
        w.before[v, after] = before
    else:
        s[v].tail = before


@compiled
def append(s: Any, w: Links, v: int, node: int) -> None:
    """Put a node at the end of the free queue."""
    tail = s[v].tail
    w.before[v, node], w.after[v, node] = tail, -1
    if tail >= 0:
        w.after[v, tail] = node
    else:
        s[v].head = node
    s[v].tail = node


@compiled
def drop_run(q: Any, s: Any, w: Links, v: int, node: int) -> None:
    """A run of which no block is left."""
    unlink(s, w, v, node)
    run = node - w.holders.shape[1]
    owner = w.run_owner[v, run]
    if q[owner].replica == v and q[owner].kept == node:
        q[owner].kept = -1
    w.spare[v, s[v].spares] = run
    s[v].spares += 1


@compiled
def take(q: Any, s: Any, w: Links, u: Rules, v: int, count: int) -> None:
    """So many free blocks, the first of the queue; what they contained is forgotten."""
    s[v].free -= count
    empty = min(count, s[v].fresh)
    s[v].fresh -= empty
    count -= empty
    keys = w.holders.shape[1]
    while count > 0:
        node = s[v].head
        if node < keys:
            w.holders[v, node] = -1
            unlink(s, w, v, node)
            taken = min(count, u.unit_blocks)
            s[v].fresh += u.unit_blocks - taken
        else:
            run = node - keys
            taken = min(count, w.run_blocks[v, run])
            w.run_blocks[v, run] -= taken
            if w.run_blocks[v, run] == 0:
                drop_run(q, s, w, v, node)
        count -= taken


@compiled
def hold(s: Any, w: Links, u: Rules, v: int, key: int) -> None:
    """One holder more of a registered unit."""
    if w.holders[v, key] == 0:
        unlink(s, w, v, key)
        s[v].free -= u.unit_blocks
    w.holders[v, key] += 1


@compiled
def lacks(q: Any, u: Rules, r: int, tokens: int) -> int:
    """Blocks that a request needs beside those it has for so many more tokens."""
    reach = int(q[r].computed) + tokens
    if reach <= q[r].room:
        return 0
    return max(0, blocks_of(u, reach) - int(q[r].held))


@compiled
def roomy(q: Any, u: Rules, r: int, tokens: int) -> bool:
    """Whether so many more tokens need no block and fill no unit: there is nothing to allocate.

    Asked first, as a call of `allocate` with all its arrays costs more than most steps of a request.
    """
    reach = int(q[r].computed) + tokens
    return bool(reach <= q[r].room and (not u.caching or reach < (q[r].units + 1) * u.unit_tokens))


@compiled
def allocate(q: Any, s: Any, w: Links, u: Rules, d: Deal, v: int, r: int, tokens: int) -> None:
    """Blocks for a step's tokens of a request; the units they fill are registered, or shared if known."""
    reach = int(q[r].computed) + tokens
    need = lacks(q, u, r, tokens)
    if need > 0:
        take(q, s, w, u, v, need)
        q[r].held += need
        q[r].room = (reach + u.block_tokens - 1) // u.block_tokens * u.block_tokens
    if u.caching and reach >= (q[r].units + 1) * u.unit_tokens:
        filled = min(reach // u.unit_tokens, keyed_units(q, u, d, r))
        for unit in range(int(q[r].units), filled):
            key = key_of(q, u, d, r, unit)
            if w.holders[v, key] < 0:
                w.holders[v, key] = 1
            else:
                hold(s, w, u, v, key)
                s[v].fresh += u.unit_blocks
                s[v].free += u.unit_blocks
            q[r].units = unit + 1


@compiled
def release(q: Any, s: Any, w: Links, u: Rules, d: Deal, v: int, r: int) -> int:
    """All blocks of a request go back; the node that has those no one else may find, -1 for none."""
    node = -1
    own = int(q[r].held) - int(q[r].units) * u.unit_blocks
    if not u.caching or s[v].spares == 0:
        s[v].fresh += own
    elif own > 0:
        s[v].spares -= 1
        run = w.spare[v, s[v].spares]
        node = run + w.holders.shape[1]
        w.run_blocks[v, run], w.run_owner[v, run] = own, r
        w.run_units[v, run] = max(0, int(q[r].computed) // u.unit_tokens - int(q[r].units))
        append(s, w, v, node)
    s[v].free += own
    for unit in range(int(q[r].units) - 1, -1, -1):
        key = key_of(q, u, d, r, unit)
        w.holders[v, key] -= 1
        if w.holders[v, key] == 0:
            append(s, w, v, key)
            s[v].free += u.unit_blocks
    q[r].held, q[r].room, q[r].units = 0, 0, 0
    return node


@compiled
def found(q: Any, w: Links, u: Rules, d: Deal, v: int, r: int) -> tuple[int, int, int]:
    """(leading units registered, units of its own kept after them, blocks of both that nobody holds)."""
    if not u.caching:
        return 0, 0, 0
    limit = (int(q[r].prompt) + int(q[r].made) - 1) // u.unit_tokens
    keyed = keyed_units(q, u, d, r)
    shared, loose = 0, 0
    while shared < min(limit, keyed):
        holders = w.holders[v, key_of(q, u, d, r, shared)]
        if holders < 0:
            return shared, 0, loose
        if holders == 0:
            loose += u.unit_blocks
        shared += 1
    kept = 0
    if q[r].kept >= 0 and shared == keyed:
        run = q[r].kept - w.holders.shape[1]
        kept = min(w.run_units[v, run], w.run_blocks[v, run] // u.unit_blocks, limit - shared)
    return shared, kept, loose + kept * u.unit_blocks


@compiled
def claim(q: Any, s: Any, w: Links, u: Rules, d: Deal, v: int, r: int, shared: int, kept: int) -> None:
    """What was found becomes the request's."""
    for unit in range(shared):
        hold(s, w, u, v, key_of(q, u, d, r, unit))
    if q[r].kept >= 0:
        node = q[r].kept
        q[r].kept = -1
        if kept > 0:
            run = node - w.holders.shape[1]
            w.run_blocks[v, run] -= kept * u.unit_blocks
            s[v].free -= kept * u.unit_blocks
            if w.run_blocks[v, run] == 0:
                drop_run(q, s, w, v, node)
    q[r].units = shared
    q[r].held = (shared + kept) * u.unit_blocks
    q[r].computed = (shared + kept) * u.unit_tokens
