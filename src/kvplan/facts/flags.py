"""The engines' own settings that size memory: names, types and which engine they belong to."""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvplan.errors import BadInput, UnknownName, did_you_mean, shown
from kvplan.facts import store
from kvplan.units import parse_bytes

_MOST = 2**48
_HUMAN = re.compile(r"(-?[0-9]+(?:\.[0-9]+)?)([kKmMgGtT]?)")
_STEPS = {"": 1}
_STEPS |= {unit: 1000 ** (i + 1) for i, unit in enumerate("kmgt")}
_STEPS |= {unit: 1024 ** (i + 1) for i, unit in enumerate("KMGT")}


@dataclass(frozen=True, slots=True)
class Flag:
    """One engine setting: its name with underscores, its engines, the type it takes, one line of help.

    `unread` are the engines that have it and whose figures here do not depend on it; `words` all it takes.
    """

    name: str
    engines: tuple[str, ...]
    type: str
    help: str
    least: int = 1
    unread: tuple[str, ...] = ()
    words: tuple[str, ...] = ()

    @property
    def option(self) -> str:
        """The flag as it is typed; a variable of the environment by its name."""
        return self.name if self.is_variable else f"--{self.name.replace('_', '-')}"

    @property
    def is_variable(self) -> bool:
        """Whether it is a variable of the environment."""
        return self.name.isupper()


@functools.cache
def flags() -> dict[str, Flag]:
    """Every engine setting, by name."""
    return {name: _flag(name, **entry) for name, entry in store.toml("engines/flags.toml").items()}


def _flag(name: str, engine: str | list[str], **entry: Any) -> Flag:
    engines = (engine,) if isinstance(engine, str) else tuple(engine)
    rest: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in entry.items()}
    return Flag(name, engines, **rest)


def reads(name: str, engine: str) -> bool:
    """Whether what kvplan says of that engine depends on the setting."""
    flag = flags().get(name)
    return flag is not None and engine in flag.engines and engine not in flag.unread


def unread_note(given: Mapping[str, Any], engine: str) -> list[str]:
    """A sentence on settings that the engine has and its figures here do not depend on."""
    asked = [flags()[name] for name, value in given.items() if value is not None and name in flags()]
    found = [flag.option for flag in asked if engine in flag.unread]
    return [f"left out of the figures: {' '.join(found)}"] if found else []


def checked(name: str, value: Any, engine: str) -> Any:
    """The value of a setting in its own type, or None when it was not given.

    Raises UnknownName for a setting no engine has, BadInput for one of another engine or a wrong value.
    """
    flag = flags().get(name)
    if flag is None:
        raise UnknownName(f"--{name.replace('_', '-')}: no such setting; {did_you_mean(name, flags())}")
    if value is None:
        return None
    if engine not in flag.engines:
        theirs = " and ".join(flag.engines)
        raise BadInput(f"{flag.option}: belongs to {theirs}, not {engine}; drop it or give --engine")
    return _CHECKS[flag.type](flag, value)


def _count(flag: Flag, value: Any) -> int:
    """A whole number; as text also with a unit: `16k` is decimal, `16K` binary, as vLLM takes it."""
    match = _HUMAN.fullmatch(value.strip()[:40]) if isinstance(value, str) else None
    if match:
        scaled = float(match[1]) * _STEPS[match[2]] if "." in match[1] else int(match[1]) * _STEPS[match[2]]
        value = int(scaled) if scaled == int(scaled) else value
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadInput(f"{flag.option}: {shown(value)} is not a whole number")
    if not flag.least <= value <= _MOST:
        raise BadInput(
            f"{flag.option}: {value:,} is outside {flag.least} to {_MOST:,}; give one in that range"
        )
    return value


def _length(flag: Flag, value: Any) -> int:
    return -1 if isinstance(value, str) and value.strip().lower() == "auto" else _count(flag, value)


def _layers(flag: Flag, value: Any) -> int | str:
    word = value.strip().lower() if isinstance(value, str) else ""
    return word if word in ("all", "auto") else _count(flag, value)


def _counts(flag: Flag, value: Any) -> list[int]:
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, (list, tuple)) or not parts:
        raise BadInput(f"{flag.option}: {shown(value)} is not a list of numbers; give them as 1024,4096")
    return [_count(flag, part) for part in parts]


def _shares(flag: Flag, value: Any) -> list[float]:
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, (list, tuple)) or not parts:
        raise BadInput(f"{flag.option}: {shown(value)} is not a list of shares; give them as 0.25,0.75")
    return [_share(flag, part) for part in parts]


def _number(flag: Flag, value: Any) -> float:
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        raise BadInput(f"{flag.option}: {shown(value)} is not a number") from None
    if isinstance(value, bool) or not math.isfinite(found) or found < 0:
        raise BadInput(f"{flag.option}: {shown(value)} is not a number of 0 or more")
    return found


def _share(flag: Flag, value: Any) -> float:
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        raise BadInput(f"{flag.option}: {shown(value)} is not a number") from None
    if isinstance(value, bool) or not 0 < found <= 1:
        raise BadInput(f"{flag.option}: {found:g} is not a share; give more than 0, at most 1")
    return found


def _yes(flag: Flag, value: Any) -> bool:
    if isinstance(value, str) and value.lower() in ("true", "false", "1", "0", "on", "off"):
        return value.lower() in ("true", "1", "on")
    if not isinstance(value, bool):
        raise BadInput(f"{flag.option}: {shown(value)} is neither yes nor no")
    return value


def _word(flag: Flag, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise BadInput(f"{flag.option}: {shown(value)} is not a word")
    if flag.words and value.strip() not in flag.words:
        raise BadInput(f"{flag.option}: {shown(value)} is not known; use {', '.join(flag.words)}")
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
    "counts": _counts,
    "length": _length,
    "layers": _layers,
    "shares": _shares,
    "number": _number,
    "share": _share,
    "yes": _yes,
    "word": _word,
    "size": _size,
    "json": _json,
}
