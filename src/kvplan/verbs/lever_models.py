"""Changed architectures: the model with other KV heads, or with a window in every layer.

GQA, arXiv 2305.13245; MQA, arXiv 1911.02150; sliding windows, Mistral 7B, arXiv 2310.06825.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from kvplan.cost import cache
from kvplan.engines.deployment import Deployment
from kvplan.figure import Source, Trust
from kvplan.model.model import Attention, Layer, Model, Weight
from kvplan.verbs.asked import Asked
from kvplan.verbs.deploy import with_flags
from kvplan.verbs.lever import Lever, none, tried

WINDOW = 4096  # Mistral 7B's
_SHARED = 8  # KV heads of the paper's GQA-8
_OF_HEADS = ("full", "sliding", "chunked")


def heads_of(model: Model) -> list[Attention]:
    """The attentions that keep keys and values of heads."""
    groups = cache.groups_of(model, _OF_HEADS)
    return [g.attention for g in groups if g.attention.latent is None and g.attention.value_width]


def with_kv_heads(model: Model, heads: int | None) -> Model:
    """The model with so many KV heads (None: one per query head) wherever it keeps keys and values of heads.

    The model itself where that changes nothing: latents have no KV heads.
    """

    def change(layer: Layer) -> Layer:
        ours = [a for a in layer.attentions if a.kind in _OF_HEADS and a.latent is None and a.value_width]
        if not ours:
            return layer
        old = max(a.kv_heads for a in ours)
        new = _allowed(ours[0], heads)
        attentions = tuple(_shared(a, heads) if a in ours else a for a in layer.attentions)
        return replace(layer, attentions=attentions, weights=_projected(layer.weights, old, new))

    return _changed(model, change)


def _allowed(a: Attention, heads: int | None) -> int:
    """KV heads that divide the query heads: as many as asked, or the most below."""
    wanted = a.query_heads if heads is None else min(heads, a.query_heads)
    return next(n for n in range(wanted, 0, -1) if a.query_heads % n == 0)


def _shared(a: Attention, heads: int | None) -> Attention:
    new = _allowed(a, heads)
    why = Source(Trust.STATED, f"{new} KV heads, as asked; {a.origin('kv_heads').where} has {a.kv_heads}")
    return a if new == a.kv_heads else replace(a, kv_heads=new, origins={**a.origins, "kv_heads": why})


def _projected(weights: tuple[Weight, ...], old: int, new: int) -> tuple[Weight, ...]:
    """Projections to keys and values that have as many outputs as heads."""
    if old == new:
        return weights
    return tuple(replace(w, outputs=w.outputs // old * new) if w.split == "kv" else w for w in weights)


def with_window(model: Model, tokens: int) -> Model:
    """The model with a window in every layer that attends to all; itself where it has windows already."""
    if any(a.window for layer in model.layers for a in layer.attentions):
        return model

    def change(layer: Layer) -> Layer:
        attentions = tuple(
            replace(a, kind="sliding", window=tokens, origins={**a.origins, "window": why})
            if a.kind == "full" and a.latent is None
            else a
            for a in layer.attentions
        )
        return layer if attentions == layer.attentions else replace(layer, attentions=attentions)

    why = Source(Trust.STATED, f"a window of {tokens:,} tokens, as asked")
    return _changed(model, change)


def _changed(model: Model, change: Callable[[Layer], Layer]) -> Model:
    """The model with its layers changed, each distinct one once; weights then follow the formula."""
    found = {id(layer): change(layer) for layer in model.layers}
    if all(found[id(layer)] == layer for layer in model.layers):
        return model
    layers = tuple(found[id(layer)] for layer in model.layers)
    same = all(found[id(layer)].weights == layer.weights for layer in model.layers)
    return replace(model, layers=layers, tensors=model.tensors if same else None)


def _on(d: Deployment, model: Model) -> Deployment:
    """The deployment of the changed model; measured weights were of another."""
    if model is d.model:
        return d
    cache.check_split(model, d.tp)
    measured = {name: value for name, value in d.measured.items() if name != "weight_bytes"}
    return replace(d, model=model, measured=measured)


def kv_heads(d: Deployment, asked: Asked) -> Iterator[Lever]:
    """Fewer KV heads: the paper's eight, or half of those there are, and one."""
    own = heads_of(d.model)
    now = max((a.kv_heads for a in own), default=0)
    every = max((a.query_heads for a in own), default=0)
    some = _SHARED if now == every or now > _SHARED else now // 2
    for heads in dict.fromkeys(n for n in (some, 1) if 0 < n < now or n == 1):
        fields = {"heads": heads, "s": "" if heads == 1 else "s", "kind": "MQA" if heads == 1 else "GQA"}
        make = partial(_on, d, with_kv_heads(d.model, heads))
        yield tried("kv_heads", {"kv_heads": heads}, asked, make, fields, _same_heads(d, now, heads))


def mha(d: Deployment, asked: Asked) -> Iterator[Lever]:
    """A KV head for every query head: what sharing them saves now."""
    own = heads_of(d.model)
    every = max((a.query_heads for a in own), default=0)
    why = none("mha", _no_heads(d.model) or "same")
    queries = max((a.query_heads for _, x in d.model.grouped() for a in x.attentions), default=0)
    make = partial(_on, d, with_kv_heads(d.model, None))
    yield tried("mha", {"kv_heads": every or queries}, asked, make, {"heads": every or queries}, why)


def _same_heads(d: Deployment, now: int, heads: int) -> str:
    """Why other KV heads would change nothing."""
    missing = _no_heads(d.model)
    if missing:
        return none("kv_heads", missing)
    if now <= heads:
        return none("kv_heads", "same", are="is one" if heads == 1 else f"are {heads}")
    return none("kv_heads", "repeated", tp=d.tp)


def _no_heads(model: Model) -> str:
    """Which word says why a model has no KV heads; empty where it has."""
    if heads_of(model):
        return ""
    latent = any(a.latent or not a.value_width for _, layer in model.grouped() for a in layer.attentions)
    return "latent" if latent else "empty"


def window(d: Deployment, asked: Asked) -> Iterator[Lever]:
    """A window in every layer."""
    change: dict[str, Any] = {"window_tokens": WINDOW}
    changed = with_window(d.model, WINDOW)
    flags: dict[str, Any] = {}
    if d.setup.engine == "tensorrt-llm" and changed is not d.model:  # charged in full unless it is told
        flags = {"max_attention_window": [WINDOW]}
    why, fields = _same_window(d.model, asked), {"tokens": WINDOW}
    make = partial(_on, with_flags(d, **flags) if flags else d, changed)
    yield tried("window", change | flags, asked, make, fields, why)


def _same_window(model: Model, asked: Asked) -> str:
    windows = [a.window for _, layer in model.grouped() for a in layer.attentions if a.window]
    if windows:
        return none("window", "has", tokens=max(windows))
    missing = _no_heads(model)
    return none("window", missing or "unfilled", length=asked.length, tokens=WINDOW)
