"""A real Prometheus scrapes a vLLM server that really runs: what it tells of the cache is exact.

Runs with `make test-vllm`; needs Debian's package prometheus beside what test_live_servers.py needs.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from test_live_servers import FLAGS, compared, vllm  # noqa: F401  a fixture

import kvplan
from test_real_prometheus import prometheus

pytestmark = pytest.mark.oracle


def test_the_cache_of_a_scraped_vllm_server_is_exact(vllm: Any, tmp_path: Path) -> None:  # noqa: F811
    found, config = vllm
    words = {"since": "60s", "gpu": "cpu", "dtype": "bfloat16"}
    with prometheus(tmp_path, found.url.removeprefix("http://")) as url:
        time.sleep(20)
        answer = kvplan.verify(config, prometheus=url, **words, **FLAGS)
        wrong = kvplan.verify(config, prometheus=url, **words, **{**FLAGS, "num_gpu_blocks_override": 100})
    for name in ("num_blocks", "kv_tokens"):
        ours, theirs = compared(answer)[name]
        assert ours == theirs is not None
    assert not wrong["agrees"]
