"""What vLLM printed at start-up agrees with the bytes per token predicted from the config alone."""

from __future__ import annotations

from typing import Any

import pytest

import kvplan
from conftest import lines

ROWS = lines("vllm_cache.jsonl")
GiB, BLOCK_TOKENS = 2**30, 16
# A printed pool is rounded to 0.01 GiB.
ROUNDING = 0.005 * GiB

# Logs whose pool line is not the rank that binds: the tokens are fewer than the printed pool would hold.
ANOTHER_RANK_BINDS = {
    "vllm-0051": "four ranks, one pool printed; the tokens fill 8.02 of its 8.11 GiB: a smaller rank",
}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['id']}-{row['model']}")
def test_the_tokens_a_log_reports_fill_the_pool_it_reports(row: dict[str, Any]) -> None:
    kv = kvplan.size(row["model"], tp=row["tp"] or 1, kv_cache_dtype=row["kv_cache_dtype"])["kv"]
    pool, used = row["pool_gib"] * GiB, row["tokens"] * kv["bytes_per_token"]
    slack = (
        0.02 * pool if row["id"] in ANOTHER_RANK_BINDS else ROUNDING + BLOCK_TOKENS * kv["bytes_per_token"]
    )
    assert pool - slack <= used <= pool + ROUNDING


def test_the_reports_cover_several_models_versions_and_splits() -> None:
    assert len(ROWS) >= 25
    assert len({row["model"] for row in ROWS}) >= 10
    assert {row["tp"] for row in ROWS} >= {1, 2, 4}
