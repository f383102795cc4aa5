"""What users saw in a simulated run: percentiles, throughput, and the pool over time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvplan.serve.simulation import Outcome
from kvplan.serve.workload import Workload

PERCENTILES = {"p50": 50, "p90": 90, "p99": 99}
POINTS = 240  # of the timeline
KINDS = ("ttft_seconds", "tpot_seconds", "e2e_seconds", "queue_seconds")


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """Seconds of each request, NaN where none: to the first token, a token, to the last, in the queue."""

    ttft_seconds: Any
    tpot_seconds: Any
    e2e_seconds: Any
    queue_seconds: Any
    finished: Any

    def spread(self, kind: str) -> dict[str, float | None]:
        """Mean and percentiles of those that finished; None where none did."""
        values = getattr(self, kind)
        values = values[np.isfinite(values)]
        if not len(values):
            return dict.fromkeys(("mean", *PERCENTILES))
        found = np.percentile(values, list(PERCENTILES.values()))
        return {"mean": float(values.mean()), **dict(zip(PERCENTILES, found.tolist(), strict=True))}


def seen(workload: Workload, outcome: Outcome, front_seconds: float) -> Seen:
    """What each request saw; `front_seconds` pass before the engine has it."""
    finished = np.isfinite(outcome.finish)
    further = np.maximum(1, workload.output_tokens - 1)
    token = (outcome.finish - outcome.first_token) / further
    return Seen(
        ttft_seconds=outcome.first_token - outcome.arrived + front_seconds,
        tpot_seconds=np.where(workload.output_tokens > 1, token, np.nan),
        e2e_seconds=outcome.finish - outcome.arrived + front_seconds,
        queue_seconds=outcome.admitted - outcome.arrived,
        finished=finished,
    )


def within(found: Seen, goals: Mapping[str, float]) -> Any:
    """Which finished requests stay within every goal, by the kinds above."""
    good = found.finished.copy()
    for kind, goal in goals.items():
        values = getattr(found, kind)
        good &= ~(values > goal)
    return good


def duration_seconds(outcome: Outcome) -> float:
    """From the first arrival to the last answer; 0 where nothing was answered."""
    if not np.isfinite(outcome.finish).any():
        return 0.0
    return float(np.nanmax(outcome.finish) - np.nanmin(outcome.arrived))


def timeline(outcome: Outcome, blocks: int) -> dict[str, list[float]]:
    """Who ran and waited and how full the pools were, all replicas together, at evenly spaced times."""
    if not any(len(samples) for samples in outcome.samples):
        return {"seconds": [], "running": [], "waiting": [], "kv_fraction": []}
    first = float(np.nanmin(outcome.arrived))
    last = max(float(samples[-1, 0]) for samples in outcome.samples if len(samples))
    at = np.linspace(first, last, POINTS)
    totals = np.zeros((3, POINTS))
    for samples in outcome.samples:
        if len(samples):
            totals += _states(samples, at)
    return {
        "seconds": (at - first).round(6).tolist(),
        "running": totals[0].tolist(),
        "waiting": totals[1].tolist(),
        "kv_fraction": (totals[2] / (blocks * len(outcome.samples))).round(6).tolist(),
    }


def _states(samples: Any, at: Any) -> Any:
    """Who runs and waits and what is held at these times: as last noted, and held blocks on their way.

    Between two notes of a replica that works its cache grows evenly; an idle one holds nothing.
    """
    place = np.searchsorted(samples[:, 0], at, side="right") - 1
    began = place >= 0
    place = np.maximum(place, 0)
    following = np.minimum(place + 1, len(samples) - 1)
    rows = samples[place, 1:].T.copy()
    span = samples[following, 0] - samples[place, 0]
    share = np.divide(at - samples[place, 0], span, out=np.zeros(len(at)), where=span > 0)
    grows = (rows[0] > 0) & (samples[following, 3] > rows[2])
    rows[2] += np.where(grows, np.clip(share, 0, 1) * (samples[following, 3] - rows[2]), 0.0)
    return rows * began


def table(workload: Workload, outcome: Outcome, found: Seen) -> dict[str, Any]:
    """One row a request, as columns: what was asked, when what happened, what was seen."""
    return {
        "arrival_seconds": outcome.arrived,
        "prompt_tokens": workload.prompt_tokens,
        "output_tokens": workload.output_tokens,
        "replica": outcome.replica,
        "admitted_seconds": outcome.admitted,
        "first_token_seconds": outcome.first_token,
        "finish_seconds": outcome.finish,
        "ttft_seconds": found.ttft_seconds,
        "tpot_seconds": found.tpot_seconds,
        "e2e_seconds": found.e2e_seconds,
        "queue_seconds": found.queue_seconds,
        "preemptions": outcome.preempted,
        "prefix_hit_tokens": outcome.hit_tokens,
        "rejected": outcome.rejected,
    }
