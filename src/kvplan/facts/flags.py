"""The engines' own settings that size memory: names, types and which engine they belong to."""

from __future__ import annotations

import functools
import json
import math
from dataclasses import dataclass
from typing import Any

from kvplan.errors import BadInput, UnknownName, did_you_mean, shown
from kvplan.facts import store
from kvplan.units import parse_bytes

_MOST = 2**48


@dataclass(frozen=True, slots=True)
class Flag:
    """One engine setting: its name with underscores, its engine, the type it takes, one line of help."""

    name: str
    engine: str
    type: str
    help: str
    least: int = 1

    @property
    def option(self) -> str:
        """The flag as it is typed."""
        return f"--{self.name.replace('_', '-')}"


@functools.cache
def flags() -> dict[str, Flag]:
    """Every engine setting, by name."""
    return {name: Flag(name, **entry) for name, entry in store.toml("engines/flags.toml").items()}


def checked(name: str, value: Any, engine: str) -> Any:
    """The value of a setting in its own type, or None when it was not given.

    Raises UnknownName for a setting no engine has, BadInput for one of another engine or a wrong value.
    """
    flag = flags().get(name)
    if flag is None:
        raise UnknownName(f"--{name.replace('_', '-')}: no such setting; {did_you_mean(name, flags())}")
    if value is None:
        return None
    if flag.engine != engine:
        raise BadInput(f"{flag.option}: belongs to {flag.engine}, not {engine}; drop it or give --engine")
    return _CHECKS[flag.type](flag, value)


def _count(flag: Flag, value: Any) -> int:
    if isinstance(value, str) and value.strip().lstrip("-").isdigit():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadInput(f"{flag.option}: {shown(value)} is not a whole number")
    if not flag.least <= value <= _MOST:
        raise BadInput(
            f"{flag.option}: {value:,} is outside {flag.least} to {_MOST:,}; give one in that range"
        )
    return value


def _number(flag: Flag, value: Any) -> float:
    try:
        found = float(value)
    except (TypeError, ValueError):
        raise BadInput(f"{flag.option}: {shown(value)} is not a number") from None
    if isinstance(value, bool) or not math.isfinite(found) or found < 0:
        raise BadInput(f"{flag.option}: {shown(value)} is not a number of 0 or more")
    return found


def _share(flag: Flag, value: Any) -> float:
    try:
        found = float(value)
    except (TypeError, ValueError):
        raise BadInput(f"{flag.option}: {shown(value)} is not a number") from None
    if isinstance(value, bool) or not 0 < found <= 1:
        raise BadInput(f"{flag.option}: {found:g} is not a share; give more than 0, at most 1")
    return found


def _yes(flag: Flag, value: Any) -> bool:
    if isinstance(value, str) and value.lower() in ("true", "false", "1", "0"):
        return value.lower() in ("true", "1")
    if not isinstance(value, bool):
        raise BadInput(f"{flag.option}: {shown(value)} is neither yes nor no")
    return value


def _word(flag: Flag, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise BadInput(f"{flag.option}: {shown(value)} is not a word")
    return value.strip()


def _size(flag: Flag, value: Any) -> int:
    return parse_bytes(value, flag.option) if isinstance(value, str) else _count(flag, value)


def _json(flag: Flag, value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise BadInput(f"{flag.option}: {shown(value)} is not JSON") from None
    if not isinstance(value, dict):
        raise BadInput(f"{flag.option}: {shown(value)} is not a JSON object")
    return value


_CHECKS = {
    "count": _count,
    "number": _number,
    "share": _share,
    "yes": _yes,
    "word": _word,
    "size": _size,
    "json": _json,
}
