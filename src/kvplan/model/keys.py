"""Typed reading of one config: every answer is checked and remembers where it was read."""

from __future__ import annotations

import math
from typing import Any

from kvplan.errors import BadConfig, shown
from kvplan.facts.model_types import Spec, quantities
from kvplan.figure import Source, Trust

PER_LAYER = ("query_heads", "kv_heads", "ff_width")
Read = tuple[str, Any, Source]  # key, value, where


class Keys:
    """A config's decoder keys under the names a model type uses."""

    def __init__(self, raw: dict[str, Any], file: str, path: str, spec: Spec) -> None:
        self.raw = raw
        self.file = file
        self.path = path
        self.spec = spec
        self.defaults: dict[str, Any] = spec.get("class_defaults", {})
        self.own_defaults: dict[str, Any] = spec.get("defaults", {})
        self.origins: dict[str, Source] = {}
        self.used: set[str] = set()  # keys whose value was taken
        self.assumed: dict[str, str] = {}  # quantities that nothing states, and what stands in for each
        self.layer_source: Source | None = None  # where the kinds of the layers were read
        self.layer: int | None = None  # which layer is being read, for keys that list one value each

    def spellings(self, quantity: str) -> list[str]:
        """The keys under which a quantity may stand, the type's own first."""
        own = self.spec.get("keys", {}).get(quantity)
        if own is not None:
            return list(own)
        known = quantities().get(quantity)
        return list(known["keys"]) if known else [quantity]

    def find(self, quantity: str, keys: list[str] | None = None) -> Read | None:
        """The first spelling stated and not null; else the class default, unless null was stated."""
        names = keys or self.spellings(quantity)
        null = False
        for key in names:
            present, value = self._at(key)
            if present and value is not None and value != "auto":
                return key, value, Source(Trust.STATED, f"{self.file} {self.path}{key}")
            null = null or present
        if null:
            return None
        return self._default(names)

    def assume(self, quantity: str, instead: str) -> Source:
        """The source of what stands in for an absent key: a rule of known types, a guess of others."""
        names = self.spellings(quantity)
        if not self.spec.get("names_unused"):
            return Source(Trust.ENGINE_RULE, f"no {names[0]} in {self.file}: {instead}")
        self.assumed[quantity] = f"no {names[0]}: {instead}"
        return Source(Trust.ASSUMED, f"{self.file} states {self.assumed[quantity]}")

    def _default(self, names: list[str]) -> Read | None:
        for table, where in (
            (self.own_defaults, f"{self.spec.get('source', 'its model type')}"),
            (self.defaults, self.spec.get("class_source", "class default")),
        ):
            for key in names:
                value = table.get(key, _dig(table, key)[1])
                if value not in (None, "auto"):
                    return key, value, Source(Trust.ENGINE_RULE, f"{key}: {where}")
        return None

    def _at(self, key: str) -> tuple[bool, Any]:
        return _dig(self.raw, key)

    def stated(self, key: str) -> bool:
        """Whether the config itself has the key, null or not."""
        return self._at(key)[0]

    def count(self, quantity: str, keys: list[str] | None = None) -> int | None:
        """A whole number within its bounds, or None when nothing states it."""
        read = self.find(quantity, keys)
        if read is None:
            return None
        key, value, source = read
        value = self.here(value)
        if value is None:
            return None
        self.origins[quantity] = source
        bounds = quantities().get(quantity, {})
        number = self.whole(key, value, bounds.get("at_least", 0), bounds.get("at_most", 2**40))
        self.used.add(key)
        if bounds.get("agree") and keys is None:
            self._agree(quantity, key, number)
        return number

    def here(self, value: Any) -> Any:
        """A value that may be a list with one entry per layer, at the layer being read."""
        if isinstance(value, list) and self.layer is not None:
            return value[min(self.layer, len(value) - 1)] if value else None
        return value

    def need(self, quantity: str) -> int:
        """As `count`, but absence is an error that names the keys looked for."""
        value = self.count(quantity)
        if value is None:
            raise BadConfig(
                f"{self.spellings(quantity)[0]}: missing in {self.file}"
                f"{f' {self.path[:-1]}' if self.path else ''} and no default is known for this model "
                f"type; looked for {', '.join(self.spellings(quantity))}"
            )
        return value

    def whole(self, key: str, value: Any, at_least: int = 0, at_most: int = 2**40) -> int:
        """Check one value as a whole number; the error names key, value and file."""
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.wrong(key, value, "expected a whole number")
        if isinstance(value, float) and (not math.isfinite(value) or value != int(value)):
            raise self.wrong(key, value, "expected a whole number")
        if not at_least <= value <= at_most:
            raise self.wrong(key, value, f"expected {at_least} to {at_most:,}")
        return int(value)

    def wrong(self, key: str, value: Any, expected: str) -> BadConfig:
        """The error for a value that cannot be used."""
        return BadConfig(
            f"{key}: {shown(value)} in {self.file}{f' ({self.path[:-1]})' if self.path else ''}; "
            f"{expected}; correct the file"
        )

    def _agree(self, quantity: str, key: str, number: int) -> None:
        for other in self.spellings(quantity):
            present, value = self._at(other)
            if other != key and present and isinstance(value, int) and value != number:
                raise BadConfig(
                    f"{key}: {number} contradicts {other}: {value} in {self.file}; keep one of them"
                )

    def flag(self, name: Any, default: bool = False) -> bool:
        """A spec's yes or no: itself, or the config key it names."""
        if isinstance(name, bool):
            return name
        if not isinstance(name, str):
            return default
        read = self.find(name, [name])
        if read is None:
            return default
        if isinstance(read[1], (bool, int)):
            self.used.add(name)
            return bool(read[1])
        raise self.wrong(name, read[1], "expected true or false")

    def list_of(self, key: str) -> list[Any] | None:
        """A list under that key, or None when absent, null or empty."""
        read = self.find(key, [key])
        if read is None or read[1] in ([], "", {}):
            return None
        if not isinstance(read[1], list):
            raise self.wrong(key, read[1], "expected a list")
        self.used.add(key)
        return list(read[1])

    def text(self, key: str) -> str | None:
        """A string under that key, or None."""
        read = self.find(key, [key])
        if read is None or not isinstance(read[1], str):
            return None
        self.used.add(key)
        return read[1]

    def real(self, key: str, default: float) -> float:
        """A number from 0 to a million under that key."""
        read = self.find(key, [key])
        if read is None:
            return default
        value = self.here(read[1])
        bad = isinstance(value, bool) or not isinstance(value, (int, float))
        if bad or not 0 <= value <= 1e6:
            raise self.wrong(key, value, "expected a number from 0 to 1,000,000")
        self.used.add(key)
        return float(value)


def _dig(table: dict[str, Any], key: str) -> tuple[bool, Any]:
    """Whether a key such as attn_config.kv_n_heads (or widths.0 in a list) is there, and its value."""
    here: Any = table
    for step in key.split("."):
        if isinstance(here, list) and step.isdecimal() and int(step) < len(here):
            here = here[int(step)]
        elif isinstance(here, dict) and step in here:
            here = here[step]
        else:
            return False, None
    return True, here
