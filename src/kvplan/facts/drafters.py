"""The methods of speculative decoding and what each keeps beside the model: facts/engines/drafters.toml."""

from __future__ import annotations

from typing import Any

from kvplan.errors import BadInput, did_you_mean, shown
from kvplan.facts import store


def table() -> dict[str, Any]:
    """The whole table."""
    found: dict[str, Any] = store.toml("engines/drafters.toml")
    return found


def known_methods() -> list[str]:
    """Every method that vLLM knows."""
    return [name for names in table()["methods"].values() for name in names]


def keeps(method: object) -> str:
    """What a method keeps: `nothing`, layers `ahead` of the target's own, a `head`, or a `model`."""
    return next((kind for kind, names in table()["methods"].items() if method in names), "head")


def checked_method(field: str, given: object) -> str:
    """A known method's name; the model-specific names of MTP are one method."""
    if not isinstance(given, str) or given not in [*known_methods(), "[ngram]"]:
        short = [m for m in known_methods() if m == "mtp" or not m.endswith("_mtp")]
        hint = did_you_mean(given, known_methods()) if isinstance(given, str) else ""
        raise BadInput(f"{field}: {shown(given)} is not a method; {hint or 'known: ' + ', '.join(short)}")
    return "ngram" if given == "[ngram]" else "mtp" if keeps(given) == "ahead" else given


def method_named(name: str, otherwise: str) -> str:
    """The method that a draft's name tells, as vLLM reads it."""
    rows = table()["named"]
    return next((row["method"] for row in rows if row["word"] in name.lower()), otherwise)
