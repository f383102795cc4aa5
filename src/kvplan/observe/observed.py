"""What a start-up log says of a deployment, whichever engine wrote it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvplan.observe.forms import Said


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a start-up stopped: its kind (facts/engines/log_lines), the line, and the sizes that it names.

    `when`: start-up or running. `phase`: what the engine was at, where it can be told.
    """

    kind: str
    line: int
    text: str
    when: str = "start-up"
    phase: str = ""
    figures: Mapping[str, Said] = field(default_factory=dict)
    words: Mapping[str, str] = field(default_factory=dict)

    def value(self, name: str) -> float | None:
        """A figure of the failure, or None."""
        said = self.figures.get(name)
        return said.value if said is not None else None


@dataclass(frozen=True, slots=True)
class Pool:
    """One allocation of a cache as it is printed: tokens or cells, keys, values, both."""

    name: str
    figures: Mapping[str, Said] = field(default_factory=dict)
    words: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Observed:
    """A start-up: engine, version, model, how it was started, and every figure it printed.

    `split` (tp, pp, …), `named` (dtype, quantization, kv_cache_dtype) and `flags` (the engine's own) are what
    the log states, `none` names settings that it prints as None; `whole` says whether everything that was not
    default is among them; `shown` has settings in force that nobody need have given. `served`: a running
    server says so, not a log; `pinned`: the pool was given in bytes, whatever the device had. `figures` are
    those of one rank; of several ranks the one that decides, `ranks` of them in all. `pools` are the
    allocations in order, `metadata` the keys of a GGUF file.
    """

    engine: str
    version: str | None = None
    since: str = ""
    until: str = ""
    launcher: str | None = None
    model: str | None = None
    architecture: str | None = None
    split: Mapping[str, int] = field(default_factory=dict)
    named: Mapping[str, Any] = field(default_factory=dict)
    flags: Mapping[str, Any] = field(default_factory=dict)
    none: frozenset[str] = frozenset()
    shown: Mapping[str, Any] = field(default_factory=dict)
    served: bool = False
    pinned: bool = False
    whole: bool = False
    figures: Mapping[str, Said] = field(default_factory=dict)
    ranks: int = 1
    ranks_differ: float = 0.0
    pools: tuple[Pool, ...] = ()
    metadata: Mapping[str, object] = field(default_factory=dict)
    gpu: str | None = None
    platform: str | None = None
    drafting: bool = False
    graphs_profiled: bool = False
    failure: Failure | None = None
    notes: tuple[str, ...] = ()

    def value(self, name: str) -> float | None:
        """A figure as a number, or None where the log does not state it."""
        said = self.figures.get(name)
        return said.value if said is not None else None
