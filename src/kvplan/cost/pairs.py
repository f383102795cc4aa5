"""Query-key pairs: how many positions the tokens of a prompt, or one new token, attend to.

Counts are exact for full, sliding and chunked attention; for sparse attention they are what no
indexer gets below (DeepSeek-V3.2, arXiv 2512.02556).
"""

from __future__ import annotations

from typing import Any

from kvplan.figure import Leaf, Number, formula, half, least, most, value_of
from kvplan.model.model import Attention


@formula("pair")
def causal_pairs(tokens: Number) -> Number:
    """Query-key pairs of a causal prompt: each token attends to itself and all before it."""
    return half(tokens * (tokens + 1))


@formula("pair")
def windowed_pairs(tokens: Number, window_tokens: Number) -> Number:
    """Query-key pairs when a token attends to at most the last `window_tokens`."""
    short = least(tokens, window_tokens)
    return half(short * (short + 1)) + (tokens - short) * window_tokens


@formula("pair")
def chunked_pairs(tokens: Number, chunk_tokens: Number) -> Number:
    """Query-key pairs when a token attends to itself and those before it in its own chunk."""
    chunks = tokens // chunk_tokens
    rest = tokens - chunks * chunk_tokens
    return chunks * half(chunk_tokens * (chunk_tokens + 1)) + half(rest * (rest + 1))


@formula("pair")
def slot_pairs(tokens: Number, stride: Number) -> Number:
    """Query-slot pairs when every `stride` tokens leave one slot, once they are complete."""
    slots = tokens // stride
    return stride * half(slots * (slots - 1)) + slots * (tokens - slots * stride + 1)


@formula("pair")
def selected_pairs(tokens: Number, stride: Number, attended: Number) -> Number:
    """As `slot_pairs`, when an indexer leaves a token at most `attended` slots."""
    short = least(tokens, stride * attended)
    return slot_pairs(short, stride) + (tokens - short) * attended


@formula("token")
def chunk_position(context_tokens: Number, chunk_tokens: Number) -> Number:
    """How far into its chunk a token is: what chunked attention reads at that context."""
    before = context_tokens - 1
    return before - before // chunk_tokens * chunk_tokens + 1


def prompt_pairs(a: Attention, label: str, tokens: Any, leaf: Leaf) -> Any:
    """Pairs of one prompt in one layer of that attention."""
    if a.window is not None:
        window = leaf(f"{label}_window_tokens", a.window, "token", a.origin("window"))
        return (chunked_pairs if a.kind == "chunked" else windowed_pairs)(tokens, window)
    sure = a.surely_attended
    if a.stride == 1 and sure is None:
        return causal_pairs(tokens)
    stride = leaf(f"{label}_stride", a.stride, "token", a.origin("stride")) if a.stride > 1 else 1
    if sure is None:
        return slot_pairs(tokens, stride)
    return selected_pairs(tokens, stride, leaf(f"{label}_attended", sure, "slot", a.origin("attended")))


def kept_slots(a: Attention, label: str, context: Any, leaf: Leaf) -> Any:
    """Slots of one layer's cache that tokens to come may still attend to at that context."""
    if a.window is not None:
        window = leaf(f"{label}_window_tokens", a.window, "token", a.origin("window"))
        return chunk_position(context, window) if a.kind == "chunked" else least(context, window)
    if a.stride == 1:
        return context
    return context // leaf(f"{label}_stride", a.stride, "token", a.origin("stride"))


def read_slots(a: Attention, label: str, context: Any, leaf: Leaf) -> Any:
    """Slots of one layer's cache that a new token attends to at that context."""
    slots, sure = kept_slots(a, label, context, leaf), a.surely_attended
    if sure is None:
        return slots
    return least(slots, leaf(f"{label}_attended", sure, "slot", a.origin("attended")))


def index_slots(a: Attention, label: str, context: Any, leaf: Leaf) -> Any:
    """Index keys of one layer at that context."""
    if a.index_stride == 1:
        return context
    return context // leaf(f"{label}_index_stride", a.index_stride, "token", a.origin("index_stride"))


def scored_pairs(a: Attention, label: str, tokens: Any, leaf: Leaf) -> Any:
    """Query-index-key pairs of one prompt: scores are due where there is more than the indexer picks."""
    unscored = (a.attended or 0) * a.stride
    if not a.index_width:
        return 0
    if hasattr(tokens, "dtype"):  # of many prompts some may be short: their difference is then no more than 0
        keys = slot_pairs(tokens, a.index_stride) - slot_pairs(unscored, a.index_stride)
        return most(0, keys)
    if value_of(tokens) <= unscored:
        return 0
    stride = (
        leaf(f"{label}_index_stride", a.index_stride, "token", a.origin("index_stride"))
        if a.index_stride > 1
        else 1
    )
    free = leaf(f"{label}_unscored_tokens", unscored, "token", a.origin("attended"))
    return slot_pairs(tokens, stride) - slot_pairs(free, stride)


def scored_slots(a: Attention, label: str, context: Any, leaf: Leaf) -> Any:
    """Index keys that a new token is scored against; none while all are attended to anyway."""
    if not a.index_width:
        return 0
    if hasattr(context, "dtype"):
        return (context // a.stride > (a.attended or 0)) * index_slots(a, label, context, leaf)
    if value_of(context) // a.stride <= (a.attended or 0):
        return 0
    return index_slots(a, label, context, leaf)
