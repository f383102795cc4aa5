"""What is deployed: a model on accelerators, split and set up in a stated way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kvplan.cost.cache import Stored
from kvplan.engines.engine import Setup
from kvplan.facts.accelerators import Accelerator
from kvplan.figure import Source
from kvplan.model.model import Model


@dataclass(frozen=True, slots=True)
class Deployment:
    """A model, the accelerator of one rank, how it is split, and the engine as it is started.

    A lever changes this record and nothing else; the same arithmetic then runs again. `accelerator`
    and `memory_bytes` are None where the cache's own bytes are given instead; `measured` holds the
    figures a user measured (weight_bytes, activation_bytes, graph_bytes, kv_pool_bytes), which stand
    in place of the predicted ones; `in_use_bytes` is what others hold on the device.
    """

    model: Model
    setup: Setup
    stored: Stored
    accelerator: Accelerator | None
    memory_bytes: int | None
    memory_source: Source
    max_model_len: int
    context_source: Source
    in_use_bytes: int = 0
    measured: Mapping[str, tuple[int, Source]] = field(default_factory=dict)

    @property
    def tp(self) -> int:
        """Tensor-parallel ranks."""
        return self.setup.tp
