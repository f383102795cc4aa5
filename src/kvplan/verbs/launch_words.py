"""An engine's settings as its command line, its environment and its own file spell them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvplan.engines.engine import Setup
from kvplan.facts import launching


@dataclass(slots=True)
class Spelled:
    """Settings as they leave: words of the command, variables, the engine's file, and what has no place."""

    words: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)


def spelled(setup: Setup, settings: Mapping[str, Any]) -> Spelled:
    """Each setting where that version takes it: a flag, a variable, a key of the file, or nowhere."""
    out, table = Spelled(), launching.how(setup.engine)
    for name, value in _moved(setup, settings).items():
        if name.isupper():
            out.environment[name] = _plain(value, joined=True)
        elif _in_file(name, setup):
            _put(out.config, table["config"][name], _upper(name, value, table))
        elif launching.has(setup.engine, name, setup.version):
            out.words += option_words(name, value, setup)
        elif _instead(name, value, setup, out):
            continue
        else:
            out.left_out.append(option(name, setup.engine))
    _repeat(out, settings, table)
    return out


def option(name: str, engine: str) -> str:
    """A setting as the engine's command spells it: TensorRT-LLM's keep their underscores."""
    table = launching.how(engine)
    spelt = table.get("spelled", {}).get(name, name)
    return f"--{spelt}" if table.get("underscores") else f"--{spelt.replace('_', '-')}"


def option_words(name: str, value: Any, setup: Setup) -> list[str]:
    """One setting as words of the command line; none for a switch that is off by itself."""
    table, flag = launching.how(setup.engine), option(name, setup.engine)
    bare = table.get("bare_before", {}).get(name)
    if bare and launching.before(setup.version, bare):
        return [flag] if str(value).lower() in ("on", "true", "1", "auto") else []
    if value is True:
        return [flag]
    if value is False:
        return _off(name, flag, setup)
    if isinstance(value, (list, tuple)) and not table.get("underscores"):
        return [flag, *(_plain(part) for part in value)]
    return [flag, _plain(value, joined=True)]


def _off(name: str, flag: str, setup: Setup) -> list[str]:
    """A switch turned off: said where the version has words for it, else left at its default."""
    table = launching.how(setup.engine)
    if name in table.get("off", ()) or "negated" not in table or name not in table.get("negatable", (name,)):
        return []
    if not launching.before(setup.version, table["negated"]):
        return [f"--no-{flag.removeprefix('--')}"]
    return [f"--no-{flag.removeprefix('--')}"] if name in table.get("negated_before", ()) else []


def _plain(value: Any, *, joined: bool = False) -> str:
    """A value as text: numbers to their last digit, objects as JSON, lists with commas."""
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, Mapping):
        return json.dumps(value)
    if isinstance(value, (list, tuple)) and joined:
        return ",".join(_plain(part) for part in value)
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else repr(value)
    return str(value)


def _moved(setup: Setup, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that another one holds in this version, put inside it."""
    table = launching.how(setup.engine).get("instead", {})
    kept = dict(settings)
    for name, value in settings.items():
        inside = table.get(name, {}).get("inside")
        if inside and not launching.has(setup.engine, name, setup.version):
            del kept[name]
            kept[inside] = {**kept.get(inside, {}), name: value}
    return kept


def _instead(name: str, value: Any, setup: Setup, out: Spelled) -> bool:
    """What a version without the setting takes in its place."""
    entry = launching.how(setup.engine).get("instead", {}).get(name, {})
    if "variable" in entry:
        out.environment[entry["variable"]] = _plain(value)
        return True
    other = entry.get("flag")
    if other and launching.has(setup.engine, other, setup.version):
        out.words += option_words(other, value, setup)
        return True
    return False


def _in_file(name: str, setup: Setup) -> bool:
    """Whether a setting stands in the engine's own file: it has a key there, and no flag in this version."""
    table = launching.how(setup.engine)
    if name not in table.get("config", {}):
        return False
    return name not in table.get("since", {}) or not launching.has(setup.engine, name, setup.version)


def _upper(name: str, value: Any, table: Mapping[str, Any]) -> Any:
    return str(value).upper() if name in table.get("upper", ()) else value


def _put(config: dict[str, Any], path: str, value: Any) -> None:
    *tables, last = path.split(".")
    for part in tables:
        config = config.setdefault(part, {})
    config[last] = value


def _repeat(out: Spelled, settings: Mapping[str, Any], table: Mapping[str, Any]) -> None:
    """A table of the file stands in for the flags that fill it: those are said there once more."""
    for name, path in table.get("repeated", {}).items():
        if name in settings and path.split(".")[0] in out.config:
            _put(out.config, path, settings[name])


def no_place(setup: Setup, left_out: list[str]) -> list[str]:
    """A sentence on settings that this engine and version cannot be told."""
    if not left_out:
        return []
    return [f"{setup.engine} {setup.version} takes no {' '.join(left_out)}: left out of the launch"]
