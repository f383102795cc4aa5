"""`latency --cases`: many cases in one process, rows as published benchmark tables have them."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kvplan.cost.estimate import Clock
from kvplan.cost.operations import Operations, Ranks, operations_of
from kvplan.engines.deployment import Deployment
from kvplan.errors import BadInput, KvplanError, shown
from kvplan.facts import store
from kvplan.facts.accelerators import Accelerator, find_accelerator
from kvplan.facts.catalogue import find_model
from kvplan.facts.engine_versions import ENGINES, find_version
from kvplan.facts.formats import find_format
from kvplan.facts.kernels import devices_of
from kvplan.facts.readings import applied_rules, weights_word
from kvplan.model.locate import load_model
from kvplan.model.model import Model
from kvplan.serve.load import Load, Policy
from kvplan.verbs.deploy import Split, deployment
from kvplan.verbs.given import given_model
from kvplan.verbs.timing import (
    UNLIMITED,
    device_of,
    held_tokens,
    operations,
    overlap_of,
    running_of,
    value_bytes,
)

MODES = {
    "closed-loop-concurrency": "concurrency",
    "open-loop-rate": "rate",
    "fixed-batch": "batch",
    "offline-throughput": "saturated",
    "llama-bench-pp": "prefill",
    "llama-bench-tg": "decode",
}
_TIGHT = "by the engine's own rules not one such sequence fits; a rougher budget stands in, of one at least"
_RESERVE = 0.9, 2.5e9  # an engine that is not read: nine tenths of the memory, less 2.5 GB beside the weights


@dataclass(frozen=True, slots=True)
class Case:
    """One row, read: whose clock, what load, how scheduled, and what is asked."""

    clock: Clock
    load: Load
    policy: Policy
    mode: str
    amount: float | None
    engine: str = "vllm"
    notes: tuple[str, ...] = ()


def read_lines(path: str) -> Iterator[tuple[int, Any]]:
    """Each line of a JSON-lines file with its number; BadInput where one is no object."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(
            f"--cases: {shown(path)} cannot be read ({error}); give a file of JSON lines"
        ) from None
    yield from enumerate(text.splitlines(), 1)


def read_case(row: Mapping[str, Any]) -> Case:
    """A row of a benchmark table as a case; raises KvplanError naming the field that cannot be used."""
    read, notes = _read(row)
    if read.get("disagg"):
        raise BadInput(
            "disagg: a deployment with prefill and decode apart needs both pools' sizes; not in a row"
        )
    model = _model(read)
    accelerator = _accelerator(read)
    engine, version = str(read.get("engine_name") or "vllm"), read.get("engine_version")
    ranks = _ranks(read, engine, accelerator)
    _check_heads(model, engine, ranks)
    mode = str(read.get("mode") or "")
    if mode not in MODES:
        raise BadInput(f"mode: {shown(mode)} is not known; use one of {', '.join(MODES)}")
    load = _load(read, mode)
    kv = _kv_format(read)
    whole = int(load.depth + load.prompt_tokens + load.output_tokens)
    length = held_tokens(engine, MODES[mode], whole, int(load.output_tokens))
    key = _Key(read, model, accelerator, engine, version, ranks, kv)
    clock, policy = _served(key, length)
    if _is_tight(key, length):
        notes.append(_TIGHT)
    return Case(clock, load, policy, MODES[mode], _amount(read, mode), engine, tuple(notes))


def _read(row: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The row with what is known of its table applied, and why."""
    read, notes = dict(row), []
    for rule in applied_rules(row):
        change = dict(rule["then"])
        if change.pop("squared", False):
            count = row["moe_ep"]
            dp = count if (row.get("attention_dp") or 1) > 1 else 1
            change |= {"n_gpus": count, "tp": count, "ep": count, "moe_tp": 1, "attention_dp": dp}
        read |= change
        notes.append(rule["why"])
    return read, notes


def _whole(row: Mapping[str, Any], name: str, default: int | None = None, least: int = 0) -> int:
    value = row.get(name)
    value = default if value is None else value
    if value is None:
        raise BadInput(f"{name}: missing; give a whole number")
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or value != value
        or not least <= value < 2**40
    ):
        raise BadInput(f"{name}: {shown(value)} is not a number of at least {least}")
    return int(value)


def _model(row: Mapping[str, Any]) -> Model:
    config = row.get("config")
    name = row.get("model") if not config else str(config).removesuffix(".json").replace("__", "/")
    if not isinstance(name, str) or not name:
        raise BadInput("config: missing, and no model; name a built-in config")
    if config and find_model(name) is None and not Path(name).exists():
        raise BadInput(f"config: {shown(config)} is not built in; see kvplan models, or give a model")
    engine = str(row.get("engine_name") or "")
    return _quantised(name, str(row.get("weight_dtype") or "unstated"), engine == "llama.cpp")


@functools.lru_cache(maxsize=256)
def _quantised(name: str, word: str, in_gguf: bool) -> Model:
    """A model with its weights stored as a table's word says."""
    model = load_model(name)
    found = weights_word(word, in_gguf=in_gguf)
    asked = found or {"as": word}
    if "config" in asked:
        return (
            model
            if _is_as(model, asked["config"])
            else replace(model, quantization=asked["config"], tensors=None)
        )
    flag = asked["as"]
    if flag == "own":
        return model
    own = json.dumps(dict(model.quantization or {})).lower()
    if flag in ("fp8", "mxfp4", "nvfp4") and flag in own:
        return model
    sibling = asked.get("siblings", {}).get(model.model_type)
    if sibling is not None:
        return replace(model, quantization=load_model(sibling).quantization, tensors=None)
    plain = replace(model, quantization=None) if model.quantization and flag != "none" else model
    return given_model(plain, "auto", flag)


def _is_as(model: Model, config: Mapping[str, Any]) -> bool:
    return (
        bool(model.quantization) and (model.quantization or {}).get("quant_method") == config["quant_method"]
    )


def _accelerator(row: Mapping[str, Any]) -> Accelerator:
    name = row.get("gpu_key") or row.get("gpu")
    if not isinstance(name, str):
        raise BadInput("gpu_key: missing, and no gpu; name an accelerator")
    return find_accelerator(name, "gpu_key" if row.get("gpu_key") else "gpu")


def _ranks(row: Mapping[str, Any], engine: str, accelerator: Accelerator) -> Ranks:
    devices = devices_of(accelerator.key)
    count = _whole(row, "n_gpus", 1, 1)
    if engine == "llama.cpp":  # layers are dealt to devices, one after another
        return Ranks(pp=count * devices)
    dp = _whole(row, "attention_dp", 1, 1)
    pp = _whole(row, "pp", 1, 1)
    tp = _whole(row, "tp", max(1, count // pp), 1)
    if tp > count:  # cores of a chip, counted apart
        tp = count
    if dp > 1:
        tp = max(tp, dp)
    ep = max(_whole(row, "ep", 1, 1), _whole(row, "moe_ep", 1, 1))
    return Ranks(tp * devices, pp, min(ep, tp * devices), dp)


def _check_heads(model: Model, engine: str, ranks: Ranks) -> None:
    """Refuse a split that no engine starts with."""
    if engine not in ENGINES:
        return
    for _, layer in model.grouped():
        for a in layer.attentions:
            if a.query_heads % ranks.attention_tp:
                raise BadInput(
                    f"tp: {ranks.attention_tp} does not divide the {a.query_heads} attention heads"
                )


def _kv_format(row: Mapping[str, Any]) -> str:
    word = str(row.get("kv_dtype") or "auto").lower()
    return next((name for name in ("fp8", "int8", "nvfp4", "q8_0", "q4_0") if word.startswith(name)), "auto")


def _load(row: Mapping[str, Any], mode: str) -> Load:
    prompt = 0 if mode == "llama-bench-tg" else _whole(row, "isl")
    output = _whole(row, "osl", 1 if mode == "llama-bench-pp" else None)
    shared = _whole(row, "shared_prefix_tokens", 0) if row.get("prefix_caching") is not False else 0
    if not prompt and mode != "llama-bench-tg":
        raise BadInput("isl: 0 tokens; a prompt has at least one")
    drafts = _whole(row, "spec_tokens", 0)
    acceptance = float(row.get("acceptance") or 0.7) if drafts else 0.0
    return Load(
        prompt,
        max(1, output),
        _whole(row, "context_depth", 0),
        min(shared, max(0, prompt - 1)),
        drafts,
        acceptance,
    )


def _amount(row: Mapping[str, Any], mode: str) -> float | None:
    if mode == "offline-throughput":
        return None
    if mode == "open-loop-rate":
        rate = row.get("request_rate")
        if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not rate > 0:
            raise BadInput(f"request_rate: {shown(rate)} is not a number above 0")
        return float(rate)
    return _whole(row, "concurrency_or_batch", 1 if mode.startswith("llama") else None, 1)


@dataclass(frozen=True, slots=True)
class _Key:
    row: Mapping[str, Any]
    model: Model
    accelerator: Accelerator
    engine: str
    version: str | None
    ranks: Ranks
    kv: str


def _served(k: _Key, length: int) -> tuple[Clock, Policy]:
    """The clock of a row's deployment, and its scheduling; deployments are remembered."""
    shape = (id(k.model), k.accelerator.key, k.engine, k.version, k.ranks, k.kv)
    asked = {name: k.row.get(name) for name in ("max_num_seqs", "max_num_batched_tokens")}
    found = _clocks.get(shape)
    if found is None:
        while len(_clocks) >= 4096:
            _clocks.pop(next(iter(_clocks)))
        ops = _operations(k)
        found = _clocks[shape] = (Clock(ops, device_of(k.accelerator), k.engine, k.version), k.model)
    budget = asked["max_num_batched_tokens"] or _budget(k.engine)
    policy = Policy(
        budget=int(budget),
        running=_running(k, shape, asked["max_num_seqs"], length),
        mixes=store.toml("efficiency/classes.toml")["mixes"].get(k.engine, True),
        pp=k.ranks.pp,
        microbatches=k.engine != "llama.cpp",
        overlap=overlap_of(k.engine, int(budget)),
        interval=int(k.row.get("stream_interval") or 1),
    )
    return found[0], policy


_clocks: dict[tuple[Any, ...], tuple[Clock, Model]] = {}
_rooms: dict[tuple[Any, ...], float] = {}
_ruled_rooms: dict[tuple[Any, ...], float | None] = {}


def _budget(engine: str) -> int:
    found = store.toml("efficiency/classes.toml")["budget"].get(engine)
    return int(found) if found else UNLIMITED


def _operations(k: _Key) -> Operations:
    name = "bfloat16" if k.kv == "auto" else k.kv
    stored = find_format(name, "kv_dtype")
    return operations_of(k.model, k.ranks, value_bytes(stored, k.model), stored.compute)


def _running(k: _Key, shape: tuple[Any, ...], limit: Any, length: int) -> float:
    """Sequences that run at once: what the cache holds by the engine's own rules, where they are known."""
    key = (*shape, limit, length)
    found = _rooms.get(key)
    if found is None:
        while len(_rooms) >= 65536:
            _rooms.pop(next(iter(_rooms)))
        found = _rooms[key] = min(_room(k, length), float(limit or UNLIMITED))
    return found


def _is_tight(k: _Key, length: int) -> bool:
    """Whether the engine's rules answer, and leave no room for one sequence."""
    ruled = _ruled(k, length)
    return ruled is not None and ruled < 1


def _ruled(k: _Key, length: int) -> float | None:
    """Sequences by the engine's own rules; None where they do not answer (its version, split or length)."""
    if k.engine not in ENGINES or k.ranks.attention_dp != 1:
        return None
    key = (id(k.model), k.accelerator.key, k.engine, k.version, k.ranks, k.kv, length)
    if key not in _ruled_rooms:
        while len(_ruled_rooms) >= 65536:
            _ruled_rooms.pop(next(iter(_ruled_rooms)))
        try:
            _ruled_rooms[key] = float(running_of(_deployment(k, length), length))
        except KvplanError:
            _ruled_rooms[key] = None
    return _ruled_rooms[key]


def _room(k: _Key, length: int) -> float:
    ruled = _ruled(k, length)
    if ruled is not None and ruled >= 1:
        return ruled
    a = device_of(k.accelerator)
    ops, (share, reserve) = _operations(k), _RESERVE
    weights = float(sum(m.layers * m.weight_bytes for m in ops.matmuls))
    weights += sum(e.layers * e.weight_bytes * e.experts / e.ep for e in ops.experts)
    each = sum(x.layers * x.slot_bytes * length for x in ops.attends)
    room = (a.memory_bytes or 0) * share - weights / k.ranks.pp - reserve
    if not each or a.memory_bytes is None:
        return float(UNLIMITED)
    return max(1.0, room * k.ranks.pp / each * k.ranks.attention_dp)


def _deployment(k: _Key, length: int) -> Deployment:
    version = None
    if k.version:
        try:
            version = find_version(k.engine, k.version)
        except KvplanError:
            version = None  # the newest known stands in
    flags: dict[str, Any] = {}
    if k.engine == "vllm" and k.model.max_context and length > k.model.max_context:
        flags["max_model_len"] = length
    return deployment(
        k.model,
        gpu=k.accelerator.key,
        engine=k.engine,
        engine_version=version,
        split=Split(tp=k.ranks.tp, pp=k.ranks.pp, ep=k.ranks.ep),
        kv_cache_dtype=k.kv,
        flags=flags,
    )


__all__ = ["Case", "operations", "read_case", "read_lines"]
