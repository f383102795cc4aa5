"""vLLM's own answers: 522 start-ups of 0.32.0, 1,331 plans of 28 versions, each figure exactly.

Block size, blocks, tokens, concurrency, bytes per block, groups, and of a refusal the memory needed
and the estimated length. What the harness forced is asked with the flags that bring it about.
"""

from __future__ import annotations

from collections import Counter

import pytest

from vllm_replay import Row, asked, differences, rows, setup_of_0_32, setup_of_version

NEWEST = rows("vllm_oracle_0_32.jsonl")
VERSIONS = rows("vllm_oracle_versions.jsonl")

MISSES = {
    "deepseek-ai__DeepSeek-V3.2#a@0.11.0.post2": "planned on 0.32.0's specs; 0.11.0 itself turns auto into "
    "fp8_ds_mla for this model (models/config.py DeepseekV32ForCausalLM), from 0.11.1 on no longer",
}


@pytest.mark.parametrize("row", NEWEST, ids=[row["id"] for row in NEWEST])
def test_vllm_0_32_is_reproduced(row: Row) -> None:
    assert list(differences(row, asked(row, setup_of_0_32(row)))) == []


@pytest.mark.parametrize("row", VERSIONS, ids=[row["id"] for row in VERSIONS])
def test_every_version_is_reproduced(row: Row) -> None:
    found = list(differences(row, asked(row, setup_of_version(row)), ordered=False))
    assert bool(found) == (row["id"] in MISSES), found


def test_the_answers_of_28_versions_are_kept() -> None:
    assert len(NEWEST) == 522
    assert len(VERSIONS) == 1331
    assert len(Counter(row["version"] for row in VERSIONS)) == 28
