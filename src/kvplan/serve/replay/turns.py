"""One step of a replica: who is in it, by the rules of each order."""

from __future__ import annotations

from typing import Any

from kvplan.serve.replay.blocks import allocate, blocks_of, claim, found, lacks, release, roomy
from kvplan.serve.replay.compiled import compiled
from kvplan.serve.replay.events import push
from kvplan.serve.replay.tables import (
    IS_MOVED,
    LAST,
    MOVING,
    OVER,
    PREFILLS,
    PROMPT,
    RUNNING,
    STATIC,
    STEP,
    WAITING,
    WHOLE,
    Deal,
    Links,
    Rules,
)


@compiled
def asked(q: Any, s: Any, v: int, r: int) -> int:
    """Tokens that a request makes on that replica: one where others decode it."""
    return 1 if s[v].role == PREFILLS else int(q[r].output)


@compiled
def visible(q: Any, s: Any, u: Rules, v: int, r: int) -> bool:
    """Whether the engine knew of a request when it scheduled the step that begins now."""
    horizon = s[v].start if u.lead > 0 and s[v].busy else s[v].clock
    return bool(q[r].arrived <= horizon)


@compiled
def admissible(
    q: Any, s: Any, w: Links, u: Rules, v: int, r: int, tokens: int, found_units: int, loose: int
) -> bool:
    """Whether what must be free to admit a request is free."""
    mine, free = found_units * u.unit_blocks, int(s[v].free) - loose
    hit = found_units * u.unit_tokens
    goal = int(q[r].prompt) + int(q[r].made)
    if u.admit == STEP:
        return blocks_of(u, hit + tokens) - mine <= free
    if u.admit == WHOLE:
        others = 0
        for i in range(s[v].count):
            o = w.running[v, i]
            others += max(0, blocks_of(u, int(q[o].prompt) + asked(q, s, v, o) - 1) - int(q[o].held))
        return blocks_of(u, int(q[r].prompt) + asked(q, s, v, r) - 1) - mine + others <= free
    fits = blocks_of(u, goal) - mine <= free
    if u.admit == PROMPT or s[v].count == 0 or not fits:
        return fits
    ahead = 0.0
    for i in range(s[v].count):
        o = w.running[v, i]
        ahead += min(asked(q, s, v, o) - int(q[o].made), u.clip_tokens) * s[v].ratio
    wanted = goal - hit + min(asked(q, s, v, r) - int(q[r].made), u.clip_tokens)
    return free * u.block_tokens / u.full - ahead >= wanted


@compiled
def pop_head(q: Any, s: Any, v: int) -> None:
    """The queue's head leaves it."""
    r = s[v].first
    s[v].first = q[r].following
    if s[v].first < 0:
        s[v].last = -1
    s[v].waiting -= 1


@compiled
def push_head(q: Any, s: Any, v: int, r: int) -> None:
    """A request goes before all that wait."""
    q[r].following = s[v].first
    s[v].first = r
    if s[v].last < 0:
        s[v].last = r
    s[v].waiting += 1
    q[r].status = WAITING


@compiled
def push_tail(q: Any, s: Any, v: int, r: int) -> None:
    """A request goes behind all that wait."""
    q[r].following = -1
    if s[v].last >= 0:
        q[s[v].last].following = r
    else:
        s[v].first = r
    s[v].last = r
    s[v].waiting += 1
    q[r].status = WAITING


@compiled
def leave(s: Any, w: Links, v: int, place: int) -> None:
    """The running list closes over a place."""
    for i in range(place, s[v].count - 1):
        w.running[v, i] = w.running[v, i + 1]
    s[v].count -= 1


@compiled
def preempt(q: Any, s: Any, w: Links, u: Rules, d: Deal, v: int, place: int) -> None:
    """The request in that place gives its blocks back and goes to the queue's head."""
    r = w.running[v, place]
    leave(s, w, v, place)
    q[r].kept = release(q, s, w, u, d, v, r)
    q[r].computed, q[r].goal, q[r].decoded, q[r].planned = 0, 0, 0, 0
    push_head(q, s, v, r)
    q[r].preempted += 1
    w.totals[v, 1] += 1


@compiled
def victim(q: Any, s: Any, w: Links, u: Rules, v: int) -> int:
    """The place of the running request that goes first, of those that are not in the step yet."""
    if u.victim == LAST:
        place = s[v].count - 1
        while place >= 0 and q[w.running[v, place]].status != RUNNING:
            place -= 1
        return int(place)
    best = -1
    for place in range(s[v].count):
        r = w.running[v, place]
        if q[r].planned > 0 or q[r].status != RUNNING:
            continue
        if best < 0:
            best = place
            continue
        b = w.running[v, best]
        fewer = q[r].made < q[b].made
        if fewer or (q[r].made == q[b].made and q[r].prompt >= q[b].prompt):
            best = place
    return best


@compiled
def grow(q: Any, s: Any, w: Links, u: Rules, d: Deal, v: int, place: int, tokens: int) -> int:
    """Blocks for the tokens of the request in that place, from others if need be.

    Returns its place afterwards, or -1 − the place that follows it where it had to go itself.
    """
    r = w.running[v, place]
    while lacks(q, u, r, tokens) > s[v].free:
        goes = victim(q, s, w, u, v)
        preempt(q, s, w, u, d, v, goes)
        if goes == place:
            return -1 - place
        if goes < place:
            place -= 1
    allocate(q, s, w, u, d, v, r, tokens)
    q[r].planned = tokens
    return place


@compiled
def join(q: Any, s: Any, w: Links, u: Rules, d: Deal, v: int, shared: int, kept: int) -> None:
    """The queue's head becomes the last running one, with what it found."""
    r = s[v].first
    pop_head(q, s, v)
    q[r].goal = q[r].prompt + q[r].made
    claim(q, s, w, u, d, v, r, shared, kept)
    w.running[v, s[v].count] = r
    s[v].count += 1
    q[r].status = RUNNING
    if q[r].admitted != q[r].admitted:
        q[r].admitted = s[v].clock
        q[r].hits = q[r].computed
        w.totals[v, 2] += int(q[r].computed)
        w.totals[v, 3] += int(q[r].goal)


@compiled
def head_tokens(
    q: Any, s: Any, w: Links, u: Rules, d: Deal, v: int, left: int, empty: bool
) -> tuple[int, int, int]:
    """(tokens of the queue's head in this step, shared and kept units); 0 tokens where it cannot join."""
    if s[v].first < 0 or left <= 0 or s[v].count >= u.max_running:
        return 0, 0, 0
    r = s[v].first
    if q[r].source >= 0 or not visible(q, s, u, v, r):
        return 0, 0, 0
    shared, kept, loose = found(q, w, u, d, v, r)
    want = int(q[r].prompt) + int(q[r].made) - (shared + kept) * u.unit_tokens
    tokens = min(want, left)
    if tokens < want and not u.chunked:
        if not empty:
            return 0, 0, 0
        tokens = want
    if not admissible(q, s, w, u, v, r, tokens, shared + kept, loose):
        return 0, 0, 0
    return tokens, shared, kept


@compiled
def fetch(q: Any, s: Any, w: Links, u: Rules, d: Deal, v: int) -> bool:
    """The queue's head, whose prompt another replica computed, takes its place; its cache is sent for."""
    r = s[v].first
    if r < 0 or q[r].source < 0 or s[v].count >= u.max_running:
        return False
    shared, kept, loose = found(q, w, u, d, v, r)
    if not admissible(
        q,
        s,
        w,
        u,
        v,
        r,
        int(q[r].prompt) + 1 - (shared + kept) * u.unit_tokens,
        shared + kept,
        loose,
    ):
        return False
    join(q, s, w, u, d, v, shared, kept)
    allocate(q, s, w, u, d, v, r, int(q[r].prompt) - int(q[r].computed))
    moved = int(q[r].prompt) - int(q[r].computed)
    q[r].computed, q[r].goal = q[r].prompt, q[r].prompt
    q[r].status = MOVING
    began = max(s[v].clock, s[v].link)
    s[v].link = began + d.move_seconds + moved * d.move_seconds_per_token
    push(w, s[v].link, r * 4 + IS_MOVED)
    return True


@compiled
def heads(q: Any, s: Any, w: Links, u: Rules, d: Deal, v: int, left: int, empty: bool) -> int:
    """The queue's heads join, as long as tokens, places and blocks are left; how many tokens they take."""
    taken = 0
    while True:
        while fetch(q, s, w, u, d, v):
            pass
        tokens, shared, kept = head_tokens(q, s, w, u, d, v, left - taken, empty)
        if tokens == 0:
            return taken
        r = s[v].first
        join(q, s, w, u, d, v, shared, kept)
        allocate(q, s, w, u, d, v, r, tokens)
        q[r].planned = tokens
        taken += tokens
        empty = False


@compiled
def decode_first(q: Any, s: Any, w: Links, u: Rules, d: Deal, v: int) -> bool:
    """Those who run go on in their order, then the queue's heads join; whether someone was preempted."""
    left, place, preempted = u.budget, 0, w.totals[v, 1]
    empty = True
    while place < s[v].count and left > 0:
        r = w.running[v, place]
        if q[r].status != RUNNING:  # its cache is on its way here, or on its way elsewhere
            place += 1
            continue
        decoding = q[r].computed >= q[r].goal
        tokens = u.positions if decoding else min(int(q[r].goal) - int(q[r].computed), left)
        if tokens > left:
            place += 1
            continue
        empty = False
        if roomy(q, u, r, tokens):
            q[r].planned = tokens
            place += 1
            left -= tokens
            continue
        now = grow(q, s, w, u, d, v, place, tokens)
        if now < 0:
            place = -1 - now
            continue
        place = now + 1
        left -= tokens
    gone = w.totals[v, 1] > preempted
    if not gone:
        heads(q, s, w, u, d, v, left, empty)
    return bool(gone)


@compiled
def prompts(q: Any, s: Any, w: Links, u: Rules, d: Deal, v: int) -> int:
    """Partly computed prompts go on; what is left of the budget."""
    left, place = u.budget, 0
    while place < s[v].count:
        r = w.running[v, place]
        tokens = min(int(q[r].goal) - int(q[r].computed), left)
        if tokens <= 0 or q[r].status != RUNNING:
            place += 1
            continue
        now = grow(q, s, w, u, d, v, place, tokens)
        if now < 0:
            place = -1 - now
            continue
        place = now + 1
        left -= tokens
    return left


@compiled
def decode_all(q: Any, s: Any, w: Links, u: Rules, d: Deal, v: int) -> None:
    """Everyone decodes who is not over; some are preempted first where blocks lack."""
    while True:
        need = 0
        for i in range(s[v].count):
            r = w.running[v, i]
            if q[r].status == RUNNING:
                need += lacks(q, u, r, u.positions)
        if need <= s[v].free:
            break
        preempt(q, s, w, u, d, v, victim(q, s, w, u, v))
    for i in range(s[v].count):
        r = w.running[v, i]
        if q[r].status == RUNNING:
            if not roomy(q, u, r, u.positions):
                allocate(q, s, w, u, d, v, r, u.positions)
            q[r].planned = u.positions


@compiled
def any_planned(q: Any, s: Any, w: Links, v: int) -> bool:
    """Whether the step carries something."""
    for i in range(s[v].count):  # noqa: SIM110 - numba compiles no generator in any()
        if q[w.running[v, i]].planned > 0:
            return True
    return False


@compiled
def prefill_first(q: Any, s: Any, w: Links, u: Rules, d: Deal, v: int) -> bool:
    """Prompts alone while there are any that fit, else decoding alone."""
    before = w.totals[v, 1]
    left = prompts(q, s, w, u, d, v)
    if w.totals[v, 1] == before:
        heads(q, s, w, u, d, v, left, left == u.budget)
    if not any_planned(q, s, w, v):
        decode_all(q, s, w, u, d, v)
    return bool(w.totals[v, 1] > before)


@compiled
def free_places(q: Any, s: Any, w: Links, u: Rules, d: Deal, v: int) -> None:
    """A static batch is over: everyone's blocks go back, in order."""
    for i in range(s[v].count):
        r = w.running[v, i]
        release(q, s, w, u, d, v, r)
        q[r].status = OVER
    s[v].count = 0


@compiled
def static(q: Any, s: Any, w: Links, u: Rules, d: Deal, v: int) -> bool:
    """A batch is formed when the last one is over, and goes on until all of it is."""
    before = w.totals[v, 1]
    while True:
        if s[v].count == 0:
            while s[v].first >= 0 and s[v].count < u.max_running and visible(q, s, u, v, s[v].first):
                r = s[v].first
                shared, kept, loose = found(q, w, u, d, v, r)
                want = int(q[r].prompt) - (shared + kept) * u.unit_tokens
                if not admissible(q, s, w, u, v, r, want, shared + kept, loose):
                    break
                join(q, s, w, u, d, v, shared, kept)
        prompts(q, s, w, u, d, v)
        if any_planned(q, s, w, v):
            break
        decode_all(q, s, w, u, d, v)
        if s[v].count == 0 or any_planned(q, s, w, v):
            break
        free_places(q, s, w, u, d, v)
    return bool(w.totals[v, 1] > before)


@compiled
def plan(q: Any, s: Any, w: Links, u: Rules, d: Deal, v: int) -> None:
    """Make the next step: `planned` tokens of each request in it; the ratio moves as it does."""
    before = w.totals[v, 1]
    if u.order == STATIC:
        static(q, s, w, u, d, v)
    elif u.order == 0:
        decode_first(q, s, w, u, d, v)
    else:
        prefill_first(q, s, w, u, d, v)
    if w.totals[v, 1] > before:
        s[v].ratio = u.ratio_start
        return
    for i in range(s[v].count):
        r = w.running[v, i]
        if q[r].planned > 0 and q[r].computed >= q[r].goal:
            s[v].ratio = max(u.ratio_least, s[v].ratio - u.ratio_fall)
            return
