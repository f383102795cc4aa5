"""`kvplan measure` on transformers itself: caches hold the bytes predicted, no step is below its floor.

Runs with `pytest -m oracle` where KVPLAN_TRANSFORMERS_PYTHON has torch and transformers (see
test_live_transformers.py). Times of small models say nothing of accuracy; those of a model of 100 M
parameters are in docs/measure.md.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from test_live_vllm import BASE, MODELS

pytestmark = pytest.mark.oracle

PYTHON = os.environ.get("KVPLAN_TRANSFORMERS_PYTHON", sys.executable)
SCRIPT = Path(__file__).with_name("ask_measure.py")
SOURCE = Path(__file__).parents[2] / "src"
MIXTRAL = {**BASE, "model_type": "mixtral", "num_hidden_layers": 2, "num_local_experts": 4}
ASKED: dict[str, dict[str, Any]] = {
    "llama": MODELS["llama"],
    "gemma3": MODELS["gemma3"],
    "deepseek_v3": MODELS["deepseek_v3"],
    "granitemoehybrid": MODELS["granitemoehybrid"],
    "mixtral": MIXTRAL,
}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What was measured of each model, in one process; the test fails where there is no transformers."""
    probe = [PYTHON, "-c", "import torch, transformers"]
    if subprocess.run(probe, capture_output=True, check=False).returncode:
        pytest.fail(f"{PYTHON} has no transformers with torch; see KVPLAN_TRANSFORMERS_PYTHON above")
    file = tmp_path_factory.mktemp("measured") / "configs.json"
    file.write_text(json.dumps(list(ASKED.values())), "utf-8")
    run = subprocess.run(
        [PYTHON, str(SCRIPT), str(file)], capture_output=True, text=True, check=False, timeout=600,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-2000:]
    return dict(zip(ASKED, map(json.loads, run.stdout.splitlines()), strict=True))


@pytest.mark.parametrize("name", ASKED)
def test_a_cache_that_was_allocated_holds_the_bytes_predicted(name: str, answers: dict[str, Any]) -> None:
    wrong = [row for row in answers[name]["cache"] if not row["agrees"]]
    assert wrong == []
    assert len(answers[name]["cache"]) == 7  # after prompts of three shapes and steps of four


@pytest.mark.parametrize("name", ASKED)
def test_no_step_is_quicker_than_its_floor(name: str, answers: dict[str, Any]) -> None:
    assert answers[name]["verdict"]["decode"]["above_floor"]
    assert answers[name]["verdict"]["prefill"]["above_floor"]
