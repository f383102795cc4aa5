"""Who does the work of a search: this process, several of this machine, or a Ray cluster."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from kvplan.errors import BadInput, shown

J = TypeVar("J")
R = TypeVar("R")


class Executor(Protocol):
    """Takes jobs and yields (place of a job, its result) as they come, in any order."""

    def each(self, work: Callable[[Any, J], R], common: Any, jobs: Sequence[J]) -> Iterator[tuple[int, R]]:
        """`work(common, job)` of every job; `common` is what all jobs share."""
        ...


class Here:
    """This process, one job after the other."""

    def each(self, work: Callable[[Any, J], R], common: Any, jobs: Sequence[J]) -> Iterator[tuple[int, R]]:
        """As `Executor.each`."""
        for place, job in enumerate(jobs):
            yield place, work(common, job)


_SHARED: list[Any] = []


def _share(work: Any, common: Any) -> None:
    _SHARED[:] = [work, common]


def _done(job: Any) -> Any:
    work, common = _SHARED
    return work(common, job)


class Processes:
    """So many processes on this machine."""

    def __init__(self, count: int) -> None:
        self.count = count

    def each(self, work: Callable[[Any, J], R], common: Any, jobs: Sequence[J]) -> Iterator[tuple[int, R]]:
        """As `Executor.each`."""
        context = multiprocessing.get_context("spawn")
        shared = (work, common)
        with ProcessPoolExecutor(self.count, context, initializer=_share, initargs=shared) as pool:
            places = {pool.submit(_done, job): place for place, job in enumerate(jobs)}
            try:
                for future in as_completed(places):
                    yield places[future], future.result()
            finally:
                pool.shutdown(wait=False, cancel_futures=True)


class Cluster:
    """The nodes of a Ray cluster that runs already; what a lost worker had is done again by another."""

    def __init__(self, address: str) -> None:
        try:
            import ray  # type: ignore[import-not-found, unused-ignore]
        except ImportError:
            raise BadInput("--ray: needs Ray; pip install 'kvplan[ray]'") from None
        self.ray: Any = ray
        try:
            ray.init(address=address, ignore_reinit_error=True, log_to_driver=False, logging_level="ERROR")
        except Exception as error:  # noqa: BLE001 - Ray raises many kinds
            line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise BadInput(f"--ray: {shown(address)} is not reached: {line}") from None

    def each(self, work: Callable[[Any, J], R], common: Any, jobs: Sequence[J]) -> Iterator[tuple[int, R]]:
        """As `Executor.each`."""
        ray = self.ray
        task = ray.remote(num_cpus=1, max_retries=8, retry_exceptions=False)(work)
        held = ray.put(common)
        waiting = {task.remote(held, job): place for place, job in enumerate(jobs)}
        while waiting:
            ready, _ = ray.wait(list(waiting), num_returns=1)
            for reference in ready:
                yield waiting.pop(reference), ray.get(reference)


@contextmanager
def executor_of(workers: int | None, address: str | None, jobs: int) -> Iterator[Executor]:
    """The executor that is asked for: a cluster's, or as many processes as there are jobs for.

    `workers` None: this process alone. Raises BadInput where a cluster is not reached.
    """
    if address is not None:
        cluster = Cluster(address)
        try:
            yield cluster
        finally:
            cluster.ray.shutdown()
        return
    count = min(workers or 1, jobs // 8 or 1, os.cpu_count() or 1)
    yield Processes(count) if count > 1 else Here()
