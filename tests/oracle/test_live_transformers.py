"""transformers itself, asked now: small random models run, and their caches hold what kvplan says.

Runs with `pytest -m oracle` where a Python has transformers and torch. To use one beside the project's:

    python3.11 -m venv ~/tf && ~/tf/bin/pip install torch==2.13.0 transformers==5.24.0
    KVPLAN_TRANSFORMERS_PYTHON=~/tf/bin/python pytest -m oracle tests/oracle

Without the variable the running Python is tried. The models are a few kilobytes, nothing is downloaded.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from conftest import lines
from test_transformers_cache import differences

pytestmark = pytest.mark.oracle

PYTHON = os.environ.get("KVPLAN_TRANSFORMERS_PYTHON", sys.executable)
SCRIPT = Path(__file__).with_name("ask_transformers.py")
ROWS = lines("transformers_cache.jsonl")
ASKED = ("config", "tokens", "steps", "batch", "cache", "max_cache_len")


@cache
def answers(folder: Path) -> list[dict[str, Any]]:
    """What transformers holds for every golden row's model, asked once; skips where there is none."""
    probe = [PYTHON, "-c", "import torch, transformers"]
    if subprocess.run(probe, capture_output=True, check=False).returncode:
        pytest.fail(f"{PYTHON} has no transformers with torch; see KVPLAN_TRANSFORMERS_PYTHON above")
    cases = folder / "cases.json"
    cases.write_text(json.dumps([{k: row[k] for k in ASKED if k in row} for row in ROWS]), encoding="utf-8")
    run = subprocess.run(
        [PYTHON, str(SCRIPT), str(cases)], capture_output=True, text=True, check=False, timeout=900
    )
    assert run.returncode == 0, run.stderr[-2000:]
    return [json.loads(line) for line in run.stdout.splitlines()][1:]


@pytest.fixture(scope="module")
def answered(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return answers(tmp_path_factory.mktemp("transformers"))


@pytest.mark.parametrize("number", range(len(ROWS)), ids=lambda number: ROWS[number]["id"])
def test_a_live_cache_holds_what_is_predicted(number: int, answered: list[dict[str, Any]]) -> None:
    answer = answered[number]
    assert "error" not in answer
    assert differences(ROWS[number], answer) == []
