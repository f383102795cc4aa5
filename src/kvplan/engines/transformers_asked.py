"""The cache asked of transformers: its kind, length, batch and format, read from generate's own settings.

transformers 5.24.0 generation/configuration_utils.py; a version's own rules: facts/engines/transformers.toml.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvplan.engines.engine import Setup
from kvplan.engines.transformers_quantized import Quantized, format_asked, quantized_setting
from kvplan.errors import BadInput, shown
from kvplan.facts import store
from kvplan.facts.formats import Format, find_format
from kvplan.figure import Leaf, Source, Trust
from kvplan.model.model import Model

FACTS = "engines/transformers.toml"
Settings = dict[str, tuple[Any, str]]


@dataclass(frozen=True, slots=True)
class Asked:
    """The cache asked for: its kind, tokens of each sequence, sequences, and bytes of one value."""

    kind: str
    tokens: Any
    batch: Any
    value_bytes: Any
    prompt: int
    encoder_tokens: int
    latent: bool
    quantized: Quantized | None
    settings: Mapping[str, tuple[Any, str]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def asked_of(model: Model, setup: Setup, leaf: Leaf, tokens: int | None = None) -> Asked:
    """The cache that a setup asks for; `tokens` replaces its length. Raises BadInput for a bad flag."""
    flags, facts = _flags(setup), store.toml(FACTS)
    settings: Settings = {}
    notes: list[str] = []
    dtype = find_format(
        setup.dtype if setup.dtype != "auto" else model.dtype or "bfloat16", "--dtype", "weights"
    )
    wanted = format_asked(setup.kv_cache_dtype, dtype, facts["quantized"])
    kind = _kind(flags, wanted, setup.kv_cache_dtype, settings, notes)
    length, source = _length(model, flags, kind) if tokens is None else (tokens, _stated("max_length"))
    quantized = quantized_setting(flags, kind, wanted, facts["quantized"], settings)
    if quantized is not None:
        notes.append(quantized.note)
    batch = _count(flags, "batch_size") if "batch_size" in flags else 1
    return Asked(
        kind=kind,
        tokens=leaf("tokens", length, "token", source),
        batch=leaf("batch", batch, "sequence", Source(Trust.STATED, "--batch")),
        value_bytes=_value_bytes(dtype, leaf),
        prompt=min(_count(flags, "prompt_tokens") if "prompt_tokens" in flags else length, length),
        encoder_tokens=_count(flags, "encoder_tokens") if flags.get("encoder_tokens") else 0,
        latent=rule("latent", setup.version)["value"] == "latent",
        quantized=quantized,
        settings=settings,
        notes=tuple(notes),
    )


def _value_bytes(dtype: Format, leaf: Leaf) -> Any:
    return leaf("value_bytes", dtype.block_bytes, "B/value", Source(Trust.STATED, f"cache in {dtype.name}"))


def _kind(
    flags: Mapping[str, Any], wanted: Any, kv_cache_dtype: str, settings: Settings, notes: list[str]
) -> str:
    """The kind of cache: given, or what its format asks for; old names of static caches are read as such."""
    table = store.toml(FACTS)["cache"]
    if "cache_implementation" not in flags:
        kind = str(table["default"] if wanted is None else "quantized")
        why = table["source"] if wanted is None else f"--kv-cache-dtype {kv_cache_dtype}"
        settings["cache_implementation"] = (kind, str(why))
        return kind
    given = str(flags["cache_implementation"]).lower()
    kind = table["old"].get(given, given)
    if kind not in table["kinds"]:
        known = ", ".join((*table["kinds"], *table["old"]))
        raise BadInput(f"--cache-implementation: {shown(given)}; expected one of {known}")
    if kind != given:
        notes.append(f"--cache-implementation {given} is an old name: transformers makes a {kind} cache")
    if wanted is not None and kind not in ("dynamic", "quantized"):
        raise BadInput(
            f"--kv-cache-dtype: {shown(kv_cache_dtype)} with a {kind} cache, which holds the model's dtype; "
            "drop one of the two, or give --cache-implementation quantized"
        )
    return str(kind if wanted is None else "quantized")


def _length(model: Model, flags: Mapping[str, Any], kind: str) -> tuple[int, Source]:
    """Tokens of each sequence; a static cache has a length of its own where one is given."""
    names = ("max_cache_len", "max_length") if "static" in kind else ("max_length", "max_cache_len")
    for name in names:
        if name in flags:
            return _count(flags, name), _stated(name)
    if not model.max_context:
        raise BadInput(
            f"--max-length: missing, and {model.file} states no context length; "
            "give one, such as --max-length 8192"
        )
    return model.max_context, model.origin("max_context")


def _stated(name: str) -> Source:
    return Source(Trust.STATED, f"--{name.replace('_', '-')}")


def rule(name: str, version: str) -> dict[str, Any]:
    """The entry of that rule which a version follows; the newest version for an empty one."""
    asked = _parts(version or str(store.toml(FACTS)["newest"]))
    entries: list[dict[str, Any]] = store.toml(FACTS)[name]
    return next(entry for entry in entries if asked >= _parts(entry["from"]))


def _parts(version: str) -> tuple[int, ...]:
    try:
        parts = tuple(int(part) for part in version.strip().removeprefix("v").split("."))
    except ValueError:
        known = ", ".join(store.toml(FACTS)["versions"])
        raise BadInput(f"--engine-version: {shown(version)} is not known; known: {known}") from None
    return parts


def _flags(setup: Setup) -> dict[str, Any]:
    names = {alias: flag for flag, found in store.toml(FACTS)["alias"].items() for alias in found}
    plain = {flag.lstrip("-").replace("-", "_"): v for flag, v in setup.flags.items() if v is not None}
    return {names.get(flag, flag): value for flag, value in plain.items()}


def _count(flags: Mapping[str, Any], flag: str) -> int:
    value = flags[flag]
    try:
        number = int(value)
    except (TypeError, ValueError):
        number = 0
    if number < 1 or isinstance(value, bool):
        raise BadInput(f"--{flag.replace('_', '-')}: {shown(value)}; expected a whole number of 1 or more")
    return number
