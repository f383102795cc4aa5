"""Work counted: floating-point operations and bytes of a prefill and of a decode step, on one rank.

2 operations per multiply-add; causal attention counts each query-key pair once. What is left out
(norms, softmax, rotary embedding, sampling, collectives) only makes real steps slower, so the times
built on these counts are lower bounds.
"""

from __future__ import annotations

from typing import Any

from kvplan.cost.weights import read_bytes
from kvplan.figure import Leaf, Number, Source, Trust, formula, least, named, power, total
from kvplan.model.model import Attention, Model, Weight

_NOT_MULTIPLIED = ("embedding", "position", "norm", "head")


@formula("FLOP")
def matmul_flops(parameters: Number, tokens: Number) -> Number:
    """Every weight is multiplied and added once per token."""
    return 2 * parameters * tokens


@formula("pair")
def causal_pairs(tokens: Number) -> Number:
    """Query-key pairs of a causal prompt: each token attends to itself and all before it."""
    return tokens * (tokens + 1) // 2


@formula("pair")
def windowed_pairs(tokens: Number, window_tokens: Number) -> Number:
    """Query-key pairs when a token attends to at most the last `window_tokens`."""
    short = least(tokens, window_tokens)
    return short * (short + 1) // 2 + (tokens - short) * window_tokens


@formula("FLOP")
def attention_flops(layers: Number, query_heads: Number, widths: Number, pairs: Number) -> Number:
    """Scores and weighted values: two operations per value of key and of value, per head and pair."""
    return 2 * layers * query_heads * widths * pairs


@formula("expert", "expectation under uniform routing; skewed routing touches fewer")
def distinct_experts(experts: Number, experts_per_token: Number, tokens: Number) -> Number:
    """How many of a layer's experts a batch of tokens reads."""
    return experts * (1 - power(1 - experts_per_token / experts, tokens))


def is_multiplied(weight: Weight) -> bool:
    """Whether a weight is a matrix that every token passes through."""
    return weight.part not in _NOT_MULTIPLIED and weight.inputs > 1


def token_parameters(model: Model) -> int:
    """Parameters that one token multiplies, the output head apart."""
    layers = sum(
        n * w.active_parameters for n, layer in model.grouped() for w in layer.weights if is_multiplied(w)
    )
    return layers + sum(w.active_parameters for w in model.weights if is_multiplied(w))


def head_parameters(model: Model) -> int:
    """Parameters of the output head, tied or not; only tokens whose logits are needed pass it."""
    return model.vocab * model.hidden


def attentions_of(model: Model) -> list[tuple[int, Attention]]:
    """Every distinct attention over text, those that share a cache included, with its layer count."""
    counts: dict[Attention, int] = {}
    for n, layer in model.grouped():
        for a in layer.attentions:
            if a.kind not in ("cross", "encoder") and not a.index_width:
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
    """Attention of one prompt over all layers, quadratic where nothing bounds it."""
    parts = []
    for label, n, a in _labelled(model):
        if a.window is not None:
            pairs = windowed_pairs(
                tokens, leaf(f"{label}_window_tokens", a.window, "token", a.origin("window"))
            )
        elif a.stride > 1:
            pairs = causal_pairs(tokens) // leaf(f"{label}_stride", a.stride, "token", a.origin("stride"))
        else:
            pairs = causal_pairs(tokens)
        parts.append(_layer_flops(model, a, n, label, pairs, leaf, decode=False))
    return total(parts)


def decode_attention_flops(model: Model, context: Any, leaf: Leaf) -> Any:
    """Attention of one new token over `context` tokens."""
    parts = []
    for label, n, a in _labelled(model):
        pairs = context
        if a.window is not None:
            pairs = least(context, leaf(f"{label}_window_tokens", a.window, "token", a.origin("window")))
        elif a.stride > 1:
            pairs = context // leaf(f"{label}_stride", a.stride, "token", a.origin("stride"))
        parts.append(_layer_flops(model, a, n, label, pairs, leaf, decode=True))
    return total(parts)


def _layer_flops(
    model: Model, a: Attention, n: int, label: str, pairs: Any, leaf: Leaf, *, decode: bool
) -> Any:
    return attention_flops(
        leaf(f"{label}_layers", n, "layer", model.origin("layer_kinds")),
        leaf(f"{label}_query_heads", a.query_heads, "head", a.origin("query_heads")),
        leaf(f"{label}_widths", _widths(a, decode=decode), "value", a.origin("key_width")),
        pairs,
    )


def shapes_source(model: Model, what: str) -> Source:
    """The source of a count of parameters: the config's shapes."""
    return Source(Trust.STATED, f"{model.file}: {what}")


def prefill_flops(model: Model, tokens: Any, sequences: Any, leaf: Leaf) -> Any:
    """All of one prefill: every prompt token through the layers, one token each through the head."""
    body = leaf(
        "token_parameters", token_parameters(model), "value", shapes_source(model, "matrices a token passes")
    )
    head = leaf(
        "head_parameters", head_parameters(model), "value", shapes_source(model, "vocab_size × hidden_size")
    )
    attention = named("prompt_attention_flops", "FLOP", prefill_attention_flops(model, tokens, leaf))
    return sequences * (matmul_flops(body, tokens) + matmul_flops(head, 1) + attention)


def decode_flops(model: Model, context: Any, batch: Any, leaf: Leaf) -> Any:
    """One step of a batch: one token of each sequence through everything."""
    both = token_parameters(model) + head_parameters(model)
    body = leaf("step_parameters", both, "value", shapes_source(model, "matrices and head a token passes"))
    attention = named("step_attention_flops", "FLOP", decode_attention_flops(model, context, leaf))
    return batch * (matmul_flops(body, 1) + attention)


def weight_bytes_read(model: Model, tokens: Any, leaf: Leaf) -> Any:
    """Bytes of weights a step of `tokens` tokens reads: of the experts only those it touches."""
    always, one = read_bytes(model)
    fixed = leaf(
        "always_read_bytes", always, "B", shapes_source(model, "weights but routed experts, as stored")
    )
    if not one:
        return fixed
    experts, active = expert_counts(model)
    source = shapes_source(model, "experts of the router")
    touched = distinct_experts(
        leaf("experts", experts, "expert", source),
        leaf("experts_per_token", active, "expert", source),
        tokens,
    )
    return fixed + touched * leaf(
        "expert_bytes", one, "B", shapes_source(model, "one expert in every sparse layer, as stored")
    )


def expert_counts(model: Model) -> tuple[int, int]:
    """Experts of a sparse layer and how many a token uses; (0, 0) for a dense model."""
    for _, layer in model.grouped():
        for w in layer.weights:
            if w.part == "expert":
                return w.copies, w.active or w.copies
    return 0, 0
