"""A case of the plain reference as the kernel takes it, and what the two must agree on."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvplan.facts.scheduling import Scheduling
from kvplan.serve.simulation import Outcome, Pool
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
