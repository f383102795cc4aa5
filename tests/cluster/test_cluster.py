"""A search on a Ray cluster finds what one process finds, whoever is lost on the way (make test-ray)."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kvplan
from kvplan.advise.executor import executor_of
from kvplan.advise.ledger import Ledger

pytestmark = [
    pytest.mark.ray,
    pytest.mark.filterwarnings("ignore"),  # Ray's own
]
SIZE = {"num_cpus": 1, "object_store_memory": 100 * 2**20, "include_dashboard": False}
BASE: dict[str, Any] = {
    "model": "llama-3.1-8b", "gpu": "h100,l40s,a100-80-sxm,l4,rtx4090,h200,mi300x", "rate": 8,
    "requests": 200, "prompt_tokens": 700, "output_tokens": 80, "ttft_p99": "1s", "tpot_p99": "60ms",
}  # fmt: skip


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes of one processor each, on this machine."""
    from ray.cluster_utils import Cluster

    found = Cluster(initialize_head=True, head_node_args=SIZE)
    found.add_node(**SIZE)
    found.wait_for_nodes()
    yield found
    found.shutdown()


@pytest.fixture(scope="module")
def embedded() -> str:
    return json.dumps(kvplan.recommend(**BASE))


def workers_of(cluster: Any) -> list[int]:
    """Processes that screen for this cluster, or wait to: by their parents and titles."""
    raylets = {node.all_processes["raylet"][0].process.pid for node in cluster.list_all_nodes()}
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError, IndexError):
            parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            title = (entry / "cmdline").read_bytes()
            if parent in raylets and title.startswith((b"ray::_screen", b"ray::IDLE")):
                found.append(int(entry.name))
    return found


def test_both_nodes_work_and_the_document_is_the_embedded_runs(cluster: Any, embedded: str) -> None:
    import ray

    def where(_common: Any, _job: int) -> str:
        time.sleep(0.2)
        return str(ray.get_runtime_context().get_node_id())

    with executor_of(None, None, cluster.address, 8) as by:
        assert len(ray.nodes()) == 2
        assert len({node for _, node in by.each(where, range(8))}) == 2
    assert not ray.is_initialized()
    assert json.dumps(kvplan.recommend(**BASE, ray=cluster.address)) == embedded


def test_a_worker_that_is_killed_has_its_work_done_again(cluster: Any, embedded: str) -> None:
    killed: list[int] = []

    def kill(what: str, done: int, of: int) -> None:
        if not killed and what.startswith("screened"):
            killed.extend(workers_of(cluster))
            for pid in killed:
                os.kill(pid, signal.SIGKILL)

    found = kvplan.recommend(**BASE, ray=cluster.address, report=kill)
    assert killed
    assert json.dumps(found) == embedded


def test_a_node_that_goes_away_is_survived(cluster: Any, embedded: str) -> None:
    third = cluster.add_node(**SIZE)
    cluster.wait_for_nodes()
    gone: list[bool] = []

    def remove(what: str, done: int, of: int) -> None:
        if not gone and what.startswith("screened"):
            gone.append(True)
            cluster.remove_node(third, allow_graceful=False)

    found = kvplan.recommend(**BASE, ray=cluster.address, report=remove)
    assert gone
    assert json.dumps(found) == embedded


def test_a_search_whose_driver_is_killed_goes_on_with_less_to_do(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "search.parquet"
    words = {**BASE, "engine": "vllm,sglang,tensorrt-llm"}
    whole = json.dumps(kvplan.recommend(**words))
    code = f"import kvplan\nkvplan.recommend(**{words!r}, ray={cluster.address!r}, resume={str(path)!r})"
    driver = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    for _ in range(2400):
        if path.exists():
            break
        assert driver.poll() is None
        time.sleep(0.05)
    driver.kill()
    driver.wait()
    before = len(Ledger(path, question_of(path)).rows)
    done: list[str] = []
    add = Ledger.add
    monkeypatch.setattr(Ledger, "add", lambda self, *a, **k: (done.append(a[1]), add(self, *a, **k)))
    assert json.dumps(kvplan.recommend(**words, ray=cluster.address, resume=str(path))) == whole
    after = len(Ledger(path, question_of(path)).rows)
    assert before > 0
    assert len(done) == after - before < after


def question_of(path: Path) -> str:
    import polars as pl

    return str(pl.read_parquet(path)["question"][0])
