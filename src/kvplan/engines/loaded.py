"""Weights as an engine holds them: the checkpoint's values on a rank, and what loading adds.

Added are the vision or audio towers (on every rank), the rotary table, padding that kernels ask for
and the CUDA allocator's rounding. All of it follows from shapes; the rules are in facts/loading.toml.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvplan.cost.weights import Split, dtype_of, rank_copies, rank_shape, stage_layers, weight_bytes
from kvplan.engines.loaded_floats import with_floats_cast
from kvplan.errors import BadInput
from kvplan.facts import store
from kvplan.facts.schemes import Scheme
from kvplan.figure import Leaf, Number, Source, Trust, formula
from kvplan.model.model import Layer, Model, Weight
from kvplan.model.quantization import Quantization, quantization_of


@formula("B", "vLLM 0.32.0 layers/rotary_embedding/base.py")
def rotary_table_bytes(max_context: Number, rotary_width: Number, value_bytes: Number) -> Number:
    """Cosines and sines of every position, in the model's dtype."""
    return max_context * rotary_width * value_bytes


@formula("B")
def loaded_weight_bytes(
    weight_bytes: Number, tower_bytes: Number, rotary_bytes: Number, slack_bytes: Number
) -> Number:
    """The decoder's share of this rank and what loading puts beside it."""
    return weight_bytes + tower_bytes + rotary_bytes + slack_bytes


def weights_on_rank(model: Model, split: Split, leaf: Leaf, arch: str | None = None) -> Any:
    """Bytes of weights on one rank once the engine has loaded them on a device of that architecture.

    Raises BadInput where the weights' scheme is not known and no file says their bytes.
    """
    padded = with_kernel_padding(model, split, arch)
    decoder = weight_bytes(padded, leaf, split)
    if decoder is None:
        raise _not_known(model)
    towers = leaf("tower_bytes", tower_bytes(model), "B", _tower_source(model))
    slack_source = Source(Trust.ENGINE_RULE, store.toml("loading.toml")["allocator"]["source"])
    slack = leaf("slack_bytes", allocator_slack(padded, split), "B", slack_source)
    return loaded_weight_bytes(decoder, towers, _rotary(model, leaf), slack)


def are_known(model: Model) -> bool:
    """Whether the bytes of the weights are: from files, or by a scheme whose layout is known."""
    q = quantization_of(model)
    return model.tensors is not None or q is None or not q.unknown


def _not_known(model: Model) -> BadInput:
    """The error for weights whose bytes nothing says."""
    q = quantization_of(model)
    stored = q.unknown if q else "they are"
    return BadInput(
        f"quantization_config: the bytes of weights stored as {stored} in {model.file} are not known; "
        f"give kvplan fit --weights-memory, or a folder or repository with the weight files"
    )


def as_loaded(model: Model, engine: str) -> Model:
    """The model as an engine loads it with `--dtype auto`: some change what is stored on the way.

    Files' own bytes then no longer count: float32 becomes 16 bit, constants quantised twice float32.
    """
    table = store.toml("loading.toml")
    rule = table["float32"].get(engine)
    if rule and stored_in_float32(model):
        note = f"{engine} loads float32 weights in 16 bit ({rule['source']}); --dtype float32 keeps them"
        files = model.tensors if quantization_of(model) else None
        model = replace(model, dtype=rule["loads"], tensors=files, notes=(*model.notes, note))
    model = with_floats_cast(model, engine)
    rule, q = table["double_quantised"].get(engine), quantization_of(model)
    if rule and q and q.default and q.default.name == "nf4_double":
        note = f"{engine} unpacks bitsandbytes' doubly quantised constants to float32 ({rule['source']})"
        once = {**(model.quantization or {}), "bnb_4bit_use_double_quant": False}
        model = replace(model, quantization=once, tensors=None, notes=(*model.notes, note))
    return model


def stored_in_float32(model: Model) -> bool:
    """Whether the config's dtype is float32, or it states none and the files' largest share is."""
    if model.dtype:
        return dtype_of(model).name == "float32"
    return model.tensors is not None and next(iter(model.tensors.bytes_by_dtype()), "") == "F32"


def tower_bytes(model: Model) -> int:
    """Bytes of the towers beside the decoder, where known; MTP layers are loaded only by a drafter."""
    if model.tensors is not None:
        parts = model.tensors.bytes_by_part()
        return parts.get("vision", 0) + parts.get("audio", 0)
    return (model.tower_parameters or 0) * dtype_of(model).block_bytes


def _tower_source(model: Model) -> Source:
    if model.tensors is not None:
        return Source(Trust.MEASURED, f"{', '.join(model.tensors.files[:2])}: vision and audio tensors")
    if model.tower_parameters is None:
        return Source(Trust.ASSUMED, f"{model.file}: towers, if any, are of a kind not known and not counted")
    return (
        model.origin("towers") if model.tower_parameters else Source(Trust.STATED, f"{model.file}: no tower")
    )


def _rotary(model: Model, leaf: Leaf) -> Any:
    width, source = rotary_width(model)
    if not width or model.max_context is None:
        return 0
    return rotary_table_bytes(
        leaf("max_context", model.max_context, "token", model.origin("max_context")),
        leaf("rotary_width", width, "value", source),
        leaf(
            "rotary_value_bytes",
            dtype_of(model).block_bytes,
            "B/value",
            Source(Trust.ENGINE_RULE, "model's dtype"),
        ),
    )


def rotary_width(model: Model) -> tuple[int, Source]:
    """Values of one position's rotary table: the head's width, or the rotary part of a latent one."""
    if not model.rotary:
        return 0, Source(Trust.ENGINE_RULE, f"{model.model_type}: positions are not rotated")
    for _, layer in model.grouped():
        for a in layer.attentions:
            if a.kind not in ("cross", "encoder"):
                width = a.latent.rope_width if a.latent else a.key_width
                return width, a.origin("key_width")
    return 0, Source(Trust.STATED, "no attention")


def with_kernel_padding(model: Model, split: Split, arch: str | None) -> Model:
    """The model with expert matrices rounded up where the quantised kernel asks for it."""
    q = quantization_of(model)
    if q is None or not any(_is_mxfp4(q, w) for _, layer in model.grouped() for w in layer.weights):
        return model
    rule = store.toml("loading.toml")["padding"]["mxfp4"]
    rule = rule["marlin"] if arch in rule["marlin"]["archs"] else rule
    inner, hidden = (
        int(rule["inner_multiple"]) * split.expert_tp,
        int(rule["hidden_multiple"]),
    )
    changed: dict[int, Layer] = {}
    for _, layer in model.grouped():
        weights = tuple(_padded(w, inner, hidden) if _is_mxfp4(q, w) else w for w in layer.weights)
        changed[id(layer)] = replace(layer, weights=weights)
    return replace(model, layers=tuple(changed[id(layer)] for layer in model.layers))


def _is_mxfp4(q: Quantization, weight: Weight) -> bool:
    found = q.scheme_for(weight, 0) if weight.part == "expert" else None
    return found is not None and found.name == "mxfp4"


def _padded(weight: Weight, inner: int, hidden: int) -> Weight:
    outputs, inputs = (hidden, inner) if weight.name == "down_proj" else (inner, hidden)
    return replace(
        weight,
        outputs=-(-weight.outputs // outputs) * outputs,
        inputs=-(-weight.inputs // inputs) * inputs,
    )


def allocator_slack(model: Model, split: Split) -> int:
    """Bytes lost to the CUDA caching allocator's rounding of each fused tensor on the rank."""
    q = quantization_of(model)
    mine = stage_layers(len(model.layers), split.pp, split.stage)
    counts: dict[int, list[int]] = {}
    for i in mine:
        counts.setdefault(id(model.layers[i]), []).append(i)
    total = 0
    for numbers in counts.values():
        layer = model.layers[numbers[0]]
        tensors = _fused(layer, split, q, dtype_of(model).block_bytes, numbers[0])
        total += len(numbers) * sum(_slack(size) for size in tensors)
    return total


def _fused(layer: Layer, split: Split, q: Quantization | None, plain_bytes: int, number: int) -> list[int]:
    """Bytes of each tensor an engine allocates for a layer, matrices it keeps as one added up."""
    groups = {name: fused for fused, names in store.toml("loading.toml")["fused"].items() for name in names}
    sizes: dict[tuple[str, str], int] = {}
    for weight in layer.weights:
        if weight.inputs == 1:
            continue
        outputs, inputs = rank_shape(weight, layer, split)
        scheme = q.scheme_for(weight, number) if q else None
        size = rank_copies(weight, split) * _matrix_bytes(outputs * inputs, scheme, plain_bytes)
        key = (weight.part, groups.get(weight.name, weight.name))
        sizes[key] = sizes.get(key, 0) + size
    return list(sizes.values())


def _matrix_bytes(values: int, scheme: Scheme | None, plain_bytes: int) -> int:
    return values * scheme.value_bits // 8 if scheme else values * plain_bytes


def _slack(size: int) -> int:
    rule = store.toml("loading.toml")["allocator"]
    if size < rule["segment_from"]:
        return 0
    left = -size % rule["round_to"]
    return left if left <= rule["unsplit"] else 0
