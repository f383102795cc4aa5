"""Whoever does the work of a search, every job is done, once, and its result finds its place."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from kvplan.advise import executor
from kvplan.advise.executor import Executor, Here, Processes, executor_of, processors
from kvplan.errors import BadInput


def squared(common: int, job: int) -> int:
    return common + job * job


def whose(_common: Any, _job: int) -> int:
    return os.getpid()


def dies_once(path: str, job: int) -> int:
    """Ends its process the first time that job 3 is done."""
    if job == 3 and not os.path.exists(path):  # noqa: PTH110 - as little as can go wrong
        with open(path, "w", encoding="utf-8"):  # noqa: PTH123
            os._exit(1)
    return job


def dies(_common: Any, _job: int) -> int:
    os._exit(1)


def fails(_common: Any, job: int) -> int:
    if job == 2:
        raise ValueError("job 2 fails")
    return job


def in_place(by: Executor, work: Any, jobs: Sequence[int]) -> list[int]:
    found = dict(by.each(work, jobs))
    assert sorted(found) == list(range(len(jobs)))
    return [found[place] for place in range(len(jobs))]


@pytest.fixture
def two() -> Iterator[Processes]:
    by = Processes(10, 2)
    yield by
    by.close()


def test_results_find_their_places(two: Processes) -> None:
    jobs = [5, 3, 8, 1, 1, 0]
    wanted = [10 + job * job for job in jobs]
    assert in_place(Here(10), squared, jobs) == wanted
    assert in_place(two, squared, jobs) == wanted
    assert in_place(two, squared, []) == []


def test_processes_are_kept_for_the_whole_search(two: Processes) -> None:
    first, second = (set(in_place(two, whose, range(6))) for _ in range(2))
    assert first | second == first
    assert len(first) <= 2
    assert os.getpid() not in first


def test_a_process_that_is_lost_has_its_work_done_again(tmp_path: Any) -> None:
    by = Processes(str(tmp_path / "died"), 2)
    try:
        assert in_place(by, dies_once, range(8)) == list(range(8))
        assert (tmp_path / "died").exists()
        assert by.lost == 1
    finally:
        by.close()


def test_processes_that_are_lost_again_and_again_end_the_search(two: Processes) -> None:
    with pytest.raises(BadInput, match="--workers: a process was lost 4 times"):
        list(two.each(dies, range(3)))


def test_an_error_of_the_work_is_the_callers(two: Processes) -> None:
    for by in (Here(0), two):
        with pytest.raises(ValueError, match="job 2 fails"):
            list(by.each(fails, range(4)))


def test_a_caller_that_stops_leaves_nothing_running(two: Processes) -> None:
    for _ in two.each(squared, range(100)):
        break
    start = time.monotonic()
    two.close()
    assert time.monotonic() - start < 20


def test_as_many_processes_are_started_as_are_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "processors", lambda: 4)
    for workers, jobs, count in (
        (None, 100, 1),
        (1, 100, 1),
        (2, 100, 2),
        (64, 100, 4),
        (4, 20, 2),
        (4, 3, 1),
    ):
        with executor_of(0, workers, None, jobs) as by:
            assert (by.count if isinstance(by, Processes) else 1) == count
    assert processors() >= 1


def test_a_cluster_that_does_not_answer_is_said_in_a_line() -> None:
    with (
        pytest.raises(BadInput, match=r"--ray: '127\.0\.0\.1:1' is not reached|--ray: needs Ray") as caught,
        executor_of(0, None, "127.0.0.1:1", 10),
    ):
        pass
    assert "\n" not in str(caught.value)
