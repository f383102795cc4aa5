"""A workload through replicas of one deployment: what becomes of every request, and of the pool over time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvplan.errors import BadInput
from kvplan.facts.scheduling import Scheduling
from kvplan.serve.replay import tables
from kvplan.serve.replay.run import run
from kvplan.serve.step_times import StepTimes
from kvplan.serve.workload import Workload

ORDERS = {"decode-first": tables.DECODE_FIRST, "prefill-first": tables.PREFILL_FIRST, "static": tables.STATIC}
ADMITS = {"step": tables.STEP, "prompt": tables.PROMPT, "whole": tables.WHOLE, "ratio": tables.RATIO}
VICTIMS = {"last": tables.LAST, "least-made": tables.LEAST_MADE}
ROUTINGS = ("round-robin", "least-loaded", "prefix")
SAMPLES = 2048
_AT_A_TIME = 20_000  # arrivals between two reports of progress

State = tuple[Any, Any, tables.Links, tables.Rules, tables.Times, tables.Deal]


@dataclass(frozen=True, slots=True)
class Pool:
    """One replica's cache and limits, as the engine allocates it.

    `blocks` of `block_tokens`; a request of t tokens holds `full` × ceil(t / block_tokens), in windows
    `window_blocks` × min(ceil(t / block_tokens), `window_cap`), and `fixed`. A step carries `budget` tokens,
    `positions` of each decoding sequence, which makes `gain` of them; `max_running` sequences at once, none
    longer than `max_model_len`. `caching`: prefixes are found again, in units of `unit_tokens`.
    """

    blocks: int
    block_tokens: int
    budget: int
    max_running: int
    max_model_len: int
    full: int = 1
    window_blocks: int = 0
    window_cap: int = 0
    fixed: int = 0
    positions: int = 1
    gain: float = 1.0
    caching: bool = False
    unit_tokens: int = 16


@dataclass(frozen=True, slots=True)
class Fleet:
    """Replicas that requests are dealt to; with `prefill` ones, those compute prompts and the others decode.

    A prompt's cache then moves at `move_seconds` and `move_seconds_per_token`, one at a time to each replica.
    """

    replicas: int = 1
    routing: str = "round-robin"
    prefill: int = 0
    move_seconds: float = 0.0
    move_seconds_per_token: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What became of requests (arrays, seconds on the engine's clock, NaN where never) and totals.

    `samples`: per replica rows of time, running, waiting and held blocks.
    """

    arrived: Any
    admitted: Any
    first_token: Any
    finish: Any
    preempted: Any
    hit_tokens: Any
    rejected: Any
    replica: Any
    steps: int
    preemptions: int
    hit: int
    looked_up: int
    peak_blocks: int
    end: float
    samples: tuple[Any, ...]


def simulate(
    workload: Workload,
    pool: Pool,
    scheduling: Scheduling,
    times: StepTimes,
    fleet: Fleet | None = None,
    report: Callable[[int, int], None] | None = None,
) -> Outcome:
    """Run a workload to its end; the same inputs give the same bytes.

    `report` is told now and then how many of the requests have arrived. Raises BadInput where the step's
    budget is smaller than one sequence's positions, or the pool's units are no multiple of its blocks.
    """
    state = begun(workload, pool, scheduling, times, fleet or Fleet())
    requests, replicas, links, *_ = state
    n, first = len(workload), first_arrival(requests)
    while first <= n:
        if report is not None:
            report(min(first, n), n)
        most = _AT_A_TIME if report is not None else n + 1
        first = int(run(*state, first, most))
    if report is not None:
        report(n, n)
    return _outcome(requests, replicas, links)


def begun(workload: Workload, pool: Pool, scheduling: Scheduling, times: StepTimes, fleet: Fleet) -> State:
    """The arrays that `run` works on, as they are before anything has happened."""
    _check(pool, fleet, scheduling)
    rules = _rules(pool, scheduling)
    deal, requests, keys = _requests(workload, pool, fleet)
    replicas, links = _state(rules, fleet, len(workload), keys, workload.users)
    return requests, replicas, links, rules, times.table(), deal


def first_arrival(requests: Any) -> int:
    """The first request that waits for no other."""
    known = np.flatnonzero(~np.isnan(requests["arrival"]))
    return int(known[0]) if len(known) else len(requests)


def _check(pool: Pool, fleet: Fleet, scheduling: Scheduling) -> None:
    if fleet.replicas < 1 or fleet.prefill < 0:
        raise BadInput(
            f"replicas: {fleet.replicas}, and {fleet.prefill} for prompts, serve nothing; give 1 or more"
        )
    if pool.max_running < 1:
        raise BadInput(f"sequences: {pool.max_running} at once are none; give 1 or more")
    if scheduling.order == "static" and pool.positions > 1:
        raise BadInput("--speculative-tokens: a static batch takes none; leave drafts out")
    if scheduling.order == "static" and fleet.prefill:
        raise BadInput("--prefill-replicas: a static batch has its prompts with it; leave them out")
    if pool.budget < pool.positions:
        raise BadInput(f"budget: {pool.budget} tokens a step are fewer than one sequence's {pool.positions}")
    if pool.unit_tokens % pool.block_tokens:
        raise BadInput(f"unit: {pool.unit_tokens} tokens are no multiple of a block's {pool.block_tokens}")
    if fleet.routing not in ROUTINGS:
        raise BadInput(f"--routing: {fleet.routing!r} is not known; use one of {', '.join(ROUTINGS)}")


def _rules(p: Pool, g: Scheduling) -> tables.Rules:
    fall = (g.ratio_start - g.ratio_least) / max(1, g.ratio_steps)
    return tables.Rules(
        blocks=p.blocks,
        block_tokens=p.block_tokens,
        full=p.full,
        window_blocks=p.window_blocks,
        window_cap=p.window_cap,
        fixed=p.fixed,
        budget=p.budget,
        max_running=p.max_running,
        max_model_len=p.max_model_len,
        positions=p.positions,
        gain=float(p.gain),
        caching=bool(p.caching),
        unit_tokens=p.unit_tokens,
        unit_blocks=p.full * p.unit_tokens // p.block_tokens,
        order=ORDERS[g.order],
        chunked=bool(g.chunked),
        admit=tables.WHOLE if g.order == "static" else ADMITS[g.admit],
        victim=VICTIMS[g.victim],
        lead=g.lead,
        ratio_start=float(g.ratio_start),
        ratio_least=float(g.ratio_least),
        ratio_fall=float(fall),
        clip_tokens=g.clip_tokens,
    )


def _requests(w: Workload, pool: Pool, fleet: Fleet) -> tuple[tables.Deal, Any, int]:
    """The compiled functions' view of a workload, and how many keys its prompts have."""
    n = len(w)
    arrival = np.array(w.arrival_seconds, dtype=np.float64)
    if w.users:
        arrival[w.users :] = np.nan
    else:
        arrival[w.after >= 0] = np.nan
    child, sibling = _followers(w)
    unit, keys = pool.unit_tokens, 0
    per_id = w.prefix_block_tokens // unit + 2
    none = np.zeros(0, np.int32)
    ids_start, ids = np.zeros(1, np.int64), none
    stream: Any = -1
    stream_tokens: Any = 0
    base = parent = parent_tokens = none
    if pool.caching and w.prefix_start is not None and w.prefix_ids is not None:
        ids_start, ids = w.prefix_start.astype(np.int64), w.prefix_ids.astype(np.int32)
        keys = (int(ids.max()) + 1) * per_id if len(ids) else 0
    elif pool.caching and w.stream is not None and w.stream_tokens is not None:
        stream, stream_tokens = w.stream, w.stream_tokens
        base, parent, parent_tokens, keys = _streams(w, stream, stream_tokens, unit)
    q = np.zeros(n, tables.REQUEST)
    for name, values in (
        ("arrival", arrival),
        ("think", w.think_seconds),
        ("prompt", w.prompt_tokens),
        ("output", w.output_tokens),
        ("child", child),
        ("sibling", sibling),
        ("stream", stream),
        ("stream_tokens", stream_tokens),
    ):
        q[name] = values
    for name in ("replica", "kept", "following", "source"):
        q[name] = -1
    for name in ("arrived", "admitted", "first", "finish"):
        q[name] = np.nan
    deal = tables.Deal(
        routing=ROUTINGS.index(fleet.routing),
        users=w.users,
        block_tokens_of_ids=w.prefix_block_tokens,
        keys_per_id=per_id,
        entangled=bool(w.users or fleet.prefill or (w.after >= 0).any()),
        ids_start=ids_start,
        ids=ids,
        stream_base=base.astype(np.int64),
        stream_parent=parent,
        parent_tokens=parent_tokens,
        move_seconds=float(fleet.move_seconds),
        move_seconds_per_token=float(fleet.move_seconds_per_token),
    )
    return deal, q, max(1, keys)


def _followers(w: Workload) -> tuple[Any, Any]:
    """For each request the first that waits for it, and the next that waits for the same one."""
    n = len(w)
    child, sibling = np.full(n, -1, np.int32), np.full(n, -1, np.int32)
    if not w.users:
        for i in np.flatnonzero(w.after >= 0)[::-1]:
            sibling[i] = child[w.after[i]]
            child[w.after[i]] = i
    return child, sibling


def _streams(w: Workload, stream: Any, tokens: Any, unit: int) -> tuple[Any, Any, Any, int]:
    """(first key of each stream, its parent, tokens they share, keys in all)."""
    count = 1 + int(stream.max(initial=-1))
    parent = np.full(count, -1, np.int32) if w.stream_parent is None else w.stream_parent.astype(np.int32)
    shared = np.zeros(count, np.int32) if w.parent_tokens is None else w.parent_tokens.astype(np.int32)
    count = len(parent)
    longest = np.zeros(count, np.int64)
    known = stream >= 0
    np.maximum.at(longest, stream[known], tokens[known])
    for s in range(count):  # a parent may be longer than any request of its own
        if parent[s] >= 0:
            longest[parent[s]] = max(longest[parent[s]], shared[s])
    sizes = longest // unit + 1
    base = np.concatenate([[0], np.cumsum(sizes)[:-1]]) if count else np.zeros(0, np.int64)
    return base, parent, shared, int(sizes.sum())


def _state(u: tables.Rules, fleet: Fleet, n: int, keys: int, users: int) -> tuple[Any, tables.Links]:
    """Idle replicas with empty pools, and their lists and queues."""
    many = fleet.replicas + fleet.prefill
    runs = min(u.blocks, n * 2 + 2) + 2 if u.caching else 1
    keys = keys if u.caching else 1
    s = np.zeros(many, tables.REPLICA)
    s["role"] = tables.DECODES if fleet.prefill else tables.BOTH
    s["role"][: fleet.prefill] = tables.PREFILLS
    s["ratio"], s["stalled"], s["spares"], s["sample_at"] = u.ratio_start, True, runs, -1.0
    s["free"] = s["fresh"] = u.blocks
    for name in ("first", "last", "head", "tail"):
        s[name] = -1
    return s, tables.Links(
        running=np.zeros((many, max(1, min(u.max_running, n))), np.int64),
        after=np.full((many, keys + runs), -1, np.int32),
        before=np.full((many, keys + runs), -1, np.int32),
        holders=np.full((many, keys), -1, np.int32),
        run_blocks=np.zeros((many, runs), np.int32),
        run_units=np.zeros((many, runs), np.int32),
        run_owner=np.zeros((many, runs), np.int64),
        spare=np.tile(np.arange(runs, dtype=np.int32)[::-1], (many, 1)),
        totals=np.zeros((many, 5), np.int64),
        samples=np.zeros((many, SAMPLES, 4)),
        event_at=np.zeros(n + 2),
        event=np.zeros(n + 2, np.int64),
        counters=np.array([0, min(users, n), -1], np.int64),
    )


def _outcome(q: Any, s: Any, w: tables.Links) -> Outcome:
    totals = w.totals.sum(axis=0)
    return Outcome(
        arrived=q["arrived"].copy(),
        admitted=q["admitted"].copy(),
        first_token=q["first"].copy(),
        finish=q["finish"].copy(),
        preempted=q["preempted"].copy(),
        hit_tokens=q["hits"].copy(),
        rejected=q["status"] == tables.REJECTED,
        replica=q["replica"].copy(),
        steps=int(totals[0]),
        preemptions=int(totals[1]),
        hit=int(totals[2]),
        looked_up=int(totals[3]),
        peak_blocks=int(w.totals[:, 4].max()),
        end=float(s["clock"].max()),
        samples=tuple(w.samples[v, : s["sampled"][v]].copy() for v in range(len(s))),
    )
