"""Reading a config whose model type has no file: by its keys, saying what was assumed and what not used."""

from __future__ import annotations

import re
from typing import Any

from kvplan.errors import shown
from kvplan.facts import store
from kvplan.facts.model_types import Spec, is_encoder, overlay, spec_of, with_defaults
from kvplan.figure import Source, Trust
from kvplan.model.keys import Keys

Table = dict[str, Any]


def unknown_spec(name: str | None, text: Table, file: str) -> tuple[str, Spec, list[str]]:
    """The spec that a config's keys make, and the note that names what was assumed."""
    table = store.toml("unknown_types.toml")
    like, said = _like(table, name or "", text)
    spec, seen = spec_of(like), [said]
    used: list[str] = []
    for feature in table["features"]:
        if _stands(feature, text):
            spec = overlay(spec, feature["spec"])
            seen.append(feature["said"])
            used += feature.get("used", ())
    if text.get("layer_types"):
        seen.append("layer kinds from layer_types")
    elif like == table["otherwise_like"] and _listed(text):
        seen.append(f"layer kinds from {_listed(text)}")
    elif like == table["otherwise_like"] and _unplaced(table, text):
        spec = {**spec, "layers": [{"rule": "all", "kind": "full"}]}
        seen.append(f"full attention on every layer, since {', '.join(_unplaced(table, text))} may mean else")
    elif like == table["otherwise_like"] and _stated(text, "sliding_window") and "sliding_window" not in used:
        seen.append(_window(text))
    note = (
        f"model_type {shown(name)[1:-1] if name else 'absent'} in {file} is not known; "
        f"read by its keys: {'; '.join(seen)}"
    )
    return (
        name or "unknown",
        {**with_defaults(spec, name or ""), "settled": used, "names_unused": True},
        [note],
    )


def assumed_notes(keys: Keys) -> list[str]:
    """A note that names what stands in for each key that is missing; empty where nothing does."""
    if not keys.assumed:
        return []
    said = "; ".join(keys.assumed.values())
    return [f"assumed for a model type that is not known, since {keys.file} states {said}"]


def assumed_origins(keys: Keys) -> dict[str, Source]:
    """The sources of shapes and sums that rest on what was assumed."""
    rests: dict[str, list[str]] = {}
    for quantity, said in keys.assumed.items():
        for part in store.toml("unknown_types.toml")["assumed"][quantity]:
            rests.setdefault(f"shape.{part}", []).append(said)
    return {
        part: Source(Trust.ASSUMED, f"{keys.file} states {'; '.join(said)}") for part, said in rests.items()
    }


def unused_note(keys: Keys) -> list[str]:
    """A note that names the keys which may change the cache and which nothing read; empty without any."""
    if not keys.spec.get("names_unused"):
        return []
    table = store.toml("unknown_types.toml")
    settled = {*table["harmless"], *keys.spec["settled"], *keys.used}
    settled |= {key.partition(".")[0] for key in keys.used}
    unused = [k for k in keys.raw if _stated(keys.raw, k) and re.search(table["suspects"], k)]
    unused = [k for k in unused if k not in settled]
    if not unused:
        return []
    return [f"seen in {keys.file} but not applied, since their meaning is not certain: {', '.join(unused)}"]


def _like(table: Table, name: str, text: Table) -> tuple[str, str]:
    if is_encoder(name):
        return table["encoders_like"], table["encoders_said"]
    found = next((row for row in table["likes"] if _stands(row, text)), None)
    if found is not None:
        return found["like"], found["said"]
    return table["otherwise_like"], table["otherwise_said"]


def _stands(row: Table, text: Table) -> bool:
    """Whether the keys that a row asks for are in the config, and those it excludes are not."""
    wanted, some, none = row.get("stated", ()), row.get("any"), row.get("without", ())
    if some is not None and not any(_stated(text, key) for key in some):
        return False
    if any(text.get(key) is not False for key in row.get("off", ())):
        return False
    return all(_stated(text, key) for key in wanted) and not any(_stated(text, key) for key in none)


def _stated(text: Table, key: str) -> bool:
    """Whether a key says something: null, false, 0 and what is empty do not."""
    return bool(text.get(key))


def _unplaced(table: Table, text: Table) -> list[str]:
    """Keys that place windows or attention in a way that no rule reads."""
    known, where = table["placed"], table["placed_where"]
    return [
        key
        for key in text
        if _stated(text, key)
        and key not in known
        and key not in table["harmless"]
        and not (key in where and _stated(text, where[key]))
        and re.search(table["placing"], key)
    ]


def _listed(text: Table) -> str:
    """The key that gives every layer its kind, if one does."""
    if _stated(text, "attn_layer_period") and _stated(text, "mamba_d_state"):
        return "attn_layer_period"
    keys = ("layers_block_type", "hybrid_layer_pattern")
    return next((key for key in keys if isinstance(text.get(key), list) and text[key]), "")


def _window(text: Table) -> str:
    """How the window was placed, in words."""
    if isinstance(text["sliding_window"], list):
        return "the windows that sliding_window lists"
    if _stated(text, "use_sliding_window") and _stated(text, "max_window_layers"):
        return "the window from layer max_window_layers on"
    if _stated(text, "sliding_window_pattern"):
        return "the window on all but every sliding_window_pattern-th layer"
    return "the window on every layer"
