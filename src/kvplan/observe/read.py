"""A start-up log as what it says of a deployment."""

from __future__ import annotations

from typing import Any

from kvplan.observe import llama_cpp_log, sglang_log, tensorrt_llm_log, vllm_log
from kvplan.observe.log import LogRead, read_log
from kvplan.observe.observed import Observed

_ENGINES = {
    "vllm": vllm_log.observed,
    "sglang": sglang_log.observed,
    "tensorrt-llm": tensorrt_llm_log.observed,
    "llama.cpp": llama_cpp_log.observed,
}


def observe_log(log: Any) -> tuple[LogRead, Observed]:
    """How the log was read, and what its last complete start-up says.

    Raises BadInput where it cannot be read, or holds no start-up.
    """
    read = read_log(log)
    return read, _ENGINES[read.startup.engine](read.startup)
