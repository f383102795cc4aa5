"""A launch command as the user pastes it, turned into what `deployment` takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvplan.engines.command import read_command
from kvplan.errors import BadInput, shown
from kvplan.facts import flags as engine_flags
from kvplan.facts.engine_versions import find_engine

_MEASURED = "kv_cache_memory_bytes"


@dataclass(frozen=True, slots=True)
class Pasted:
    """What a command says, under kvplan's names; empty where none was given.

    `split`: tp, pp, …; `named`: dtype, quantization, kv_cache_dtype; `flags`: the engine's own settings.
    """

    engine: str | None = None
    version: str | None = None
    model: str | None = None
    split: Mapping[str, Any] = field(default_factory=dict)
    named: Mapping[str, Any] = field(default_factory=dict)
    flags: Mapping[str, Any] = field(default_factory=dict)
    pool: Any = None
    notes: tuple[str, ...] = ()
    report: Mapping[str, Any] | None = None


def pasted(command: str | None, engine: str | None) -> Pasted:
    """Read a launch command; flags that are not known are noted, never dropped in silence.

    Raises BadInput when it starts no engine, or another than `engine`.
    """
    if command is None:
        return Pasted()
    if not isinstance(command, str):
        raise BadInput(f"--command: {shown(command)} is not text")
    found = read_command(command)
    if engine is not None and find_engine(engine) != found.engine:
        raise BadInput(f"--engine: {shown(engine)} is given and the command starts {found.engine}; drop one")
    named = {k: v for k, v in found.setup.items() if k in ("dtype", "quantization", "kv_cache_dtype")}
    flags = _unpacked(found.engine, found.flags, named)
    notes = [*found.notes]
    unread = [_option(k) for k in flags if k != _MEASURED and not engine_flags.reads(k, found.engine)]
    unsaid = [_option(k) for k in flags if k not in engine_flags.flags() and _option(k) in unread]
    if unsaid:
        notes.append(f"--command: read, and left out of the figures: {' '.join(unsaid)}")
    if found.unknown:
        notes.append(f"--command: not known and left out: {' '.join(found.unknown)}")
    if found.ignored:
        notes.append(f"--command: known, and not a matter of memory: {' '.join(found.ignored)}")
    return Pasted(
        found.engine,
        found.version,
        found.model,
        {k: v for k, v in found.setup.items() if k not in named},
        named,
        {k: v for k, v in flags.items() if k != _MEASURED},
        flags.get(_MEASURED),
        tuple(notes),
        {"model": found.model, "ignored": [*found.ignored, *unread], "unknown": list(found.unknown)},
    )


def _option(name: str) -> str:
    return name if name.isupper() else f"--{name.replace('_', '-')}"


def _unpacked(engine: str, flags: Mapping[str, Any], named: dict[str, Any]) -> dict[str, Any]:
    """The flags under the names that the engine's own module reads; a cache's format goes to `named`."""
    found = dict(flags)
    if engine == "llama.cpp" and found.get("kv_offload") is not None:
        found["no_kv_offload"] = not found.pop("kv_offload")
    inner = found.get("kv_cache_config")
    if engine == "tensorrt-llm" and isinstance(inner, Mapping):
        del found["kv_cache_config"]
        found = {**{k: v for k, v in inner.items() if k != "dtype"}, **found}
        named.update({k: inner["dtype"] for k in ("kv_cache_dtype",) if "dtype" in inner and k not in named})
    return found


def settings(own: Mapping[str, Any], command: Pasted, engine: str) -> dict[str, Any]:
    """Engine settings of both, those given by themselves first; ones with a known type are checked."""
    found = {k: engine_flags.checked(k, v, engine) for k, v in own.items() if v is not None}
    for name, value in command.flags.items():
        if name in found:
            continue
        flag = engine_flags.flags().get(name)
        ours = flag is not None and engine in flag.engines
        found[name] = engine_flags.checked(name, value, engine) if ours else value
    return found
