"""ggml's tensor types: how many bytes a tensor of a GGUF file takes."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from math import prod

from kvplan.errors import BadInput, UnknownName, did_you_mean, shown
from kvplan.facts import store


@dataclass(frozen=True, slots=True)
class GgmlType:
    """`block` values take `bytes` bytes; a row of a tensor holds whole blocks."""

    id: int
    name: str
    block: int
    bytes: int

    @property
    def bits(self) -> float:
        """Bits per value, block scales included."""
        return 8 * self.bytes / self.block

    def bytes_of(self, row: int, rows: int) -> int:
        """Bytes of `rows` rows with `row` values each, alignment padding excluded."""
        return row * rows // self.block * self.bytes


@functools.cache
def ggml_types() -> dict[int, GgmlType]:
    """Every type that llama.cpp reads, by its number in a GGUF file."""
    entries = store.toml("ggml_types.toml")["type"].items()
    return {e["id"]: GgmlType(e["id"], name, e["block"], e["bytes"]) for name, e in entries}


def find_ggml_type(name: str, field: str) -> GgmlType:
    """The type of that name in any letter case; raises UnknownName naming `field`."""
    known = {t.name.lower(): t for t in ggml_types().values()}
    found = known.get(name.lower())
    if found is None:
        hint = did_you_mean(name, (t.name for t in known.values())) or "see facts/ggml_types.toml"
        raise UnknownName(f"{field}: {shown(name)} is not a ggml type; {hint}")
    return found


def tensor_bytes(type_id: int, dimensions: tuple[int, ...], name: str, file: str) -> tuple[GgmlType, int]:
    """The type and the bytes of a tensor whose dimensions are in ggml's order, the row first.

    Raises BadInput for a type that is unknown or no longer read, and for rows of broken blocks.
    """
    found = ggml_types().get(type_id)
    if found is None:
        once = store.toml("ggml_types.toml")["removed"].get(str(type_id))
        raise BadInput(
            f"type of {shown(name)}: {once or type_id} in {file} "
            + ("is no longer read by llama.cpp" if once else "is no ggml type known here")
            + "; quantize the model anew or give another file"
        )
    row = dimensions[0] if dimensions else 1
    if row % found.block:
        raise BadInput(
            f"shape of {shown(name)}: rows of {row} values in {file} are not whole blocks of {found.block} "
            f"({found.name}); is the file damaged?"
        )
    return found, found.bytes_of(row, prod(dimensions[1:]))
