"""transformers' quantised cache: packed values, scales per group, and a residue at full width.

transformers 5.24.0 cache_utils.py QuantizedLayer, QuantoQuantizedLayer, HQQQuantizedLayer, Fp8QuantizedLayer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvplan.errors import BadInput, shown
from kvplan.figure import Leaf, Number, Source, Trust, ceiling, formula, value_of


@dataclass(frozen=True, slots=True)
class Quantized:
    """A backend, its bits and group, and how many of the last tokens stay at full width."""

    backend: str
    nbits: int
    group: int
    residual: int
    source: str


@formula("B", "transformers 5.24.0 cache_utils.py QuantizedLayer")
def packed_bytes(values: Number, nbits: Number, group: Number, value_bytes: Number) -> Number:
    """Values at so many bits, a scale and a zero point of the model's dtype per group."""
    return ceiling(values * nbits, 8) + ceiling(values, group) * 2 * value_bytes


@formula("B", "transformers 5.24.0 cache_utils.py Fp8QuantizedLayer")
def fp8_bytes(values: Number, scale_bytes: Number) -> Number:
    """One byte a value and one scale a tensor."""
    return values + scale_bytes


def quantized_setting(
    flags: Mapping[str, Any],
    kind: str,
    kv_cache_dtype: str,
    facts: Mapping[str, Any],
    settings: dict[str, tuple[Any, str]],
) -> Quantized | None:
    """The quantised cache that flags ask for, or None: `cache_config` is transformers' own JSON."""
    fp8 = kv_cache_dtype.lower().startswith("fp8")
    if kind != "quantized" and not fp8:
        return None
    given = flags.get("cache_config") or {}
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError:
            raise BadInput(f"--cache-config: {shown(given)} is not JSON") from None
    if not isinstance(given, Mapping):
        raise BadInput(f"--cache-config: {shown(given)}; expected a JSON object")
    backend = str(given.get("backend", "fp8" if fp8 else "quanto")).lower()
    allowed = facts["backends"].get(backend)
    if allowed is None:
        raise BadInput(f"--cache-config backend: {shown(backend)}; expected {', '.join(facts['backends'])}")
    nbits = int(given.get("nbits", 8 if backend == "fp8" else facts["nbits"]))
    if nbits not in allowed:
        raise BadInput(f"--cache-config nbits: {nbits}; {backend} takes {', '.join(map(str, allowed))}")
    settings["cache_config"] = ({"backend": backend, "nbits": nbits}, facts["source"])
    return Quantized(
        backend=backend,
        nbits=nbits,
        group=int(given.get("q_group_size", facts["group"])),
        residual=0 if backend == "fp8" else int(given.get("residual_length", facts["residual"])),
        source=str(facts["source"]),
    )


def quantized_bytes(q: Quantized, row_values: Any, tokens: Any, value_bytes: Any, leaf: Leaf) -> Any:
    """Keys or values of one layer: `row_values` for each token, the last ones at full width.

    The residue is counted at its most, one token short of being packed; a prompt alone has none.
    """
    source = Source(Trust.ENGINE_RULE, q.source)
    if q.backend == "fp8":
        return fp8_bytes(row_values * tokens, leaf("scale_bytes", 4, "B", source))
    whole = int(value_of(tokens))
    loose = min(max(q.residual - 1, 0), whole)
    packed = packed_bytes(
        row_values * (tokens - loose),
        leaf("nbits", q.nbits, "bit", source),
        leaf("group", q.group, "value", source),
        value_bytes,
    )
    return packed + row_values * leaf("residual_tokens", loose, "token", source) * value_bytes
