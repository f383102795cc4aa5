"""Settings that the user states beside a log, compared with those that the log shows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from kvplan.engines.deployment import Deployment
from kvplan.engines.registry import capacity_of
from kvplan.engines.sglang_memory import mem_fraction_static
from kvplan.facts import flags as engine_flags
from kvplan.facts import schemes
from kvplan.facts.accelerators import find_accelerator
from kvplan.figure import bare
from kvplan.measured.machine import is_machine_file
from kvplan.observe.names import built_in
from kvplan.units import parse_bytes
from kvplan.verbs.described import NAMED, RANKS
from kvplan.verbs.fit import settings_of
from kvplan.verbs.given import given_model
from kvplan.verbs.verdict import LENGTHS
from kvplan.verbs.verify_check import STATED, Check, same, within
from kvplan.verbs.verify_deployment import Case
from kvplan.verbs.verify_vllm import share_of

_CONTEXT = 1.5 * 2**30  # what a device's context and a process group hold of it
_APART = 0.05  # memories of two accelerators that a log tells apart
_CALLED = {"enable_prefix_caching": "prefix_caching", "enable_chunked_prefill": "chunked_prefill"}
_OFF = ("enforce_eager", "swa_full", "language_model_only")  # off where a log shows all that was given
# llama.cpp prints what it made of these, which rows of their own compare.
_MADE = ("ctx_size", "parallel", "n_gpu_layers", "n_cpu_moe", "cpu_moe", "launcher")
_CAPPED = {"batch_size": "n_batch", "ubatch_size": "n_ubatch"}  # by each other and by the context
NONE = "none"
_SHOWN = "the log shows what was given"
_DEFAULT = "the log shows all that was given: the rest is as the engine takes it"


def stated_checks(case: Case, ours: Deployment | None) -> tuple[list[Check], list[str]]:
    """One row a setting that the user states and the log shows; names of those that it does not show."""
    theirs = case.as_logged.attempt(1 << 30)
    rows, unseen = [*_of_model(case), *_of_version(case), *_of_device(case), *_of_pool(case)], []
    rows += (held := _of_others(case))
    if case.given.words.get("memory_in_use") is not None and not held:
        unseen.append("--memory-in-use")
    for name, value in _stated(case):
        found = _shown_by(case, theirs, name)
        if found is None:
            unseen.append(f"--{name.replace('_', '-')}")
        else:
            shown, why = found
            rows.append(same(name, *_alike(name, value, shown, ours, theirs), why))
    return rows, unseen


def _stated(case: Case) -> Iterator[tuple[str, Any]]:
    """What the user states of the start, in words and flags; by themselves before a command's."""
    given = case.given
    words = {name: given.words[name] for name in (*RANKS, *NAMED) if given.words.get(name) is not None}
    yield from {**given.command.split, **given.command.named, **words}.items()
    for name, value in {**given.command.flags, **given.flags}.items():
        flag = engine_flags.flags().get(name)
        if value is None or flag is None or case.observed.engine not in flag.engines or name in _MADE:
            continue
        value = engine_flags.checked(name, value, case.observed.engine)
        if value != "auto" and not (name in LENGTHS.values() and value == -1):
            yield name, value


def _shown_by(case: Case, theirs: Deployment | None, name: str) -> tuple[Any, str] | None:
    """What the log shows of a setting and how; None where it cannot be told."""
    o = case.observed
    if name == "ep" and o.engine == "vllm" and o.flags.get("enable_expert_parallel"):
        return o.split.get("tp", 1) * o.split.get("dp", 1), _SHOWN
    for shown in (o.split, o.named, o.flags):
        if name in shown:
            return shown[name], _SHOWN
    if name in o.shown:
        return o.shown[name], _SHOWN
    if name in o.none and name not in (*RANKS, *NAMED):
        made = _in_force(theirs).get(_CALLED.get(name, name)) if theirs is not None else None
        return (NONE if made is None else made), _SHOWN
    if not o.whole:
        return None
    if name in RANKS:
        return 1, _DEFAULT
    if name in NAMED:
        return "auto" if name != "quantization" else None, _DEFAULT
    if theirs is None:
        return None
    found = _in_force(theirs).get(_CALLED.get(name, name))
    if found is None and name in _OFF:
        found = False
    return None if found is None else (found, _DEFAULT)


def _in_force(d: Deployment) -> dict[str, Any]:
    """The engine's settings with its defaults."""
    found = settings_of(d, capacity_of(d, None, bare))
    if d.setup.engine == "vllm":
        found["gpu_memory_utilization"] = share_of(d)
        found["disable_hybrid_kv_cache_manager"] = not found.get("hybrid_manager", True)
    if d.setup.engine == "sglang":
        found.setdefault("mem_fraction_static", mem_fraction_static(d.model, d.setup))
    return found


def _alike(
    name: str, value: Any, shown: Any, ours: Deployment | None, theirs: Deployment | None
) -> tuple[Any, Any]:
    """Both values in one spelling: formats by what they come to, a drafter by the keys that are given."""
    if name in ("dtype", "kv_cache_dtype") and ours is not None and theirs is not None:
        return _format(name, ours), _format(name, theirs)
    if name == "quantization":
        yours = schemes.method_name(str(value))
        own = (theirs.model.quantization or {}).get("quant_method") if theirs is not None else None
        return yours, schemes.method_name(str(shown or own or "none"))
    if name == "block_size" and ours is not None and ours.setup.engine == "vllm":
        return capacity_of(ours, None, bare).block_tokens or value, shown  # of latents 16, whatever is asked
    if name in _CAPPED and ours is not None:
        return _in_force(ours)[_CAPPED[name]], shown
    if name == "max_seq_len" and shown == value + 1:
        return value, value  # TensorRT-LLM prints one more than was asked for
    if isinstance(value, Mapping) and isinstance(shown, Mapping):
        return dict(value), {key: shown.get(key) for key in value}
    if name in ("flash_attn", "cache_type_k", "cache_type_v") or isinstance(value, str):
        return str(value).lower(), str(shown).lower()
    return value, shown


def _format(name: str, d: Deployment) -> str:
    return d.stored.format.name if name == "kv_cache_dtype" else d.setup.dtype


def _of_model(case: Case) -> list[Check]:
    """The model, where both names are built in: another one of the same shape is as good."""
    named = case.given.model if case.given.model not in (None, "") else case.given.command.model
    ours = built_in(named) if isinstance(named, str) else None
    theirs = built_in(case.observed.model or "")
    if not ours or not theirs:
        return []
    row = same("model", ours, theirs, _SHOWN)
    if not row.agrees and _shape(ours) == _shape(theirs):
        return [replace(row, agrees=True, reason="of the same shape")]
    return [row]


def _shape(id: str) -> tuple[Any, ...]:
    m = given_model(id)
    return m.layers, m.weights, m.hidden, m.vocab


def _of_version(case: Case) -> list[Check]:
    """The version, where the log states one: a prefix of it is enough."""
    stated = case.given.words.get("engine_version") or case.given.command.version
    printed = case.observed.version
    if not stated or not printed:
        return []
    ours, theirs = str(stated).removeprefix("v"), printed.removeprefix("v")
    alike = theirs == ours or theirs.startswith((f"{ours}.", f"{ours}+", f"{ours}rc"))
    why = "the log states its version"
    return [Check("engine_version", ours, theirs, "", alike, STATED, why)]


def _of_device(case: Case) -> list[Check]:
    """The accelerator beside the one that the log names, where their memories tell them apart."""
    given, o = case.given.words.get("gpu"), case.observed
    if given is None:
        return []
    stated = str(given).strip().lower()
    if "cpu" in (stated, o.platform):
        ran = "cpu" if o.platform == "cpu" else o.gpu
        return [same("gpu", stated, ran, _SHOWN)] if ran is not None else []
    if o.gpu is None or is_machine_file(stated):
        return []
    ours, theirs = find_accelerator(stated), find_accelerator(o.gpu)
    sizes = [one.memory_bytes for one in (ours, theirs) if one.memory_bytes]
    if len(sizes) < 2 or max(sizes) <= min(sizes) * (1 + _APART):
        return []
    return [same("gpu", ours.key, theirs.key, _SHOWN)]


def _of_others(case: Case) -> list[Check]:
    """What others hold beside what was free on the device at the start."""
    stated, o = case.given.words.get("memory_in_use"), case.observed
    free, total = o.figures.get("free_before_bytes"), o.figures.get("accelerator_bytes")
    if free is None and o.failure is not None:
        free, total = (o.failure.figures.get(n) for n in ("free_before_bytes", "accelerator_bytes"))
    if stated is None or free is None or total is None:
        return []
    size = stated if isinstance(stated, int) else parse_bytes(str(stated), "--memory-in-use")
    held, agrees = total.value - free.value, abs(size - total.value + free.value) <= _CONTEXT
    why = "what was free at the start, with a device's own context"
    return [Check("memory_in_use", size, round(held), "B", agrees, STATED, why)]


def _of_pool(case: Case) -> list[Check]:
    """The bytes of the cache that the user states beside those that the log does."""
    stated = case.given.words.get("kv_cache_memory_bytes") or case.given.command.pool
    said = case.observed.figures.get("kv_pool_bytes")
    if stated is None or said is None:
        return []
    size = stated if isinstance(stated, int) else parse_bytes(str(stated), "--kv-cache-memory-bytes")
    row = within("kv_cache_memory_bytes", size, 0.001, said, "B", STATED, "as the log prints it")
    return [row] if row is not None else []
