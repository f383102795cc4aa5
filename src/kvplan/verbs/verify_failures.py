"""Failures that only one engine has: SGLang's static share, TensorRT-LLM's executor, llama.cpp's buffers."""

from __future__ import annotations

from typing import Any

from kvplan.engines.budget import memory_of
from kvplan.engines.context_budget import placed_on
from kvplan.engines.deployment import Deployment
from kvplan.engines.llama_cpp_placement import HOST, margin_bytes
from kvplan.engines.registry import capacity_of
from kvplan.engines.sglang_memory import mm_reserve_bytes, pool_bytes
from kvplan.errors import KvplanError
from kvplan.figure import bare, value_of
from kvplan.units import bytes_text
from kvplan.verbs.deploy import with_flags
from kvplan.verbs.verify_fixes import Failed, Told, fits, lower_share, others, row, share_in_force, sure, ways
from kvplan.verbs.verify_relief import smaller

_MORE = 1.05  # weights that are so many times the plan's are of another quantisation
_SHAPED = ("cache_allocation", "compute_allocation")
_WHAT = {
    "weights_allocation": "the weights",
    "cache_allocation": "the caches of the context",
    "compute_allocation": "the compute buffers",
    "allocation": "a buffer",
    "layout_allocation": "the layers that were to be on devices, with their caches and buffers,",
}
_BY_NAME = {"cpu": "the host"}


def static_share(at: Failed) -> Told:
    """SGLang: the share for weights and cache is used up by the weights."""
    d = at.planned or at.case.attempt(1 << 30)
    before, after = at.log("free_before_bytes"), at.log("free_after_bytes")
    share = at.failure.value("mem_fraction_static") or (share_in_force(d) if d is not None else None)
    if before is None or after is None or share is None or d is None:
        says = "the share for weights and cache is used up by the weights"
        return Told(None, None, says, ways(at))
    left = after - before * (1 - share)
    kept = bytes_text(round(before * (1 - share)))
    one = _one_sequence(d)
    says = (
        f"{bytes_text(round(before))} were free before the weights and {bytes_text(round(after))} after: at "
        f"--mem-fraction-static {share:g}, {kept} of it are kept for activations and graphs, and "
        f"{bytes_text(round(left))} is left for the cache"
    )
    rows = [*_least_share(d, (after, before), one), *_more(at, max(0, round(left)) or None)]
    return Told(one, left, says, rows)


def _least_share(d: Deployment, free: tuple[float, float], one: float | None) -> list[dict[str, Any]]:
    """The least share at which the pool holds one sequence of the longest length, by SGLang's own rule."""
    reserve = mm_reserve_bytes(d.model, d.setup)
    for hundredths in range(1, 98):
        pool = int(value_of(pool_bytes(*free, hundredths / 100, reserve)))
        if pool > 0 and pool >= (one or 1):
            rest = bytes_text(round(free[1] * (1 - hundredths / 100)))
            note = f"the least that holds one longest sequence; {rest} stay for activations and graphs"
            return [sure("--mem-fraction-static", hundredths / 100, note)]
    return [row("--mem-fraction-static", None, False, "at no share: the weights leave too little")]


def _one_sequence(d: Deployment) -> float | None:
    found = capacity_of(d, 1 << 40, bare)
    tokens, pool = value_of(found.kv_tokens), 1 << 40
    length = d.setup.flags.get("context_length") or d.max_model_len
    return pool / tokens * length if tokens else None


def _more(at: Failed, pool: int | None) -> list[dict[str, Any]]:
    return [r for r in ways(at, pool=pool) if r["flag"] != "--mem-fraction-static"]


def graphs(at: Failed) -> Told:
    """SGLang: no room to capture graphs beside weights and pools."""
    free = at.log("free_after_pool_bytes") or at.failure.value("free_bytes")
    tried = at.failure.value("tried_bytes")
    cause = at.failure.words.get("cause", "")
    says = "no room is left to capture CUDA graphs beside weights and pools" + others(at.failure)
    if cause and "memory" not in cause.lower():
        return Told(None, free, f"capturing CUDA graphs failed: {cause}", [])
    d = at.planned
    needed = memory_of(d, bare)["graph_bytes"] if d is not None else None
    wanted = tried if tried is not None else needed
    short = None if wanted is None else max(0.0, float(wanted) - (free or 0.0))
    rows = lower_share(at, short)
    most = at.case.observed.flags.get("cuda_graph_max_bs")
    if isinstance(most, int) and most >= 2:
        rows.append(sure("--cuda-graph-max-bs", most // 2, f"graphs up to half of {most} sequences"))
    rows.append(sure("--disable-cuda-graph", True, "no graphs, and slower decoding"))
    return Told(wanted, free, says, rows)


def freed_meanwhile(at: Failed) -> Told:
    """vLLM: more was free after profiling than before it, so that its figures mean nothing."""
    first, later = at.failure.value("free_first_bytes"), at.failure.value("free_later_bytes")
    much = f"about {bytes_text(round(later - first))} of the device" if first and later else "memory"
    says = (
        f"another process gave back {much} while a step was profiled, so that the profile cannot be used: no "
        "lack of memory of its own; start it again once nothing else starts or stops on the device"
    )
    return Told(None, None, says)


def unbalanced(at: Failed) -> Told:
    """SGLang: of the devices of one group, one has far less free than another."""
    least, most = at.failure.value("free_bytes"), at.failure.value("most_free_bytes")
    if least is None or most is None:
        return Told(None, None, "one device of the group has far less free than another: others use it")
    held = round(most - least)
    says = (
        f"{bytes_text(round(least))} are free on one device of the group and {bytes_text(round(most))} on "
        f"another, of which nine tenths are asked for on each: other processes hold about {bytes_text(held)} "
        "of it; end them, or take devices that are equally free"
    )
    return Told(0.9 * most, least, says, [], held)


def executor_memory(at: Failed) -> Told:
    """TensorRT-LLM: a component that could not be made, in a device too full for it."""
    free, total = at.failure.value("free_bytes"), at.failure.value("accelerator_bytes")
    part = at.failure.words.get("component", "a component").strip().rstrip(".")
    said = f", {bytes_text(round(free))} of {bytes_text(round(total))} free" if free and total else ""
    says = f"{part} could not be made{said}{others(at.failure)}"
    rows = lower_share(at, None) if "cache" in part.lower() and "estimating" not in part else []
    rows += _halved(at.planned) if at.planned is not None else []
    named = [r["flag"] for r in rows]
    rows += [r for r in ways(at) if r["flag"] not in named]
    return Told(at.failure.value("tried_bytes"), free, says, rows)


def _halved(d: Deployment) -> list[dict[str, Any]]:
    """Steps of half the tokens and half the requests, with what the plan says they free."""
    found = []
    for flag in ("max_num_tokens", "max_batch_size"):
        given = d.setup.flags.get(flag)
        if isinstance(given, int) and given >= 2:
            ok = fits(with_flags(d, **{flag: given // 2}))
            note = f"a step of half of {given:,}" + ("" if ok else ": not enough alone")
            found.append(row(f"--{flag.replace('_', '-')}", given // 2 if ok else None, ok, note))
    return found


def llama_allocation(at: Failed) -> Told:
    """llama.cpp: a buffer that a device, or the host, has no room for."""
    d = at.planned
    tried = at.failure.value("tried_bytes")
    named = at.failure.words.get("device", "the device")
    device = _BY_NAME.get(named.lower(), named)
    free = None if device != named else _left_on(at, device)
    free = at.log("free_before_bytes") if at.failure.kind == "layout_allocation" else free
    size = f" of {bytes_text(round(tried))}" if tried is not None else ""
    had = f"; {bytes_text(round(free))} were left there" if free is not None else ""
    says = f"{_WHAT[at.failure.kind]}{size} found no room on {device}{had}"
    if d is None or tried is None or device.lower().startswith(("cpu", "host", "the host")):
        return Told(tried, free, says, ways(at) if d is not None and tried is None else [])
    return Told(tried, free, says, _of_device(at, d, tried, free))


def _of_device(at: Failed, d: Deployment, tried: float, free: float | None) -> list[dict[str, Any]]:
    """What makes room for such a buffer on the device."""
    rows = [] if d.memory_bytes is None else ways(at)
    if at.failure.kind in _SHAPED and free is not None:
        short = tried - free + _to_come(at, d)
        rows = smaller(at, d, short, host=False) if short > 0 else rows
    if at.failure.kind == "weights_allocation" and free is not None:
        rows = _fewer_layers(d, tried, free) or rows
    return rows or _smaller_context(d)


def _to_come(at: Failed, d: Deployment) -> float:
    """What the load puts on the device beside what is counted: compute buffers, or caches no line shows."""
    on = [p for p in placed_on(d) if p.device != HOST]
    if at.failure.kind == "cache_allocation":
        return max((p.compute.high for p in on), default=0)
    shown = any(name.startswith("kv_buffer_bytes ") for name in at.case.observed.figures)
    return 0.0 if shown else max((p.cache_bytes for p in on), default=0)


def _fewer_layers(d: Deployment, tried: float, free: float) -> list[dict[str, Any]]:
    """Where the file's weights are more than the plan's: layers of the size that was asked for."""
    device = next((placed for placed in placed_on(d) if placed.device != HOST and placed.layers), None)
    if device is None or tried <= _MORE * device.weight_bytes:
        return []
    each = (tried + device.cache_bytes) / device.layers
    count = int(max(0.0, free - device.compute.high - margin_bytes(d.setup)) / each)
    note = f"of {device.layers}, at {bytes_text(round(each))} a layer with its cache"
    return [row("--n-gpu-layers", count or None, count > 0, note)]


def _left_on(at: Failed, device: str) -> float | None:
    """What was free on a device, less what the load had put there before it failed."""
    free = at.log("free_before_bytes")
    if free is None:
        return None
    put = [
        (name.split(" ", 1)[1], said.value)
        for name, said in at.case.observed.figures.items()
        if name.startswith(("model_bytes ", "kv_buffer_bytes "))
    ]
    on_devices = [(name, size) for name, size in put if "CPU" not in name and "Host" not in name]
    own = [size for name, size in on_devices if name == device]
    if not own and len({name for name, _ in on_devices}) == 1:
        own = [size for _, size in on_devices]
    return max(0.0, free - sum(own))


def _smaller_context(d: Deployment) -> list[dict[str, Any]]:
    """Half the context, with the bytes that it saves, where the device's memory is not known."""
    length = value_of(capacity_of(d, None, bare).kv_tokens)
    if not length or length < 2:
        return []
    try:
        half = capacity_of(with_flags(d, ctx_size=int(length) // 2), None, bare)
    except KvplanError:
        return []
    whole, less = value_of(capacity_of(d, None, bare).kv_bytes), value_of(half.kv_bytes)
    if whole is None or less is None:
        return []
    note = f"its caches take {bytes_text(less)} in place of {bytes_text(whole)}; give --gpu for what fits"
    return [row("--ctx-size", int(length) // 2, False, note)]
