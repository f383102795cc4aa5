"""Why the pool, or a part of the memory, is not what the device and the flags alone would have given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kvplan.engines.budget import memory_of, profiled_ends
from kvplan.engines.deployment import Deployment
from kvplan.figure import bare
from kvplan.observe.forms import Said
from kvplan.observe.observed import Observed
from kvplan.units import bytes_text
from kvplan.verbs.verify_check import FLAGS, Check
from kvplan.verbs.verify_deployment import Case
from kvplan.verbs.verify_outcome import Compared, explained
from kvplan.verbs.verify_vllm import WEIGHTS, requested_of

_GIB = 2**30
_POOLS = ("kv_pool_bytes", "kv_tokens_from_flags")
_CONTEXT = 1.5 * _GIB  # a device's own context and a process group: not another process
_LEAST = 0.05 * _GIB


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
    pool = o.figures.get("kv_pool_bytes")
    found = []
    if told:
        found.append(explained(names, f"beside the plan the log has {told}"))
    measured = _measured(o)
    if measured and pool is not None:
        with_them = case.attempt(**measured)
        if with_them is not None:
            found += _with_measured(with_them, measured, pool, names)
    return found


def _with_measured(
    d: Deployment, measured: dict[str, int], said: Said, names: list[str]
) -> list[dict[str, Any]]:
    """The pool with the log's parts put in: one row for each flag, which say the same together."""
    table, pool = memory_of(d, bare), said.value
    low, high = table["kv_pool_low_bytes"] - said.half, table["kv_pool_high_bytes"] + said.half
    flags = " ".join(f"--{name.replace('_', '-')} {_size(value)}" for name, value in measured.items())
    error = f" ({table['kv_pool_bytes'] / pool - 1:+.1%})" if pool > 0 else ""
    verdict = "agrees" if low <= pool <= high else "still disagrees"
    says = f"with {flags}, as the log prints them, the pool is {bytes_text(table['kv_pool_bytes'])}"
    return [
        explained(names, f"{says}{error}: {verdict}", f"--{name.replace('_', '-')}", _size(value))
        for name, value in measured.items()
    ]


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
