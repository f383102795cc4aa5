"""How fast timing is: one case warm, beside one step; a million points of a grid, beside as many cases."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable

import numpy as np

from kvplan.cost.estimate import Clock
from kvplan.cost.operations import Ranks, operations_of
from kvplan.cost.step import Step
from kvplan.facts.accelerators import find_accelerator
from kvplan.model.locate import load_model
from kvplan.serve import steady
from kvplan.serve.load import Load, Policy

CASES = (("llama-3.1-8b", Ranks()), ("deepseek-v3", Ranks(tp=8)))
POLICY = Policy(budget=8192, running=256.0)
BATCHES, DEPTHS, PROMPTS = np.arange(1, 101), np.arange(0, 100_000, 1000), np.arange(100, 10_100, 100)
CHUNK = 1 << 14  # points at a time: what a processor's cache holds of their intermediate values


def seconds(work: Callable[[], object]) -> float:
    """CPU seconds of one run."""
    start = time.process_time()
    work()
    return time.process_time() - start


def clock_of(model: str, ranks: Ranks) -> Clock:
    """A clock on H100s."""
    ops = operations_of(load_model(model), ranks, 2.0, "bf16")
    return Clock(ops, find_accelerator("h100", "gpu"), "vllm")


def each(work: Callable[[], object], count: int) -> float:
    """Seconds of one of many runs, warm."""
    work()
    return min(seconds(lambda: [work() for _ in range(count)]) for _ in range(3)) / count


def grid(clock: Clock) -> int:
    """A closed loop at every batch, depth and prompt length, a chunk of points at a time."""
    points = len(BATCHES) * len(DEPTHS) * len(PROMPTS)
    for start in range(0, points, CHUNK):
        index = np.arange(start, min(points, start + CHUNK))
        which = np.unravel_index(index, (len(BATCHES), len(DEPTHS), len(PROMPTS)))
        load = Load(PROMPTS[which[2]], 200, DEPTHS[which[1]])
        steady.closed_loop(clock, load, POLICY, BATCHES[which[0]])
    return points


def main() -> None:
    """Print the figures, each beside what it is compared with."""
    load = Load(1000, 200)
    for model, ranks in CASES:
        clock = clock_of(model, ranks)
        step = each(lambda clock=clock: clock.seconds(Step(64, 1100)), 500)
        asks: dict[str, Callable[[], object]] = {
            "closed loop": lambda clock=clock: steady.closed_loop(clock, load, POLICY, 64),
            "open loop": lambda clock=clock: steady.open_loop(clock, load, POLICY, 1.0),
            "batch": lambda clock=clock: steady.together(clock, load, POLICY, 64),
            "saturated": lambda clock=clock: steady.saturated(clock, load, POLICY),
        }
        print(f"{model}: a step {step * 1e6:.0f} µs")
        for name, ask in asks.items():
            one = each(ask, 100)
            print(f"  {name}: {one * 1e3:.2f} ms warm (goal: 1 ms), {one / step:.0f} steps' time")
        tracemalloc.start()
        grid_points = grid(clock)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        taken = seconds(lambda clock=clock: grid(clock))
        alone = each(asks["closed loop"], 100)
        times = alone * grid_points / taken
        print(
            f"  {grid_points:,} closed loops: {taken:.1f} s CPU (goal: 30 s), {peak / 2**20:.0f} MiB at most"
        )
        print(f"  that is {times:.0f} × as fast as one by one")


if __name__ == "__main__":
    main()
