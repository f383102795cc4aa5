"""Which part of a config is the text decoder, and which model type's data reads it."""

from __future__ import annotations

from typing import Any

from kvplan.errors import BadConfig, shown
from kvplan.facts.model_types import Spec, is_known, spec_of, text_types
from kvplan.model.unknown import unknown_spec

_NESTS = (
    "text_config",
    "llm_config",
    "language_config",
    "llm_cfg",
    "thinker_config",
    "text",
    "text_model_config",
)
_MAX_DEPTH = 6


def text_part(raw: dict[str, Any], file: str) -> tuple[dict[str, Any], str]:
    """The decoder's own table: nested under one of several names, or the top level."""
    here, path = raw, ""
    for _ in range(_MAX_DEPTH):
        name = next((n for n in _NESTS if isinstance(here.get(n), dict) and here[n]), None)
        if name is None:
            return here, path
        here, path = here[name], f"{path}{name}."
    raise BadConfig(f"{path[:-1]}: nested more than {_MAX_DEPTH} deep in {file}; correct the file")


def spec_for(raw: dict[str, Any], text: dict[str, Any], file: str) -> tuple[str, Spec, list[str]]:
    """The decoder's model type, how it spells its layers, and what had to be assumed."""
    outer, inner = _named_type(raw, file), _named_type(text, file)
    if inner is None and text is not raw:
        inner = text_types().get(outer or "")
    if text is raw and outer is not None and not is_known(outer):
        inner = text_types().get(outer, outer)
    for name in (inner,) if inner else (outer,):
        if name is not None and is_known(name):
            return name, spec_of(name), []
    return unknown_spec(inner or outer, text, file)


def _named_type(raw: dict[str, Any], file: str) -> str | None:
    name = raw.get("model_type")
    if name is not None and not isinstance(name, str):
        raise BadConfig(f"model_type: {shown(name)} in {file}; expected a name in quotes")
    return name or None
