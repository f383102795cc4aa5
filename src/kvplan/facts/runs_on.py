"""What engines run on: accelerators, and the stored weights that they load there (engines/runs_on.toml)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvplan.facts import store
from kvplan.facts.accelerators import Accelerator
from kvplan.facts.schemes import flag, method_name

_READ_FILES = (
    "vllm",
    "sglang",
    "transformers",
)  # a GGUF file that somebody has: slowly, and not all of its types
_FILES = "llama.cpp"  # reads GGUF files, and no other engine is started with one of their types


def method_of(config: Mapping[str, Any] | None, named: str = "") -> str:
    """How weights are quantised in a word: as `named` for --quantization, else by the checkpoint's config."""
    found: Mapping[str, Any] = (flag(named) or {}) if named else (config or {})
    algorithm = str(found.get("quant_algo") or "").lower()
    if algorithm:
        return "nvfp4" if "nvfp4" in algorithm else algorithm.split("_")[0]
    return method_name(str(found.get("quant_method") or ""))


def why_not(engine: str, accelerator: Accelerator, method: str, named: str = "") -> str:
    """Why an engine does not serve such weights on that accelerator; "" where it may.

    `method` is `method_of` the weights, `named` what --quantization says of them.
    """
    found = _not_read(engine, method, named)
    if found:
        return found
    table = store.toml("engines/runs_on.toml")
    makers = table.get(engine)
    if makers is None:
        return ""
    row = makers.get(accelerator.vendor)
    if row is None:
        known = " and ".join(makers)
        return f"{engine} runs on {known}, not on {accelerator.name}: {next(iter(makers.values()))['source']}"
    if not _covers(row, accelerator):
        return f"{engine} does not run on {accelerator.name}: {row['source']}"
    for rule in table["weights"]:
        mine = rule["engine"] == engine and rule["maker"] == accelerator.vendor and method in rule["methods"]
        if mine and not (("from" in rule or "archs" in rule) and _covers(rule, accelerator)):
            return f"{engine} loads no {method} weights on {accelerator.name}: {rule['source']}"
    return ""


def _not_read(engine: str, method: str, named: str) -> str:
    if engine == _FILES and method not in ("", "gguf", "mxfp4"):
        return f"{engine} reads GGUF files; name one of their types, such as --quantization q4_k_m"
    if engine not in (_FILES, *_READ_FILES) and method == "gguf" and not named:
        return f"{engine} reads no GGUF files, which llama.cpp serves"
    if engine != _FILES and named and method == "gguf":
        return f"{named} is a type of GGUF files, which llama.cpp serves, not {engine}"
    return ""


def _covers(row: Mapping[str, Any], accelerator: Accelerator) -> bool:
    """Whether a row is of that architecture: at least as new, or one of those it lists."""
    arch = accelerator.arch or ""
    if "from" in row:
        return arch.removeprefix("sm").isdigit() and int(arch.removeprefix("sm")) >= row["from"]
    return "archs" not in row or arch in row["archs"]
