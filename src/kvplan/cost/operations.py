"""The operations of one step: what is multiplied, read and exchanged, on one rank.

A step carries `decoding` sequences one position each (more where drafts are verified) and `prompts`
chunks of `chunk` tokens that have `depth` tokens behind them. Every function takes numbers, figures
or numpy arrays alike. What tensor, pipeline, expert and attention-data parallelism leave to a rank
follows vLLM 0.32.0's layers (cost/weights.py); fused matrices are one operation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from kvplan.cost.weights import Split, dtype_of, rank_shape
from kvplan.facts.schemes import Scheme
from kvplan.model.model import Attention, Layer, Model, State, Weight
from kvplan.model.quantization import quantization_of

_ROWLESS = ("embedding", "position", "norm")
_OF_ATTENTION = ("attention", "indexer", "state")


@dataclass(frozen=True, slots=True)
class Ranks:
    """How a model is dealt out: `tp` ranks in a replica, of which `attention_dp` groups attend apart.

    `ep` divides whole experts (the rest of `tp` divides each of them); `pp` stages follow one another.
    """

    tp: int = 1
    pp: int = 1
    ep: int = 1
    attention_dp: int = 1

    @property
    def attention_tp(self) -> int:
        """Ranks that share one sequence's attention."""
        return max(1, self.tp // self.attention_dp)

    @property
    def expert_tp(self) -> int:
        """Ranks that share one expert."""
        return max(1, self.tp // self.ep)


@dataclass(frozen=True, slots=True)
class Matmul:
    """A matrix every row passes through; `rows_of`: the tokens of all, or of one attention group."""

    name: str
    layers: int
    outputs: int
    inputs: int
    weight_bytes: int
    format: str
    compute: str
    rows_of: str = "tokens"


@dataclass(frozen=True, slots=True)
class Experts:
    """The routed experts of a layer on one rank: `experts` in all, `per_token` chosen by each token.

    `parameters` and `weight_bytes` are one expert's share on this rank, which holds 1/`ep` of them.
    """

    name: str
    layers: int
    experts: int
    per_token: int
    ep: int
    parameters: int
    weight_bytes: int
    hidden: int
    format: str
    compute: str


@dataclass(frozen=True, slots=True)
class Attend:
    """Attention of one shape on one rank: its heads, and the cache bytes of one slot.

    The least bytes are those of the tightest packing that engines use.
    """

    name: str
    layers: int
    attention: Attention
    query_heads: int
    kv_heads: int
    slot_bytes: float
    index_bytes: float
    least_slot_bytes: float
    least_index_bytes: float
    format: str
    compute: str


@dataclass(frozen=True, slots=True)
class Recur:
    """A recurrent or convolution state on one rank, read and written for every sequence."""

    name: str
    layers: int
    state: State
    values: float
    value_bytes: int


@dataclass(frozen=True, slots=True)
class Exchange:
    """A collective of a layer: every token's hidden vector over `ranks` ranks."""

    name: str
    layers: int
    kind: str  # all_reduce | all_gather | reduce_scatter | send
    ranks: int
    token_bytes: int


@dataclass(frozen=True, slots=True)
class Pointwise:
    """Norms, activations, rotary embedding and residuals: bytes moved for each token."""

    name: str
    layers: int
    token_bytes: float


@dataclass(frozen=True, slots=True)
class Operations:
    """All operations of a model on one rank; `layers` of the whole model, pipeline stages in a row."""

    matmuls: tuple[Matmul, ...]
    experts: tuple[Experts, ...]
    attends: tuple[Attend, ...]
    recurs: tuple[Recur, ...]
    exchanges: tuple[Exchange, ...]
    pointwise: tuple[Pointwise, ...]
    layers: int
    ranks: Ranks


def operations_of(model: Model, ranks: Ranks, kv_bytes_per_value: float, kv_compute: str) -> Operations:
    """What one rank of that split does in a step, layers alike together.

    `kv_bytes_per_value` is the cache's width with its scales, `kv_compute` the arithmetic of its format.
    """
    matmuls, experts = _products(model, ranks)
    return Operations(
        matmuls=tuple(matmuls),
        experts=tuple(experts),
        attends=tuple(_attends(model, ranks, kv_bytes_per_value, kv_compute)),
        recurs=tuple(_recurs(model, ranks)),
        exchanges=tuple(_exchanges(model, ranks)),
        pointwise=tuple(_pointwise(model, ranks)),
        layers=len(model.layers),
        ranks=ranks,
    )


def _products(model: Model, ranks: Ranks) -> tuple[list[Matmul], list[Experts]]:
    q = quantization_of(model)
    found: dict[Any, int] = {}
    for i, layer in enumerate(model.layers):
        for item in _layer_products(model, layer, i if q is not None and q.uneven else 0, ranks):
            found[item] = found.get(item, 0) + 1
    outer = Split(tp=ranks.tp)
    head = next((w for w in model.weights if w.part == "head"), None)
    if head is None:
        head = replace(model.weights[0], part="head", name="head")
    scheme = q.outer_scheme(head) if q else None
    outputs, inputs = rank_shape(head, None, outer)
    top = _matmul(model, "head", (outputs, inputs), scheme, "sequences")
    others = [
        _matmul(model, w.name, rank_shape(w, None, outer), q.outer_scheme(w) if q else None, "tokens")
        for w in model.weights
        if w.part not in (*_ROWLESS, "head") and w.inputs > 1
    ]
    items = [replace(item, layers=n) for item, n in found.items()]
    matmuls = [x for x in items if isinstance(x, Matmul)]
    return [*matmuls, *others, top], [x for x in items if isinstance(x, Experts)]


@lru_cache(maxsize=512)
def _fused(layer: Layer) -> tuple[tuple[str, tuple[Weight, ...]], ...]:
    """A layer's matrices, those that engines multiply at once together: of one part and one input."""
    groups: dict[tuple[str, int, str], list[Weight]] = {}
    for w in layer.weights:
        if w.part in (*_ROWLESS, "expert", "head") or w.inputs <= 4:
            continue
        key = (w.part, w.inputs, "row" if w.split == "row" else "in")
        groups.setdefault(key, []).append(w)
    return tuple(("+".join(w.name for w in ws), tuple(ws)) for ws in groups.values())


def _layer_products(model: Model, layer: Layer, index: int, ranks: Ranks) -> list[Matmul | Experts]:
    q = quantization_of(model)
    found: list[Matmul | Experts] = []
    for name, weights in _fused(layer):
        of_attention = weights[0].part in _OF_ATTENTION
        split = Split(tp=ranks.attention_tp if of_attention else ranks.tp)
        shapes = [rank_shape(w, layer, split) for w in weights]
        outputs = sum(o * w.copies for (o, _), w in zip(shapes, weights, strict=True))
        scheme = q.scheme_for(weights[0], index) if q else None
        rows = "group" if of_attention else "tokens"
        found.append(_matmul(model, name, (outputs, shapes[0][1]), scheme, rows))
    routed = [w for w in layer.weights if w.part == "expert"]
    if routed:
        found.append(_experts(model, layer, routed, index, ranks))
    return found


def _matmul(model: Model, name: str, shape: tuple[int, int], scheme: Scheme | None, rows_of: str) -> Matmul:
    outputs, inputs = shape
    size = _stored(model, outputs, inputs, scheme)
    return Matmul(name, 1, outputs, inputs, size, _format(model, scheme), _compute(model, scheme), rows_of)


def _stored(model: Model, outputs: int, inputs: int, scheme: Scheme | None) -> int:
    if scheme is None:
        return outputs * inputs * dtype_of(model).block_bytes // dtype_of(model).block_values
    return outputs * inputs * scheme.value_bits // 8 + scheme.scale_bytes(outputs, inputs)


def _format(model: Model, scheme: Scheme | None) -> str:
    return scheme.name if scheme else dtype_of(model).name


def _compute(model: Model, scheme: Scheme | None) -> str:
    return scheme.compute if scheme else dtype_of(model).compute


def _experts(model: Model, layer: Layer, routed: list[Weight], index: int, ranks: Ranks) -> Experts:
    q = quantization_of(model)
    split = Split(tp=ranks.expert_tp)
    parameters = size = 0
    scheme = q.scheme_for(routed[0], index) if q else None
    for w in routed:
        outputs, inputs = rank_shape(w, layer, split)
        parameters += outputs * inputs
        size += _stored(model, outputs, inputs, q.scheme_for(w, index) if q else None)
    rows = max((w.outputs for w in layer.weights if w.name == "router"), default=0)
    first = routed[0]
    chosen = first.copies if first.active is None else first.active
    chosen = max(0, chosen - max(0, rows - first.copies))
    return Experts(
        "experts",
        1,
        first.copies,
        chosen,
        min(ranks.ep, first.copies),
        parameters,
        size,
        model.hidden,
        _format(model, scheme),
        _compute(model, scheme),
    )


def _attends(model: Model, ranks: Ranks, kv_bytes: float, kv_compute: str) -> list[Attend]:
    counts: dict[Attention, int] = {}
    for n, layer in model.grouped():
        for a in layer.attentions:
            if a.kind not in ("cross", "encoder"):
                counts[a] = counts.get(a, 0) + n
    kinds = [a.kind for a in counts]
    found = []
    for i, (a, n) in enumerate(counts.items()):
        name = a.kind if kinds.count(a.kind) == 1 else f"{a.kind}_{i + 1}"
        tp = ranks.attention_tp
        heads = max(1, a.kv_heads // tp) if a.kv_heads > 1 else a.kv_heads
        slot = heads * (a.key_width + a.value_width) * kv_bytes
        compute = kv_compute if kv_compute in ("fp8", "int8") else dtype_of(model).compute
        query_heads = max(1, a.query_heads // tp)
        widths = slot, _index_bytes(a, kv_bytes), *_packed_bytes(a, slot, kv_bytes)
        found.append(Attend(name, n, a, query_heads, heads, *widths, kv_compute, compute))
    return found


def _index_bytes(a: Attention, kv_bytes: float) -> float:
    """One index key: of latents in 8 bit with a scale, whatever the cache's format (vLLM, SGLang)."""
    plain = a.index_width * kv_bytes
    return min(plain, a.index_width + 4.0) if a.latent is not None and a.index_width else plain


def _packed_bytes(a: Attention, slot: float, kv_bytes: float) -> tuple[float, float]:
    """Least bytes of a slot and of an index key: DeepSeek-V4's in 8 bit and 4 bit, as engines pack them."""
    index = _index_bytes(a, kv_bytes)
    if a.latent is not None:
        return slot, min(index, a.index_width)
    if a.value_width:
        return slot, index
    return min(slot, a.key_width), min(index, a.index_width / 2) if a.kind == "compressed" else index


def _recurs(model: Model, ranks: Ranks) -> list[Recur]:
    counts: dict[State, int] = {}
    for n, layer in model.grouped():
        for s in layer.states:
            counts[s] = counts.get(s, 0) + n
    tp = ranks.attention_tp
    found = []
    for s, n in counts.items():
        if s.values:
            found.append(Recur(s.mixer, n, s, s.values / tp, 4))
        if s.channels:
            values = s.columns * (s.channels + s.groups * s.group_channels) / tp
            found.append(Recur(f"{s.mixer}_convolution", n, s, values, 2))
    return found


def _exchanges(model: Model, ranks: Ranks) -> list[Exchange]:
    """One collective after attention and one after the feed-forward, and a hand-over between stages."""
    layers, width = len(model.layers), 2 * model.hidden
    found = []
    if ranks.attention_tp > 1:
        found.append(Exchange("attention_all_reduce", layers, "all_reduce", ranks.attention_tp, width))
    if ranks.attention_dp > 1 and ranks.tp > 1:
        found.append(Exchange("dispatch", layers, "all_gather", ranks.tp, width))
        found.append(Exchange("combine", layers, "reduce_scatter", ranks.tp, width))
    elif ranks.tp > 1:
        found.append(Exchange("feed_forward_all_reduce", layers, "all_reduce", ranks.tp, width))
    if ranks.pp > 1:
        found.append(Exchange("stage_hand_over", ranks.pp - 1, "send", 2, width))
    return found


def _pointwise(model: Model, ranks: Ranks) -> list[Pointwise]:
    """Two norms with residuals (8 × hidden values), and what sits between the matrices."""
    found = []
    for n, layer in model.grouped():
        inner = sum(
            (w.outputs if w.part != "expert" else w.outputs * (w.active or 1) / max(1, ranks.ep))
            for w in layer.weights
            if w.name.startswith(("up_", "gate_", "shared_up", "shared_gate")) and w.part != "router"
        ) / (ranks.tp if ranks.ep == 1 else ranks.expert_tp)
        heads = sum(
            w.outputs for w in layer.weights if w.part in _OF_ATTENTION and w.split in ("column", "kv")
        )
        found.append(
            Pointwise("pointwise", n, 2.0 * (8 * model.hidden + 1.5 * inner + 2 * heads / ranks.attention_tp))
        )
    return found
