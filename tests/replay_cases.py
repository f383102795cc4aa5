"""A case of the plain reference as the kernel takes it, and what the two must agree on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from kvplan.facts.scheduling import Scheduling
from kvplan.serve.replay import blocks, tables
from kvplan.serve.replay.run import run
from kvplan.serve.simulation import Fleet, Outcome, Pool, State, begun, first_arrival
from kvplan.serve.step_times import StepTimes
from kvplan.serve.workload import Workload, workload_of
from plain_simulator import Engine, Policy, Result, Times
from random_workloads import Case

PREFIXES = ("prefix_start", "prefix_ids", "stream", "stream_tokens", "stream_parent", "parent_tokens")


def workload(plain: Any) -> Workload:
    """The same requests; ids of prefixes dense from 0."""
    fields = {name: getattr(plain, name) for name in PREFIXES}
    if plain.prefix_ids is not None:
        fields["prefix_ids"] = np.unique(plain.prefix_ids, return_inverse=True)[1].reshape(-1)
    return workload_of(
        plain.arrival_seconds,
        plain.prompt_tokens,
        plain.output_tokens,
        after=plain.after,
        think_seconds=plain.think_seconds,
        users=plain.users,
        prefix_block_tokens=plain.prefix_block_tokens,
        **fields,
    )


def pool(e: Engine) -> Pool:
    return Pool(
        blocks=e.blocks,
        block_tokens=e.block_tokens,
        budget=e.budget,
        max_running=e.max_running,
        max_model_len=e.max_model_len,
        full=e.full,
        window_blocks=e.window_blocks,
        window_cap=e.window_cap,
        fixed=e.fixed,
        positions=e.positions,
        gain=e.gain,
        caching=e.caching,
        unit_tokens=e.cache_block_tokens,
    )


def scheduling(p: Policy) -> Scheduling:
    return Scheduling(
        order=p.order,
        chunked=p.chunked,
        admit=p.admit,
        victim=p.victim,
        lead=p.lead,
        ratio_start=p.ratio_start,
        ratio_least=p.ratio_least,
        ratio_steps=p.ratio_steps,
        clip_tokens=p.clip_tokens,
    )


def step_times(t: Times) -> StepTimes:
    return StepTimes(
        token_grid=t.token_grid,
        token_seconds=t.token_seconds,
        row_grid=t.row_grid,
        row_seconds=t.row_seconds,
        decode_n_grid=t.decode_n_grid,
        decode_context_grid=t.decode_context_grid,
        decode_seconds=t.decode_seconds,
        chunk_grid=t.chunk_grid,
        end_grid=t.end_grid,
        prefill_seconds=t.prefill_seconds,
        prompt_launch_seconds=t.prompt_launch_seconds,
    )


def taken(case: Case) -> tuple[Workload, Pool, Scheduling, StepTimes]:
    """A case as `simulate` takes it."""
    return workload(case.workload), pool(case.engine), scheduling(case.policy), step_times(case.times)


def differences(plain: Result, outcome: Outcome, request_seconds: float) -> list[str]:
    """The quantities on which reference and kernel differ."""
    pairs = (
        ("admitted", plain.admitted, outcome.admitted),
        ("first token", np.array(plain.first_token) - request_seconds, outcome.first_token),
        ("finish", np.array(plain.finish) - request_seconds, outcome.finish),
        ("preempted", plain.preempted, outcome.preempted),
        ("hit tokens", plain.hit_tokens, outcome.hit_tokens),
        ("rejected", plain.rejected, outcome.rejected),
        ("steps", plain.steps, outcome.steps),
        ("preemptions", plain.preemptions, outcome.preemptions),
        ("hit", plain.total_hit_tokens, outcome.hit),
        ("looked up", plain.looked_up_tokens, outcome.looked_up),
    )
    same = (np.allclose(np.array(a, float), b, rtol=1e-9, atol=1e-9, equal_nan=True) for _, a, b in pairs)
    return [name for (name, _, _), alike in zip(pairs, same, strict=True) if not alike]


def moments(
    workload: Workload, pool: Pool, scheduling: Scheduling, times: StepTimes, fleet: Fleet | None = None
) -> Iterator[State]:
    """The kernel's arrays after each arrival of its own, and at the end."""
    state = begun(workload, pool, scheduling, times, fleet or Fleet())
    first = first_arrival(state[0])
    while first <= len(workload):
        first = int(run(*state, first, 1))
        yield state


def audit(state: State) -> None:
    """Nothing is lost: every block is held or free, every request somewhere."""
    q, s, w, u, _, _ = state
    for v in range(len(s)):
        free = s[v]["fresh"] + _queued(state, v)
        assert free == s[v]["free"]
        assert _held(state, v) + free == u.blocks
        waiting, r = 0, s[v]["first"]
        while r >= 0:
            assert q[r]["status"] == tables.WAITING
            assert q[r]["replica"] == v
            waiting, last, r = waiting + 1, r, q[r]["following"]
            assert r >= 0 or last == s[v]["last"]
        assert waiting == s[v]["waiting"]
    running = np.concatenate([w.running[v, : s[v]["count"]] for v in range(len(s))])
    assert len(set(running)) == len(running)
    assert set(q["status"][running]) <= {tables.RUNNING, tables.MOVING, tables.PLACE}
    arrived = int(np.sum(~np.isnan(q["arrived"])))
    gone = np.isin(q["status"], (tables.OVER, tables.REJECTED)).sum()
    between = np.sum((q["source"] >= 0) & (q["source"] == q["replica"]))
    assert arrived == s["waiting"].sum() + len(running) + gone + between


def _queued(state: State, v: int) -> int:
    """Blocks in a replica's free queue; its links, keys and runs are in order."""
    _, s, w, u, _, _ = state
    keys, total, runs = w.holders.shape[1], 0, 0
    node, before = s[v]["head"], -1
    while node >= 0:
        assert w.before[v, node] == before
        if node < keys:
            assert w.holders[v, node] == 0
            total += u.unit_blocks
        else:
            assert w.run_blocks[v, node - keys] > 0
            total += w.run_blocks[v, node - keys]
            runs += 1
        node, before = w.after[v, node], node
    assert before == s[v]["tail"]
    assert runs + s[v]["spares"] == len(w.run_blocks[v]) or not u.caching
    return int(total)


def _held(state: State, v: int) -> int:
    """Blocks that requests hold on a replica; each shared one is held by as many as the kernel counts."""
    q, s, w, u, _, d = state
    here = [(r, q[r]["held"], q[r]["units"]) for r in w.running[v, : s[v]["count"]]]
    elsewhere = np.flatnonzero(q["source"] == v)
    for r in elsewhere:
        left = q[r]["replica"] == v  # and has not come anywhere yet
        here.append((r, *q[r][["held", "units"] if left else ["moved_blocks", "moved_units"]]))
    own, holders = 0, Counter()
    for r, held, units in here:
        own += int(held) - int(units) * u.unit_blocks
        holders.update(blocks.key_of.py_func(q.view(np.recarray), u, d, r, unit) for unit in range(units))
    for key, count in enumerate(w.holders[v]):
        assert count == holders[key] or (count <= 0 and not holders[key])
    return own + len(holders) * u.unit_blocks
