"""Bounds of llama.cpp's compute buffer: what the worst graph needs at once beside weights and caches.

The engine finds it by planning the graph (src/llama-context.cpp sched_reserve); there is no closed form. The
parts that dominate it are: masks of every cache, kept for the whole graph; then the wider of the activations
of a feed-forward or an attention and the logits. Every factor is data: facts/engines/llama_cpp.toml, compute.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvplan.engines.llama_cpp_memory import caches_of
from kvplan.engines.llama_cpp_settings import FACTS, Context, rule
from kvplan.facts import store
from kvplan.figure import Number, Source, Trust, bare, formula, most
from kvplan.model.model import Layer, Model


@dataclass(frozen=True, slots=True)
class Interval:
    """Bytes between a least and a most, an assumption that says why."""

    low: int
    high: int
    source: Source


@formula("B", "logs: one mask for each cache, alive through the graph")
def mask_bytes(n_ubatch: Number, cells: Number, cell_bytes: Number) -> Number:
    """Which cells each token of a pass may see."""
    return n_ubatch * cells * cell_bytes


@formula("B", "logs: the wider of the two decides")
def live_bytes(
    n_ubatch: Number, feed_forward_values: Number, attention_values: Number, value_bytes: Number
) -> Number:
    """Activations of one pass that are alive at once, in float32."""
    return n_ubatch * most(feed_forward_values, attention_values) * value_bytes


@formula("B", "src/llama-context.cpp n_outputs_pp")
def logits_bytes(
    vocab: Number, rows: Number, hidden: Number, n_ubatch: Number, value_bytes: Number
) -> Number:
    """Logits of the pass's rows, with the hidden states they come from."""
    return (vocab * rows + hidden * n_ubatch) * value_bytes


def compute_bytes(
    model: Model,
    ctx: Context,
    *,
    used: bool,
    output: bool,
    host: bool,
    moved_bytes: int = 0,
    pipelined: bool = False,
) -> Interval:
    """The compute buffer of a device that is `used` (or of the host), in bytes.

    `output`: it has the output layer. `moved_bytes`: the largest experts of a layer that stay on the host and
    are copied for large batches. `pipelined`: devices work on different passes, each with its own inputs.
    """
    facts = store.toml(FACTS)["compute"]
    source = Source(Trust.ASSUMED, f"compute buffer: {facts['source']}")
    masks = int(mask_bytes(int(ctx.n_ubatch), _mask_cells(model, ctx), rule("mask", ctx.build)["value"]))
    if not used:
        inputs = masks + 2 * int(ctx.n_ubatch) * model.hidden * int(facts["value_bytes"])
        return Interval(0, int(inputs * facts["high_share"]) if host else 0, source)
    value = int(facts["value_bytes"])
    ubatch = int(ctx.n_ubatch)
    live = int(live_bytes(ubatch, _feed_forward(model), _attention(model), value))
    scores = 0 if ctx.flash else ubatch * _scores(model, ctx) * value
    least = most_bytes = live
    if output:
        by_token = rule("logit_rows", ctx.build)["value"] == "tokens"
        rows = ubatch if by_token else min(ubatch, int(ctx.n_seq_max))
        least = max(live, int(logits_bytes(model.vocab, rows, model.hidden, ubatch, value)))
        most_bytes = max(live, int(logits_bytes(model.vocab, ubatch, model.hidden, ubatch, value)))
    high = (most_bytes + scores + masks * (4 if pipelined else 1)) * facts["high_share"] + facts["high_bytes"]
    moved = int(facts["expert_copies"]) * moved_bytes
    return Interval(int((least + scores) * facts["low_share"]), int(high) + moved, source)


def _mask_cells(model: Model, ctx: Context) -> int:
    """Cells of every kind of cache, once each: layers that share cells share the mask."""
    return sum(int(cache.cells) for cache in caches_of(model, ctx, bare) if cache.layers)


def _scores(model: Model, ctx: Context) -> int:
    """Attention scores of one token without flash attention, one layer at a time: heads × cells."""
    heads = max((a.query_heads for _, layer in model.grouped() for a in layer.attentions), default=0)
    cells = max((int(cache.cells) for cache in caches_of(model, ctx, bare) if cache.layers), default=0)
    return heads * cells


def _feed_forward(model: Model) -> int:
    facts = store.toml(FACTS)["compute"]
    widest = max((_width(layer) for _, layer in model.grouped()), default=0)
    return int(facts["feed_forward_copies"]) * widest + int(facts["hidden_copies"]) * model.hidden


def _width(layer: Layer) -> int:
    """Feed-forward values of one token: dense, or of the experts that it uses and those all tokens share."""
    width = 0
    for w in layer.weights:
        if w.part in ("feed_forward", "shared_expert", "expert") and w.name in ("up_proj", "shared_up"):
            used = (w.copies if w.active is None else w.active) if w.part == "expert" else 1
            width += used * w.outputs
    return width


def _attention(model: Model) -> int:
    """Attention values of one token: queries twice, keys, values and what comes out, and the residual."""
    found = 0
    for _, layer in model.grouped():
        for a in layer.attentions:
            value = a.value_width or (a.latent.kv_rank if a.latent else a.key_width)
            heads = a.query_heads * (2 * a.key_width + value) + a.kv_heads * (a.key_width + value)
            found = max(found, heads)
    states = max((s.channels * 2 for _, layer in model.grouped() for s in layer.states), default=0)
    return max(found, states) + 3 * model.hidden
