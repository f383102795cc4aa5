"""Parameters and the bytes they take: in the checkpoint, and on each rank once loaded.

Chapter and verse of the layouts: facts/quantization.toml. Splits follow vLLM 0.32.0's layers: column
and row matrices divide, KV projections repeat when heads are fewer than ranks, latent projections,
indexers, routers and norms are on every rank, the vocabulary is padded to a multiple of 64.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from kvplan.facts.formats import Format, find_format
from kvplan.facts.schemes import Scheme
from kvplan.figure import Leaf, Number, Source, Trust, bare, formula, named, total
from kvplan.model.model import Layer, Model, Weight
from kvplan.model.quantization import Quantization, quantization_of

VOCAB_PADDING = 64
# What each group of ranks that attends apart holds itself: SGLang 0.5.23 models/qwen2_moe.py, deepseek_v2.py
_OF_GROUPS = ("attention", "indexer", "state", "embedding")


@dataclass(frozen=True, slots=True)
class Stored:
    """Values stored alike: how many, and the bytes of their scales."""

    name: str
    values: int
    scale_bytes: int
    scheme: Scheme | None


@formula("B")
def stored_bytes(values: Number, value_bits: Number, scale_bytes: Number) -> Number:
    """Values at their width, with the scales beside them."""
    return values * value_bits // 8 + scale_bytes


@dataclass(frozen=True, slots=True)
class Split:
    """How the weights are divided: tensor- and pipeline-parallel sizes, and which stage this rank is.

    `ep` > 1: experts are dealt over so many ranks, each divided over what is left of `tp`: none under vLLM,
    where all ranks share the experts (SGLang's moe_tp_size, TensorRT-LLM's moe_tensor_parallel_size).
    `attention_dp` > 1: that many groups of ranks attend apart, each with attention and embedding of its own.
    """

    tp: int = 1
    pp: int = 1
    stage: int = 0
    pads: bool = True
    ep: int = 1
    attention_dp: int = 1

    @property
    def expert_tp(self) -> int:
        """Ranks that share one expert."""
        return max(1, self.tp // self.ep)


def dtype_of(model: Model) -> Format:
    """The format of what is not quantised: the config's dtype, 16 bit where it states none."""
    return find_format(model.dtype or "bfloat16", "dtype", "weights")


def stage_layers(count: int, pp: int, stage: int) -> range:
    """The layers of one pipeline stage: even, the remainder on the stages before the last.

    vLLM 0.32.0 distributed/utils.py get_pp_indices.
    """
    sizes = [count // pp] * pp
    for i in range(count % pp):
        sizes[-(i + 2)] += 1
    start = sum(sizes[:stage])
    return range(start, start + sizes[stage])


def stored_parts(model: Model, split: Split) -> list[Stored]:
    """What a rank stores, by scheme: unquantised values first."""
    q = quantization_of(model)
    sums: dict[Scheme | None, list[int]] = {None: [0, 0]}
    for count, layer, i in _layers(model, q, split):
        for weight in layer.weights:
            found = q.scheme_for(weight, i) if q else None
            _add(sums, found, weight, layer, split, count)
    last = split.stage == split.pp - 1
    for weight in model.weights:
        first_only, last_only = weight.part in ("embedding", "position"), weight.part in ("head", "norm")
        if (first_only and split.stage) or (last_only and not last):
            continue
        _add(sums, q.outer_scheme(weight) if q else None, weight, None, split, 1)
    if _tied(model) and last and split.stage:
        head = replace(model.weights[0], part="head")
        _add(sums, q.outer_scheme(head) if q else None, head, None, split, 1)
    plain = dtype_of(model).name
    return [Stored(s.name if s else plain, v, scales, s) for s, (v, scales) in sums.items() if v]


def _tied(model: Model) -> bool:
    return not any(w.part == "head" for w in model.weights)


def _layers(model: Model, q: Quantization | None, split: Split) -> list[tuple[int, Layer, int]]:
    """Layers of the stage as (how many alike, layer, the first one's number)."""
    mine = stage_layers(len(model.layers), split.pp, split.stage)
    if q is not None and q.uneven:
        return [(1, model.layers[i], i) for i in mine]
    seen: dict[int, list[int]] = {}
    for i in mine:
        seen.setdefault(id(model.layers[i]), []).append(i)
    return [(len(numbers), model.layers[numbers[0]], numbers[0]) for numbers in seen.values()]


def _add(
    sums: dict[Scheme | None, list[int]],
    scheme: Scheme | None,
    weight: Weight,
    layer: Layer | None,
    split: Split,
    count: int,
) -> None:
    outputs, inputs = rank_shape(weight, layer, split)
    slot = sums.setdefault(scheme, [0, 0])
    copies = count * rank_copies(weight, split)
    slot[0] += copies * outputs * inputs
    if scheme is not None:
        slot[1] += copies * scheme.scale_bytes(outputs, inputs)
    if weight.bias:
        sums[None][0] += copies * outputs


def rank_copies(weight: Weight, split: Split) -> int:
    """How many of a matrix's copies one rank holds: all, or its share of whole experts (the fullest's)."""
    return -(-weight.copies // split.ep) if weight.part == "expert" else weight.copies


def rank_shape(weight: Weight, layer: Layer | None, split: Split) -> tuple[int, int]:
    """One copy's outputs and inputs on one rank."""
    outputs, inputs, tp = weight.outputs, weight.inputs, split.tp
    if split.attention_dp > 1 and weight.part in _OF_GROUPS:
        tp = max(1, tp // split.attention_dp)
    if weight.part == "expert" and split.ep > 1:
        tp = split.expert_tp
    if weight.split == "vocab" and split.pads and tp:
        padded = -(-outputs // VOCAB_PADDING) * VOCAB_PADDING
        return -(-padded // tp), inputs
    if tp == 1:
        return outputs, inputs
    if weight.split in ("column", "expert") and not weight.name.startswith("down"):
        return -(-outputs // tp), inputs
    if weight.split in ("row", "expert"):
        return outputs, -(-inputs // tp)
    if weight.split == "kv" and layer is not None:
        heads = max((a.kv_heads for a in layer.attentions), default=1)
        return outputs * max(1, heads // tp) // heads, inputs
    return outputs, inputs


def parameters(model: Model, leaf: Leaf, *, active: bool = False) -> Any:
    """Values of the text decoder, or those that one token uses; explained by part and matrix."""
    if leaf is bare:
        return model.active_parameters if active else model.parameters
    parts: dict[str, list[Any]] = {}
    for count, layer in [*model.grouped(), (1, Layer(weights=model.weights))]:
        for weight in layer.weights:
            parts.setdefault(weight.part, []).append(_values(model, weight, count, leaf, active=active))
    summed = [named(f"{part}_parameters", "value", total(found)) for part, found in parts.items()]
    return named("active_parameters" if active else "parameters", "value", total(summed))


def _values(model: Model, weight: Weight, count: int, leaf: Leaf, *, active: bool) -> Any:
    copies = weight.active if active and weight.active is not None else weight.copies
    what = f"shape of {weight.name} in {model.model_type}"
    shape = Source(Trust.STATED, f"{model.file}: {what}")
    side = shapes_source(model, what, f"{weight.name}_outputs")
    values: Any = leaf(f"{weight.name}_outputs", weight.outputs, "value", side)
    if weight.inputs > 1 or weight.bias:
        side = shapes_source(model, what, f"{weight.name}_inputs")
        inputs = leaf(f"{weight.name}_inputs", weight.inputs + weight.bias, "value", side)
        values = values * inputs
    if copies != 1:
        routed = shapes_source(model, what, "active_copies") if active and weight.part == "expert" else shape
        values = leaf(f"{weight.name}_copies", copies, "copy", routed) * values
    return leaf(f"{weight.name}_layers", count, "layer", shape) * values if count != 1 else values


def shapes_source(model: Model, what: str, part: str = "shapes") -> Source:
    """The source of a shape or a count of parameters: the config, or what had to be assumed for it."""
    return model.origins.get(f"shape.{part}") or Source(Trust.STATED, f"{model.file}: {what}")


@formula("B")
def rank_share(header_bytes: Number, rank_bytes: Number, formula_bytes: Number) -> Number:
    """A rank's share of the files' bytes, in the proportion that the shapes give."""
    return header_bytes * rank_bytes // formula_bytes


def weight_bytes(model: Model, leaf: Leaf, split: Split | None = None) -> Any:
    """Bytes of the text decoder's weights: in the checkpoint, or on one rank of a split.

    What the files' own headers list wins over the formula; a rank's share follows the formula. None
    where there are no headers and the scheme is not known.
    """
    found = header_bytes(model) if split is None else loaded_header_bytes(model)
    if found is None:
        return formula_bytes(model, leaf, split)
    where = f"{', '.join(model.tensors.files[:2]) if model.tensors else ''}: tensors in the header"
    header = leaf("header_bytes", found, "B", Source(Trust.MEASURED, where))
    if split is None or split == Split(pads=False):
        return named("weight_bytes", "B", header)
    mine, whole = shape_bytes(model, leaf, split), shape_bytes(model, leaf)
    share = rank_share(header, named("rank_formula_bytes", "B", mine), named("formula_bytes", "B", whole))
    return named("weight_bytes", "B", share)


def header_bytes(model: Model) -> int | None:
    """Bytes of the decoder's tensors as the files' headers list them; None without files."""
    if model.tensors is None:
        return None
    beside = ("vision", "audio", "mtp")
    return sum(size for part, size in model.tensors.bytes_by_part().items() if part not in beside)


def loaded_header_bytes(model: Model) -> int | None:
    """The same without a head that the files store and that is the embedding again: no engine loads it."""
    found = header_bytes(model)
    if found is None or model.tensors is None or not _tied(model):
        return found
    return found - model.tensors.bytes_by_part().get("head", 0)


def formula_bytes(model: Model, leaf: Leaf, split: Split | None = None) -> Any:
    """The same from shapes and quantisation alone; None where the scheme is not known."""
    q = quantization_of(model)
    return None if q is not None and q.unknown else shape_bytes(model, leaf, split)


def shape_bytes(model: Model, leaf: Leaf, split: Split | None = None) -> Any:
    """The same, with a scheme that is not known replaced by its stand-in: right in proportion alone."""
    split = split or Split(pads=False)
    parts = []
    for stored in stored_parts(model, split):
        where = _source(model, stored)
        bits = stored.scheme.value_bits if stored.scheme else 8 * dtype_of(model).block_bytes
        what = "shapes of every matrix" + (f", rank of tp {split.tp}" if split.tp > 1 else "")
        part = stored_bytes(
            leaf(f"{stored.name}_values", stored.values, "value", shapes_source(model, what)),
            leaf(f"{stored.name}_bits", bits, "bit", where),
            leaf(f"{stored.name}_scale_bytes", stored.scale_bytes, "B", where) if stored.scale_bytes else 0,
        )
        parts.append(named(f"{stored.name}_bytes", "B", part))
    return named("weight_bytes", "B", total(parts), "what every part of the decoder takes, stored as stated")


def read_bytes(model: Model) -> tuple[int, int]:
    """Bytes that every step reads whatever its batch, and those of one expert in every sparse layer.

    The whole model's, not split: all but embeddings and routed experts, with the head, tied or not.
    """
    q = quantization_of(model)
    always: dict[Scheme | None, list[int]] = {None: [0, 0]}
    one: dict[Scheme | None, list[int]] = {None: [0, 0]}
    split = Split(pads=False)
    for count, layer, i in _layers(model, q, split):
        for weight in layer.weights:
            found = q.scheme_for(weight, i) if q else None
            if weight.part == "expert":
                _add(one, found, replace(weight, copies=1), layer, split, count)
            else:
                _add(always, found, weight, layer, split, count)
    tied = [replace(model.weights[0], part="head")] if _tied(model) else []
    for weight in [*model.weights, *tied]:
        if weight.part not in ("embedding", "position"):
            _add(always, q.outer_scheme(weight) if q else None, weight, None, split, 1)
    listed, by_formula = loaded_header_bytes(model), int(shape_bytes(model, bare))
    always_bytes, one_bytes = _bytes_of(model, always), _bytes_of(model, one)
    if listed is None or not by_formula:
        return always_bytes, one_bytes
    return always_bytes * listed // by_formula, one_bytes * listed // by_formula


def _bytes_of(model: Model, sums: dict[Scheme | None, list[int]]) -> int:
    plain = 8 * dtype_of(model).block_bytes
    return sum(v * (s.value_bits if s else plain) // 8 + scales for s, (v, scales) in sums.items())


def _source(model: Model, stored: Stored) -> Source:
    if stored.scheme is not None:
        return Source(Trust.STATED, f"{model.file} quantization: {stored.scheme.source}")
    if model.dtype:
        return Source(Trust.STATED, f"{model.file} dtype {model.dtype}")
    return Source(Trust.ASSUMED, f"{model.file} states no dtype: 16 bit")


def step_compute(model: Model) -> str:
    """The arithmetic that most of a step's matrices run in: what the peak is taken of."""
    parts = [s for s in stored_parts(model, Split()) if s.scheme is not None]
    if not parts:
        return dtype_of(model).compute
    largest = max(parts, key=lambda s: s.values)
    assert largest.scheme is not None  # noqa: S101
    return largest.scheme.compute
