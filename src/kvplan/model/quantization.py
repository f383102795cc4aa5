"""Which scheme stores which matrix: a checkpoint's quantisation config, read.

Covers quant_method fp8, fbgemm_fp8, awq, gptq, auto-round, bitsandbytes, compressed-tensors, mxfp4 and
modelopt (config.json or hf_quant_config.json), their ignore lists and per-layer exceptions.
Embeddings, heads, routers, norms, convolutions and biases keep the model's dtype unless named.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kvplan.errors import BadConfig, shown
from kvplan.facts.schemes import Scheme, algorithm, ggml_scheme, method, module_names, scheme
from kvplan.model.model import Model, Weight
from kvplan.model.quantization_check import check_quantization

PARTS = ("attention", "state", "indexer", "feed_forward", "expert", "shared_expert")
_NEVER = ("conv1d", "conv", "A_log", "A_D_dt", "A_dt", "x_proj", "dt_proj", "D")
_ELSEWHERE = re.compile(r"(?:model\.)?(?:visual|vision|audio|mtp|multi_modal|embed_vision|mm_projector)")
_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)(?=[.*]|$)")


@dataclass(frozen=True, slots=True)
class Named:
    """Module names a config lists: those of one layer by its number, and those of every layer."""

    by_layer: dict[int, list[tuple[str, str]]] = field(default_factory=dict)
    anywhere: tuple[tuple[str, str], ...] = ()

    def find(self, layer: int, names: list[str]) -> str | None:
        """What the first listed pattern that fits one of the names stands for."""
        listed = [*self.by_layer.get(layer, []), *self.anywhere]
        return next((value for pattern, value in listed if any(_fits(pattern, n) for n in names)), None)


@dataclass(frozen=True, slots=True)
class Quantization:
    """The schemes of a checkpoint: a default, what it touches, and the exceptions by module name."""

    method: str
    model_type: str
    default: Scheme | None
    parts: tuple[str, ...]
    ignored: Named
    explicit: Named
    group: int = 0
    expert_default: Scheme | None = None
    whole: Scheme | None = None  # what also stores embeddings and head
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
            return scheme(named, self.group)
        if weight.part not in self.parts or self.ignored.find(layer, names) is not None:
            return None
        return self.expert_default if weight.part == "expert" and self.expert_default else self.default

    def outer_scheme(self, weight: Weight) -> Scheme | None:
        """The scheme of an embedding or the head: 16 bit unless the config names it."""
        if weight.part in ("embedding", "head") and self.whole is not None:
            return self.whole
        if weight.part != "head":
            return None
        named = self.explicit.find(-1, ["lm_head"])
        return scheme(named, self.group) if named is not None else None

    @property
    def uneven(self) -> bool:
        """Whether exceptions make layers of one shape differ."""
        return bool(self.ignored.by_layer or self.explicit.by_layer)


_REMEMBERED = 8
_recent: dict[tuple[object, ...], tuple[Mapping[str, Any], Quantization]] = {}


def quantization_of(model: Model) -> Quantization | None:
    """The checkpoint's quantisation, or None for one in its own dtype; read once for each config.

    Raises BadConfig for a method that is not known, since its bytes would be a guess.
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


def _read(model: Model, q: Mapping[str, Any]) -> Quantization:
    check_quantization(q, model.file)
    name = str(q.get("quant_method") or ("modelopt" if "quant_algo" in q else ""))
    if name == "compressed-tensors":
        return _compressed_tensors(model, q)
    if name == "modelopt" or q.get("quant_algo"):
        return _modelopt(model, q)
    known = method(name)
    if known is None and name == "gguf":
        return _gguf(model, q)
    if known is None:
        raise BadConfig(
            f"quantization_config.quant_method: {shown(name)} in {model.file} is not known; "
            f"remove quantization_config to count 16-bit weights"
        )
    group, chosen = _whole(q.get("group_size")), known["scheme"]
    if q.get("weight_block_size") and "block_scheme" in known:
        chosen = known["block_scheme"]
    if name == "bitsandbytes":
        chosen = _bitsandbytes(q)
    if name in ("gptq", "awq", "auto-round") and q.get("bits", 4) != 4:
        bits = shown(q.get("bits"))
        raise BadConfig(f"quantization_config.bits: {bits} in {model.file} is not known; 4 is")
    kept = _strings(q.get("modules_to_not_convert"))
    if known.get("keeps_edges") and not kept:
        kept = ["model.layers.0", f"model.layers.{len(model.layers) - 1}"]
    ignored = _named((m, "") for m in kept)
    experts = scheme("mxfp4") if q.get("expert_dtype") == "fp4" else None
    parts = tuple(known.get("parts", PARTS))
    default = scheme(chosen, group)
    return Quantization(name, model.model_type, default, parts, ignored, Named(), group, experts)


def _gguf(model: Model, q: Mapping[str, Any]) -> Quantization:
    """One ggml type for every matrix, embeddings and head included (what a pure quantisation is)."""
    found = ggml_scheme(str(q.get("type")))
    if found is None:
        raise BadConfig(f"--quantization: {shown(q.get('type'))} is not a ggml type; such as q8_0 or q4_k")
    return Quantization("gguf", model.model_type, found, PARTS, Named(), Named(), whole=found)


def _bitsandbytes(q: Mapping[str, Any]) -> str:
    if q.get("load_in_8bit") or q.get("_load_in_8bit"):
        return "int8_bnb"
    return "nf4_double" if q.get("bnb_4bit_use_double_quant") else "nf4"


def _compressed_tensors(model: Model, q: Mapping[str, Any]) -> Quantization:
    default, explicit, group = None, [], 0
    for entry in _tables(q.get("config_groups")):
        weights = entry.get("weights")
        if not isinstance(weights, Mapping):
            continue
        chosen = _compressed_scheme(model, weights)
        group = _whole(weights.get("group_size")) or group
        targets = _strings(entry.get("targets"))
        if not targets or "Linear" in targets:
            default = scheme(chosen, group)
        else:
            explicit += [(target, chosen) for target in targets]
    ignored = _named((m, "") for m in _strings(q.get("ignore")))
    parts = PARTS if default else ()
    return Quantization(
        "compressed-tensors", model.model_type, default, parts, ignored, _named(explicit), group
    )


def _compressed_scheme(model: Model, weights: Mapping[str, Any]) -> str:
    bits, kind, strategy = weights.get("num_bits"), weights.get("type"), weights.get("strategy")
    if bits == 8 and kind == "float":
        return {"channel": "fp8_channel", "block": "fp8_block"}.get(str(strategy), "fp8_tensor")
    if bits == 8:
        return "int8_channel"
    if bits == 4 and kind == "float":
        return "nvfp4" if weights.get("group_size", 16) == 16 else "mxfp4"
    if bits == 4:
        return "packed_int4"
    raise BadConfig(
        f"quantization_config.config_groups: {shown(bits)} bits of type {shown(kind)} in {model.file} "
        f"are not known; 4 and 8 are"
    )


def _modelopt(model: Model, q: Mapping[str, Any]) -> Quantization:
    group = _whole(q.get("group_size"))
    layers = q.get("quantized_layers")
    explicit = []
    if isinstance(layers, Mapping):
        for name, entry in layers.items():
            algo = entry.get("quant_algo") if isinstance(entry, Mapping) else None
            explicit.append((str(name), _algorithm(model, algo)))
    elif str(q.get("quant_algo")) == "MIXED_PRECISION":
        for entry in _tables(q.get("config_groups")):
            weights = entry.get("weights")
            chosen = _compressed_scheme(model, weights if isinstance(weights, Mapping) else {})
            explicit += [(target, chosen) for target in _strings(entry.get("targets"))]
    names = _strings(q.get("exclude_modules")) or _strings(q.get("ignore"))
    ignored = _named((m, "") for m in names)
    mixed = str(q.get("quant_algo")) == "MIXED_PRECISION"
    base = method(str(q.get("quant_method"))) if mixed and q.get("quant_method") != "modelopt" else None
    default = (
        scheme(base["scheme"]) if base else None if mixed else scheme(_algorithm(model, q.get("quant_algo")))
    )
    parts = PARTS if default else ()
    return Quantization("modelopt", model.model_type, default, parts, ignored, _named(explicit), group)


def _algorithm(model: Model, name: object) -> str:
    found = algorithm(str(name))
    if found is None:
        raise BadConfig(
            f"quant_algo: {shown(name)} in {model.file} is not known; remove it to count 16-bit weights"
        )
    return found


def _named(listed: Iterable[tuple[str, str]]) -> Named:
    by_layer: dict[int, list[tuple[str, str]]] = {}
    anywhere = []
    for name, value in listed:
        if _ELSEWHERE.match(name):
            continue
        at = None if name.startswith("re:") else _LAYER.search(name)
        if at is None:
            anywhere.append((name, value))
        else:
            by_layer.setdefault(int(at.group(1)), []).append((name[at.start() :].lstrip("."), value))
    return Named(by_layer, tuple(anywhere))


def _module_names(weight: Weight, layer: int, model_type: str) -> list[str]:
    prefixes = module_names(weight.part, model_type)
    leaf = weight.name.removeprefix("shared_")
    names = [f"layers.{layer}.{prefix}.{leaf}" for prefix in prefixes]
    if leaf == "in_proj_qkvz":
        names += [f"layers.{layer}.{prefix}.in_proj_qkv" for prefix in prefixes]
    return names


def _fits(pattern: str, name: str) -> bool:
    """Whether a listed module is the name itself, one above it, or a pattern over it."""
    if pattern.startswith("re:"):
        try:
            return re.match(pattern[3:], f"model.{name}") is not None
        except re.error:
            return False
    if "*" in pattern:
        return fnmatch.fnmatchcase(name, pattern) or fnmatch.fnmatchcase(f"model.{name}", pattern)
    return f".{name}.".endswith(f".{pattern}.") or f"{name}.".startswith(f"{pattern}.")


def _tables(groups: object) -> list[Mapping[str, Any]]:
    found = groups.values() if isinstance(groups, Mapping) else ()
    return [entry for entry in found if isinstance(entry, Mapping)]


def _strings(listed: object) -> list[str]:
    return [item for item in listed if isinstance(item, str)] if isinstance(listed, list) else []


def _whole(value: object) -> int:
    return value if isinstance(value, int) and 0 < value <= 1 << 20 else 0
