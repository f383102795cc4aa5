"""Clocks and schedulers that the latency tests share: rows as published benchmark tables have them."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

from kvplan.cost.estimate import Clock
from kvplan.cost.operations import Ranks, operations_of
from kvplan.facts.accelerators import Accelerator, find_accelerator
from kvplan.facts.formats import find_format
from kvplan.model.locate import load_model
from kvplan.serve.load import Policy
from kvplan.verbs.timing import value_bytes

POLICY = Policy(budget=8192, running=256.0)


@functools.cache
def clock(model: str, gpu: str = "h100", ranks: Ranks | None = None, kv: str = "bfloat16") -> Clock:
    """The clock of a built-in model under vLLM on accelerators of one kind."""
    return clock_on(find_accelerator(gpu, "gpu"), model, ranks, kv)


def clock_on(accelerator: Accelerator, model: str, ranks: Ranks | None = None, kv: str = "bfloat16") -> Clock:
    """The same on an accelerator that need not exist."""
    stored, read = find_format(kv, "kv"), load_model(model)
    ops = operations_of(read, ranks or Ranks(), value_bytes(stored, read), stored.compute)
    return Clock(ops, accelerator, "vllm")


def faster(a: Accelerator, bandwidth: float = 1.0, peak: float = 1.0) -> Accelerator:
    """An accelerator with so many times the bandwidth and the peaks."""
    peaks: dict[str, Any] = {name: value * peak for name, value in a.peaks.items()}
    return replace(a, bytes_per_second=a.bytes_per_second * bandwidth, peaks=peaks)
