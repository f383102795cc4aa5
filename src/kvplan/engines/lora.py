"""Room for LoRA adapters: what vLLM allocates while it loads, whether an adapter comes or not.

Every linear layer but experts gets slots of two thin matrices, the input side whole on each rank of a
column-parallel layer, the output side divided (vLLM 0.32.0 lora/layers/base_linear.py create_lora_weights).
"""

from __future__ import annotations

from typing import Any

from kvplan.cost.weights import Split, rank_shape, stage_layers
from kvplan.engines.engine import Setup
from kvplan.figure import Leaf, Number, Source, Trust, formula
from kvplan.model.model import Model

RULE = "vLLM 0.32.0 lora/layers/base_linear.py"
_DEFAULTS = {"max_loras": 1, "max_lora_rank": 16}  # vLLM 0.32.0 config/lora.py
_PARTS = ("attention", "feed_forward", "shared_expert")


@formula("B", f"{RULE} create_lora_weights")
def lora_bytes(max_loras: Number, max_lora_rank: Number, edges: Number, value_bytes: Number) -> Number:
    """Two matrices per linear layer and slot: rank × inputs and outputs × rank."""
    return max_loras * max_lora_rank * edges * value_bytes


def lora_edges(model: Model, split: Split) -> int:
    """Inputs and outputs of every linear layer of one rank, added up."""
    found = 0
    for number in stage_layers(len(model.layers), split.pp, split.stage):
        layer = model.layers[number]
        for weight in layer.weights:
            if weight.part in _PARTS and weight.inputs > 1 and weight.outputs > 1:
                found += sum(rank_shape(weight, layer, split))
    return found


def lora_room(model: Model, setup: Setup, split: Split, leaf: Leaf) -> Any:
    """Bytes of the adapter slots on one rank; 0 unless `--enable-lora`."""
    if setup.engine != "vllm" or not setup.flags.get("enable_lora"):
        return 0
    shape = Source(Trust.STATED, f"{model.file}: linear layers of a rank, experts apart")
    edges = leaf("lora_edges", lora_edges(model, split), "value", shape)
    return lora_bytes(
        _setting(setup, "max_loras", leaf),
        _setting(setup, "max_lora_rank", leaf),
        edges,
        leaf("lora_value_bytes", 2, "B/value", Source(Trust.ENGINE_RULE, RULE)),
    )


def _setting(setup: Setup, name: str, leaf: Leaf) -> Any:
    given = setup.flags.get(name)
    if given is None:
        return leaf(name, _DEFAULTS[name], "", Source(Trust.ENGINE_RULE, "vLLM 0.32.0 config/lora.py"))
    return leaf(name, given, "", Source(Trust.STATED, f"--{name.replace('_', '-')}"))
