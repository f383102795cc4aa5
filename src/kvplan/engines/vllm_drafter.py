"""Caches that a speculative decoder adds after the model's own layers.

`setup.drafter`: `method` (mtp, eagle, eagle3, dflash, draft_model, …), `num_speculative_tokens`, and
what is drafted with: `model` (a Model), or `layers` (how many; MTP takes the config's, of `ahead_of`
where another checkpoint is named). vLLM registers them like the model's layers, 0.32.0 v1/spec_decode.
"""

from __future__ import annotations

from dataclasses import replace

from kvplan.engines.vllm_layers import Rank, attention_specs, layers_of
from kvplan.engines.vllm_specs import CacheLayer
from kvplan.errors import BadInput, shown
from kvplan.facts.drafters import keeps
from kvplan.model.model import Attention, Model

_DRAFTED = ("full", "latent", "sliding", "chunked")


def drafter_layers(rank: Rank, block: int) -> tuple[CacheLayer, ...]:
    """The drafter's caches, numbered after the model's layers."""
    drafter = rank.setup.drafter
    if not drafter or keeps(drafter.get("method")) == "nothing":
        return ()
    first = len(rank.model.layers)
    draft = drafter.get("model")
    if isinstance(draft, Model):
        return _of_model(rank, draft, block, first)
    count = drafter.get("layers")
    if count is None:
        ahead = drafter.get("ahead_of") or rank.model
        own = keeps(drafter.get("method")) == "ahead" or drafter.get("method") == "dspark"
        count = ahead.mtp_layers or 1 if own else 1
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise BadInput(f"--speculative-config: {shown(count)} draft layers; give at least one")
    attention = last_attention(rank.model)
    specs = [s for _ in range(count) for s in attention_specs(attention, rank, block, None)]
    return tuple(CacheLayer(first, spec) for spec in specs)


def _of_model(rank: Rank, draft: Model, block: int, first: int) -> tuple[CacheLayer, ...]:
    tp = 1 if (rank.setup.drafter or {}).get("draft_tensor_parallel_size") == 1 else rank.setup.tp
    own = replace(rank, model=draft, setup=replace(rank.setup, tp=tp, drafter=None), drafted=0)
    return tuple(CacheLayer(first, m.spec) for m in layers_of(own, block))


def last_attention(model: Model) -> Attention:
    """The attention that drafters copy: the last one that keeps every token, else the last that keeps any.

    DeepSeek-V4's drafters keep the window only (compress ratio 0).
    """
    holding = [a for layer in model.layers for a in layer.attentions if a.holds and a.kind in _DRAFTED]
    if not holding:
        raise BadInput("--speculative-config: this model has no attention that a drafter could copy")
    return next((a for a in reversed(holding) if a.kind in ("full", "latent")), holding[-1])
