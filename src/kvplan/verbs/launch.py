"""The command that starts a deployment, with only the flags that differ from the engine's defaults."""

from __future__ import annotations

import json
import shlex
from typing import Any

from kvplan.engines.deployment import Deployment
from kvplan.engines.engine import Setup

_PROGRAMS = {
    "vllm": ["vllm", "serve"],
    "sglang": ["python", "-m", "sglang.launch_server", "--model-path"],
    "tensorrt-llm": ["trtllm-serve"],
    "llama.cpp": ["llama-server", "-m"],
    "transformers": [],
}
_TP = {"vllm": "--tensor-parallel-size", "sglang": "--tp-size", "tensorrt-llm": "--tp_size"}
_PP = {"vllm": "--pipeline-parallel-size", "sglang": "--pp-size", "tensorrt-llm": "--pp_size"}
_DP = {"vllm": "--data-parallel-size", "sglang": "--dp-size"}
_EP = {"sglang": "--ep-size", "tensorrt-llm": "--ep_size"}


# Quantisations that the engines make of a 16-bit checkpoint while they load it.
_WHILE_LOADING = ("none", "fp8", "bitsandbytes", "nf4", "experts_int8", "ptpc_fp8", "torchao", "mxfp8")
_CACHE_NAMES = {"sglang": {"fp8": "fp8_e4m3", "nvfp4": "fp4_e2m1"}}
_FLAG_NAMES = {"free_gpu_memory_fraction": "kv_cache_free_gpu_memory_fraction"}


def launch_notes(d: Deployment, quantization: str | None) -> list[str]:
    """What the command cannot say by itself."""
    if quantization is None or quantization.lower() == "none":
        return []
    if d.setup.engine == "tensorrt-llm":
        return ["trtllm-serve takes a checkpoint that is quantised already; the launch names none"]
    if d.setup.engine == "llama.cpp" or quantization.lower() in _WHILE_LOADING:
        return []
    own = d.model.quantization or {}
    if own.get("quant_method"):
        return [f"--quantization {quantization} needs a checkpoint quantised so; serve one in place of this"]
    return []


def launch_command(d: Deployment, served: str, dtype: str, quantization: str | None) -> str:
    """The command line for `served`; empty where the engine is a library."""
    setup = d.setup
    if not _PROGRAMS[setup.engine]:
        return ""
    if setup.engine == "llama.cpp" and not served.endswith(".gguf"):
        served = "MODEL.gguf"
    words = [*_PROGRAMS[setup.engine], served]
    words += _ranks(setup)
    for name, value in setup.flags.items():
        words += _words(name, value, setup.engine)
    if setup.kv_cache_dtype != "auto" and setup.engine != "llama.cpp":
        name = _CACHE_NAMES.get(setup.engine, {}).get(setup.kv_cache_dtype, setup.kv_cache_dtype)
        words += [_option("kv_cache_dtype", setup.engine), name]
    if setup.engine in ("vllm", "sglang"):
        words += ["--dtype", dtype] if dtype != "auto" else []
        words += ["--quantization", quantization] if quantization not in (None, "none") else []
    longest = d.model.max_context
    beyond = setup.engine == "vllm" and longest is not None and d.max_model_len > longest
    return f"{'VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 ' if beyond else ''}{shlex.join(words)}"


def _ranks(setup: Setup) -> list[str]:
    """How the model is divided, in the engine's own flags."""
    apart = setup.engine == "sglang" and setup.attention_dp > 1
    dp = setup.attention_dp if apart else setup.dp
    words: list[str] = []
    for flags, count in ((_TP, setup.tp), (_PP, setup.pp), (_DP, dp), (_EP, setup.ep)):
        flag = flags.get(setup.engine)
        words += [flag, str(count)] if flag and count > 1 else []
    if setup.engine == "vllm" and setup.ep > 1 and not setup.flags.get("enable_expert_parallel"):
        words.append("--enable-expert-parallel")
    if apart and not setup.flags.get("enable_dp_attention"):
        words.append("--enable-dp-attention")
    if setup.engine == "vllm" and setup.dcp > 1:
        words += ["--decode-context-parallel-size", str(setup.dcp)]
    return words


def _option(name: str, engine: str) -> str:
    """A setting as the engine's command spells it: TensorRT-LLM's keep their underscores."""
    return f"--{_FLAG_NAMES.get(name, name)}" if engine == "tensorrt-llm" else f"--{name.replace('_', '-')}"


def _words(name: str, value: Any, engine: str) -> list[str]:
    option = _option(name, engine)
    if value is True:
        return [option]
    if value is False:
        return [f"--no-{option.removeprefix('--')}"]
    text = (
        json.dumps(value)
        if isinstance(value, dict)
        else f"{value:g}"
        if isinstance(value, float)
        else str(value)
    )
    return [option, text]
