"""Weights of a speculative decoder on one rank: what is loaded beside the model that it drafts for.

`Setup.drafter`: `model` (a Model of its own), else the layers that predict ahead of `ahead_of` (the
target where it is not named), else a head whose config is not known. vLLM 0.32.0 v1/spec_decode.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvplan.cost.weights import Split, dtype_of, shape_bytes
from kvplan.engines.deployment import Deployment
from kvplan.engines.loaded import weights_on_rank
from kvplan.engines.sglang_rules import rules_of
from kvplan.facts import drafters
from kvplan.figure import Leaf, Number, Source, Trust, bare, ceiling, formula, named
from kvplan.model.model import Layer, Model
from kvplan.model.tensors import part_of

RULE = "vLLM 0.32.0 v1/spec_decode/llm_base_proposer.py"
_SHARED = ("embedding", "position", "head")


@formula("B")
def ahead_bytes(mtp_size: Number, layers_on_rank_bytes: Number, layers_size: Number) -> Number:
    """Layers that predict ahead, stored and divided as the decoder's own layers are on average."""
    return mtp_size * layers_on_rank_bytes // layers_size


@formula("B")
def joining_bytes(joined_widths: Number, hidden: Number, value_bytes: Number) -> Number:
    """The projection from the target's states to the head's width, whole on every rank."""
    return joined_widths * hidden * hidden * value_bytes


@formula("B", RULE)
def table_bytes(vocabulary: Number, hidden: Number, tp: Number, value_bytes: Number) -> Number:
    """A rank's part of an embedding or of a head."""
    return ceiling(vocabulary, tp) * hidden * value_bytes


def drafter_room(d: Deployment, split: Split, leaf: Leaf, arch: str | None) -> Any:
    """Bytes of the drafter's weights on a rank: on the last stage; 0 without one, or where it has none."""
    drafter = d.setup.drafter
    if not drafter or d.setup.engine not in ("vllm", "sglang") or split.stage != split.pp - 1:
        return 0
    if d.setup.engine == "sglang" and rules_of(d.setup.version)["draft_reserve_mib"]:
        return 0  # taken out of what the version sets aside for drafters, not out of the pool
    kind = drafters.keeps(drafter.get("method"))
    if kind == "nothing" or drafter.get("method") == "extract_hidden_states":
        return 0
    draft = drafter.get("model")
    alone = Split(tp=1 if drafter.get("draft_tensor_parallel_size") == 1 else split.tp, ep=split.ep)
    if isinstance(draft, Model):
        found = weights_on_rank(draft if kind == "model" else _sharing(draft), alone, leaf, arch)
        if kind != "model" and draft.tensors is None:
            found = found + _joining(draft, str(drafter["method"]), leaf)
    elif kind == "ahead" or drafter.get("method") == "dspark":
        found = _ahead(drafter.get("ahead_of") or d.model, alone, leaf)
    else:
        found = _head(d.model, str(drafter.get("method")), alone, leaf)
    if kind != "model" and split.pp > 1:
        found = found + _table(d.model, d.model.vocab, alone, leaf, "embedding is on another stage")
    return named("drafter_bytes", "B", found)


def _sharing(draft: Model) -> Model:
    """A head without the tables that it shares with its target: the embedding, and a head not its own."""
    if draft.tensors is None:
        return replace(draft, weights=tuple(w for w in draft.weights if w.part not in _SHARED))
    kept = tuple(t for t in draft.tensors.tensors if part_of(t.name) != "embedding")
    own = any(part_of(t.name) == "head" for t in kept)
    weights = tuple(w for w in draft.weights if w.part not in _SHARED or (own and w.part == "head"))
    return replace(draft, weights=weights, tensors=replace(draft.tensors, tensors=kept))


def _ahead(model: Model, split: Split, leaf: Leaf) -> Any:
    """Layers that predict ahead; embedding and head are the target's."""
    layers, stored = replace(model, weights=(), tensors=None), _stored(model)
    if not stored and "mtp" in str(model.quantization or ""):  # listed among what stays as it was
        layers = replace(layers, quantization=None)
    rank = leaf("layers_on_rank_bytes", shape_bytes(layers, bare, split), "B", _shapes(model))
    if stored:
        files = ", ".join(model.tensors.files[:2]) if model.tensors else ""
        where = Source(Trust.MEASURED, f"{files}: layers that predict ahead")
        whole = leaf("layers_size", shape_bytes(layers, bare), "B", _shapes(model))
        return ahead_bytes(leaf("mtp_size", stored, "B", where), rank, whole)
    if model.mtp_parameters is None or not layers.parameters:
        why = f"{model.file}: the size of its layers that predict ahead is not known; not counted"
        return leaf("mtp_size", 0, "B", Source(Trust.ASSUMED, why))
    size = leaf("mtp_size", model.mtp_parameters, "value", model.origin("mtp"))
    return ahead_bytes(size, rank, leaf("layers_size", layers.parameters, "value", _shapes(model)))


def _stored(model: Model) -> int:
    """Their bytes in the files, less copies of the embedding and the head, which engines share."""
    if model.tensors is None:
        return 0
    kept = tuple(t for t in model.tensors.tensors if t.shape[:1] != (model.vocab,))
    return replace(model.tensors, tensors=kept).bytes_by_part().get("mtp", 0)


def _shapes(model: Model) -> Source:
    return Source(Trust.STATED, f"{model.file}: shapes of every decoder layer")


def _head(target: Model, method: str, split: Split, leaf: Leaf) -> Any:
    """A head of unknown config: the smallest of the target's attention layers, and what joins them."""
    holding = [layer for _, layer in target.grouped() if any(a.holds for a in layer.attentions)]
    if not holding:
        return 0
    layer = min(holding, key=_values)
    alone = replace(target, layers=(layer,), weights=(), tensors=None, quantization=None)
    why = Source(Trust.ASSUMED, f"a {method} head of unknown config: as the target's layer, in 16 bit")
    found = leaf("head_layer_bytes", shape_bytes(alone, bare, split), "B", why)
    return found + _joining(target, method, leaf) + _own_vocabulary(target, method, split, leaf)


def _values(layer: Layer) -> int:
    return sum(w.parameters for w in layer.weights)


def _joining(model: Model, method: str, leaf: Leaf) -> Any:
    """The projection of an EAGLE head; 0 for other heads, whose shapes are not known."""
    table = drafters.table()["heads"]
    widths = table["joined"].get(method, 0)
    if not widths:
        return 0
    rule = Source(Trust.ENGINE_RULE, table["source"])
    return joining_bytes(
        leaf("joined_widths", widths, "", rule),
        leaf("hidden", model.hidden, "value", model.origin("hidden")),
        leaf("head_value_bytes", dtype_of(model).block_bytes, "B/value", rule),
    )


def _own_vocabulary(target: Model, method: str, split: Split, leaf: Leaf) -> Any:
    kept = min(drafters.table()["heads"]["own_vocabulary"].get(method, 0), target.vocab)
    return _table(target, kept, split, leaf, "as published EAGLE-3 heads keep") if kept else 0


def _table(model: Model, tokens: int, split: Split, leaf: Leaf, why: str) -> Any:
    where = Source(Trust.ASSUMED, f"the drafter's own table: {why}")
    return table_bytes(
        leaf("drafter_vocabulary", tokens, "token", where),
        leaf("hidden", model.hidden, "value", model.origin("hidden")),
        leaf("drafter_tp", split.tp, "rank", Source(Trust.STATED, "draft_tensor_parallel_size, or --tp")),
        leaf("head_value_bytes", dtype_of(model).block_bytes, "B/value", Source(Trust.ASSUMED, "16 bit")),
    )
