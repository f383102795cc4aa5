"""The deployment that a verb's words and a pasted launch command describe together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kvplan.engines.deployment import Deployment
from kvplan.errors import BadInput
from kvplan.facts.engine_versions import find_engine
from kvplan.verbs.deploy import Split, deployment
from kvplan.verbs.given import ModelLike
from kvplan.verbs.pasted import Pasted, pasted, settings

RANKS = ("tp", "pp", "dp", "ep", "dcp", "attention_dp")
NAMED = ("dtype", "quantization", "kv_cache_dtype")
MEASURED = ("weights_memory", "activation_memory", "graph_memory", "kv_cache_memory_bytes")
_OTHERS = ("gpu", "engine", "engine_version", "gpu_memory", "memory_in_use", "link", "command")
WORDS = (*_OTHERS, *RANKS, *NAMED, *MEASURED)  # kvplan's own; all other settings are the engine's flags


def only(names: Iterable[str], given: Mapping[str, Any]) -> dict[str, Any]:
    """Those of these names that are given: a verb hands its arguments over whole."""
    return {name: given[name] for name in names if name in given}


def described(
    model: ModelLike | None, words: Mapping[str, Any], flags: Mapping[str, Any], batch: int | None = None
) -> tuple[Deployment, Pasted]:
    """The deployment, and what its `--command` said; what is given by itself wins over the command.

    `words` are kvplan's own (gpu, engine, tp, dtype, command, …), None or absent where not given; `flags` the
    engine's. The engine is vLLM, its newest version known and one rank unless stated. Raises BadInput or
    UnknownName for what cannot be used.
    """
    given = {name: value for name, value in words.items() if value is not None}
    read = pasted(given.get("command"), given.get("engine"))
    return deployed(model, given, flags, read, batch), read


def deployed(
    model: ModelLike | None,
    words: Mapping[str, Any],
    flags: Mapping[str, Any],
    read: Pasted,
    batch: int | None = None,
) -> Deployment:
    """The deployment that words and flags describe with what was read elsewhere, over which they win."""
    given = {name: value for name, value in words.items() if value is not None}
    whose = model if model not in (None, "") else read.model
    if whose is None:
        raise BadInput("MODEL: missing; give one before the options, or a --command that names it")
    engine = find_engine(given.get("engine") or read.engine or "vllm")
    measured = {"kv_cache_memory_bytes": read.pool, **only(MEASURED, given)}
    return deployment(
        whose,
        gpu=given.get("gpu"),
        engine=engine,
        engine_version=given.get("engine_version") or read.version,
        split=Split(**{**read.split, **only(RANKS, given)}),
        **{**read.named, **only(NAMED, given)},
        gpu_memory=given.get("gpu_memory"),
        memory_in_use=given.get("memory_in_use"),
        link=given.get("link"),
        measured=measured,
        flags=settings(flags, read, engine),
        batch=batch,
    )
