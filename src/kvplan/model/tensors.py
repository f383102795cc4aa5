"""The tensors of a weight file as its header states them: names, formats, shapes and bytes.

Shapes are in the order the weights are multiplied in, outputs first, whichever the file's own order.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import TypeVar

from kvplan.facts import store

K = TypeVar("K")
_LONGEST_NAME = 192  # published names have up to some 120 characters; rules must stay quick on any other
_DIGITS = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Tensor:
    """One stored tensor: `dtype` in the file format's own word, `bytes` as stored, padding excluded."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int

    @property
    def values(self) -> int:
        """How many numbers it holds; packed formats (int4 in int32) count what the file calls values."""
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class Skipped:
    """A metadata value that was read past and not kept: only its type and its length are known."""

    type: str
    length: int


@dataclass(frozen=True, slots=True)
class TensorList:
    """Every tensor of one file or of all its shards, with the files' names and the first one's metadata."""

    tensors: tuple[Tensor, ...]
    files: tuple[str, ...] = ()
    metadata: Mapping[str, object] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """Bytes of all tensors, alignment padding excluded."""
        return sum(t.bytes for t in self.tensors)

    @property
    def values(self) -> int:
        """Stored values of all tensors, as the file counts them."""
        return sum(t.values for t in self.tensors)

    @property
    def is_gguf(self) -> bool:
        """Whether they are of a GGUF file, whose types are ggml's."""
        return "general.architecture" in self.metadata

    def bytes_by_dtype(self) -> dict[str, int]:
        """Bytes of each format, the largest first."""
        return _summed(self.tensors, lambda t: t.dtype)

    def bytes_by_part(self) -> dict[str, int]:
        """Bytes of each part of the model (facts/tensor_parts.toml), the largest first."""
        return _summed(self.tensors, self._part())

    def parameters_by_part(self, packed_bits: int = 4) -> dict[str, int]:
        """Parameters of each part, the most first: packed words as the values of that width they hold."""
        return _summed(self.tensors, self._part(), lambda t: _parameters(t, packed_bits))

    def _part(self) -> Callable[[Tensor], str]:
        """The part of a tensor, where a layer's name alone does not tell that it is for MTP."""
        mtp = mtp_layers(t.name for t in self.tensors)
        layer = re.compile(r"^(.*?(?:layers|blk)\.\d+)\.")

        def part(tensor: Tensor) -> str:
            at = layer.match(tensor.name) if mtp else None
            return "mtp" if at and at.group(1) in mtp else part_of(tensor.name)

        return part


def _summed(
    tensors: Iterable[Tensor], key: Callable[[Tensor], K], amount: Callable[[Tensor], int] | None = None
) -> dict[K, int]:
    sums: dict[K, int] = {}
    for tensor in tensors:
        at = key(tensor)
        sums[at] = sums.get(at, 0) + (amount(tensor) if amount else tensor.bytes)
    return dict(sorted(sums.items(), key=lambda item: -item[1]))


def _parameters(tensor: Tensor, packed_bits: int) -> int:
    """What a stored tensor holds of the model's parameters."""
    rules = _packing()
    if tensor.dtype == "F8_E8M0" or rules["beside"].search(tensor.name):
        return 0
    word: int | None = store.toml("tensor_parts.toml")["packing"]["word_bits"].get(tensor.dtype)
    if word and rules["packed"].search(tensor.name):
        return tensor.values * word // packed_bits
    if tensor.dtype == "U8" and rules["halves"].search(tensor.name):
        return tensor.values * 2
    return tensor.values


@functools.cache
def _packing() -> dict[str, re.Pattern[str]]:
    table = store.toml("tensor_parts.toml")["packing"]
    return {name: re.compile(table[name]) for name in ("beside", "packed", "halves")}


def part_of(name: str) -> str:
    """The part of the model a tensor of that name belongs to, or `other`."""
    return _part_of(_DIGITS.sub("0", name)) if len(name) <= _LONGEST_NAME else "other"


@functools.lru_cache(maxsize=65536)
def _part_of(name: str) -> str:
    for part, pattern in _rules():
        if pattern.search(name):
            return part
    return "other"


@functools.cache
def _rules() -> tuple[tuple[str, re.Pattern[str]], ...]:
    rules = store.toml("tensor_parts.toml")["part"]
    return tuple((rule["name"], re.compile(rule["pattern"])) for rule in rules)


def mtp_layers(names: Iterable[str]) -> frozenset[str]:
    """The name prefixes of whole layers that predict further tokens, told by a tensor only they have."""
    marker = re.compile(store.toml("tensor_parts.toml")["mtp_layer"])
    return frozenset(m.group(1) for name in names if (m := marker.match(name)))
