"""A workload drawn from distributions: lengths, arrivals, conversations, what prompts share; by a seed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvplan.errors import BadInput, shown
from kvplan.serve.arrivals import AT_ONCE, MOST_REQUESTS, Arrivals, Think
from kvplan.serve.lengths import Lengths, rng_of
from kvplan.serve.workload import Workload, workload_of

Longs = NDArray[np.int64]
_PROMPTS, _OUTPUTS, _TURNS, _PAUSES = 11, 12, 13, 14
LONGEST = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Sessions:
    """Conversations: each prompt is all that was said before and the new tokens of its turn.

    `turns` of a session; `think` between an answer and the next turn; every session begins with the same
    `system_tokens`.
    """

    turns: Lengths
    think: Think = AT_ONCE
    system_tokens: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.system_tokens <= LONGEST:
            raise BadInput(f"system prompt: {shown(self.system_tokens)} is no length; give tokens from 0")


def drawn(
    prompt: Lengths,
    output: Lengths,
    arrivals: Arrivals,
    *,
    requests: int | None = None,
    seconds: float | None = None,
    seed: int = 0,
    shared_prefix_tokens: int = 0,
    sessions: Sessions | None = None,
) -> Workload:
    """So many requests, or those of so many seconds; the same seed draws the same, and more begin alike.

    The first `shared_prefix_tokens` of every prompt are the same text. With `sessions`, `arrivals` are those
    of sessions, `prompt` is what a turn adds, and a closed loop's users begin another session when theirs has
    ended. Raises BadInput for what cannot be drawn.
    """
    if (requests is None) == (seconds is None):
        raise BadInput("requests: give a number of requests or a duration, one of the two")
    if requests is not None and not 1 <= requests <= MOST_REQUESTS:
        raise BadInput(f"requests: {shown(requests)} is not a number from 1 to {MOST_REQUESTS:,}")
    if sessions is not None:
        if shared_prefix_tokens:
            raise BadInput("shared prefix: sessions share their system prompt; give its length instead")
        return _conversations(prompt, output, arrivals, sessions, requests, seconds, seed)
    times = arrivals.until(seconds, seed) if seconds is not None else None
    count = requests if times is None else len(times)
    if not count:
        raise BadInput(f"duration: no request arrives within {seconds:g} s; give more time or a higher rate")
    times = arrivals.times(count, seed) if times is None else times
    if arrivals.users:
        times[arrivals.users :] = np.nan
    lengths = prompt.draw(rng_of(seed, _PROMPTS), count)
    return workload_of(
        times,
        lengths,
        output.draw(rng_of(seed, _OUTPUTS), count),
        think_seconds=arrivals.thinks(count, seed) if arrivals.users else None,
        users=min(arrivals.users, count),
        source=_source(prompt, output, arrivals, seed),
        **_shared(lengths, shared_prefix_tokens),
    )


def _shared(prompts: Longs, tokens: int) -> dict[str, Any]:
    if not tokens:
        return {}
    if not 0 < tokens <= LONGEST:
        raise BadInput(f"shared prefix: {shown(tokens)} is no length; give tokens from 0")
    shorter = int((prompts < tokens).sum())
    note = f"{shorter:,} of {len(prompts):,} prompts are shorter than the shared prefix and wholly of it"
    return {
        "stream": np.zeros(len(prompts)),
        "stream_tokens": np.minimum(prompts, tokens),
        "stream_parent": [-1],
        "parent_tokens": [0],
        "notes": (note,) if shorter else (),
    }


def _conversations(
    prompt: Lengths,
    output: Lengths,
    arrivals: Arrivals,
    sessions: Sessions,
    requests: int | None,
    seconds: float | None,
    seed: int,
) -> Workload:
    """Session after session, turn after turn; only a session's first turn arrives by the clock."""
    starts = arrivals.until(seconds, seed) if seconds is not None else None
    turns = sessions.turns.draw(rng_of(seed, _TURNS), len(starts) if starts is not None else requests or 1)
    if not len(turns):
        raise BadInput(f"duration: no session begins within {seconds:g} s; give more time or a higher rate")
    ends = np.cumsum(turns)
    count = int(ends[-1]) if requests is None else requests
    if count > MOST_REQUESTS:
        raise BadInput(f"duration: {seconds:g} s hold more than {MOST_REQUESTS:,} requests; shorten it")
    number = int(np.searchsorted(ends, count)) + 1
    first = np.concatenate(([0], ends[: number - 1]))
    session = np.repeat(np.arange(number), np.diff(np.append(first, count)))
    starts = arrivals.times(number, seed) if starts is None else starts
    new = prompt.draw(rng_of(seed, _PROMPTS), count)
    made = output.draw(rng_of(seed, _OUTPUTS), count)
    prompts = _grown(new, made, first, session) + sessions.system_tokens
    longest = int((prompts + made).max())
    if longest > LONGEST:
        raise BadInput(f"sessions: one grows to {longest:,} tokens; give fewer turns or shorter ones")
    after, think = _waits(arrivals, sessions, first, count, seed)
    times = np.full(count, np.nan)
    by_clock = after < 0
    times[by_clock] = starts[session[by_clock]]
    return workload_of(
        times,
        prompts,
        made,
        after=after,
        think_seconds=think,
        source=f"sessions of {sessions.turns.text} turns, {_source(prompt, output, arrivals, seed)}",
        **_texts(session, prompts + made, sessions.system_tokens),
    )


def _grown(new: Longs, made: Longs, first: Longs, session: Longs) -> Longs:
    """Prompt tokens of each turn: its own, and all new and made ones of the session before it."""
    before = np.concatenate(([0], np.cumsum(new + made)))[:-1]
    grown: Longs = before - before[first][session] + new
    return grown


def _waits(
    arrivals: Arrivals, sessions: Sessions, first: Longs, count: int, seed: int
) -> tuple[Longs, NDArray[np.float64]]:
    after = np.arange(-1, count - 1)
    after[first] = -1
    think = sessions.think.draw(rng_of(seed, _PAUSES), count)
    think[first] = 0.0
    if arrivals.users:  # each user's next session waits for the last turn of the one before
        later = first[arrivals.users :]
        after[later] = first[1 : len(later) + 1] - 1
        think[later] = arrivals.thinks(len(first), seed)[arrivals.users :]
    return after, think


def _texts(session: Longs, whole: Longs, system: int) -> dict[str, Any]:
    """A text a session, each beginning with that of the system prompt, which is the first."""
    number = int(session[-1]) + 1
    return {
        "stream": session + 1,
        "stream_tokens": whole,
        "stream_parent": np.concatenate(([-1], np.zeros(number) if system else np.full(number, -1))),
        "parent_tokens": np.concatenate(([0], np.full(number, system))),
    }


def _source(prompt: Lengths, output: Lengths, arrivals: Arrivals, seed: int) -> str:
    how = f"{arrivals.users} users" if arrivals.users else arrivals.kind
    if arrivals.rate:
        how += f" at {arrivals.rate:g} requests/s"
    return f"drawn: prompts {prompt.text}, outputs {output.text}, {how}, seed {seed}"
