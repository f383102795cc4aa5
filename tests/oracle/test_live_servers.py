"""Servers that really run: `kvplan verify` reads their logs and asks them, and every figure agrees.

Runs with `pytest -m oracle` where the engines are: vLLM for CPU in the Python that KVPLAN_VLLM_PYTHON names
(see test_live_vllm.py), a llama-server that KVPLAN_LLAMA_SERVER names (see test_launch_parses.py). vLLM takes
about a minute a model and 3 GB of memory, llama-server some seconds. Models are configs with made-up weights,
and Gemma 3 270M; nothing is downloaded. What came out last is in docs/measure.md.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from test_launch_parses import gguf, server  # noqa: F401  fixtures
from test_live_vllm import BASE, MODELS, PYTHON, version

import kvplan

pytestmark = pytest.mark.oracle

POOL = 256 * 2**20
ENVIRONMENT = {
    "VLLM_CPU_CI_ENV": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "OMP_NUM_THREADS": "1",
}
MIXTRAL = {
    **BASE,
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "num_hidden_layers": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
}
SERVED = {name: MODELS[name] for name in ("llama", "gemma3", "deepseek_v3")} | {"mixtral": MIXTRAL}
LENGTH, BATCHED, SEQUENCES = 2048, 1024, 16
FLAGS = {"max_model_len": LENGTH, "max_num_batched_tokens": BATCHED, "max_num_seqs": SEQUENCES}


@dataclass(frozen=True)
class Running:
    """A server that answers, and what it has printed so far."""

    url: str
    log: Path


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=2) as answer:  # noqa: S310
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


@contextmanager
def running(words: list[str], log: Path, seconds: float) -> Iterator[Running]:
    """A server started with these words, once it answers; it is ended with the test."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with log.open("wb") as out:
        started = subprocess.Popen(
            [*words, "--host", "127.0.0.1", "--port", str(port)],
            stdout=out, stderr=subprocess.STDOUT, env={**os.environ, **ENVIRONMENT},
        )  # fmt: skip
    try:
        until = time.monotonic() + seconds
        while not healthy(url):
            if started.poll() is not None or time.monotonic() > until:
                pytest.fail(log.read_text("utf-8", errors="replace")[-3000:])
            time.sleep(0.5)
        yield Running(url, log)
    finally:
        started.terminate()
        try:
            started.wait(30)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait(30)


@pytest.fixture(scope="module", params=SERVED)
def vllm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """(a vLLM server of each small model, its config)."""
    if version() is None:
        pytest.fail(f"no vLLM in {PYTHON}; test_live_vllm.py says how to install it")
    folder = tmp_path_factory.mktemp(request.param)
    config = folder / "config.json"
    config.write_text(json.dumps(SERVED[request.param]), "utf-8")
    flags = [word for name, value in FLAGS.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    words = [
        PYTHON, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder), "--skip-tokenizer-init",
        "--load-format", "dummy", "--dtype", "bfloat16", "--enforce-eager",
        "--kv-cache-memory-bytes", str(POOL), *flags,
    ]  # fmt: skip
    with running(words, folder / "server.log", 400) as found:
        yield found, str(config)


def compared(answer: Any) -> dict[str, tuple[Any, Any]]:
    return {row["name"]: (row["predicted"], row["reported"]) for row in answer["checks"]}


def test_a_vllm_server_that_runs_agrees_exactly(vllm: Any) -> None:
    found, config = vllm
    answer = kvplan.verify(config, url=found.url, gpu="cpu", dtype="bfloat16", **FLAGS)
    assert answer["agrees"], [row for row in answer["checks"] if not row["agrees"]]
    figures = compared(answer)
    for name in ("num_blocks", "block_tokens", "kv_tokens"):
        ours, theirs = figures[name]
        assert ours == theirs is not None


def test_the_log_of_a_vllm_server_agrees_exactly(vllm: Any) -> None:
    found, config = vllm
    answer = kvplan.verify(config, log=str(found.log), kv_cache_memory_bytes=POOL, gpu="cpu")
    assert answer["agrees"], [row for row in answer["checks"] if not row["agrees"]]
    ours, theirs = compared(answer)["kv_tokens"]
    assert ours == theirs is not None


def test_a_wrong_flag_is_found_at_a_vllm_server(vllm: Any) -> None:
    found, config = vllm
    longer = kvplan.verify(config, url=found.url, gpu="cpu", **{**FLAGS, "max_model_len": 2 * LENGTH})
    assert "max_model_len" in {row["name"] for row in longer["checks"] if not row["agrees"]}
    assert ("--max-model-len", LENGTH) in [(row["flag"], row["value"]) for row in longer["changes"]]
    blocks = kvplan.verify(config, url=found.url, gpu="cpu", dtype="bfloat16", block_size=64, **FLAGS)
    latent = "kv_lora_rank" in json.loads(Path(config).read_text("utf-8"))  # its blocks are of 16 in any case
    assert blocks["agrees"] is latent


BINDING = os.environ.get("KVPLAN_LLAMA_PYTHON", sys.executable)
BINDING_SCRIPT = Path(__file__).with_name("ask_llama_cpp.py")
CALLED = {"ctx_size": "n_ctx", "parallel": "n_parallel", "ubatch_size": "n_ubatch"}  # else as they are
LLAMA_ROWS: dict[str, dict[str, Any]] = {
    "plain": {"ctx_size": 4096, "parallel": 1},
    "odd": {"ctx_size": 5000, "parallel": 3},
    "narrow": {"ctx_size": 4096, "parallel": 2, "cache_type_k": "q8_0"},
    "all": {"ctx_size": 4096, "parallel": 1, "swa_full": True},
    "shared": {"ctx_size": 8192, "parallel": 4, "kv_unified": True, "ubatch_size": 256},
}


def started_with(words: dict[str, Any]) -> list[str]:
    found = []
    for name, value in words.items():
        found += [f"--{name.replace('_', '-')}"] + ([] if value is True else [str(value)])
    return found


@pytest.mark.parametrize("name", LLAMA_ROWS)
def test_a_llama_server_that_runs_agrees_exactly(
    name: str,
    server: str,  # noqa: F811
    gguf: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    words = LLAMA_ROWS[name]
    line = [server, "-m", str(gguf), "--metrics", "--no-warmup", "-t", "1", "-lv", "4", *started_with(words)]
    assert_agrees(line, words, gguf, tmp_path / "log")


@pytest.mark.parametrize("name", LLAMA_ROWS)
def test_the_server_of_a_binding_agrees_exactly(
    name: str,
    gguf: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    probe = [BINDING, "-c", "import xllamacpp"]
    if subprocess.run(probe, capture_output=True, check=False).returncode:
        pytest.fail(f"{BINDING} has no xllamacpp; test_live_llama_cpp.py says how to install it")
    words = LLAMA_ROWS[name]
    given = json.dumps({CALLED.get(word, word): value for word, value in words.items()})
    assert_agrees([BINDING, str(BINDING_SCRIPT), "serve", str(gguf), given], words, gguf, tmp_path / "log")


def assert_agrees(line: list[str], words: dict[str, Any], gguf: Path, log: Path) -> None:  # noqa: F811
    """The server's log and its pages agree with the plan, and a context that it does not have is found."""
    with running(line, log, 120) as found:
        asked = kvplan.verify(str(gguf), url=found.url, gpu="cpu")
        wrong = kvplan.verify(str(gguf), url=found.url, gpu="cpu", ctx_size=words["ctx_size"] * 2)
        logged = kvplan.verify(str(gguf), log=str(found.log), gpu="cpu")
        read = kvplan.verify(str(gguf), log=str(found.log), gpu="cpu", ctx_size=words["ctx_size"] * 2)
    for answer in (asked, logged):
        assert answer["agrees"], [row for row in answer["checks"] if not row["agrees"]]
    assert {"kv_bytes", "k_bytes", "v_bytes"} <= compared(logged).keys()  # printed in MiB of two digits
    assert not wrong["agrees"]
    assert not read["agrees"]
    assert "--ctx-size" in [row["flag"] for row in read["changes"]]
