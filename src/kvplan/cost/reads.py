"""What a step must move of the cache: less than is held where attention is sparse or chunked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvplan.cost import cache, pairs
from kvplan.cost.cache import Group, Stored
from kvplan.figure import Leaf, Source, Trust, least, named, total
from kvplan.model.model import Attention, Model

Count = Callable[[Attention, str, Any, Leaf], Any]
_INDEX = Source(Trust.ENGINE_RULE, "engines keep index keys of latents in 8 bit whatever the cache's format")
_SLOT_INDEX = Source(Trust.ENGINE_RULE, "DeepSeek-V4's index keys in 4 bit: vLLM and SGLang fp4 indexer")
_SLOT = Source(
    Trust.ENGINE_RULE, "DeepSeek-V4's vectors in 8 bit but for the rotary part, as engines pack them"
)


def sequence_bytes_read(model: Model, stored: Stored, context: Any, leaf: Leaf) -> Any:
    """Bytes of one sequence's cache that a step at that context reads on one rank, at least."""
    return _moved(model, stored, context, leaf, pairs.read_slots, pairs.scored_slots)


def sequence_bytes_written(model: Model, stored: Stored, tokens: Any, leaf: Leaf) -> Any:
    """Bytes of cache that a prompt leaves behind on one rank, at least."""
    return _moved(model, stored, tokens, leaf, pairs.kept_slots, pairs.index_slots)


def _moved(model: Model, stored: Stored, tokens: Any, leaf: Leaf, slots: Count, keys: Count) -> Any:
    parts = []
    for group in cache.groups_of(model):
        a, layers = group.attention, cache.layers_of(group, leaf, model)
        moved = slots(a, group.label, tokens, leaf)
        parts.append(layers * moved * _slot_bytes(group, stored, leaf))
        indexed = keys(a, group.label, tokens, leaf) if a.index_width else 0
        if indexed:
            parts.append(layers * indexed * _index_bytes(group, stored, leaf))
    if cache.model_has_state(model):
        state = cache.state_bytes_per_sequence(model, stored.tp, leaf)
        parts.append(named("state_bytes_per_sequence", "B", state))
    return total(parts)


def _slot_bytes(group: Group, stored: Stored, leaf: Leaf) -> Any:
    """One slot: in the cache's format, or as engines pack it where that is less."""
    a, one = group.attention, cache.group_bytes_per_token(group, stored, leaf)
    if a.latent is not None or a.value_width:
        return one
    return least(one, leaf(f"{group.label}_packed_bytes", a.key_width, "B/token", _SLOT))


def _index_bytes(group: Group, stored: Stored, leaf: Leaf) -> Any:
    """One index key: in the cache's format, or narrower where engines keep it narrower."""
    a, one = group.attention, cache.index_bytes(group, stored, leaf)
    if a.kind == "compressed":
        return least(one, leaf(f"{group.label}_packed_index_bytes", a.index_width // 2, "B", _SLOT_INDEX))
    if a.latent is not None:
        return least(one, leaf(f"{group.label}_packed_index_bytes", a.index_width, "B", _INDEX))
    return one
