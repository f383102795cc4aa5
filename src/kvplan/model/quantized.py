"""Which scheme stores which matrix: a default, the parts it touches, and exceptions by module name."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from kvplan.errors import shown
from kvplan.facts.schemes import Scheme, module_names
from kvplan.model.model import Weight
from kvplan.model.pattern import NotUnderstood, understand

PARTS = ("attention", "state", "indexer", "feed_forward", "expert", "shared_expert")
_NEVER = ("conv1d", "conv", "A_log", "A_D_dt", "A_dt", "x_proj", "dt_proj", "D")
_ELSEWHERE = re.compile(r"(?:model\.)?(?:visual|vision|audio|mtp|multi_modal|embed_vision|mm_projector)")
_MOST_PATTERNS = 2048  # of those that are tried on every layer; published configs list a few
_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)(?=[.*]|$)")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Named(Generic[T]):
    """Module names a config lists: those of one layer by its number, and those of every layer.

    `within`: a listed name may be any stretch of a module's name, as AWQ's loaders take it.
    """

    by_layer: dict[int, list[tuple[str, T]]] = field(default_factory=dict)
    anywhere: tuple[tuple[str, T], ...] = ()
    within: bool = False

    def find(self, layer: int, names: list[str]) -> T | None:
        """What the first listed pattern that fits one of the names stands for."""
        listed = [*self.by_layer.get(layer, []), *self.anywhere]
        for pattern, value in listed:
            if any(_fits(pattern, name, self.within) for name in names):
                return value
        return None


@dataclass(frozen=True, slots=True)
class Quantization:
    """The schemes of a checkpoint: a default, what it touches, and the exceptions by module name.

    `unknown` names a scheme whose layout is not known: then `default` only stands in for it, and bytes
    come from weight files alone. `notes` say which words of the config were not followed.
    """

    method: str
    model_type: str
    default: Scheme | None
    parts: tuple[str, ...] = PARTS
    ignored: Named[bool] = field(default_factory=Named)
    explicit: Named[Scheme] = field(default_factory=Named)
    expert_default: Scheme | None = None
    whole: Scheme | None = None  # what also stores embeddings and head
    unknown: str = ""
    notes: tuple[str, ...] = ()
    found: dict[tuple[str, str, int], Scheme | None] = field(default_factory=dict, compare=False, repr=False)

    def scheme_for(self, weight: Weight, layer: int) -> Scheme | None:
        """The scheme that stores a layer's matrix, or None when it keeps the model's dtype."""
        if weight.part not in PARTS or weight.inputs == 1 or weight.name in _NEVER:
            return None
        key = (weight.part, weight.name, layer)
        if key not in self.found:  # matching names is slow, and every plan asks many times
            self.found[key] = self._match(weight, layer)
        return self.found[key]

    def _match(self, weight: Weight, layer: int) -> Scheme | None:
        names = _module_names(weight, layer, self.model_type)
        named = self.explicit.find(layer, names)
        if named is not None:
            return named
        if weight.part not in self.parts or self.ignored.find(layer, names) is not None:
            return None
        return self.expert_default if weight.part == "expert" and self.expert_default else self.default

    def outer_scheme(self, weight: Weight) -> Scheme | None:
        """The scheme of an embedding or the head: 16 bit unless the config names it."""
        if weight.part in ("embedding", "head") and self.whole is not None:
            return self.whole
        return self.explicit.find(-1, ["lm_head"]) if weight.part == "head" else None

    @property
    def uneven(self) -> bool:
        """Whether exceptions make layers of one shape differ."""
        listed = [pattern for pattern, _ in (*self.ignored.anywhere, *self.explicit.anywhere)]
        return bool(self.ignored.by_layer or self.explicit.by_layer or any(_tells_layers(p) for p in listed))


def _tells_layers(pattern: str) -> bool:
    """Whether a pattern may fit one layer and not another."""
    return pattern.startswith("re:") and re.search(r"\d|\[", pattern) is not None


def listed(entries: Iterable[tuple[str, T]], notes: list[str], *, within: bool = False) -> Named[T]:
    """Listed module names, by layer where they name one; what is not understood is noted and left out."""
    by_layer: dict[int, list[tuple[str, T]]] = {}
    anywhere = []
    for name, value in entries:
        if _ELSEWHERE.match(name):
            continue
        if name.startswith("re:"):
            try:
                understand(name[3:])
            except NotUnderstood as why:
                notes.append(f"quantization_config: pattern {shown(name)} is not followed: {why}")
                continue
        at = None if name.startswith("re:") else _LAYER.search(name)
        if at is None:
            anywhere.append((name, value))
        else:
            by_layer.setdefault(int(at.group(1)), []).append((name[at.start() :].lstrip("."), value))
    if len(anywhere) > _MOST_PATTERNS:
        notes.append(f"quantization_config: {_MOST_PATTERNS:,} of {len(anywhere):,} patterns are followed")
    return Named(by_layer, tuple(anywhere[:_MOST_PATTERNS]), within)


def _module_names(weight: Weight, layer: int, model_type: str) -> list[str]:
    prefixes = module_names(weight.part, model_type)
    leaf = weight.name.removeprefix("shared_")
    names = [f"layers.{layer}.{prefix}.{leaf}" for prefix in prefixes]
    if leaf == "in_proj_qkvz":
        names += [f"layers.{layer}.{prefix}.in_proj_qkv" for prefix in prefixes]
    return names


def _fits(pattern: str, name: str, within: bool = False) -> bool:
    """Whether a listed module is the name itself, a whole part of it, or a pattern over it."""
    if pattern.startswith("re:"):
        return understand(pattern[3:]).match(f"model.{name}")
    if "*" in pattern:
        return fnmatch.fnmatchcase(name, pattern) or fnmatch.fnmatchcase(f"model.{name}", pattern)
    if within and pattern in f"model.{name}":
        return bool(pattern)
    return f".{pattern}." in f".model.{name}."
