"""`import kvplan` and `kvplan size` stay light: an architecture rule, asked of a fresh interpreter."""

from __future__ import annotations

import json
import subprocess
import sys

HEAVY = {
    "numba", "numpy", "ray", "torch", "fastapi", "uvicorn", "starlette", "polars", "altair", "pandas",
    "transformers", "httpx", "huggingface_hub", "gguf", "prometheus_client", "rich", "typer",
}  # fmt: skip


def modules_after(code: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys, json\nprint(json.dumps(sorted(sys.modules)))"],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    return {name.split(".")[0] for name in json.loads(done.stdout.splitlines()[-1])}


def test_importing_kvplan_loads_no_heavy_library() -> None:
    assert modules_after("import kvplan") & HEAVY == set()


def test_sizing_a_model_loads_no_heavy_library() -> None:
    assert modules_after("import kvplan; kvplan.size('llama-3.1-8b')") & HEAVY == set()


def test_the_size_command_loads_only_what_draws_it() -> None:
    code = "from kvplan.faces.cli import main\ntry: main(['size', 'llama-3.1-8b'])\nexcept SystemExit: pass"
    assert modules_after(code) & HEAVY <= {"typer", "rich"}
