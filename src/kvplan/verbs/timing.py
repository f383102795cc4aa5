"""From a deployment to its clock and its scheduler: what `latency`, `plan` and the cases time with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvplan.cost.estimate import Clock
from kvplan.cost.operations import Operations, Ranks, operations_of
from kvplan.engines.deployment import Deployment
from kvplan.engines.limits import limits_of
from kvplan.engines.registry import CONTEXT_DECIDES
from kvplan.errors import BadInput
from kvplan.facts import store
from kvplan.facts.accelerators import Accelerator
from kvplan.facts.efficiency import fitted
from kvplan.facts.formats import Format
from kvplan.facts.kernels import devices_of
from kvplan.model.model import Model
from kvplan.serve.load import Policy
from kvplan.verbs import fit as fitting
from kvplan.verbs.verdict import most_running, sequences_of

_BUDGET_FLAGS = {
    "vllm": "max_num_batched_tokens",
    "sglang": "chunked_prefill_size",
    "tensorrt-llm": "max_num_tokens",
    "llama.cpp": "ubatch_size",
}
UNLIMITED = 1 << 30


def device_of(a: Accelerator) -> Accelerator:
    """What an engine sees of a product: one of its devices, where it has several."""
    count = devices_of(a.key)
    if count == 1:
        return a
    return replace(
        a,
        bytes_per_second=a.bytes_per_second / count,
        peaks={name: peak / count for name, peak in a.peaks.items()},
        memory_bytes=None if a.memory_bytes is None else a.memory_bytes // count,
    )


def accelerator_of(d: Deployment) -> Accelerator:
    """The accelerator of a deployment; raises BadInput where times are asked of one without."""
    if d.accelerator is None:
        raise BadInput("--gpu: times need an accelerator with known peaks; see kvplan accelerators")
    return device_of(d.accelerator)


def value_bytes(format: Format, model: Model) -> float:
    """Bytes of one cached value, its scales included."""
    if format.latent_bytes is not None:
        width = next((a.key_width for x in model.layers for a in x.attentions if a.latent), 576)
        return format.latent_bytes / width
    return format.block_bytes / format.block_values


def operations(d: Deployment) -> Operations:
    """The operations of one rank."""
    s = d.setup
    ranks = Ranks(s.tp, s.pp, s.ep, s.attention_dp)
    return operations_of(d.model, ranks, value_bytes(d.stored.format, d.model), d.stored.format.compute)


def clock_of(d: Deployment) -> Clock:
    """The clock of a deployment."""
    return Clock(operations(d), accelerator_of(d), d.setup.engine, d.setup.version)


def budget_of(d: Deployment) -> int:
    """Tokens one step carries at most: the engine's flag, else its default."""
    engine, flags = d.setup.engine, d.setup.flags
    stated = flags.get(_BUDGET_FLAGS.get(engine, ""))
    if stated and stated > 0:
        return int(stated)
    if engine == "vllm":
        return int(limits_of(d.model, d.setup)["max_num_batched_tokens"][0])
    found = store.toml("efficiency/classes.toml")["budget"].get(engine)
    return int(found) if found else UNLIMITED


def running_of(d: Deployment, length: int) -> float:
    """Sequences of that length that run at once: what the cache holds and the engine's own limit."""
    capacity = fitting.capacity_numbers(d)
    limit = most_running(capacity)
    held: float | None = None
    if d.setup.engine not in CONTEXT_DECIDES:
        held = sequences_of(d, fitting.pool_of(d), min(length, d.max_model_len))
    found = [float(x) for x in (limit, held) if x is not None]
    return min(found) if found else float(UNLIMITED)


def policy_of(d: Deployment, length: int) -> Policy:
    """How the engine of a deployment schedules sequences of that length."""
    engine, budget = d.setup.engine, budget_of(d)
    mixes = store.toml("efficiency/classes.toml")["mixes"]
    return Policy(
        budget=budget,
        running=running_of(d, length),
        mixes=mixes.get(engine, True),
        pp=d.setup.pp,
        microbatches=engine != "llama.cpp",
        overlap=overlap_of(engine, budget),
        interval=int(d.setup.flags.get("stream_interval") or 1),
    )


def overlap_of(engine: str, budget: int) -> float:
    """How far the chunks of prompts overlap over pipeline stages."""
    if engine != "llama.cpp":
        return 1.0
    return fitted("token_overlap" if budget == 1 else "stage_overlap", engine, "")


def known(value: Any) -> bool:
    """Whether a figure is a number."""
    return value is not None
