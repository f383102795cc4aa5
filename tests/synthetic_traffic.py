"""Requests of a known law, as counters of an engine would have counted them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

PROMPT_BOUNDS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000]
TIME_BOUNDS = [
    0.01,
    0.025,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.3,
    0.4,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
    40.0,
]


@dataclass
class Traffic:
    """When requests ended, in seconds from the start, and what they were like."""

    ends: Any
    prompt: Any
    output: Any
    hits: Any
    ttft: Any
    tpot: Any

    def __len__(self) -> int:
        return len(self.ends)


def rate_at(seconds: Any, day: float) -> Any:
    """Requests a second over a day: quiet at night, two peaks."""
    x = 2 * np.pi * np.asarray(seconds) / day
    return 3.0 - 2.0 * np.cos(x) + 0.8 * np.sin(2 * x)


def traffic(seconds: float, seed: int = 3, scale: float = 1.0) -> Traffic:
    """Poisson arrivals of that rate, lognormal lengths, a shared prefix of 200 tokens."""
    rng = np.random.default_rng(seed)
    most = 6.0 * scale
    count = rng.poisson(most * seconds)
    times = np.sort(rng.random(count) * seconds)
    times = times[rng.random(count) * most < rate_at(times, seconds) * scale]
    n = len(times)
    prompt = np.clip(np.rint(rng.lognormal(6.4, 0.9, n)), 1, 60000)
    output = np.clip(np.rint(rng.lognormal(5.0, 0.7, n)), 1, 20000)
    return Traffic(
        ends=times,
        prompt=prompt,
        output=output,
        hits=np.minimum(prompt, 200),
        ttft=rng.lognormal(-2.0, 0.5, n),
        tpot=rng.lognormal(-4.0, 0.3, n),
    )


def counted(ends: Any, amounts: Any, when: float) -> float:
    """What had been counted by then."""
    return float(amounts[: np.searchsorted(ends, when, side="right")].sum())


def cumulative(t: Traffic) -> dict[str, Any]:
    """Running sums by counter, with one entry more than requests."""

    def sums(values: Any) -> Any:
        return np.concatenate(([0.0], np.cumsum(values)))

    found = {
        "vllm:request_success_total": sums(np.ones(len(t))),
        "vllm:prompt_tokens_total": sums(t.prompt),
        "vllm:generation_tokens_total": sums(t.output),
        "vllm:prefix_cache_queries_total": sums(t.prompt),
        "vllm:prefix_cache_hits_total": sums(t.hits),
        "vllm:iteration_tokens_total_count": sums(t.output / 4),
    }
    for name, values, bounds in (
        ("vllm:request_prompt_tokens", t.prompt, PROMPT_BOUNDS),
        ("vllm:request_generation_tokens", t.output, PROMPT_BOUNDS),
        ("vllm:time_to_first_token_seconds", t.ttft, TIME_BOUNDS),
        ("vllm:request_time_per_output_token_seconds", t.tpot, TIME_BOUNDS),
        ("vllm:e2e_request_latency_seconds", t.ttft + t.tpot * t.output, TIME_BOUNDS),
    ):
        for bound in bounds:
            found[f'{name}_bucket{{le="{float(bound)}"}}'] = sums(values <= bound)
        found[f'{name}_bucket{{le="+Inf"}}'] = sums(np.ones(len(t)))
        found[f"{name}_sum"] = sums(values)
        found[f"{name}_count"] = sums(np.ones(len(t)))
    return found
