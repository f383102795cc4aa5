"""From a deployment to its clock and its scheduler: what `latency`, `plan` and the cases time with."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from kvplan.cost.estimate import Clock
from kvplan.cost.operations import Operations, Ranks, operations_of
from kvplan.cost.step import Step, items_of
from kvplan.engines.budget import memory_of
from kvplan.engines.deployment import Deployment
from kvplan.engines.limits import limits_of
from kvplan.engines.registry import CONTEXT_DECIDES, capacity_of
from kvplan.engines.sglang_setup import attention_ranks
from kvplan.errors import BadInput
from kvplan.facts import store
from kvplan.facts.accelerators import Accelerator
from kvplan.facts.efficiency import fitted
from kvplan.facts.formats import Format
from kvplan.facts.kernels import devices_of
from kvplan.facts.reached import Reached
from kvplan.figure import Leaf, Number, Source, Trust, bare, formula, least, most, named, value_of
from kvplan.measured.machine import PEAKS
from kvplan.model.model import Model
from kvplan.serve.load import Policy
from kvplan.verbs.deploy import with_flags
from kvplan.verbs.verdict import LENGTHS, most_running

BUDGET_FLAGS = {
    "vllm": "max_num_batched_tokens",
    "sglang": "chunked_prefill_size",
    "tensorrt-llm": "max_num_tokens",
    "llama.cpp": "ubatch_size",
}
UNLIMITED = 1 << 30
_ON_HOST = ("no_kv_offload", "cpu_moe", "n_cpu_moe", "cpu_offload_gb")


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


@dataclass(frozen=True, slots=True)
class Dealt:
    """How requests are dealt out: to `replicas` apart, in each to `groups` with caches of their own."""

    ranks: Ranks
    replicas: int = 1
    groups: int = 1


def dealt(d: Deployment) -> Dealt:
    """Replicas that share nothing, or groups that attend apart and share the experts.

    Data-parallel ranks of a vLLM mixture of experts compute its experts together, as SGLang's do under
    --enable-dp-attention.
    """
    s = d.setup
    groups = attention_ranks(s) if s.engine == "sglang" else s.attention_dp
    if s.engine == "tensorrt-llm" and s.flags.get("enable_attention_dp"):
        groups = s.tp
    if s.engine == "sglang" and groups == s.dp > 1:
        return Dealt(Ranks(s.tp, s.pp, s.ep, groups), 1, groups)
    if s.engine == "vllm" and s.dp > 1 and _has_experts(d.model):
        whole = s.tp * s.dp
        return Dealt(Ranks(whole, s.pp, min(s.ep, whole), groups * s.dp), 1, groups * s.dp)
    return Dealt(Ranks(s.tp, s.pp, s.ep, groups), s.dp, groups)


def _has_experts(model: Model) -> bool:
    return any(w.part == "expert" for _, layer in model.grouped() for w in layer.weights)


def operations(d: Deployment) -> Operations:
    """The operations of one rank."""
    return operations_of(
        d.model, dealt(d).ranks, value_bytes(d.stored.format, d.model), d.stored.format.compute
    )


def clock_of(d: Deployment) -> Clock:
    """The clock of a deployment; a machine that was timed, as it is with weights of that format."""
    ops, a = operations(d), accelerator_of(d)
    if a.reached is not None:
        a = replace(a, reached=a.reached.of(_weights_format(ops, a.reached)))
    return Clock(ops, a, d.setup.engine, d.setup.version)


def _weights_format(ops: Operations, reached: Reached) -> str:
    """The format of a step's weights; of several, the one most read that was not calibrated."""
    sizes: dict[str, float] = {}
    for item in items_of(ops, Step(decoding=1, context=1)):
        if item.kind in ("matmul", "experts"):
            sizes[item.format] = sizes.get(item.format, 0.0) + float(item.layers * item.bytes)
    other = {name: size for name, size in sizes.items() if name != reached.dtype}
    return max(other or sizes, key=sizes.__getitem__)


def not_calibrated(d: Deployment) -> list[str]:
    """A note where a machine was timed with weights of another format than this deployment's."""
    reached = d.accelerator.reached if d.accelerator else None
    if reached is None:
        return []
    format = _weights_format(operations(d), reached)
    with_model, timed = reached.layer_seconds is not None, format in reached.others
    if format == reached.dtype or (timed and not with_model):
        return []
    was = reached.dtype or "a format that the file does not name"
    if not with_model:
        return [f"--gpu: products were timed in {was} and weights are {format}: taken to reach as much"]
    rest = f"products are as timed in {format}, the rest as in {was}" if timed else f"all is as in {was}"
    again = f"; kvplan measure --model --dtype {format} calibrates it" if format in PEAKS else ""
    return [
        f"--gpu: the machine was calibrated in {was} and weights are {format}: {rest}; times may be "
        f"several times off, and intervals are those of machines that were not calibrated{again}"
    ]


def budget_of(d: Deployment, leaf: Leaf = bare) -> Any:
    """Tokens one step carries at most: the engine's flag, else its default."""
    engine, flags = d.setup.engine, d.setup.flags
    name = BUDGET_FLAGS.get(engine, "")
    stated = flags.get(name)
    if stated and stated > 0:
        return leaf(name, int(stated), "token", Source(Trust.STATED, f"--{name.replace('_', '-')}"))
    if engine == "sglang" and stated == -1:
        return leaf(
            name, UNLIMITED, "token", Source(Trust.STATED, "--chunked-prefill-size -1: whole prompts")
        )
    if engine == "vllm":
        value, source = limits_of(d.model, d.setup)[name]
        found = leaf(name, int(value), "token", source)
        return found * d.setup.dp if dealt(d).replicas < d.setup.dp else found
    table = store.toml("efficiency/classes.toml")["budget"]
    source = Source(Trust.ENGINE_RULE, table["source"])
    return leaf(name or "step_tokens", int(table.get(engine, UNLIMITED)), "token", source)


def on_host(d: Deployment) -> list[str]:
    """A note where parts of the model or its cache lie with the host: times are of the accelerator alone."""
    flags = d.setup.flags
    layers = flags.get("n_gpu_layers")
    kept = isinstance(layers, int) and 0 <= layers < len(d.model.layers)
    names = [name for name in _ON_HOST if flags.get(name)] + (["n_gpu_layers"] if kept else [])
    if not names:
        return []
    said = ", ".join(f"--{name.replace('_', '-')}" for name in names)
    return [f"{said}: what lies with the host is not timed; times are as if the accelerator had all of it"]


def running_of(d: Deployment, length: int) -> float:
    """Sequences of that length that run at once, as a bare number."""
    return float(running_at_most(d, length, bare))


@formula("sequence", "one copy of the shared prefix, the rest for each sequence's own tokens")
def beside_shared(sequences_of_own: Number, shared_tokens: Number, own_tokens: Number) -> Number:
    """Sequences that fit once the tokens they share are held once."""
    return most(0, sequences_of_own - shared_tokens / own_tokens)


def running_at_most(d: Deployment, length: int, leaf: Leaf, shared: int = 0) -> Any:
    """Sequences of that length that run at once: what the cache holds and the engine's own limit.

    `shared` of their tokens are the same and held once.
    """
    memory = memory_of(d, leaf)
    pool, own = memory["kv_pool_bytes"], max(1, min(length, d.max_model_len) - shared)
    capacity = capacity_of(d, value_of(pool), bare)
    limit, held = most_running(capacity), None
    found: list[Any] = []
    if limit is not None:
        _, where = capacity.settings.get("max_num_seqs", (None, "what it takes by default"))
        found.append(
            leaf("most_running", limit, "sequence", Source(Trust.ENGINE_RULE, f"{d.setup.engine}: {where}"))
        )
    if d.setup.engine not in CONTEXT_DECIDES and (flag := LENGTHS.get(d.setup.engine)):
        held = capacity_of(with_flags(d, **{flag: own}), pool, leaf).max_concurrency
        if held is not None and shared:
            said = leaf("shared_prefix_tokens", shared, "token", Source(Trust.STATED, "the load"))
            held = beside_shared(
                held, said, leaf("own_tokens", own, "token", Source(Trust.STATED, "the rest"))
            )
    if held is not None:
        found.append(named("sequences_held", "sequence", held))
    if not found:
        return float(UNLIMITED)
    groups = dealt(d).groups
    running = least(*found)
    return running * groups if groups > 1 else running


def held_tokens(engine: str, mode: str, length: int, output_tokens: int) -> int:
    """Cache that a running request holds, in tokens, while requests come and go: half its output, on average.

    All it may need where they all start together, or where the engine sets a request's whole cache aside.
    """
    whole = store.toml("efficiency/classes.toml")["reserves_whole"]["engines"]
    together = mode not in ("concurrency", "rate", "saturated")
    return max(1, length if together or engine in whole else length - output_tokens // 2)


def policy_of(d: Deployment, length: int, leaf: Leaf = bare, shared: int = 0) -> Policy:
    """How the engine of a deployment schedules sequences of that length, `shared` tokens of it the same."""
    engine, budget = d.setup.engine, budget_of(d, leaf)
    mixes = store.toml("efficiency/classes.toml")["mixes"]
    return Policy(
        budget=budget,
        running=named("running_at_most", "sequence", running_at_most(d, length, leaf, shared)),
        mixes=mixes.get(engine, True),
        pp=d.setup.pp,
        microbatches=engine != "llama.cpp",
        overlap=overlap_of(engine, value_of(budget)),
        interval=int(d.setup.flags.get("stream_interval") or 1),
    )


def overlap_of(engine: str, budget: int) -> float:
    """How far the chunks of prompts overlap over pipeline stages."""
    if engine != "llama.cpp":
        return 1.0
    return fitted("token_overlap" if budget == 1 else "stage_overlap", engine, "")
