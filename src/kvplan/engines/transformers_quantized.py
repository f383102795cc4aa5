"""transformers' quantised cache: packed values, scales per group, and a residue at full width.

transformers 5.24.0 cache_utils.py QuantizedLayer, QuantoQuantizedLayer, HQQQuantizedLayer, Fp8QuantizedLayer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvplan.errors import BadInput, shown
from kvplan.facts.formats import Format, find_format
from kvplan.figure import Leaf, Number, Source, Trust, ceiling, formula, value_of


@dataclass(frozen=True, slots=True)
class Quantized:
    """A backend, its bits and group, and how many of the last tokens stay at full width."""

    backend: str
    nbits: int
    group: int
    residual: int
    source: str

    @property
    def note(self) -> str:
        """What is kept, in a sentence."""
        loose = f", up to {self.residual - 1:,} of the last tokens at full width" if self.residual > 1 else ""
        return f"the cache is quantised by {self.backend} to {self.nbits} bits{loose}"


@formula("B", "transformers 5.24.0 cache_utils.py QuantizedLayer")
def packed_bytes(values: Number, nbits: Number, group: Number, value_bytes: Number) -> Number:
    """Values at so many bits, a scale and a zero point of the model's dtype per group."""
    return ceiling(values * nbits, 8) + ceiling(values, group) * 2 * value_bytes


@formula("B", "transformers 5.24.0 cache_utils.py Fp8QuantizedLayer")
def fp8_bytes(values: Number, scale_bytes: Number) -> Number:
    """One byte a value and one scale a tensor."""
    return values + scale_bytes


def format_asked(kv_cache_dtype: str, dtype: Format, facts: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Backend and bits that a cache format means; None for the model's own dtype. Raises BadInput."""
    if kv_cache_dtype.lower() == "auto":
        return None
    name = find_format(kv_cache_dtype, "--kv-cache-dtype").name
    found: Mapping[str, Any] | None = facts["by_format"].get(name)
    if found is None and name != dtype.name:
        raise BadInput(
            f"--kv-cache-dtype: transformers keeps no {kv_cache_dtype} cache of a {dtype.name} model; "
            f"use {', '.join(facts['by_format'])}, or auto for {dtype.name}"
        )
    return found


def quantized_setting(
    flags: Mapping[str, Any],
    kind: str,
    wanted: Mapping[str, Any] | None,
    facts: Mapping[str, Any],
    settings: dict[str, tuple[Any, str]],
) -> Quantized | None:
    """The quantised cache that flags ask for, or None: `cache_config` is transformers' own JSON."""
    if kind != "quantized":
        if flags.get("cache_config"):
            raise BadInput(
                f"--cache-config: a {kind} cache takes none; drop it or give --cache-implementation quantized"
            )
        return None
    given = _config(flags)
    usual = wanted or {"backend": facts["backend"]}
    backend = str(given.get("backend", usual["backend"])).lower()
    allowed = facts["backends"].get(backend)
    if allowed is None:
        raise BadInput(f"--cache-config backend: {shown(backend)}; expected {', '.join(facts['backends'])}")
    nbits = _whole(given, "nbits", usual.get("nbits", 8 if backend == "fp8" else facts["nbits"]), 1)
    if nbits not in allowed:
        raise BadInput(f"--cache-config nbits: {nbits}; {backend} takes {', '.join(map(str, allowed))}")
    settings["cache_config"] = ({"backend": backend, "nbits": nbits}, facts["source"])
    return Quantized(
        backend=backend,
        nbits=nbits,
        group=_whole(given, "q_group_size", facts["group"], 1),
        residual=0 if backend == "fp8" else _whole(given, "residual_length", facts["residual"], 0),
        source=str(facts["source"]),
    )


def _config(flags: Mapping[str, Any]) -> Mapping[str, Any]:
    given = flags.get("cache_config") or {}
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError:
            raise BadInput(f"--cache-config: {shown(given)} is not JSON") from None
    if not isinstance(given, Mapping):
        raise BadInput(f"--cache-config: {shown(given)}; expected a JSON object")
    return given


def _whole(given: Mapping[str, Any], name: str, default: int, least: int) -> int:
    value = given.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= 2**31:
        raise BadInput(f"--cache-config {name}: {shown(value)}; expected a whole number of {least} or more")
    return value


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
