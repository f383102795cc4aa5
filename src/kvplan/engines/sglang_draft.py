"""What a drafter's own cache costs under SGLang: MTP and EAGLE layers, draft models, DFlash and DSpark.

SGLang 0.5.23 model_executor/pool_configurator.py, speculative/dflash_utils.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvplan.engines.sglang_cell import Kept, format_leaves, kv_heads_on_rank, side_bytes
from kvplan.engines.sglang_setup import OWN_CACHE_DRAFTERS, Started
from kvplan.errors import BadInput, shown
from kvplan.figure import Leaf, Number, Source, Trust, ceiling, formula, named, whole
from kvplan.model.model import Model

_RULE = "SGLang 0.5.23 model_executor/pool_configurator.py"


@dataclass(frozen=True, slots=True)
class Draft:
    """Layers a drafter keeps a cache for, and their shape where it is its own."""

    layers: int = 0
    swa_layers: int = 0
    key_bytes: Any = 0
    value_bytes: Any = 0
    own: bool = False


@formula("B/token", _RULE)
def grown_cell(cell: Number, draft_layers: Number, layers: Number) -> Number:
    """A cell widened for draft layers that are taken to cost what the target's layers do."""
    return cell + whole(cell * draft_layers / layers)


@formula("B/token", "SGLang 0.5.17 speculative/dflash_utils.py scale_kv_cell_size_per_token_for_dflash")
def scaled_cell(cell: Number, draft_layers: Number, layers: Number) -> Number:
    """The same for a drafter with a cache of its own, rounded up."""
    return ceiling(cell * (layers + draft_layers), layers)


def draft_of(model: Model, run: Started, leaf: Leaf) -> Draft:
    """The drafter's layers: as `Setup.drafter` says, else the model's own MTP layers."""
    if not run.drafts or run.algorithm in ("NGRAM", "LOOKAHEAD"):
        return Draft()
    table = run.setup.drafter or {}
    layers = _count(table, "layers")
    if layers is None:
        layers = model.mtp_layers or 1
        run.notes.append(
            f"draft layers are not given: {layers} counted"
            + (", the model's own MTP layers" if model.mtp_layers else ", as EAGLE heads have")
        )
    swa = _count(table, "swa_layers") or 0
    heads = _count(table, "kv_heads")
    if heads is None:
        return Draft(layers, swa)
    where = Source(Trust.STATED, "the drafter's config")
    key = _count(table, "key_width") or _count(table, "head_dim") or 128
    value = _count(table, "value_width") or key
    tp = leaf("attention_tp", run.attn_tp, "rank", where)
    mine = kv_heads_on_rank(leaf("draft_kv_heads", heads, "head", where), tp, 1)
    fmt = format_leaves(run, leaf).get("value_bytes", 2)
    return Draft(
        layers,
        swa,
        named(
            "draft_key_bytes", "B/token", side_bytes(mine, leaf("draft_key_width", key, "value", where), fmt)
        ),
        named(
            "draft_value_bytes",
            "B/token",
            side_bytes(mine, leaf("draft_value_width", value, "value", where), fmt),
        ),
        own=run.algorithm in OWN_CACHE_DRAFTERS,
    )


def _count(table: Any, name: str) -> int | None:
    value = table.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise BadInput(f"drafter {name}: {shown(value)} cannot be used; give a whole number")
    return value


def with_draft(cell: Any, kept: list[Kept], draft: Draft, run: Started) -> Any:
    """The cell of one pool for all layers, widened for the drafter as the version does it."""
    rule, layers = run.rules["draft_cell"], sum(k.layers for k in kept)
    if not draft.layers or not layers or rule in ("none", "headroom"):
        return cell
    if run.algorithm in OWN_CACHE_DRAFTERS:
        if rule == "added" and draft.own:
            return cell + draft.layers * (draft.key_bytes + draft.value_bytes)
        return scaled_cell(cell, draft.layers, layers)
    if rule == "added" and any(k.index_layers and k.latent for k in kept):
        index = next(k.index_bytes for k in kept if k.index_layers)
        main = sum(k.layers * k.layer_bytes() for k in kept)
        return cell + whole(main * draft.layers / layers) + draft.layers * index
    return grown_cell(cell, draft.layers, layers)


def headroom_tokens(run: Started, requests: int) -> int:
    """Tokens that versions before 0.5.8 add for drafts: every request's tree and its verification."""
    steps = int(run.flag("speculative_num_steps") or 0)
    topk = int(run.flag("speculative_eagle_topk") or 1)
    return requests * (steps * topk + run.draft_tokens) + 100
