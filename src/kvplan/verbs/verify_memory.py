"""Why the pool, or a part of the memory, is not what the device and the flags alone would have given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kvplan.engines.budget import memory_of, profiled_ends
from kvplan.engines.deployment import Deployment
from kvplan.facts.accelerators import accelerators
from kvplan.figure import bare
from kvplan.observe.forms import Said
from kvplan.observe.observed import Observed
from kvplan.units import bytes_text
from kvplan.verbs.verify_check import FLAGS, Check
from kvplan.verbs.verify_deployment import Case
from kvplan.verbs.verify_outcome import Compared, explained
from kvplan.verbs.verify_vllm import WEIGHTS, pool_said, requested_of, share_of

_GIB = 2**30
_POOLS = ("kv_pool_bytes", "kv_tokens_from_flags")
_CONTEXT = 1.5 * _GIB  # a device's own context and a process group: not another process
_LEAST = 0.05 * _GIB
_MOST_NAMED = 3
_LEAST_SHARE = 0.01
_ALIKE = 0.05


def memory_reasons(case: Case, compared: Compared, bad: Sequence[Check]) -> list[dict[str, Any]]:
    """What can be said of the memory's rows that disagree."""
    d, names = compared.planned, {row.name for row in bad}
    if d is None or not names:
        return []
    found = [*_device(bad), *_weights(case, bad)]
    if names & set(_POOLS):
        found += _REASONS.get(case.observed.engine, _nothing)(case, d, [n for n in _POOLS if n in names])
    if "kv_pool_from_parts" in names:
        found.append(_parts(next(row for row in bad if row.name == "kv_pool_from_parts")))
    return found


def _nothing(_case: Case, _d: Deployment, _names: list[str]) -> list[dict[str, Any]]:
    return []


def _device(bad: Sequence[Check]) -> list[dict[str, Any]]:
    row = next((row for row in bad if row.name == "accelerator_bytes"), None)
    if row is None:
        return []
    theirs, ours = bytes_text(row.reported), bytes_text(row.predicted)
    says = f"the device has {theirs}, the plan's {ours}: another one, or a slice"
    return [explained([row.name], says, "--gpu-memory", bytes_text(row.reported).replace(" ", ""))]


def _weights(case: Case, bad: Sequence[Check]) -> list[dict[str, Any]]:
    """Weights that are off: another scheme or split that gives them, else the measured ones as input."""
    row = next((row for row in bad if row.name == "weight_bytes"), None)
    if row is None or row.basis != FLAGS:
        return []
    for flag, values in (("quantization", ("fp8", "awq", "none")), ("tp", (1, 2, 4, 8))):
        for value in values:
            changed: dict[str, Any] = {flag: value}
            d = case.attempt(None, **changed)
            if d is not None and _near(memory_of(d, bare)["weight_bytes"], row.reported):
                return [
                    explained([row.name], f"with --{flag} {value} they are as printed", f"--{flag}", value)
                ]
    drafter = "; a drafter's are among them" if case.observed.drafting else ""
    says = f"weights are as loaded, with padding and workspaces{drafter}: put the log's in"
    return [explained([row.name], says, "--weights-memory", _size(row.reported))]


def _near(predicted: int | None, reported: float) -> bool:
    return predicted is not None and abs(predicted - reported) <= WEIGHTS * reported


def _parts(row: Check) -> dict[str, Any]:
    short = row.predicted - row.reported
    what = "less" if short > 0 else "more"
    says = (
        f"the parts that the log prints leave {bytes_text(row.predicted)} and the pool is "
        f"{bytes_text(abs(short))} {what}: something that no line states, such as another process that took "
        "memory meanwhile"
    )
    return explained([row.name], says)


def _vllm(case: Case, d: Deployment, names: list[str]) -> list[dict[str, Any]]:
    """Part by part beside what the log prints; then the same pool from the log's own parts."""
    o = case.observed
    off = {name: theirs - ours for name, (ours, theirs) in _vllm_parts(o, d).items()}
    told = ", ".join(f"{name} {_signed(size)}" for name, size in off.items() if abs(size) >= _LEAST)
    pool = pool_said(o, d)
    found = []
    if told:
        found.append(explained(names, f"beside the plan the log has {told}"))
    measured = _measured(o)
    if pool is None:
        return found
    with_them = case.attempt(**measured) if measured else d
    if with_them is None:
        return found
    low, high = _pool_ends(with_them)
    so = low - pool.half <= pool.value <= high + pool.half
    found += _with_measured(with_them, measured, pool, names, so) if measured else []
    return found if so else [*found, *_as_on_another(case, with_them, pool, names)]


def _pool_ends(d: Deployment) -> tuple[float, float]:
    table = memory_of(d, bare)
    return table["kv_pool_low_bytes"], table["kv_pool_high_bytes"]


def _with_measured(
    d: Deployment, measured: dict[str, int], said: Said, names: list[str], so: bool
) -> list[dict[str, Any]]:
    """The pool with the log's parts put in: one row for each flag, which say the same together.

    Only what explains the pool is a change to make.
    """
    ours, pool = memory_of(d, bare)["kv_pool_bytes"], said.value
    flags = " ".join(f"--{name.replace('_', '-')} {_size(value)}" for name, value in measured.items())
    error = f" ({ours / pool - 1:+.1%})" if pool > 0 else ""
    says = f"with {flags}, as the log prints them, the pool is {bytes_text(ours)}{error}"
    if not so:
        return [explained(names, f"{says}: still disagrees")]
    return [
        explained(names, f"{says}: agrees", f"--{name.replace('_', '-')}", _size(value))
        for name, value in measured.items()
    ]


def _as_on_another(case: Case, d: Deployment, pool: Said, names: list[str]) -> list[dict[str, Any]]:
    """The device, or the share of it, on which the pool would be as printed: where the log has neither."""
    ours, share, has = memory_of(d, bare)["kv_pool_bytes"], share_of(d), d.memory_bytes
    stated = {"accelerator_bytes", "requested_bytes"} & set(case.observed.figures)
    if ours is None or not has or stated or share < _LEAST_SHARE:
        return []
    other = requested_of(d) + pool.value - ours
    so = f"; or --gpu-memory-utilization {other / has:.2f}, not {share:g}" if 0 < other < has else ""
    fitting = _devices(case, pool)
    if fitting:
        says = f"the pool is as on {' or '.join(fitting[:_MOST_NAMED])}, not on {_named(case, d)}{so}"
        return [explained(names, says, "--gpu", fitting[0])]
    total = round(has + (pool.value - ours) / share)
    if total <= 0 or abs(total - has) < _ALIKE * has:  # a step's peak may be off by as much
        return []
    says = f"the pool is as on a device of about {bytes_text(total)}, not of {bytes_text(has)}{so}"
    return [explained(names, says, "--gpu-memory", _size(total))]


def _named(case: Case, d: Deployment) -> str:
    return str(case.given.words.get("gpu") or case.observed.gpu or bytes_text(d.memory_bytes or 0))


def _devices(case: Case, pool: Said) -> list[str]:
    """Accelerators on which the pool is as printed, the nearest first."""
    off: dict[str, float] = {}
    for one in accelerators():
        d = case.attempt(gpu=one.key, gpu_memory=None)
        if d is None or d.memory_bytes is None:
            continue
        low, high = _pool_ends(d)
        if low - pool.half <= pool.value <= high + pool.half:
            off[one.key] = abs(memory_of(d, bare)["kv_pool_bytes"] - pool.value)
    return sorted(off, key=lambda key: off[key])


def _vllm_parts(o: Observed, d: Deployment) -> dict[str, tuple[float, float]]:
    """Ours and theirs of every part that the log states."""
    ends, f = profiled_ends(d), o.figures
    weights = memory_of(d, bare)["weight_bytes"] or 0
    outside = ends["overhead_bytes"][0]
    pairs = {
        "the budget": (requested_of(d), "requested_bytes"),
        "weights": (weights, "weight_bytes"),
        "the profiled peak": (ends["activation_bytes"][0], "activation_bytes"),
        "memory outside PyTorch": (outside, "non_torch_bytes"),
        "graphs": (ends["graph_bytes"][0], "graph_estimate_bytes"),
    }
    return {what: (float(ours), f[name].value) for what, (ours, name) in pairs.items() if name in f}


def _measured(o: Observed) -> dict[str, int]:
    """The log's own parts as input."""
    names = {"weight_bytes": "weights_memory", "activation_bytes": "activation_memory"}
    if o.graphs_profiled:
        names["graph_estimate_bytes"] = "graph_memory"
    return {ours: round(o.figures[name].value) for name, ours in names.items() if name in o.figures}


def _sglang(case: Case, d: Deployment, names: list[str]) -> list[dict[str, Any]]:
    """What was free before the weights, against the device: what another process held."""
    before = case.observed.figures.get("free_before_bytes")
    if before is None or d.memory_bytes is None:
        return []
    held = d.memory_bytes - before.value
    if held <= _CONTEXT:
        return []
    in_use = round(held - _CONTEXT / 3)
    return _others(case, in_use, names, f"{bytes_text(round(before.value))} were free before the weights")


def _others(case: Case, in_use: int, names: list[str], seen: str) -> list[dict[str, Any]]:
    tried = case.attempt(memory_in_use=in_use)
    pool = memory_of(tried, bare)["kv_pool_bytes"] if tried is not None else None
    so = f"; with that in use the pool would be {bytes_text(pool)}" if pool is not None else ""
    says = f"{seen}: another process on the device held about {bytes_text(in_use)}{so}"
    return [explained(names, says, "--memory-in-use", _size(in_use))]


def _tensorrt_llm(case: Case, d: Deployment, names: list[str]) -> list[dict[str, Any]]:
    """The dry run's peak beside the plan's."""
    o = case.observed
    total, peak = o.figures.get("accelerator_bytes"), o.figures.get("peak_bytes")
    if peak is None or total is None:
        return []
    table = memory_of(d, bare)
    ours = sum(table[name] or 0 for name in ("weight_bytes", "activation_bytes", "overhead_bytes"))
    says = (
        f"the dry run's peak is {bytes_text(round(peak.value))}, the plan's weights, activations and "
        f"overhead {bytes_text(ours)}; others on the device count into the peak"
    )
    return [explained(names, says)]


_REASONS: dict[str, Callable[[Case, Deployment, list[str]], list[dict[str, Any]]]] = {
    "vllm": _vllm,
    "sglang": _sglang,
    "tensorrt-llm": _tensorrt_llm,
}


def _signed(size: float) -> str:
    return f"{'+' if size > 0 else '−'}{bytes_text(round(abs(size)))}"


def _size(size: float) -> str:
    return f"{size / _GIB:.2f}GiB"
