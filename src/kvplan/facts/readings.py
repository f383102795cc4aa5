"""How rows of published benchmark tables are read: `efficiency/readings.toml`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvplan.facts import store


def weights_word(word: str, *, in_gguf: bool = False) -> dict[str, Any] | None:
    """What a table's word for the weights stands for, or None when it is not known.

    `in_gguf`: of a GGUF file, whose matrices may be stored in several types under one name.
    """
    lowered = word.strip().lower()
    for entry in store.toml("efficiency/readings.toml")["weights"]:
        if lowered.startswith(tuple(entry["starts"])) and (in_gguf or not entry.get("gguf")):
            return dict(entry)
    return None


def applied_rules(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rules that hold for a row, in order."""
    return [rule for rule in store.toml("efficiency/readings.toml")["rules"] if _holds(rule["where"], row)]


def _holds(where: Mapping[str, Any], row: Mapping[str, Any]) -> bool:
    return all(_is(row, name, wanted) for name, wanted in where.items())


def _is(row: Mapping[str, Any], name: str, wanted: Any) -> bool:
    if name == "squared":
        tp, ep = row.get("moe_tp"), row.get("moe_ep")
        return bool(tp and tp == ep and tp > 1 and row.get("n_gpus") == tp * ep)
    if name == "equal_lengths":
        return bool(row.get("isl")) and row.get("isl") == row.get("osl")
    if name == "lengths":
        return [row.get("isl"), row.get("osl")] in wanted
    found = row.get(name)
    if wanted == "":
        return found in (None, "")
    return found in wanted if isinstance(wanted, list) else found == wanted
