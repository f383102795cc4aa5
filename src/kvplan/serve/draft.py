"""Speculative decoding: what drafting costs a step beside the positions that it has to verify.

Leviathan, Kalman and Matias 2023 (arXiv 2211.17192) for the tokens a step yields. EAGLE (arXiv 2401.15077)
and DeepSeek-V3's MTP (arXiv 2412.19437, section 2.2) draft one token after another with one decoder layer
and the target's head; n-grams are looked up for nothing.
"""

from __future__ import annotations

from typing import Any

from kvplan.cost.estimate import Clock
from kvplan.cost.step import Step, is_some, items_of
from kvplan.facts.drafters import keeps
from kvplan.facts.efficiency import fit_source
from kvplan.figure import Leaf, Number, bare, formula, named, total
from kvplan.serve.load import Load


@formula("s", "drafted tokens follow one another; EAGLE (arXiv 2401.15077), MTP (arXiv 2412.19437)")
def draft_seconds(
    drafts: Number, draft_layers: Number, one_layer_seconds: Number, head_seconds: Number
) -> Number:
    """Each drafted token passes the drafter's layers and the head."""
    return drafts * (draft_layers * one_layer_seconds + head_seconds)


@formula("s")
def one_layer_seconds(kernels_seconds: Number, layers: Number, layer_seconds: Number) -> Number:
    """A layer like the target's on average, with what the engine takes between layers."""
    return kernels_seconds / layers + layer_seconds


def layers_of(method: str, size: float = 0.0, layers: int = 0) -> float:
    """Decoder layers that a drafted token passes under a method of --speculative-config: 0 for n-grams.

    A whole draft model of `size` (its part of the target's active parameters) counts as so many of the
    target's `layers`.
    """
    kept = keeps(method)
    if kept == "model":
        return size * layers
    return 0.0 if kept == "nothing" else 1.0


def drafting(clock: Clock, load: Load, step: Step, leaf: Leaf = bare) -> Any:
    """Seconds that a decode step drafts for its sequences; 0 where nothing is drafted, or for nothing."""
    if not load.drafts or not load.draft_layers or not is_some(step.decoding):
        return 0.0
    one_token = Step(step.decoding, step.context)
    if leaf is bare:  # arrays of steps too, of which no one part binds
        parts = [(i.name, i.layers * clock.item_seconds(i)) for i in items_of(clock.ops, one_token)]
    else:
        parts = [(part.name, part.seconds) for part in clock.timed(one_token, leaf)]
    head = total([seconds for name, seconds in parts if name == "head"])
    kernels = named("kernels_seconds", "s", total([seconds for name, seconds in parts if name != "head"]))
    source = fit_source("layer_seconds", clock.engine, clock.accelerator.key)
    between = leaf("layer_seconds", clock.layer_seconds, "s", source)
    one = one_layer_seconds(kernels, clock.ops.layers, between)
    return draft_seconds(load.drafts, load.draft_layers, one, head)
