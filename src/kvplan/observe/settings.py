"""Arguments that a log prints, sorted into what kvplan calls them.

The names and types are those of the engine's command line (facts/engines/commands.toml), the checks those of
its settings: a value that cannot be used is left out and named, never an error, since nobody typed it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvplan.engines.command_flags import FACTS, grammar_of
from kvplan.errors import KvplanError
from kvplan.facts import flags as engine_flags
from kvplan.facts import store

_NAMED = ("dtype", "quantization", "kv_cache_dtype")


@dataclass(slots=True)
class Sorted:
    """What arguments say of a deployment.

    `unusable` names those whose value could not be used, `none` those that are printed as None.
    """

    split: dict[str, int] = field(default_factory=dict)
    named: dict[str, Any] = field(default_factory=dict)
    flags: dict[str, Any] = field(default_factory=dict)
    unusable: list[str] = field(default_factory=list)
    none: set[str] = field(default_factory=set)

    def take(self, engine: str, given: Mapping[str, Any]) -> None:
        """Sort these in; what is no matter of memory is passed over."""
        grammar = grammar_of(engine)
        table = store.toml(FACTS)["setup"]
        for typed, value in given.items():
            name = grammar.aliases.get(typed, typed)
            if value is None:
                self.none.add(name)
            if value is None or (name not in grammar.types and name not in table):
                continue
            where = table.get(name)
            if where in _NAMED:
                self._name(where, value)
            elif where is not None:
                self._rank(where, value)
            else:
                self._flag(engine, name, value)

    def _name(self, name: str, value: Any) -> None:
        text = str(value).removeprefix("torch.").strip()
        if text and text.lower() != "none" and len(text) <= 100:
            self.named[name] = text

    def _rank(self, name: str, value: Any) -> None:
        if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 65536:
            self.split[name] = value
        else:
            self.unusable.append(name)

    def _flag(self, engine: str, name: str, value: Any) -> None:
        known = engine_flags.flags().get(name)
        if known is None or engine not in known.engines:
            if isinstance(value, (bool, int, float, str, list, dict)):
                self.flags[name] = value
            return
        try:
            self.flags[name] = engine_flags.checked(name, value, engine)
        except KvplanError:
            self.unusable.append(name)
