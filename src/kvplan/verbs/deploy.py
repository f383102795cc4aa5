"""From what a user gives to a `Deployment`: accelerator, memory, split, engine, version and its flags."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from kvplan.cost import cache
from kvplan.engines.deployment import Deployment
from kvplan.engines.engine import Setup
from kvplan.engines.loaded import as_loaded
from kvplan.engines.registry import CONTEXT_DECIDES
from kvplan.engines.vllm_refuses import check_accepted
from kvplan.errors import BadInput, shown
from kvplan.facts.accelerators import Accelerator, device_total, find_accelerator
from kvplan.facts.engine_versions import find_engine, find_version
from kvplan.facts.flags import unread_note
from kvplan.facts.formats import find_format
from kvplan.figure import Source, Trust
from kvplan.measured.machine import is_machine_file, read_machine
from kvplan.model.model import Model
from kvplan.units import parse_bytes, parse_rate
from kvplan.verbs.check import whole
from kvplan.verbs.drafted import drafter_of
from kvplan.verbs.given import ModelLike, given_model
from kvplan.verbs.overridden import overridden
from kvplan.verbs.size import MAX_TP, stored_as

Size = str | int | None
# Of other makers vLLM runs as a plugin with rules of its own; CUDA's stand in for them.
_PLATFORMS = {"nvidia": "cuda", "amd": "rocm", "intel": "xpu"}
KNOWN_VENDORS = tuple(_PLATFORMS)
_LENGTHS = ("max_model_len", "context_length", "max_seq_len", "ctx_size", "max_length", "max_cache_len")
_LENGTH_FLAGS = {
    "sglang": "context-length",
    "tensorrt-llm": "max-seq-len",
    "llama.cpp": "ctx-size",
    "transformers": "max-length",
}
_MEASURED = {
    "weights_memory": "weight_bytes",
    "activation_memory": "activation_bytes",
    "graph_memory": "graph_bytes",
    "kv_cache_memory_bytes": "kv_pool_bytes",
}


@dataclass(frozen=True, slots=True)
class Split:
    """How many ranks of each kind the model is divided over."""

    tp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1
    dcp: int = 1
    attention_dp: int = 1


def deployment(
    model: ModelLike,
    *,
    gpu: str | None = None,
    engine: str = "vllm",
    engine_version: str | None = None,
    split: Split | None = None,
    dtype: str = "auto",
    quantization: str | None = None,
    kv_cache_dtype: str = "auto",
    gpu_memory: Size = None,
    memory_in_use: Size = None,
    link: Size = None,
    measured: Mapping[str, Size] | None = None,
    flags: Mapping[str, Any] | None = None,
    batch: int | None = None,
) -> Deployment:
    """The deployment that these words describe.

    `measured`: weights_memory, activation_memory, graph_memory, kv_cache_memory_bytes, as sizes.
    `flags`: the engine's own settings, checked, names with underscores. `batch`: sequences at once, a
    setting of the cache under transformers. Raises BadInput or UnknownName.
    """
    name, given, split = find_engine(engine), dict(flags or {}), split or Split()
    loaded = given_model(overridden(model, given, name), dtype, quantization)
    loaded = as_loaded(loaded, name) if dtype == "auto" else loaded
    ranks = _ranks(loaded, split, given)
    if batch is not None and name == "transformers":
        given["batch_size"] = batch
    found = {_MEASURED[k]: _measured(k, v) for k, v in (measured or {}).items() if v is not None}
    platform, accelerator = _device(gpu)
    accelerator = _linked(accelerator, link)
    memory, source = _memory(accelerator, gpu_memory)
    if memory is None and "kv_pool_bytes" not in found and name not in CONTEXT_DECIDES:
        raise _no_memory(gpu, accelerator)
    drafter = drafter_of(given, name, loaded, split.tp)
    loaded = replace(loaded, notes=(*loaded.notes, *drafter.notes, *unread_note(given, name)))
    setup = Setup(
        engine=name,
        version=find_version(name, engine_version),
        flags=given,
        dtype=loaded.dtype or "bfloat16",
        kv_cache_dtype=kv_cache_dtype,
        platform=platform,
        arch=accelerator.arch if accelerator else None,
        memory_bytes=memory,
        device_mib=_device_mib(accelerator, source),
        drafter=drafter.setting,
        **ranks,
    )
    _check_accepted(loaded, setup)
    length, length_source = _length(loaded, given, name)
    in_use = _size("--memory-in-use", memory_in_use) if memory_in_use is not None else 0
    stored = stored_as(loaded, kv_cache_dtype, split.tp, dtype)
    return Deployment(
        loaded, setup, stored, accelerator, memory, source, length, length_source, in_use, found
    )


def _ranks(model: Model, split: Split, given: Mapping[str, Any]) -> dict[str, int]:
    """Ranks of each kind, checked; with expert parallelism all of them share the experts.

    vLLM 0.32.0 distributed/parallel_state.py.
    """
    ranks = {part: getattr(split, part) for part in Split.__slots__}
    for part, count in ranks.items():
        whole(f"--{part.replace('_', '-')}", count, 1, MAX_TP)
    cache.check_split(model, split.tp)
    _check_experts(model, split)
    if given.get("enable_expert_parallel") and split.ep == 1:
        ranks["ep"] = split.tp * split.dp
    return ranks


def _check_experts(model: Model, split: Split) -> None:
    """Refuse more ranks of experts or of attention than there are ranks."""
    ranks = split.tp * split.dp
    if split.ep > 1 and not any(w.part == "expert" for _, layer in model.grouped() for w in layer.weights):
        raise BadInput(f"--ep: {split.ep} ranks share experts and {model.id} has none; leave it out")
    if split.tp % split.attention_dp:
        raise BadInput(
            f"--attention-dp: {split.attention_dp} does not divide --tp {split.tp}; it is a part of it"
        )
    if split.ep > ranks:
        raise BadInput(
            f"--ep: {split.ep} ranks share the experts and {ranks} are there; they are those of --tp × --dp"
        )
    if split.ep > 1 and ranks % split.ep:
        raise BadInput(f"--ep: {split.ep} does not divide the {ranks} ranks of --tp × --dp")


def _check_accepted(model: Model, setup: Setup) -> None:
    """Refuse what the engine would not start."""
    if setup.pp > len(model.layers):
        raise BadInput(f"--pp: {setup.pp} stages for {len(model.layers)} layers; give at most one a layer")
    if setup.engine == "vllm":
        check_accepted(model, setup)


def _device(gpu: str | None) -> tuple[str, Accelerator | None]:
    if gpu is None:
        return "cuda", None
    if not isinstance(gpu, str):
        raise BadInput(f"--gpu: {shown(gpu)} is not a name; see kvplan accelerators")
    if gpu.strip().lower() == "cpu":
        return "cpu", None
    if is_machine_file(gpu):
        machine = read_machine(gpu)
        return _PLATFORMS.get(machine.vendor, "cpu"), machine
    found = find_accelerator(gpu)
    return _PLATFORMS.get(found.vendor, "cuda"), found


def _linked(accelerator: Accelerator | None, given: Size) -> Accelerator | None:
    """The accelerator with the link that is stated for it."""
    if given is None or accelerator is None:
        return accelerator
    rate = parse_rate(given, "--link") if isinstance(given, str) else float(given)
    if not rate > 0:
        raise BadInput(f"--link: {shown(given)} passes nothing; give bytes a second, such as 16GB/s")
    return replace(accelerator, stated_link_bytes_per_second=rate)


def _memory(accelerator: Accelerator | None, given: Size) -> tuple[int | None, Source]:
    if given is not None:
        return _size("--gpu-memory", given, 1), Source(Trust.STATED, "--gpu-memory")
    total = device_total(accelerator) if accelerator else None
    return total or (None, Source(Trust.STATED, "no accelerator given"))


def _device_mib(accelerator: Accelerator | None, source: Source) -> float | None:
    """The device's total as nvidia-smi shows it; None where another memory is stated."""
    if accelerator is None or not accelerator.memory_bytes or source.where == "--gpu-memory":
        return None
    return accelerator.memory_bytes / 2**20


def _no_memory(gpu: str | None, accelerator: Accelerator | None) -> BadInput:
    if accelerator is not None:
        return BadInput(
            f"--gpu-memory: {accelerator.name}'s memory is not known; give it, such as --gpu-memory 64GiB"
        )
    if gpu is None:
        return BadInput("--gpu: missing; name an accelerator, or give --kv-cache-memory-bytes")
    return BadInput("--gpu: the CPU has no memory of its own to share; give --kv-cache-memory-bytes")


def _size(field: str, value: str | int, least: int = 0) -> int:
    return whole(field, parse_bytes(value, field) if isinstance(value, str) else value, least, 2**60)


def _measured(name: str, value: str | int | None) -> tuple[int, Source]:
    field = f"--{name.replace('_', '-')}"
    return _size(field, value or 0), Source(Trust.MEASURED, field)


def _length(model: Model, flags: Mapping[str, Any], engine: str) -> tuple[int, Source]:
    """The longest sequence: the flag, else the model's own, else what vLLM takes for a model without one."""
    for name in _LENGTHS:
        if flags.get(name, 0) and flags[name] > 0:
            return int(flags[name]), Source(Trust.STATED, f"--{name.replace('_', '-')}")
    if model.max_context is None and engine == "vllm":
        return 2048, Source(Trust.ENGINE_RULE, "vLLM 0.32.0 config/model.py: no length in the config")
    if model.max_context is None:
        flag = _LENGTH_FLAGS[engine]
        raise BadInput(f"--{flag}: {model.file} states no context length; give one, such as --{flag} 8192")
    return model.max_context, model.origin("max_context")


def with_flags(d: Deployment, **changed: Any) -> Deployment:
    """The same deployment with other engine flags; None takes a flag away."""
    merged = {k: v for k, v in {**d.setup.flags, **changed}.items() if v is not None}
    length, source = _length(d.model, merged, d.setup.engine)
    setup = replace(d.setup, flags=merged)
    return replace(d, setup=setup, max_model_len=length, context_source=source)


def with_tp(d: Deployment, tp: int) -> Deployment:
    """The same deployment over another number of tensor-parallel ranks."""
    stored = replace(d.stored, tp=tp, tp_source=Source(Trust.STATED, f"--tp {tp}"))
    return replace(d, setup=replace(d.setup, tp=tp), stored=stored)


def with_split(d: Deployment, **ranks: int) -> Deployment:
    """The same deployment over other ranks (tp, pp, dp, …), refused as those that a user gives are."""
    s = d.setup
    shared = s.ep > 1 and s.ep == s.tp * s.dp and s.engine == "vllm"  # experts over all ranks
    split = Split(**{part: getattr(s, part) for part in Split.__slots__} | ranks)
    if shared and "ep" not in ranks:
        split = replace(split, ep=split.tp * split.dp)
    found: dict[str, Any] = {**_ranks(d.model, split, s.flags)}
    setup = replace(s, **found)
    _check_accepted(d.model, setup)
    stored = replace(d.stored, tp=split.tp, tp_source=Source(Trust.STATED, f"--tp {split.tp}"))
    return replace(d, setup=setup, stored=stored)


def with_accelerator(d: Deployment, key: str) -> Deployment:
    """The same deployment on other accelerators, with the memory and the link that the catalogue knows of."""
    platform, found = _device(key)
    memory, source = _memory(found, None)
    if found is None or memory is None:
        raise _no_memory(key, found)
    setup = replace(
        d.setup,
        platform=platform,
        arch=found.arch,
        memory_bytes=memory,
        device_mib=_device_mib(found, source),
    )
    return replace(d, setup=setup, accelerator=found, memory_bytes=memory, memory_source=source)


def with_drafter(d: Deployment, **flags: Any) -> Deployment:
    """The same deployment with the drafter that these engine flags describe; None takes a flag away."""
    changed = with_flags(d, **flags)
    drafter = drafter_of(changed.setup.flags, d.setup.engine, d.model, d.setup.tp).setting
    return replace(changed, setup=replace(changed.setup, drafter=drafter))


def with_kv_cache_dtype(d: Deployment, name: str) -> Deployment:
    """The same deployment with its cache in another format."""
    stored = replace(d.stored, format=find_format(name, "--kv-cache-dtype"))
    return replace(d, stored=stored, setup=replace(d.setup, kv_cache_dtype=name))


def with_quantization(d: Deployment, name: str) -> Deployment:
    """The same deployment with weights stored in another scheme; raises where the model cannot hold it."""
    return replace(d, model=as_loaded(given_model(d.model, "auto", name), d.setup.engine))
