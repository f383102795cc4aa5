"""The cache pool from GPU and flags alone, beside what vLLM logged of 0.6 to 0.27."""

from __future__ import annotations

import functools
import json
import statistics
from pathlib import Path
from typing import Any

import pytest
from tests.logged_pools import OUTSIDE, Pool, pools

import kvplan

GIB = 2**30


@functools.cache
def predicted() -> list[Pool]:
    return [pool for pool in pools() if pool.predicted is not None]


def test_there_are_at_least_twenty_complete_budgets_to_be_judged_by() -> None:
    assert len(predicted()) >= 20


def test_the_median_error_of_the_pool_is_under_five_per_cent() -> None:
    assert statistics.median(abs(pool.error) for pool in predicted()) < 0.05


def test_the_stated_interval_holds_at_least_sixty_per_cent_of_the_logged_pools() -> None:
    assert sum(pool.inside for pool in predicted()) / len(predicted()) >= 0.6


def test_every_log_outside_its_interval_has_a_reason() -> None:
    assert {pool.id for pool in predicted() if not pool.inside} == set(OUTSIDE)


def test_every_log_that_is_not_predicted_says_why() -> None:
    assert all(pool.why for pool in pools() if pool.predicted is None)


RUNS = [
    json.loads(line)
    for line in (Path(__file__).parent / "golden/measured_runs.jsonl").read_text().splitlines()
]


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run["device_name"])
def test_a_measured_run_is_met_within_five_per_cent(run: dict[str, Any]) -> None:
    answer = kvplan.fit(
        run["model"],
        gpu=run["device_name"],
        gpu_memory=run["device_bytes"],
        engine_version=run["engine_version"],
        gpu_memory_utilization=run["gpu_memory_utilization"],
        tp=run["tp"],
        **run["flags"],
    )
    capacity = answer["capacity"]
    assert capacity["block_tokens"] == run["block_size"]
    assert capacity["num_blocks"] == pytest.approx(run["num_gpu_blocks"], rel=0.05)
