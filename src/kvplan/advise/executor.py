"""Who does the work of a search: this process, several of this machine, or a Ray cluster."""

from __future__ import annotations

import multiprocessing
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from importlib import metadata
from typing import Any, Protocol, TypeVar

from kvplan.errors import BadInput, shown

J = TypeVar("J")
R = TypeVar("R")
Work = Callable[[Any, J], R]
_LOST = 3  # pools of processes that may break before a search gives up
_SECONDS = 5.0  # that a cluster's address has to answer within
_JOBS = 8  # each process is worth its start


class Executor(Protocol):
    """Takes jobs and yields (place of a job, its result) as they come, in any order."""

    def each(self, work: Work[J, R], jobs: Sequence[J]) -> Iterator[tuple[int, R]]:
        """`work(common, job)` of every job; `common` is what all jobs of a search share."""
        ...


class Here:
    """This process, one job after the other."""

    def __init__(self, common: Any) -> None:
        self.common = common

    def each(self, work: Work[J, R], jobs: Sequence[J]) -> Iterator[tuple[int, R]]:
        """As `Executor.each`."""
        for place, job in enumerate(jobs):
            yield place, work(self.common, job)


_SHARED: list[Any] = []


def _share(common: Any) -> None:
    _SHARED[:] = [common]


def _done(work: Work[Any, Any], job: Any) -> Any:
    return work(_SHARED[0], job)


class Processes:
    """So many processes of this machine, kept for a whole search; what a lost one had is done again."""

    def __init__(self, common: Any, count: int) -> None:
        self.common, self.count = common, count
        self.pool: ProcessPoolExecutor | None = None
        self.lost = 0

    def each(self, work: Work[J, R], jobs: Sequence[J]) -> Iterator[tuple[int, R]]:
        """As `Executor.each`. Raises BadInput where processes are lost again and again."""
        left = dict(enumerate(jobs))
        while left:
            places: dict[Future[R], int] = {}
            try:
                for place, job in left.items():
                    places[self._pool().submit(_done, work, job)] = place
                for future in as_completed(places):
                    result = future.result()
                    del left[places[future]]
                    yield places[future], result
            except BrokenProcessPool:
                self._again()
            finally:
                for future in places:
                    future.cancel()

    def _pool(self) -> ProcessPoolExecutor:
        if self.pool is None:
            context = multiprocessing.get_context("spawn")
            self.pool = ProcessPoolExecutor(self.count, context, initializer=_share, initargs=(self.common,))
        return self.pool

    def _again(self) -> None:
        self.lost += 1
        self.close()
        if self.lost > _LOST:
            raise BadInput(
                f"--workers: a process was lost {self.lost} times, such as for want of memory; give fewer"
            )

    def close(self) -> None:
        """End the processes."""
        if self.pool is not None:
            self.pool.shutdown(wait=False, cancel_futures=True)
            self.pool = None


class Cluster:
    """The nodes of a Ray cluster that runs already; what a lost worker had is done again by another."""

    def __init__(self, common: Any, address: str) -> None:
        try:
            import ray  # type: ignore[import-not-found, unused-ignore]

            ray.init  # noqa: B018 - a folder of that name imports as well
        except (ImportError, AttributeError):
            raise BadInput("--ray: needs Ray; pip install 'kvplan[ray]'") from None
        self.ray: Any = ray
        self.mine = not ray.is_initialized()
        if self.mine:
            _join(ray, address)
        _alike(ray)
        self.common = ray.put(common)

    def each(self, work: Work[J, R], jobs: Sequence[J]) -> Iterator[tuple[int, R]]:
        """As `Executor.each`."""
        ray = self.ray
        task = ray.remote(num_cpus=1, max_retries=8, retry_exceptions=False)(work)
        waiting = {task.remote(self.common, job): place for place, job in enumerate(jobs)}
        while waiting:
            ready, _ = ray.wait(list(waiting), num_returns=1)
            for reference in ready:
                yield waiting.pop(reference), ray.get(reference)

    def close(self) -> None:
        """Leave the cluster, if it was joined for this search."""
        if self.mine:
            self.ray.shutdown()


def _join(ray: Any, address: str) -> None:
    """Raises BadInput where no cluster answers; Ray itself would try for long, and aloud."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        if host and port.isdigit():
            socket.create_connection((host, int(port)), _SECONDS).close()
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except Exception as error:  # noqa: BLE001 - Ray raises many kinds
        line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise BadInput(f"--ray: {shown(address)} is not reached: {line}") from None


def _alike(ray: Any) -> None:
    """Raises BadInput where the cluster's nodes have no kvplan, or another."""
    try:
        theirs = ray.get(ray.remote(release).remote())
    except Exception:  # noqa: BLE001 - whatever keeps it from being imported
        raise BadInput("--ray: its nodes cannot import kvplan; install it there, with kvplan[ray]") from None
    if theirs != release():
        raise BadInput(f"--ray: its nodes have kvplan {theirs} and this one has {release()}; install one")


def release() -> str:
    """The release that is installed; nothing where the source is run as it lies."""
    try:
        return metadata.version("kvplan")
    except metadata.PackageNotFoundError:
        return ""


def processors() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def executor_of(common: Any, workers: int | None, address: str | None, jobs: int) -> Iterator[Executor]:
    """The executor that is asked for: a cluster's, or as many processes as there are jobs for.

    `workers` None: this process alone. Raises BadInput where a cluster is not reached.
    """
    count = min(workers or 1, jobs // _JOBS or 1, processors())
    by = Cluster(common, address) if address is not None else Processes(common, count)
    if address is None and count == 1:
        yield Here(common)
        return
    try:
        yield by
    finally:
        by.close()
