"""Quantisation configs whose groups name schemes one by one: compressed-tensors and ModelOpt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kvplan.errors import shown
from kvplan.facts.schemes import Scheme, algorithm, method, scheme
from kvplan.model.model import Model
from kvplan.model.quantized import PARTS, Quantization, listed

_LARGEST = 1 << 20


class NotKnown(Exception):
    """A scheme whose layout is not known; the message names it."""


def compressed_tensors(model: Model, q: Mapping[str, Any], notes: list[str]) -> Quantization:
    """The groups of a compressed-tensors config; one that targets Linear is the default."""
    form = str(q.get("format") or "")
    if form.startswith(("marlin", "sparse")):
        raise NotKnown(f"compressed-tensors of format {shown(form)}")
    default, explicit = None, []
    for entry in tables(q.get("config_groups")):
        weights = entry.get("weights")
        if not isinstance(weights, Mapping):
            continue
        chosen = group_scheme(weights)
        targets = strings(entry.get("targets"))
        if not targets or "Linear" in targets:
            default = chosen
        else:
            explicit += [(target, chosen) for target in targets]
    return Quantization(
        "compressed-tensors",
        model.model_type,
        default,
        PARTS if default else (),
        listed([(module, True) for module in strings(q.get("ignore"))], notes),
        listed(explicit, notes),
    )


def group_scheme(weights: Mapping[str, Any]) -> Scheme:
    """The scheme of one group's `weights`: bits, type, strategy, group and symmetry."""
    bits, kind, strategy = weights.get("num_bits"), weights.get("type", "int"), str(weights.get("strategy"))
    group = whole(weights.get("group_size"))
    if bits == 8 and kind == "float":
        return _float8(weights, strategy, group)
    if bits == 4 and kind == "float" and group in (0, 16, 32):
        return scheme("mxfp4" if group == 32 else "nvfp4")
    if bits not in (2, 4, 8) or kind != "int":
        raise NotKnown(f"compressed-tensors of {shown(bits)} bits and type {shown(kind)}")
    if bits == 8 and not group and strategy != "tensor":
        return scheme("int8_channel")
    found = scheme("packed_int4")
    zero_point = 0 if weights.get("symmetric", True) else bits / 8
    rows = -1 if strategy == "channel" or weights.get("group_size") == -1 else group
    whole_matrix = 0 if rows else 4
    return replace(
        found,
        name=f"packed_int{bits}",
        value_bits=bits,
        group=rows,
        group_bytes=found.group_bytes + zero_point,
        matrix_bytes=whole_matrix,
    )


def _float8(weights: Mapping[str, Any], strategy: str, group: int) -> Scheme:
    block = weights.get("block_structure")
    if strategy == "block" and isinstance(block, list) and len(block) == 2 and all(map(whole, block)):
        return replace(scheme("fp8_block"), tile=block[0], tile_inputs=block[1])
    if strategy == "group":
        if group != 32:
            raise NotKnown(f"compressed-tensors of 8-bit floats in groups of {group}")
        return scheme("mxfp8")
    return scheme({"channel": "fp8_channel", "block": "fp8_block"}.get(strategy, "fp8_tensor"))


def modelopt(model: Model, q: Mapping[str, Any], name: str, notes: list[str]) -> Quantization:
    """A ModelOpt config: one algorithm for all, or one for each layer or group of layers."""
    group = whole(q.get("group_size"))
    layers = q.get("quantized_layers")
    mixed = str(q.get("quant_algo")) == "MIXED_PRECISION"
    explicit: list[tuple[str, Scheme]] = []
    if isinstance(layers, Mapping):
        for module, entry in layers.items():
            table = entry if isinstance(entry, Mapping) else {}
            explicit.append(
                (str(module), _algorithm(table.get("quant_algo"), whole(table.get("group_size")) or group))
            )
    elif mixed:
        for entry in tables(q.get("config_groups")):
            weights = entry.get("weights")
            chosen = group_scheme(weights if isinstance(weights, Mapping) else {})
            explicit += [(target, chosen) for target in strings(entry.get("targets"))]
    kept = strings(q.get("exclude_modules")) or strings(q.get("ignore"))
    base = method(name) if mixed and name != "modelopt" else None
    default = None if mixed else _algorithm(q.get("quant_algo"))
    if base:
        default = scheme(base["scheme"])
    return Quantization(
        "modelopt",
        model.model_type,
        default,
        PARTS if default else (),
        listed([(module, True) for module in kept], notes),
        listed(explicit, notes),
    )


def _algorithm(name: object, group: int = 0) -> Scheme:
    found = algorithm(str(name).upper())
    if found is None:
        raise NotKnown(f"modelopt with quant_algo {shown(name)}")
    return scheme(found, group)


def tables(groups: object) -> list[Mapping[str, Any]]:
    """The objects in an object, in order; none where it is something else."""
    found = groups.values() if isinstance(groups, Mapping) else ()
    return [entry for entry in found if isinstance(entry, Mapping)]


def strings(names: object) -> list[str]:
    """The strings of a list; none where it is something else."""
    return [item for item in names if isinstance(item, str)] if isinstance(names, list) else []


def whole(value: object) -> int:
    """A size or a width as a whole number of at least 1, else 0."""
    return value if type(value) is int and 0 < value <= _LARGEST else 0
