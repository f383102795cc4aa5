"""How fast sizing is: many configs in one process, with and without explanations, and a cold start."""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Callable

import kvplan
from kvplan.facts.catalogue import entries


def seconds(work: Callable[[], object]) -> float:
    """CPU seconds of one run."""
    start = time.process_time()
    work()
    return time.process_time() - start


def size_many(count: int, *, explain: bool = False) -> None:
    """Read and size `count` configs, the built-in ones over and over."""
    models = entries()
    for i in range(count):
        answer = kvplan.size(models[i % len(models)].config(), tokens=4096)
        if explain:
            answer.figures()


def cold_start() -> float:
    """CPU seconds of `kvplan size` in a new process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "kvplan", "size", "llama-3.1-8b", "--json"]
    subprocess.run(command, check=True, capture_output=True)  # noqa: S603
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Print the figures, each beside what it is compared with."""
    size_many(len(entries()))
    plain, figured = seconds(lambda: size_many(1000)), seconds(lambda: size_many(1000, explain=True))
    empty = min(_python_start() for _ in range(5))
    cold = min(cold_start() for _ in range(5))
    print(f"1,000 configs sized: {plain:.2f} s CPU, {plain:.2f} ms each (goal: 5 s)")
    print(f"the same with every figure explained: {figured / plain:.1f} × that")
    print(
        f"kvplan size from a cold start: {cold:.2f} s CPU (goal: 0.3 s), {cold / empty:.1f} × an empty Python"
    )


def _python_start() -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
