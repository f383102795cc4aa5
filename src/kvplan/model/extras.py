"""Weights of a model type that no general rule builds, listed as data: each a product of factors."""

from __future__ import annotations

from typing import Any

from kvplan.facts.model_types import quantities
from kvplan.model.keys import Keys
from kvplan.model.model import Weight


def extra_weights(keys: Keys, extras: dict[str, Any], known: dict[str, int]) -> tuple[Weight, ...]:
    """The named additions that apply, each the product of numbers, `known` names and config keys.

    `when` names a config key that must be true; `unless` one that must not; `sum` is a list of
    products to add up instead of one.
    """
    found = []
    for name, entry in extras.items():
        if "when" in entry and not keys.flag(entry["when"]):
            continue
        if "unless" in entry and keys.flag(entry["unless"]):
            continue
        products = entry["sum"] if "sum" in entry else [entry["factors"]]
        size = total_of(keys, products, known)
        if size:
            found.append(Weight(name, entry.get("part", "other"), size, split=entry.get("split", "none")))
    return tuple(found)


def total_of(keys: Keys, products: list[list[Any]], known: dict[str, int]) -> int:
    """The products added up."""
    return sum(_product(keys, factors, known) for factors in products)


def _product(keys: Keys, factors: list[Any], known: dict[str, int]) -> int:
    size = 1
    for factor in factors:
        size *= _factor(keys, factor, known)
    return size


def _factor(keys: Keys, factor: Any, known: dict[str, int]) -> int:
    """A number, a name, or a table: a key with a `default` (or the product `else`), `plus`, `over`."""
    if isinstance(factor, int):
        return factor
    if isinstance(factor, dict):
        value = _named(keys, factor["key"], known)
        if value is None:
            value = _product(keys, factor["else"], known) if "else" in factor else factor.get("default", 0)
        return max(0, int(value) + int(factor.get("plus", 0))) // int(factor.get("over", 1))
    return _named(keys, factor, known) or 0


def _named(keys: Keys, name: str, known: dict[str, int]) -> int | None:
    if name in known:
        return known[name]
    if name == "layers":
        return keys.need("layers")
    return keys.count(name, [name] if name not in quantities() else None)
