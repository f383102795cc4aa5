"""Reading a checkpoint's quantisation config: which scheme its method, bits and groups stand for.

Covers quant_method fp8, fbgemm_fp8, awq, gptq, auto-round, bitsandbytes, compressed-tensors, mxfp4 and
modelopt (config.json or hf_quant_config.json), their ignore lists and per-layer exceptions.
Embeddings, heads, routers, norms, convolutions and biases keep the model's dtype unless named.
A scheme that is not known stays so: its bytes are those of the weight files, or nobody's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kvplan.errors import BadConfig, shown
from kvplan.facts.schemes import Scheme, ggml_scheme, method, method_name, scheme, stand_in, unapplied
from kvplan.model.model import Model
from kvplan.model.quantization_check import check_quantization
from kvplan.model.quantization_groups import (
    NotKnown,
    compressed_tensors,
    modelopt,
    strings,
    tables,
    whole,
)
from kvplan.model.quantized import PARTS, Named, Quantization, listed

__all__ = ["Quantization", "packed_bits", "quantization_notes", "quantization_of"]

_REMEMBERED = 8
_recent: dict[tuple[object, ...], tuple[Mapping[str, Any], Quantization]] = {}


def quantization_of(model: Model) -> Quantization | None:
    """The checkpoint's quantisation, or None for one in its own dtype; read once for each config.

    Raises BadConfig for values that cannot be meant; a scheme that is not known is no error.
    """
    q = model.quantization
    if not q:
        return None
    key = (id(q), model.model_type, model.file, len(model.layers))  # the entry keeps q, so its id is its own
    known = _recent.get(key)
    if known is None:
        known = (q, _read(model, q))
        while len(_recent) >= _REMEMBERED:
            _recent.pop(next(iter(_recent)), None)
        _recent[key] = known
    return known[1]


def quantization_notes(model: Model) -> list[str]:
    """What of a model's quantisation is not known, not followed, or does nothing, a sentence each."""
    q = quantization_of(model)
    if q is None:
        return []
    if q.unknown:
        return [*q.notes, f"weights stored as {q.unknown} are not known to the formula"]
    touched = any(q.scheme_for(w, i) for i, layer in enumerate(model.layers) for w in layer.weights)
    if touched or any(q.outer_scheme(weight) for weight in model.weights):
        return [*q.notes]
    only = " (it stores experts only)" if q.parts == ("expert",) else ""
    return [
        *q.notes,
        f"quantization {q.method} touches no matrix of this model{only}: "
        f"its weights are counted in {model.dtype or '16 bit'}",
    ]


def packed_bits(q: Mapping[str, Any]) -> int:
    """The width in bits of values that a checkpoint packs into larger words; 4 where it states none."""
    widths = [q.get("bits"), q.get("w_bit"), *(_width(entry) for entry in tables(q.get("config_groups")))]
    return next((width for width in widths if whole(width) and width <= 8), 4)


def _width(entry: Mapping[str, Any]) -> Any:
    weights = entry.get("weights")
    return weights.get("num_bits") if isinstance(weights, Mapping) else None


def _read(model: Model, q: Mapping[str, Any]) -> Quantization:
    check_quantization(q, model.file)
    stated = str(q.get("quant_method") or ("modelopt" if "quant_algo" in q else ""))
    name = method_name(stated)
    notes = [
        f"quantization_config.{key} of {model.file} is not applied to the weights' bytes"
        for key in unapplied()
        if q.get(key)
    ]
    try:
        if name == "compressed-tensors":
            found = compressed_tensors(model, q, notes)
        elif name == "modelopt" or q.get("quant_algo"):
            found = modelopt(model, q, name, notes)
        elif name == "gguf":
            found = _gguf(model, q)
        else:
            found = _by_method(model, q, name, notes)
    except NotKnown as why:
        bits = q.get("bits", q.get("nbits"))
        found = Quantization(name, model.model_type, stand_in(whole(bits)), unknown=str(why))
    return replace(found, notes=tuple(notes))


def _by_method(model: Model, q: Mapping[str, Any], name: str, notes: list[str]) -> Quantization:
    """A method whose config states one scheme for all, with exceptions by name."""
    known = method(name)
    if known is None:
        raise NotKnown(shown(q["quant_method"]) if name else "a quantization_config without quant_method")
    default = _default(q, name, known)
    kept = [module for key in known.get("kept", _KEPT) for module in strings(q.get(key))]
    if known.get("keeps_edges") and not kept:
        kept = ["model.layers.0", f"model.layers.{len(model.layers) - 1}"]
    own: list[tuple[str, Scheme]] = []
    plain: list[tuple[str, bool]] = [(module, True) for module in kept]
    for pattern, changed in _exceptions(q, known, notes):
        if changed is None:
            plain.append((pattern, True))
        else:
            own.append((pattern, _default({**q, **changed}, name, known)))
    if q.get("lm_head") is True:
        own.append(("lm_head", default))
    return Quantization(
        name,
        model.model_type,
        default,
        tuple(known.get("parts", PARTS)),
        listed(plain, notes, within=bool(known.get("within"))),
        listed(own, notes),
        scheme("mxfp4") if q.get("expert_dtype") == "fp4" else None,
    )


_KEPT = ("modules_to_not_convert", "ignored_layers", "llm_int8_skip_modules")


def _default(q: Mapping[str, Any], name: str, known: Mapping[str, Any]) -> Scheme:
    """The scheme of a method at the bits and the group its config states."""
    if name == "bitsandbytes":
        return scheme(_bitsandbytes(q))
    block = q.get("weight_block_size")
    if block and "block_scheme" in known:
        sizes = block if isinstance(block, list) else [block]
        return replace(scheme(known["block_scheme"]), tile=sizes[0], tile_inputs=sizes[-1])
    found = scheme(known["scheme"])
    if "bits" not in known:
        return found
    bits = next((q[key] for key in ("bits", "w_bit", "wbits") if q.get(key) is not None), found.value_bits)
    if bits not in known["bits"] or isinstance(bits, (bool, float)):
        raise NotKnown(f"{name} of {shown(bits)} bits")
    if str(q.get("data_type") or "int") != "int":
        raise NotKnown(f"{name} of data_type {shown(q['data_type'])}")
    size = next((q[key] for key in ("group_size", "q_group_size") if q.get(key) is not None), found.group)
    label = found.name if bits == found.value_bits else f"{found.name}_{bits}bit"
    group = size if size == -1 else whole(size) or found.group
    return replace(found, name=label, value_bits=bits, group=group, group_bytes=2 + bits / 8)


def _bitsandbytes(q: Mapping[str, Any]) -> str:
    if q.get("load_in_8bit") or q.get("_load_in_8bit"):
        return "int8_bnb"
    return "nf4_double" if q.get("bnb_4bit_use_double_quant") else "nf4"


def _exceptions(
    q: Mapping[str, Any], known: Mapping[str, Any], notes: list[str]
) -> list[tuple[str, Mapping[str, Any] | None]]:
    """What the config says of some modules alone: their own bits and group, or None for 16 bit.

    GPTQModel's `dynamic` lists patterns, `-:` in front of what stays as it is; auto-round's
    `extra_config` lists names, or patterns.
    """
    found: list[tuple[str, Mapping[str, Any] | None]] = []
    key = str(known.get("exceptions", ""))
    table = q.get(key)
    if not table:
        return found
    if not isinstance(table, Mapping):
        notes.append(f"quantization_config.{key}: {shown(table)} is no object and is not followed")
        return found
    for name, changed in table.items():
        pattern = str(name)
        if key == "dynamic":
            kept, pattern = pattern.startswith("-:"), "re:" + pattern.removeprefix("-:").removeprefix("+:")
        else:
            bits = changed.get("bits") if isinstance(changed, Mapping) else None
            kept = isinstance(bits, int) and bits >= 16
            pattern = pattern if set(pattern).isdisjoint("*[](|\\^$+") else f"re:{pattern}"
        if not kept and not isinstance(changed, Mapping):
            notes.append(f"quantization_config.{key}.{shown(name)} is no object and is not followed")
            continue
        found.append((pattern, None if kept else changed))
    return found


def _gguf(model: Model, q: Mapping[str, Any]) -> Quantization:
    """One ggml type for every matrix, embeddings and head included (what a pure quantisation is)."""
    found = ggml_scheme(str(q.get("type")))
    if found is None:
        raise BadConfig(f"--quantization: {shown(q.get('type'))} is not a ggml type; such as q8_0 or q4_k")
    experts = ggml_scheme(str(q["expert_type"])) if q.get("expert_type") else None
    return Quantization("gguf", model.model_type, found, PARTS, Named(), Named(), experts, whole=found)
