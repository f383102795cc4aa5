"""What vLLM needs beside weights and cache: its profiled peak, what lies outside PyTorch, CUDA graphs.

The profiling run passes a full batch of tokens through the layers, then samples `max_num_seqs` rows
over the whole vocabulary; the larger of the two is the peak. What start-up logs taught is in
facts/engines/reserve.toml, each figure with the range it was seen in.
"""

from __future__ import annotations

import math
from typing import Any

from kvplan.engines.engine import Setup
from kvplan.facts import store
from kvplan.facts.engine_versions import entry_for
from kvplan.figure import Leaf, Number, Source, Trust, formula, most
from kvplan.model.model import Layer, Model

ENDS = ("value", "low", "high")


@formula("B", "vLLM 0.11.0 v1/worker/gpu_model_runner.py _dummy_sampler_run")
def sampler_bytes(max_num_seqs: Number, vocab: Number, bytes_per_logit: Number) -> Number:
    """Logits of every running sequence with the copies that sampling makes of them."""
    return max_num_seqs * vocab * bytes_per_logit


@formula("B", "vLLM 0.11.0 v1/worker/gpu_model_runner.py profile_run")
def forward_bytes(
    max_num_batched_tokens: Number, live_values: Number, value_bytes: Number, scale: Number
) -> Number:
    """Values alive at once in the widest layer while a full batch of tokens passes it."""
    return max_num_batched_tokens * live_values * value_bytes * scale


@formula("B")
def activation_bytes(forward_bytes: Number, sampler_bytes: Number) -> Number:
    """The peak of the profiling run: the forward pass, or sampling after it."""
    return most(forward_bytes, sampler_bytes)


@formula("B")
def overhead_bytes(one_rank_bytes: Number, doubling_bytes: Number, doublings: Number) -> Number:
    """Memory outside PyTorch: the context, and communication buffers that grow with the ranks."""
    return one_rank_bytes + doubling_bytes * doublings


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


def reserve_of(
    model: Model, setup: Setup, limits: dict[str, tuple[int, Source]], end: str, leaf: Leaf
) -> dict[str, Any]:
    """Activation, graph and overhead bytes of one rank at one end of what was seen.

    `limits`: max_num_batched_tokens and max_num_seqs, each with its source. `end`: value, low or high.
    """
    table = store.toml("engines/reserve.toml")["vllm"]

    def learnt(name: str, unit: str) -> Any:
        row = entry_for(table[name], setup.version)
        why = f"{row['source']}; taken {row[end]:,} of {row['low']:,} to {row['high']:,}"
        return leaf(name, row[end], unit, Source(Trust.ASSUMED, why))

    tokens, rows = limits["max_num_batched_tokens"], limits["max_num_seqs"]
    shape = Source(Trust.STATED, f"{model.file}: 2 × hidden and 3 × the widest feed-forward, on a rank")
    forward = forward_bytes(
        leaf("max_num_batched_tokens", tokens[0], "token", tokens[1]),
        leaf("live_values", live_values(model, setup.tp), "value", shape),
        leaf("activation_value_bytes", 2, "B/value", Source(Trust.ENGINE_RULE, "activations in 16 bit")),
        learnt("forward_scale", ""),
    )
    sampler = sampler_bytes(
        leaf("max_num_seqs", rows[0], "sequence", rows[1]),
        leaf("vocab", model.vocab, "value", model.origin("vocab")),
        learnt("sampler_bytes_per_logit", "B"),
    )
    eager = bool(setup.flags.get("enforce_eager"))
    no_graphs = Source(Trust.STATED, "--enforce-eager")
    ranks = Source(Trust.STATED, f"tp {setup.tp} × pp {setup.pp}")
    return {
        "activation_bytes": activation_bytes(forward, sampler),
        "graph_bytes": leaf("graph_bytes", 0, "B", no_graphs) if eager else learnt("graph_bytes", "B"),
        "overhead_bytes": overhead_bytes(
            learnt("non_torch_bytes", "B"),
            learnt("non_torch_bytes_per_doubling", "B"),
            leaf("doublings", math.log2(setup.tp * setup.pp), "", ranks),
        ),
    }
