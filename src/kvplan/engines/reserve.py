"""What vLLM needs beside weights and cache: its profiled peak, what lies outside PyTorch, CUDA graphs.

The profiling run passes a full batch of tokens through the layers, then samples `max_num_seqs` rows
over the whole vocabulary; the larger of the two is the peak. What start-up logs taught is in
facts/engines/reserve.toml, each figure with the range it was seen in.
"""

from __future__ import annotations

from typing import Any

from kvplan.figure import Leaf, Number, Source, Trust, formula, most, whole
from kvplan.model.model import Layer, Model

Limits = dict[str, tuple[int, Source]]  # max_num_batched_tokens and max_num_seqs, each with its source


@formula("B", "vLLM 0.11.0 v1/worker/gpu_model_runner.py _dummy_sampler_run")
def sampler_bytes(max_num_seqs: Number, vocab: Number, bytes_per_logit: Number) -> Number:
    """Logits of every running sequence with the copies that sampling makes of them."""
    return whole(max_num_seqs * vocab * bytes_per_logit)


@formula("B", "vLLM 0.11.0 v1/worker/gpu_model_runner.py profile_run")
def forward_bytes(
    max_num_batched_tokens: Number, live_values: Number, value_bytes: Number, scale: Number
) -> Number:
    """Values alive at once in the widest layer while a full batch of tokens passes it."""
    return whole(max_num_batched_tokens * live_values * value_bytes * scale)


@formula("B")
def activation_bytes(forward_bytes: Number, sampler_bytes: Number, encoder_bytes: Number = 0) -> Number:
    """The peak of the profiling run: the forward pass, sampling after it, or the images before it."""
    return most(forward_bytes, sampler_bytes, encoder_bytes)


@formula("B", "vLLM 0.32.0 v1/worker/gpu_model_runner.py profile_run: images that fill a step")
def encoder_bytes(
    max_num_batched_tokens: Number,
    patches_per_token: Number,
    tower_values: Number,
    value_bytes: Number,
    scale: Number,
) -> Number:
    """Values alive at once in the vision tower while it reads as many images as a step has tokens for."""
    return whole(max_num_batched_tokens * patches_per_token * tower_values * value_bytes * scale)


def live_values(model: Model, tp: int) -> int:
    """Values of one token alive at once in the widest layer of a rank."""
    return 2 * model.hidden + 3 * max((_width(layer, tp) for _, layer in model.grouped()), default=0)


def _width(layer: Layer, tp: int) -> int:
    """Feed-forward values of one token in a layer: dense and shared width, and the active experts'."""
    width = 0
    for weight in layer.weights:
        if weight.name in ("up_proj", "shared_up") and weight.part in (
            "feed_forward",
            "shared_expert",
            "expert",
        ):
            active = (weight.active or 1) if weight.part == "expert" else 1
            width += -(-weight.outputs * active // tp)
    return width


def forward(model: Model, tp: int, tokens: Any, scale: Any, leaf: Leaf) -> Any:
    """The peak of a forward pass over `tokens`, from the widest layer of a rank."""
    shape = Source(Trust.STATED, f"{model.file}: 2 × hidden and 3 × the widest feed-forward, on a rank")
    return forward_bytes(
        tokens,
        leaf("live_values", live_values(model, tp), "value", shape),
        leaf("activation_value_bytes", 2, "B/value", Source(Trust.ENGINE_RULE, "activations in 16 bit")),
        scale,
    )


def logits(model: Model, rows: Any, bytes_per_logit: Any, leaf: Leaf) -> Any:
    """Logits of so many rows over the vocabulary, with the copies made of them."""
    return sampler_bytes(rows, leaf("vocab", model.vocab, "value", model.origin("vocab")), bytes_per_logit)
