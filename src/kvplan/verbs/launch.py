"""The command that starts a deployment, with only the flags that differ from the engine's defaults."""

from __future__ import annotations

import json
import shlex
from typing import Any

from kvplan.engines.deployment import Deployment

_PROGRAMS = {
    "vllm": ["vllm", "serve"],
    "sglang": ["python", "-m", "sglang.launch_server", "--model-path"],
    "tensorrt-llm": ["trtllm-serve"],
    "llama.cpp": ["llama-server", "-m"],
    "transformers": [],
}
_TP = {"vllm": "--tensor-parallel-size", "sglang": "--tp-size", "tensorrt-llm": "--tp_size"}
_PP = {"vllm": "--pipeline-parallel-size", "sglang": "--pp-size", "tensorrt-llm": "--pp_size"}


def launch_command(d: Deployment, served: str, dtype: str, quantization: str | None) -> str:
    """The command line for `served`; empty where the engine is a library."""
    setup = d.setup
    if not _PROGRAMS[setup.engine]:
        return ""
    words = [*_PROGRAMS[setup.engine], served]
    for flag, count in ((_TP.get(setup.engine), setup.tp), (_PP.get(setup.engine), setup.pp)):
        words += [flag, str(count)] if flag and count > 1 else []
    for name, value in setup.flags.items():
        words += _words(name, value)
    if setup.kv_cache_dtype != "auto" and setup.engine != "llama.cpp":
        words += ["--kv-cache-dtype", setup.kv_cache_dtype]
    if setup.engine in ("vllm", "sglang"):
        words += ["--dtype", dtype] if dtype != "auto" else []
        words += ["--quantization", quantization] if quantization not in (None, "none") else []
    return shlex.join(words)


def _words(name: str, value: Any) -> list[str]:
    option = name.replace("_", "-")
    if value is True:
        return [f"--{option}"]
    if value is False:
        return [f"--no-{option}"]
    text = (
        json.dumps(value)
        if isinstance(value, dict)
        else f"{value:g}"
        if isinstance(value, float)
        else str(value)
    )
    return [f"--{option}", text]
