"""What is deployed: a model on accelerators, split and set up in a stated way."""

from __future__ import annotations

from dataclasses import dataclass

from kvplan.cost.cache import Stored
from kvplan.facts.accelerators import Accelerator
from kvplan.figure import Source
from kvplan.model.model import Model


@dataclass(frozen=True, slots=True)
class Deployment:
    """A model, the accelerator of one rank, how many ranks, and the settings that size memory.

    A lever changes this record and nothing else; the same arithmetic then runs again.
    """

    model: Model
    accelerator: Accelerator
    memory_bytes: int
    memory_source: Source
    tp: int
    stored: Stored
    gpu_memory_utilization: float
    utilization_source: Source
    max_model_len: int
    context_source: Source
    engine: str = "vllm"
    version: str = ""
