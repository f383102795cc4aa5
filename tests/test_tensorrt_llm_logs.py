"""What TensorRT-LLM printed about its paged cache, beside what is predicted from the pool's bytes.

Shown without a target: the logs are of many releases and of two backends.
"""

from __future__ import annotations

from typing import Any

import pytest

from conftest import lines
from kvplan.engines.engine import Capacity, Setup
from kvplan.engines.tensorrt_llm import available_bytes, capacity
from kvplan.model.locate import load_model

ROWS = lines("tensorrt_llm_logs.jsonl")
GiB = 2**30
ROUNDING = 0.005 * GiB
NOT_PREDICTABLE = {
    "trt-004": "token counts of two engines that contradict each other",
    "trt-007": "AutoDeploy prints no sizes",
    "trt-010": "a reduced checkpoint whose shape is not given",
    "trt-018": "encoder-decoder with two pools, shape not given",
    "trt-021": "activation memory only",
    "trt-022": "lines before the cache only",
    "trt-023": "engine size only",
    "trt-025": "no figures",
}


def ids(row: dict[str, Any]) -> str:
    return str(row["id"])


def predicted(row: dict[str, Any], pool: int) -> Capacity:
    setup = Setup(
        "tensorrt-llm",
        row["version"],
        row.get("flags", {}),
        kv_cache_dtype=row.get("kv_cache_dtype", "auto"),
        tp=row["tp"],
    )
    return capacity(load_model(row.get("model") or row["config"]), setup, pool)


SIZED = [r for r in ROWS if "kv_allocated_GiB" in r["reported"]]


@pytest.mark.parametrize("row", SIZED, ids=ids)
def test_the_tokens_fill_what_was_allocated(row: dict[str, Any]) -> None:
    said = row["reported"]
    pool = said["kv_allocated_GiB"] * GiB
    low, high = (predicted(row, int(pool + sign * ROUNDING)) for sign in (-1, 1))
    assert low.kv_tokens <= said["kv_tokens"] <= high.kv_tokens
    if "primary_blocks" in said:
        assert low.num_blocks <= said["primary_blocks"] <= high.num_blocks


def test_bytes_and_tokens_of_two_runs_agree_exactly() -> None:
    row = next(r for r in ROWS if r["id"] == "trt-016")
    for name in ("triton", "run_py"):
        said = row["reported"]
        assert predicted(row, said[f"{name}_kv_bytes"]).kv_tokens == said[f"{name}_kv_tokens"]


@pytest.mark.parametrize("row", [r for r in ROWS if "peak_profiling_GiB" in r["reported"]], ids=ids)
def test_the_budget_after_the_dry_run_is_the_one_logged(row: dict[str, Any]) -> None:
    said = row["reported"]
    sizes = ("device_total_GiB", "peak_profiling_GiB", "temporary_kv_during_profiling_GiB")
    whole, peak, temporary = (int(said.get(name, 0) * GiB) for name in sizes)
    found = available_bytes(whole, peak, temporary, said["fraction"])
    assert abs(found / GiB - said["available_kv_GiB"]) < 0.02


@pytest.mark.parametrize("row", ROWS, ids=ids)
def test_bytes_per_token_are_those_logged(row: dict[str, Any]) -> None:
    said = row["reported"]
    stated = said.get("kv_bytes_per_token") or said.get("kv_size_per_token_bytes")
    if stated:
        found = predicted(row, GiB)
        assert found.bytes_per_block == stated * found.block_tokens


def test_every_row_is_accounted_for() -> None:
    assert len(ROWS) >= 11
    assert not {r["id"] for r in ROWS} & set(NOT_PREDICTABLE)
