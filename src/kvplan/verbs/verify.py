"""`verify`: what was predicted beside what really runs, figure by figure, with what explains the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvplan.errors import BadInput
from kvplan.verbs.answer import Answer
from kvplan.verbs.deploy import Size
from kvplan.verbs.given import ModelLike
from kvplan.verbs.verify_log import from_log
from kvplan.verbs.verify_outcome import Outcome, answer_of

# Each source of figures: takes what was given for it, the model, kvplan's words and the engine's flags.
_SOURCES: dict[str, Callable[..., Outcome]] = {"log": from_log}


def verify(
    model: ModelLike | None = None,
    *,
    log: Any = None,
    gpu: str | None = None,
    engine: str | None = None,
    engine_version: str | None = None,
    tp: int | None = None,
    pp: int | None = None,
    dp: int | None = None,
    ep: int | None = None,
    dcp: int | None = None,
    attention_dp: int | None = None,
    dtype: str | None = None,
    quantization: str | None = None,
    kv_cache_dtype: str | None = None,
    gpu_memory: Size = None,
    memory_in_use: Size = None,
    kv_cache_memory_bytes: Size = None,
    weights_memory: Size = None,
    activation_memory: Size = None,
    graph_memory: Size = None,
    command: str | None = None,
    **flags: Any,
) -> Answer:
    """Every figure that a start-up log states beside the one predicted, with its error and tolerance.

    `log` is a path, `-` for standard input, or an open file. Model, version, accelerator and settings are the
    log's own; what is given besides is taken first, and where the log shows otherwise that is a check which
    disagrees. Returns the contract's `verify` document, with what explains each disagreement, what to change
    in the plan, and of a failed start what was needed, what was there and what fixes it. Raises BadInput for
    a log that cannot be read or whose model is not known.
    """
    given = {"log": log}
    source = _one_of(given)
    words = {
        "gpu": gpu,
        "engine": engine,
        "engine_version": engine_version,
        "tp": tp,
        "pp": pp,
        "dp": dp,
        "ep": ep,
        "dcp": dcp,
        "attention_dp": attention_dp,
        "dtype": dtype,
        "quantization": quantization,
        "kv_cache_dtype": kv_cache_dtype,
        "gpu_memory": gpu_memory,
        "memory_in_use": memory_in_use,
        "kv_cache_memory_bytes": kv_cache_memory_bytes,
        "weights_memory": weights_memory,
        "activation_memory": activation_memory,
        "graph_memory": graph_memory,
        "command": command,
    }
    return answer_of(_SOURCES[source](given[source], model, words, flags))


def _one_of(given: dict[str, Any]) -> str:
    """The source that was named: exactly one."""
    found = [name for name, value in given.items() if value is not None]
    if not found:
        wanted = " or ".join(f"--{name}" for name in given)
        raise BadInput(f"{wanted}: missing; name what to compare with, such as --log vllm.log")
    if len(found) > 1:
        raise BadInput(f"{' and '.join(f'--{name}' for name in found)}: give one of them")
    return found[0]
