"""Work counted: floating-point operations and bytes of a prefill and of a decode step, on one rank.

2 operations per multiply-add; attention counts each query-key pair once (cost/pairs.py). What is left out
(norms, softmax, rotary embedding, sampling, collectives) only makes real steps slower, so the times
built on these counts are lower bounds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvplan.cost import pairs
from kvplan.cost.weights import read_bytes, shapes_source
from kvplan.figure import Leaf, Number, Source, Trust, formula, least, power, total
from kvplan.model.model import Attention, Layer, Model, Weight

_NOT_MULTIPLIED = ("embedding", "position", "norm", "head")


@formula("FLOP")
def matmul_flops(parameters: Number, tokens: Number) -> Number:
    """Every weight is multiplied and added once per token."""
    return 2 * parameters * tokens


@formula("FLOP")
def attention_flops(layers: Number, query_heads: Number, widths: Number, counted: Number) -> Number:
    """Scores and weighted values: two operations per value of key and of value, per head and pair."""
    return 2 * layers * query_heads * widths * counted


@formula("FLOP")
def index_flops(layers: Number, index_heads: Number, index_width: Number, scored: Number) -> Number:
    """The indexer's scores: two operations per value of an index key, per head and pair."""
    return 2 * layers * index_heads * index_width * scored


@formula("expert", "expectation under uniform routing; skewed routing touches fewer")
def distinct_experts(experts: Number, experts_per_token: Number, tokens: Number) -> Number:
    """How many of a layer's experts a batch of tokens reads."""
    return experts * (1 - power(1 - experts_per_token / experts, tokens))


@formula("expert", "a lower bound: a batch may send every token to the same experts")
def least_experts(experts: Number, experts_per_token: Number) -> Number:
    """The fewest of a layer's experts that a step reads, whatever its batch."""
    return least(experts, experts_per_token)


def is_multiplied(weight: Weight) -> bool:
    """Whether a weight is a matrix that every token passes through."""
    return weight.part not in _NOT_MULTIPLIED and weight.inputs > 1


def token_parameters(model: Model) -> int:
    """Parameters that one token multiplies at least, the output head apart."""
    layers = sum(
        n * w.one * _active(layer, w)
        for n, layer in model.grouped()
        for w in layer.weights
        if is_multiplied(w)
    )
    return layers + sum(w.active_parameters for w in model.weights if is_multiplied(w))


def _active(layer: Layer, weight: Weight) -> int:
    """Copies of a weight that a token uses at least: a router's idle rows may take its place."""
    active = weight.copies if weight.active is None else weight.active
    if weight.part != "expert":
        return active
    rows = max((w.outputs for w in layer.weights if w.name == "router"), default=0)
    return max(0, active - max(0, rows - weight.copies))


def head_parameters(model: Model) -> int:
    """Parameters of the output head, tied or not; only tokens whose logits are needed pass it."""
    return model.vocab * model.hidden


def attentions_of(model: Model) -> list[tuple[int, Attention]]:
    """Every distinct attention over text, those that share a cache included, with its layer count."""
    counts: dict[Attention, int] = {}
    for n, layer in model.grouped():
        for a in layer.attentions:
            if a.kind not in ("cross", "encoder"):
                counts[a] = counts.get(a, 0) + n
    return [(n, a) for a, n in counts.items()]


def _labelled(model: Model) -> list[tuple[str, int, Attention]]:
    found = attentions_of(model)
    kinds = [a.kind for _, a in found]
    return [
        (a.kind if kinds.count(a.kind) == 1 else f"{a.kind}_{i + 1}", n, a) for i, (n, a) in enumerate(found)
    ]


def _widths(a: Attention, *, decode: bool) -> int:
    """Values multiplied per head and pair: key width plus value width, in the form the phase uses."""
    if a.latent is None:
        return a.key_width + (a.value_width or a.key_width)
    if decode:  # absorbed: queries meet the latent itself
        return 2 * a.latent.kv_rank + a.latent.rope_width
    return a.latent.nope_width + a.latent.rope_width + a.latent.value_width


def prefill_attention_flops(model: Model, tokens: Any, leaf: Leaf) -> Any:
    """Attention of one prompt over all layers, index scores included; quadratic where nothing bounds it."""
    parts = []
    for label, n, a in _labelled(model):
        counted = pairs.prompt_pairs(a, label, tokens, leaf)
        scored = pairs.scored_pairs(a, label, tokens, leaf)
        parts += _layer_flops(model, (label, n, a), counted, scored, leaf, decode=False)
    return total(parts)


def decode_attention_flops(model: Model, context: Any, leaf: Leaf) -> Any:
    """Attention of one new token over `context` tokens, index scores included."""
    parts = []
    for label, n, a in _labelled(model):
        counted = pairs.read_slots(a, label, context, leaf)
        scored = pairs.scored_slots(a, label, context, leaf)
        parts += _layer_flops(model, (label, n, a), counted, scored, leaf, decode=True)
    return total(parts)


def _layer_flops(
    model: Model, group: tuple[str, int, Attention], counted: Any, scored: Any, leaf: Leaf, *, decode: bool
) -> list[Any]:
    label, n, a = group
    layers = leaf(f"{label}_layers", n, "layer", model.origin("layer_kinds"))
    found = attention_flops(
        layers,
        leaf(f"{label}_query_heads", a.query_heads, "head", a.origin("query_heads")),
        leaf(f"{label}_widths", _widths(a, decode=decode), "value", a.origin("key_width")),
        counted,
    )
    if not scored:
        return [found]
    heads = leaf(f"{label}_index_heads", a.index_heads or 1, "head", a.origin("index_heads"))
    width = leaf(f"{label}_index_width", a.index_width, "value", a.origin("index_width"))
    return [found, index_flops(layers, heads, width, scored)]


def _active_source(model: Model, what: str) -> Source:
    """The source of what one token passes: shapes, and of experts how many it is sent to."""
    return shapes_source(model, what, "active")


def prefill_matmul_flops(model: Model, tokens: Any, leaf: Leaf) -> Any:
    """One prompt through the matrices: every token through the layers, one token through the head."""
    body = leaf(
        "token_parameters", token_parameters(model), "value", _active_source(model, "matrices a token passes")
    )
    head = leaf(
        "head_parameters",
        head_parameters(model),
        "value",
        shapes_source(model, "vocab_size × hidden_size", "head_parameters"),
    )
    return matmul_flops(body, tokens) + matmul_flops(head, 1)


def decode_matmul_flops(model: Model, leaf: Leaf) -> Any:
    """One new token through everything."""
    both = token_parameters(model) + head_parameters(model)
    body = leaf("step_parameters", both, "value", _active_source(model, "matrices and head a token passes"))
    return matmul_flops(body, 1)


def weight_bytes_read(model: Model, leaf: Leaf) -> Any:
    """Bytes of weights that every step reads: of the experts only as many as one token uses."""
    return _read(model, leaf, least_experts)


def expected_weight_bytes_read(model: Model, tokens: Any, leaf: Leaf) -> Any:
    """Bytes of weights a step of `tokens` tokens reads when a router spreads them evenly."""
    return _read(model, leaf, lambda experts, active: distinct_experts(experts, active, tokens))


def _read(model: Model, leaf: Leaf, touched: Callable[[Any, Any], Any]) -> Any:
    always, one = read_bytes(model)
    fixed = leaf(
        "always_read_bytes", always, "B", shapes_source(model, "weights but routed experts, as stored")
    )
    experts, active = expert_counts(model)
    if not one or not active:
        return fixed
    source = Source(Trust.STATED, f"{model.file}: experts of the router")
    chosen = shapes_source(model, "experts of the router", "experts_per_token")
    some = touched(
        leaf("experts", experts, "expert", source), leaf("experts_per_token", active, "expert", chosen)
    )
    return fixed + some * leaf(
        "expert_bytes", one, "B", shapes_source(model, "one expert in every sparse layer, as stored")
    )


def expert_counts(model: Model) -> tuple[int, int]:
    """Experts of a sparse layer and how many a token uses, both the least of any; (0, 0) when dense."""
    found = [
        (w.copies, _active(layer, w))
        for _, layer in model.grouped()
        for w in layer.weights
        if w.part == "expert"
    ]
    return (min(n for n, _ in found), min(k for _, k in found)) if found else (0, 0)
