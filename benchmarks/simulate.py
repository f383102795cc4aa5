"""How fast the simulator is, on one core: traces of real size, a million requests, overload, prefixes."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
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
    """Tables as large as those made for a model, with times like those of 8 billion parameters."""
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


def users(n: int, count: int) -> Workload:
    """A closed loop."""
    rng = np.random.default_rng(3)
    arrival = np.full(n, np.nan)
    arrival[:count] = 0.0
    return workload_of(
        arrival,
        lengths(rng, PROMPT, n),
        lengths(rng, OUTPUT, n),
        think_seconds=rng.exponential(1.0, n),
        users=count,
    )


def seconds(work: Callable[[], object]) -> float:
    """CPU seconds of one run."""
    start = time.process_time()
    work()
    return time.process_time() - start


def told(name: str, run: Callable[[], Outcome], goal: str = "") -> float:
    """Run it warm, print what it took; microseconds a request."""
    outcome = run()
    n = len(outcome.arrived)
    taken = min(seconds(run) for _ in range(1 if n > 100_000 else 3))
    print(
        f"{name}: {taken:.2f} s{goal}, {taken / n * 1e6:.1f} µs a request, {outcome.steps:,} steps, "
        f"{outcome.preemptions:,} preempted, {outcome.end / taken:,.0f} × real time"
    )
    return taken / n * 1e6


def bytes_of(run: Callable[[], Outcome]) -> int:
    """The most that is allocated at once."""
    tracemalloc.start()
    run()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def first_call() -> None:
    """What a process pays before its first answer."""
    times, workload = step_times(), steady(10)
    print(f"  {seconds(lambda: simulate(workload, POOL, VLLM, times)):.1f} s CPU")


def first_calls() -> None:
    """The first call ever, which compiles, and the first one of a later process."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["NUMBA_CACHE_DIR"] = folder
        for name in ("first call, nothing compiled (goal: 25 s):", "first call of the next process:"):
            print(name, flush=True)
            process = multiprocessing.get_context("spawn").Process(target=first_call)
            process.start()
            process.join()
        del os.environ["NUMBA_CACHE_DIR"]


def traces(given: argparse.Namespace, times: StepTimes) -> None:
    """Traces, by several rules and on several replicas."""
    trace = read_trace(given.trace) if given.trace else steady(REQUESTS)
    prefixes = read_trace(given.prefixes) if given.prefixes else shared(12_000)
    busy, cached = trace.scaled(3), replace(POOL, caching=True)
    tight, drafts = replace(POOL, blocks=6000), replace(POOL, positions=4, gain=2.2)
    apart = Fleet(2, prefill=2, move_seconds=0.002, move_seconds_per_token=3e-6)
    told("conversation trace", lambda: simulate(trace, POOL, VLLM, times), " (goal: 1 s)")
    told("  prompts first, by a ratio", lambda: simulate(trace, POOL, SGLANG, times))
    told("  with drafts, which allow no leaps", lambda: simulate(trace, drafts, VLLM, times))
    told("  at three times the rate", lambda: simulate(busy, POOL, VLLM, times))
    told("  the same, prompts first", lambda: simulate(busy, POOL, SGLANG, times))
    told("  an overload that preempts", lambda: simulate(busy, tight, VLLM, times))
    told("  on 4 replicas", lambda: simulate(busy, POOL, VLLM, times, Fleet(4, "least-loaded")))
    told("  prompts apart, 2 + 2 replicas", lambda: simulate(busy, POOL, VLLM, times, apart))
    told("prefixes", lambda: simulate(prefixes, cached, VLLM, times))
    told(
        "  8 replicas, routed by prefix", lambda: simulate(prefixes, cached, VLLM, times, Fleet(8, "prefix"))
    )
    closed = users(20_000, 256)
    told("256 users, a closed loop", lambda: simulate(closed, POOL, VLLM, times))


def growth(times: StepTimes) -> None:
    """Ten times as many requests, three times: what one costs in time and memory."""
    each, memory = [], []
    for n in (10_000, 100_000, 1_000_000):
        workload = steady(n)

        def run(workload: Workload = workload) -> Outcome:
            return simulate(workload, POOL, VLLM, times)

        each.append(told(f"{n:,} requests", run, " (goal: 15 s)" if n == 1_000_000 else ""))
        memory.append(bytes_of(run) / n)
    print(f"  time of one among a million: {each[-1] / each[0]:.2f} × that among 10,000")
    print(f"  memory: {memory[-1]:.0f} B a request, {memory[-1] / memory[0]:.2f} × that among 10,000")


def main() -> None:
    """Print the figures, each beside its goal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trace", type=Path, help="a file instead of the synthetic conversations")
    parser.add_argument("--prefixes", type=Path, help="a file instead of the synthetic prefixes")
    first_calls()
    times = step_times()
    traces(parser.parse_args(), times)
    growth(times)


if __name__ == "__main__":
    main()
