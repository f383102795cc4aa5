"""Shared fixtures: few and tiny."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# How quick a machine is fails no test, and the same code gets the same examples, so that what turns red has
# changed. `make explore` draws other and more examples each time.
settings.register_profile(
    "kvplan", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "explore", deadline=None, max_examples=2000, print_blob=True, suppress_health_check=list(HealthCheck)
)
settings.load_profile(os.environ.get("KVPLAN_EXAMPLES", "kvplan"))

GOLDEN = Path(__file__).parent / "golden"


def lines(name: str) -> list[dict[str, Any]]:
    """The rows of a golden file."""
    return [json.loads(line) for line in (GOLDEN / name).read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def llama8b() -> dict[str, Any]:
    """A config as published for an 8-billion-parameter Llama, geometry keys only."""
    return {
        "model_type": "llama",
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
        "vocab_size": 128256,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
