"""Which module answers for which engine; loaded only when asked for."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from kvplan.engines.deployment import Deployment
from kvplan.engines.engine import Capacity
from kvplan.errors import NotServed
from kvplan.facts import store
from kvplan.facts.engine_versions import key
from kvplan.figure import Leaf, Source, value_of

_MODULES = {
    "vllm": "kvplan.engines.vllm",
    "sglang": "kvplan.engines.sglang",
    "tensorrt-llm": "kvplan.engines.tensorrt_llm",
    "llama.cpp": "kvplan.engines.llama_cpp",
    "transformers": "kvplan.engines.transformers",
}
_RULES = {"vllm": "engines/vllm.toml", "sglang": "engines/sglang.toml"}
# Engines whose cache follows from the context asked for, not from what memory is left.
CONTEXT_DECIDES = ("llama.cpp", "transformers")


def engine_module(engine: str) -> Any:
    """The module of an engine."""
    return importlib.import_module(_MODULES[engine])


def capacity_of(d: Deployment, pool_bytes: Any, leaf: Leaf) -> Capacity:
    """What the engine prints when one rank gives `pool_bytes` to its cache.

    An engine that does not serve the model has no figures: `fits` is None and a note says why.
    """

    def with_pool(name: str, value: Any, unit: str, source: Source) -> Any:
        return pool_bytes if name == "kv_pool_bytes" else leaf(name, value, unit, source)

    pool = value_of(pool_bytes)
    try:
        found: Capacity = engine_module(d.setup.engine).capacity(d.model, d.setup, pool, with_pool)
    except NotServed as error:
        return Capacity(fits=None, notes=(str(error),))
    return found


def rules_between(engine: str, older: str, newer: str) -> list[str]:
    """What changed after version `older` up to `newer`, in a sentence each with its source."""
    facts = store.toml("engines/reserve.toml").get(engine, {})
    rows = [{"set": {name: row["value"]}, **row} for name, table in facts.items() for row in table]
    rows += store.toml(_RULES[engine]).get("change", []) if engine in _RULES else []
    lower, upper = key(older), key(newer)
    found = [_rule(row) for row in rows if "from" in row and lower < key(row["from"]) <= upper]
    return list(dict.fromkeys(found))


def _rule(row: Mapping[str, Any]) -> str:
    """What a change sets and where that was read."""
    values = ", ".join(f"{name} = {value}" for name, value in row.get("set", {}).items())
    kind = "assumed from logs: " if "low" in row else ""
    return f"{kind}{values} ({row['source']})" if values else str(row["source"])
