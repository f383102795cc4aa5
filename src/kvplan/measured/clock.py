"""Timing on a machine that others use too: the shortest of several, processor time where one thread works."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timer:
    """A clock in seconds, what it counts, and what waits for work that was started."""

    now: Callable[[], float]
    says: str
    wait: Callable[[], None] = lambda: None

    def seconds(self, work: Callable[[], object]) -> float:
        """Seconds of that work, once."""
        self.wait()
        start = self.now()
        work()
        self.wait()
        return self.now() - start


def timer(threads: int, wait: Callable[[], None] | None = None) -> Timer:
    """Processor time of one thread, in which others on the machine do not count; else time that passes."""
    if wait is not None:
        return Timer(time.perf_counter, "time that passes, the device waited for", wait)
    if threads == 1:
        return Timer(time.thread_time, "processor time of the one thread that works")
    return Timer(time.perf_counter, "time that passes")


def shortest(work: Callable[[], object], clock: Timer, repeats: int) -> float:
    """The shortest of several times, one before them not counted; never 0."""
    work()
    return max(min(clock.seconds(work) for _ in range(max(1, repeats))), 1e-9)
