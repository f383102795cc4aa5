"""Requests through replicas, from the first arrival to the last answer."""

from __future__ import annotations

import math
from typing import Any

from kvplan.serve.replay.blocks import allocate, blocks_of, found, key_of, keyed_units, lacks, release, roomy
from kvplan.serve.replay.clockwork import base_seconds, decode_seconds, many_steps, prefill_seconds
from kvplan.serve.replay.compiled import compiled, entry
from kvplan.serve.replay.dealing import arrive, ended, happen
from kvplan.serve.replay.events import push
from kvplan.serve.replay.tables import (
    DECODE_FIRST,
    IS_PREFILLED,
    MOVING,
    OVER,
    PLACE,
    PREFILLS,
    RATIO,
    RUNNING,
    STATIC,
    STEP,
    Deal,
    Links,
    Rules,
    Times,
)
from kvplan.serve.replay.turns import (
    any_planned,
    asked,
    free_places,
    head_tokens,
    plan,
    visible,
)


@compiled
def step_seconds(q: Any, s: Any, w: Links, u: Rules, t: Times, v: int) -> float:
    """Seconds of the step that is planned."""
    slots, context, tokens, ending, chunks = 0, 0, 0, 0, 0
    seconds = 0.0
    for i in range(s[v].count):
        r = w.running[v, i]
        planned = int(q[r].planned)
        if q[r].status == PLACE or (planned > 0 and q[r].computed >= q[r].goal):
            slots += 1
            context += int(q[r].computed)
            continue
        if planned > 0:
            end = int(q[r].computed) + planned
            seconds += prefill_seconds(t, planned, end)
            tokens += planned
            chunks += 1
            ending += end == q[r].goal
    if chunks > 0:
        seconds += t.prompt_launch_seconds
    if u.order == STATIC and chunks > 0:  # nobody decodes beside prompts there
        slots, context = 0, 0
    if slots > 0:
        seconds += decode_seconds(t, slots, context / slots)
    rows = slots * u.positions
    return seconds + base_seconds(t, tokens + rows, rows + ending)


@compiled
def progress(q: Any, s: Any, w: Links, u: Rules, d: Deal, v: int, steps: int) -> None:
    """What `steps` such steps made, and who is over, in the order of the running list."""
    kept = 0
    for i in range(s[v].count):
        r = w.running[v, i]
        stays = True
        planned = int(q[r].planned)
        if planned > 0 and q[r].status == RUNNING:
            q[r].planned = 0
            if q[r].computed < q[r].goal:
                q[r].computed += planned
                if q[r].computed == q[r].goal:
                    q[r].made += 1
                    q[r].base, q[r].decoded = q[r].made, 0
                    if q[r].made == 1:
                        q[r].first = s[v].clock
            else:
                q[r].decoded += steps
                made = int(q[r].base) + math.floor(q[r].decoded * u.gain + 1e-9)
                q[r].made = min(int(q[r].output), made)
                q[r].computed = q[r].prompt + q[r].made - 1
            if q[r].made == asked(q, s, v, r):
                stays = over(q, s, w, u, d, v, r)
        if stays:
            w.running[v, kept] = r
            kept += 1
    s[v].count = kept
    if u.order == STATIC:
        for i in range(kept):
            if q[w.running[v, i]].status != PLACE:
                return
        free_places(q, s, w, u, d, v)


@compiled
def over(q: Any, s: Any, w: Links, u: Rules, d: Deal, v: int, r: int) -> bool:
    """A request has all its tokens; whether it keeps its place."""
    if s[v].role == PREFILLS and q[r].output > 1:
        q[r].status, q[r].source = MOVING, v
        push(w, s[v].clock, r * 4 + IS_PREFILLED)
        return False
    q[r].finish = s[v].clock
    ended(q, w, d, r, s[v].clock)
    if u.order == STATIC:
        q[r].status = PLACE
        return True
    q[r].status = OVER
    release(q, s, w, u, d, v, r)
    return False


@compiled
def sample(s: Any, w: Links, u: Rules, v: int, when: float, always: bool) -> None:
    """Note who runs and waits and what is held from `when` on, now and then or `always`."""
    if when < s[v].sample_at and not always:
        return
    k = s[v].sampled
    most = w.samples.shape[1]
    if k == most:
        for i in range(most // 2):
            for field in range(4):
                w.samples[v, i, field] = w.samples[v, 2 * i, field]
        k = most // 2
        s[v].sample_gap = 2 * (when - w.samples[v, 0, 0]) / most
    w.samples[v, k, 0], w.samples[v, k, 1] = when, s[v].count
    w.samples[v, k, 2], w.samples[v, k, 3] = s[v].waiting, u.blocks - s[v].free
    s[v].sampled = k + 1
    s[v].sample_at = when + s[v].sample_gap


@compiled
def peak(s: Any, w: Links, u: Rules, v: int) -> None:
    """The most that is held at once."""
    held = u.blocks - s[v].free
    if held > w.totals[v, 4]:
        w.totals[v, 4] = held


@compiled
def growth(q: Any, s: Any, w: Links, u: Rules, v: int, steps: int) -> int:
    """Blocks that all who decode need for so many steps."""
    need = 0
    for i in range(s[v].count):
        r = w.running[v, i]
        if q[r].status == RUNNING:
            need += lacks(q, u, r, steps)
    return need


@compiled
def fitting(q: Any, s: Any, w: Links, u: Rules, v: int, steps: int) -> int:
    """At most `steps`: so many that blocks are free for all of them."""
    if growth(q, s, w, u, v, steps) <= s[v].free:
        return steps
    low = 0
    while steps - low > 1:  # low fits, steps do not
        middle = (low + steps) // 2
        if growth(q, s, w, u, v, middle) <= s[v].free:
            low = middle
        else:
            steps = middle
    return low


@compiled
def registers(q: Any, s: Any, w: Links, u: Rules, d: Deal, v: int, steps: int) -> int:
    """Units that so many steps register; -1 where one of them is registered already, by itself or in them."""
    count, twice = 0, False
    for mark in (True, False):  # mark each key once, then unmark
        for i in range(s[v].count):
            r = w.running[v, i]
            if q[r].status != RUNNING or q[r].computed + steps < (q[r].units + 1) * u.unit_tokens:
                continue
            filled = min((int(q[r].computed) + steps) // u.unit_tokens, keyed_units(q, u, d, r))
            for unit in range(int(q[r].units), filled):
                key = key_of(q, u, d, r, unit)
                if mark:
                    twice = twice or w.holders[v, key] != -1
                    if w.holders[v, key] == -1:
                        w.holders[v, key] = -2
                    count += 1
                elif w.holders[v, key] == -2:
                    w.holders[v, key] = -1
    return -1 if twice else count


@compiled
def calm(q: Any, s: Any, w: Links, v: int) -> tuple[int, int, int, int]:
    """(slots, those who decode, their contexts, steps until one is over); no slots where a prompt is open."""
    slots, active, context, steps = 0, 0, 0, 1 << 40
    for i in range(s[v].count):
        r = w.running[v, i]
        if q[r].status == MOVING:
            continue
        slots += 1
        context += int(q[r].computed)
        if q[r].status == PLACE:
            continue
        if q[r].computed < q[r].goal:
            return 0, 0, 0, 0
        active += 1
        steps = min(steps, int(q[r].output) - int(q[r].made))
    return slots, active, context, steps


@compiled
def easier_without(q: Any, s: Any, w: Links, u: Rules, d: Deal, v: int, left: int) -> bool:
    """Whether the queue's head may join once those who decode took what it would find.

    A chunk from the start can need fewer blocks than one that goes on from what was found.
    """
    if u.admit != STEP or not u.chunked or left <= 0 or s[v].count >= u.max_running:
        return False
    r = s[v].first
    shared, kept, loose = found(q, w, u, d, v, r)
    if loose == 0:
        return False
    stays = (shared + kept) * u.unit_blocks - loose  # others hold these
    hit = stays // u.unit_blocks * u.unit_tokens
    reach = hit + min(int(q[r].prompt) + int(q[r].made) - hit, left)
    return bool(blocks_of(u, reach) - stays <= s[v].free)


@compiled
def blocked(q: Any, s: Any, w: Links, u: Rules, d: Deal, v: int, slots: int) -> bool:
    """Whether the queue's head stays where it is as long as the same requests decode."""
    if u.admit == RATIO or (u.order != STATIC and q[s[v].first].source >= 0):
        return False
    if u.order == STATIC:
        return True
    if not visible(q, s, u, v, s[v].first):
        return False
    left = u.budget - slots if u.order == DECODE_FIRST else u.budget
    if head_tokens(q, s, w, u, d, v, left, u.order != DECODE_FIRST)[0] > 0:
        return False
    return not easier_without(q, s, w, u, d, v, left)


@compiled
def leap(q: Any, s: Any, w: Links, u: Rules, t: Times, d: Deal, v: int, until: float) -> int:
    """Many decode steps at once, as many as pass before anything else happens; 0: a step must be made."""
    if u.positions != 1 or u.gain != 1.0:
        return 0
    slots, active, context, steps = calm(q, s, w, v)
    if active == 0 or (u.order == DECODE_FIRST and slots > u.budget):
        return 0
    if s[v].waiting > 0 and not blocked(q, s, w, u, d, v, slots):
        return 0
    base, mean, more = base_seconds(t, slots, slots), context / slots, active / slots
    done, spent, last = many_steps(t, base, slots, mean, more, steps, until - s[v].clock)
    steps = fitting(q, s, w, u, v, done)
    if steps == 0:
        return 0
    if steps < done:
        done, spent, last = many_steps(t, base, slots, mean, more, steps, math.inf)
    if u.caching and len(d.stream_base) > 0:
        registered = registers(q, s, w, u, d, v, done)
        if registered < 0 or (registered > 0 and s[v].waiting > 0):
            return 0
    sample(s, w, u, v, s[v].clock, False)
    for i in range(s[v].count):
        r = w.running[v, i]
        if q[r].status == RUNNING:
            if not roomy(q, u, r, done):
                allocate(q, s, w, u, d, v, r, done)
            q[r].planned = done
    s[v].start = max(s[v].clock, s[v].clock + spent - last)  # what is summed is rounded
    s[v].clock += spent
    s[v].ratio = max(u.ratio_least, s[v].ratio - done * u.ratio_fall)
    sample(s, w, u, v, s[v].start, False)
    return done


@compiled
def advance(q: Any, s: Any, w: Links, u: Rules, t: Times, d: Deal, v: int, until: float) -> None:
    """A step of a replica or more: until a time, until it has nothing to do or something new will happen."""
    events, first = w.counters[0], True
    while first or (s[v].clock < until and w.counters[0] == events):
        first = False
        steps = leap(q, s, w, u, t, d, v, until)
        if steps == 0:
            plan(q, s, w, u, d, v)
            if not any_planned(q, s, w, v):
                if s[v].busy:  # nothing was known a step ahead; now it is idle
                    s[v].busy = False
                    continue
                s[v].stalled = True
                if s[v].sampled > 0:
                    sample(s, w, u, v, s[v].clock, True)
                return
            sample(s, w, u, v, s[v].clock, False)
            seconds = step_seconds(q, s, w, u, t, v)
            s[v].start = s[v].clock
            s[v].clock += seconds
            steps = 1
        s[v].busy = True
        w.totals[v, 0] += steps
        peak(s, w, u, v)
        progress(q, s, w, u, d, v, steps)


@compiled
def behind(s: Any, soon: float) -> int:
    """The replica whose clock is the earliest, of those with something to do before that time; -1: none."""
    chosen = -1
    for v in range(len(s)):
        if not s[v].stalled and s[v].clock < soon and (chosen < 0 or s[v].clock < s[chosen].clock):
            chosen = v
    return chosen


@compiled
def others(s: Any, d: Deal, mine: int) -> float:
    """Until when nothing that other replicas are about to do concerns this one."""
    until = math.inf
    if d.entangled:
        for v in range(len(s)):
            if v != mine and not s[v].stalled:
                until = min(until, s[v].clock)
    return until


@entry
def run(q: Any, s: Any, w: Links, u: Rules, t: Times, d: Deal, next_arrival: int, most: int) -> int:
    """Go on until `most` more arrivals have come; the arrival that is next, n + 1 where all is over."""
    n = len(q)
    stop = min(n, next_arrival + most)
    while True:
        at = q[next_arrival].arrival if next_arrival < n else math.inf
        coming = w.event_at[0] if w.counters[0] > 0 else math.inf
        soon = min(at, coming)
        chosen = behind(s, soon)
        if chosen >= 0:
            advance(q, s, w, u, t, d, chosen, min(soon, others(s, d, chosen)))
        elif soon == math.inf:
            return n + 1
        elif coming < at or (coming == at and w.event[0] // 4 < next_arrival):
            happen(q, s, w, u, d, coming)
        else:
            arrive(q, s, w, u, d, next_arrival, at)
            next_arrival += 1
            while next_arrival < n and q[next_arrival].arrival != q[next_arrival].arrival:
                next_arrival += 1
            if next_arrival >= stop and next_arrival < n:
                return next_arrival
