"""How fast the simulator is: traces of real size, a million requests, overload, prefixes; warm, on one core."""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from kvplan.facts.scheduling import Scheduling
from kvplan.serve.simulation import Fleet, Outcome, Pool, simulate
from kvplan.serve.step_times import StepTimes
from kvplan.serve.traces import read_trace
from kvplan.serve.workload import Workload, workload_of

VLLM = Scheduling("decode-first", True, "step", "last", 1)
SGLANG = Scheduling("prefill-first", True, "ratio", "least-made", 1, 0.7, 0.098, 600, 4096)
POOL = Pool(blocks=28_000, block_tokens=16, budget=8192, max_running=1024, max_model_len=131_072)
PROMPT, OUTPUT, RATE, REQUESTS = 1155, 211, 5.53, 19_366  # of the Azure conversation trace of 2023


def step_times() -> StepTimes:
    """Tables as large as those made for a model, with times like an 8-billion-parameter one's on a large GPU."""
    tokens = np.unique(np.round(np.geomspace(1, 8192, 60)))
    rows = np.unique(np.round(np.geomspace(1, 1024, 40)))
    slots, context = np.geomspace(1, 1024, 30), np.geomspace(16, 131_072, 40)
    chunk, end = np.geomspace(1, 8192, 30), np.geomspace(1, 131_072, 40)
    return StepTimes(
        token_grid=tokens,
        token_seconds=np.maximum(6e-3, tokens * 2.5e-5),
        row_grid=rows,
        row_seconds=1e-3 + rows * 1e-6,
        decode_n_grid=slots,
        decode_context_grid=context,
        decode_seconds=2e-4 + slots[:, None] * context * 5e-8,
        chunk_grid=chunk,
        end_grid=end,
        prefill_seconds=5e-5 + chunk[:, None] * end * 1e-9,
        prompt_launch_seconds=5e-4,
    )


def lengths(rng: np.random.Generator, mean: int, n: int) -> np.ndarray:
    """Gamma with a coefficient of variation of 1."""
    return np.maximum(1, rng.exponential(mean, n)).astype(np.int32)


def steady(n: int, rate: float = RATE) -> Workload:
    """Poisson arrivals."""
    rng = np.random.default_rng(1)
    arrival = np.cumsum(rng.exponential(1 / rate, n))
    return workload_of(arrival, lengths(rng, PROMPT, n), lengths(rng, OUTPUT, n))


def shared(n: int) -> Workload:
    """Like Mooncake's conversations: prompts of 12,000 tokens in blocks of 512, 40 % of them seen before."""
    rng = np.random.default_rng(2)
    ids: list[int] = []
    start, chains, fresh = [0], [[0]], 1
    prompt = np.minimum(lengths(rng, 12_000, n), 120_000)
    for tokens in prompt:
        count = -(-int(tokens) // 512)
        chain = chains[rng.integers(max(0, len(chains) - 400), len(chains))][
            : int(count * rng.beta(1, 1) + 1)
        ]
        added = range(fresh, fresh + count - len(chain))
        fresh += len(added)
        chain = [*chain, *added][:count]
        chains.append(chain)
        ids += chain
        start.append(len(ids))
    arrival = np.cumsum(rng.exponential(0.3, n))
    return workload_of(
        arrival,
        prompt,
        lengths(rng, 343, n),
        prefix_start=start,
        prefix_ids=np.unique(ids, return_inverse=True)[1],
        prefix_block_tokens=512,
    )


def sessions(n: int, users: int) -> Workload:
    """A closed loop."""
    rng = np.random.default_rng(3)
    arrival = np.full(n, np.nan)
    arrival[:users] = 0.0
    return workload_of(
        arrival,
        lengths(rng, PROMPT, n),
        lengths(rng, OUTPUT, n),
        think_seconds=rng.exponential(1.0, n),
        users=users,
    )


def seconds(work: Callable[[], object]) -> float:
    """CPU seconds of one run."""
    start = time.process_time()
    work()
    return time.process_time() - start


def told(name: str, work: Callable[[], Outcome], n: int, goal: str = "") -> float:
    """Run it, print what it took, return the seconds."""
    taken = min(seconds(work) for _ in range(1 if n > 100_000 else 3))
    o = work() if n <= 100_000 else None
    more = f", {o.steps:,} steps, {o.preemptions:,} preempted, {o.end / taken:,.0f} × real time" if o else ""
    print(f"{name}: {taken:.2f} s{goal}, {taken / n * 1e6:.1f} µs a request{more}")
    return taken


def main() -> None:
    """Print the figures, each beside its goal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trace", type=Path, help="a trace file instead of the synthetic one like Azure's")
    parser.add_argument("--prefixes", type=Path, help="a trace with prefix ids instead of the synthetic one")
    given = parser.parse_args()
    times = step_times()
    cached = Pool(**{**{name: getattr(POOL, name) for name in POOL.__slots__}, "caching": True})

    def run(workload: Workload, pool: Pool = POOL, policy: Scheduling = VLLM, fleet: Fleet | None = None):
        return lambda: simulate(workload, pool, policy, times, fleet)

    first = seconds(run(steady(10)))
    print(f"first call: {first:.1f} s (compiles if nothing is kept)")
    trace = read_trace(given.trace) if given.trace else steady(REQUESTS)
    told("conversation trace", run(trace), len(trace), " (goal: 1 s)")
    told("  by SGLang's rules", run(trace, policy=SGLANG), len(trace))
    told("  at three times the rate", run(trace.scaled(3)), len(trace))
    small = Pool(**{**{name: getattr(POOL, name) for name in POOL.__slots__}, "blocks": 6000})
    told("  an overload that preempts", run(trace.scaled(3), small), len(trace))
    told("  on 4 replicas", run(trace.scaled(3), fleet=Fleet(4, "least-loaded")), len(trace))
    apart = Fleet(2, prefill=2, move_seconds=0.002, move_seconds_per_token=3e-6)
    told("  prompts apart, 2 + 2 replicas", run(trace.scaled(3), fleet=apart), len(trace))
    mooncake = read_trace(given.prefixes) if given.prefixes else shared(12_000)
    told("prefixes", run(mooncake, cached), len(mooncake))
    told("  8 replicas, routed by prefix", run(mooncake, cached, fleet=Fleet(8, "prefix")), len(mooncake))
    closed = sessions(20_000, 256)
    told("256 users, closed loop", run(closed), len(closed))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for n in (10_000, 100_000, 1_000_000):
        workload = steady(n)
        taken = told(f"{n:,} requests", run(workload), n, " (goal: 15 s)" if n == 1_000_000 else "")
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(
        f"memory: {(after - before) / 1024:.0f} MiB for the last, {(after - before) * 1024 / n:.0f} B a request"
    )
    return taken


if __name__ == "__main__":
    main()
