"""Quantisation schemes: how a matrix is stored, scales included, as `quantization.toml` states."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any

from kvplan.facts import store


@dataclass(frozen=True, slots=True)
class Scheme:
    """How a matrix is stored: bits a value, and bytes a group, tile, output, input and matrix.

    `group` values along the inputs share a scale (-1: all of a row); a tile is `tile` outputs by
    `tile_inputs` inputs, square where those are 0.
    """

    name: str
    value_bits: int
    compute: str
    source: str
    group: int = 0
    group_bytes: float = 0
    tile: int = 0
    tile_inputs: int = 0
    tile_bytes: int = 0
    output_bytes: int = 0
    input_bytes: int = 0
    matrix_bytes: int = 0

    def scale_bytes(self, outputs: int, inputs: int) -> int:
        """Bytes of one matrix beside its values: scales, zero points and indices."""
        groups = outputs * (-(-inputs // self.group) if self.group > 0 else -self.group)
        across = self.tile_inputs or self.tile
        tiles = -(-outputs // self.tile) * -(-inputs // across) if self.tile else 0
        fixed = outputs * self.output_bytes + inputs * self.input_bytes + self.matrix_bytes
        return round(groups * self.group_bytes) + tiles * self.tile_bytes + fixed


@functools.cache
def scheme(name: str, group: int = 0) -> Scheme:
    """The scheme of that name, with the config's group size in place of its usual one."""
    found = Scheme(name=name, **store.toml("quantization.toml")["schemes"][name])
    return replace(found, group=group) if group > 0 and found.group else found


def ggml_scheme(name: str) -> Scheme | None:
    """A ggml type as a scheme: whole bits a value, the rest of a block beside them."""
    table = store.toml("ggml_types.toml")
    mixed = table["mix"].get(name.upper())
    if mixed is not None:
        bits, beside = divmod(mixed["bits"], 1)
        return Scheme(name.lower(), int(bits), "bf16", mixed["source"], 256, beside * 256 / 8)
    found = table["type"].get(name.upper())
    if found is None or found["bytes"] * 8 < found["block"]:
        return None
    bits = found["bytes"] * 8 // found["block"]
    beside = found["bytes"] - found["block"] * bits // 8
    return Scheme(name.lower(), bits, "bf16", f"{name.upper()}: {table['source']}", found["block"], beside)


def stand_in(bits: int = 0) -> Scheme:
    """What stands for a scheme that is not known: the bits its config states, else the fewest published."""
    table = store.toml("quantization.toml")["not_known"]
    return Scheme("not_known", min(bits, 16) or table["least_bits"], table["compute"], table["source"])


def method_name(stated: str) -> str:
    """A quant_method in the one spelling kept here: letter case and other names of the same thing apart."""
    name = stated.strip().lower()
    found: str = store.toml("quantization.toml")["aliases"].get(name, name)
    return found


def unapplied() -> list[str]:
    """Keys that change what is stored and that the formula does not follow."""
    found: list[str] = store.toml("quantization.toml")["unapplied"]["keys"]
    return found


def method(name: str) -> dict[str, Any] | None:
    """What a quantisation method does when its config says no more, or None when it is not known."""
    found: dict[str, Any] | None = store.toml("quantization.toml")["methods"].get(name)
    return found


def algorithm(name: str) -> str | None:
    """The scheme behind a ModelOpt `quant_algo` name."""
    found: str | None = store.toml("quantization.toml")["algorithms"].get(name)
    return found


def module_names(part: str, model_type: str) -> list[str]:
    """The module names under which checkpoints of a model type keep a part of a layer."""
    table = store.toml("quantization.toml")
    own = table["modules_of"].get(model_type, {})
    found: list[str] = own.get(part, table["modules"].get(part, []))
    return found


def flag(name: str) -> dict[str, Any] | None:
    """The quantisation config that `--quantization NAME` stands for, or None when not known."""
    found: dict[str, Any] | None = store.toml("quantization.toml")["flags"].get(name)
    if found is None and ggml_scheme(name) is not None:
        return {"quant_method": "gguf", "type": name}
    return dict(found) if found is not None else None


def flag_names() -> list[str]:
    """Every name `--quantization` takes, ggml's types included, each once."""
    table = store.toml("ggml_types.toml")
    ggml = [name.lower() for name in (*table["type"], *table["mix"])]
    return [*dict.fromkeys([*store.toml("quantization.toml")["flags"], *ggml])]
