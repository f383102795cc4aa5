"""How each model type spells its layers: one TOML file a type, most of them a few lines."""

from __future__ import annotations

import functools
from typing import Any

from kvplan.facts import store

Spec = dict[str, Any]
_NOT_TYPES = {"base", "unknown"}


@functools.cache
def known_types() -> tuple[str, ...]:
    """Every model type with a file of its own."""
    names = {path.stem for path in (store.ROOT / "model_types").glob("*.toml")}
    return tuple(sorted(names - _NOT_TYPES))


def is_known(model_type: str | None) -> bool:
    """Whether that model type has a file."""
    return model_type in known_types()


@functools.cache
def spec_of(model_type: str) -> Spec:
    """The type's file laid over the one it is `like`, down to `base`; class defaults added.

    Tables merge key by key; lists (and so rules) replace.
    """
    own = store.toml(f"model_types/{model_type}.toml")
    under = spec_of(own.get("like", "base")) if model_type != "base" else {}
    merged = _overlay(under, own)
    return with_defaults(merged, own.get("defaults_of", model_type))


def with_defaults(spec: Spec, model_type: str) -> Spec:
    """The spec with that model type's class defaults and no other's: none where it has no class."""
    defaults = class_defaults().get(model_type, {})
    source = f"{model_type} class default, {class_source()}"
    return {**spec, "class_defaults": defaults, "class_source": source}


def _overlay(under: Spec, over: Spec) -> Spec:
    merged = dict(under)
    for key, value in over.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _overlay(merged[key], value) if both else value
    return merged


def overlay(under: Spec, over: Spec) -> Spec:
    """`over` laid over `under`, tables merged key by key."""
    return _overlay(under, over) if over else under


@functools.cache
def class_defaults() -> dict[str, dict[str, Any]]:
    """What transformers' config classes put in place of an absent key, by model type."""
    found: dict[str, dict[str, Any]] = store.json_file("class_defaults.json")["types"]
    return found


def text_types() -> dict[str, str]:
    """The decoder's model type inside a multimodal config that does not name it."""
    found: dict[str, str] = store.json_file("class_defaults.json")["text_types"]
    return found


def wrapper_tie(model_type: str) -> bool | None:
    """Whether a multimodal config shares head and embedding unless it says otherwise, if it has a rule."""
    ties: dict[str, bool] = store.json_file("class_defaults.json")["wrapper_ties"]
    return ties.get(model_type)


def is_encoder(model_type: str) -> bool:
    """Whether that type fills in masked words and continues no text, so that it keeps no cache."""
    return model_type in store.json_file("class_defaults.json")["encoders"]


def class_source() -> str:
    """The library and version the class defaults were read from."""
    return str(store.json_file("class_defaults.json")["source"])


@functools.cache
def quantities() -> dict[str, dict[str, Any]]:
    """Every quantity a config states, with its spellings and bounds."""
    return store.toml("keys.toml")
