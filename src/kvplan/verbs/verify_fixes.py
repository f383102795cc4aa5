"""Flags that would make a failed start succeed, each with a value and whether kvplan finds it enough."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kvplan.engines.budget import memory_of, profiled_ends
from kvplan.engines.deployment import Deployment
from kvplan.engines.limits import limits_of
from kvplan.engines.sglang_memory import mem_fraction_static
from kvplan.errors import KvplanError
from kvplan.figure import bare
from kvplan.observe.observed import Failure
from kvplan.units import bytes_text
from kvplan.verbs.deploy import with_flags, with_quantization
from kvplan.verbs.verdict import LENGTHS
from kvplan.verbs.verify_deployment import Case
from kvplan.verbs.verify_outcome import Compared
from kvplan.verbs.verify_vllm import held_pool, requested_of, share_of
from kvplan.verbs.ways import holds, more_ranks, ways_back

_SHARES = {
    "vllm": "gpu_memory_utilization",
    "sglang": "mem_fraction_static",
    "tensorrt-llm": "free_gpu_memory_fraction",
}
_MARGIN = 0.01  # of the device, beyond what was short
_GUESS = 0.02  # of the device, where the log does not say how much was short
_OTHERS = 2**30
_LEAST_TOKENS = 512


@dataclass(frozen=True, slots=True)
class Told:
    """What a failure needed and found in bytes, in words, and rows as `fit` has them in `ways_back`."""

    needed: float | None
    available: float | None
    says: str
    fixes: list[dict[str, Any]] = field(default_factory=list)
    held_by_others: int | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """A failure with the case and the comparison that it stands in."""

    case: Case
    compared: Compared
    failure: Failure

    @property
    def planned(self) -> Deployment | None:
        """The deployment from the device and the flags alone."""
        return self.compared.planned

    @property
    def short(self) -> float | None:
        """What was asked for beyond what was free."""
        tried, free = self.failure.value("tried_bytes"), self.failure.value("free_bytes")
        return None if tried is None else max(0.0, tried - (free or 0.0))

    def log(self, name: str) -> float | None:
        """A figure of the log."""
        return self.case.observed.value(name)


def row(flag: str, value: Any, fits: bool | None, note: str) -> dict[str, Any]:
    """One change: its flag as typed, its value, whether it is enough (None: not known), what it takes."""
    return {"flag": flag, "value": value, "fits": fits, "note": note}


def sure(flag: str, value: Any, note: str) -> dict[str, Any]:
    """A change that is enough."""
    return row(flag, value, True, note)


def ways(
    at: Failed, d: Deployment | None = None, weights: bool = False, pool: int | None = None
) -> list[dict[str, Any]]:
    """Rows of `ways_back` for a deployment, else for the one that was measured.

    Lengths and narrower caches are of the `pool` that the log has, where it is given or known. More ranks of
    the one that was measured are judged from the plan, and left out where there is none and a rank's pool, as
    it was, is too small: it would grow. Where it starts by the plan as it is, what helps is not known.
    """
    planned = at.planned
    base = d or calibrated(at.case, planned) or planned or at.compared.measured
    if base is None and pool:
        base = at.case.attempt(pool)
    if base is None:
        return []
    if fits(base):
        return [_not_told(r) for r in ways_back(base, None) if r["fits"] and _changes(base, r)]
    rows = ways_back(base, None)
    if d is None and base is not planned:
        kept = [r for r in rows if r["flag"] != "--tp"]
        rows = [*kept, *(more_ranks(planned, None) if planned is not None else _at_most(rows))]
    if d is None:
        rows = _in_pool(at, rows, pool)
    return [*_narrower_weights(planned), *rows] if weights else rows


def _in_pool(at: Failed, rows: list[dict[str, Any]], pool: int | None) -> list[dict[str, Any]]:
    """The same, with those on the cache's shape judged in the very bytes that the log left for it."""
    if pool is None and at.case.observed.engine == "vllm":
        said = held_pool(at.case, at.planned)
        pool = round(said.value) if said is not None and said.value >= 1 else None
    pinned = at.case.attempt(pool) if pool else None
    if pinned is None or fits(pinned):
        return rows
    flags = [f"--{name.replace('_', '-')}" for name in LENGTHS.values()]
    inside = {r["flag"]: r for r in ways_back(pinned, None) if r["flag"] in (*flags, "--kv-cache-dtype")}
    return [inside.get(r["flag"], r) for r in rows]


def _changes(d: Deployment, r: dict[str, Any]) -> bool:
    """Whether a row's value is another than the one that ran."""
    if r["flag"].removeprefix("--").replace("-", "_") in LENGTHS.values():
        return bool(r["value"] != d.max_model_len)
    return True


def _not_told(r: dict[str, Any]) -> dict[str, Any]:
    """A change that a plan which starts as it is cannot judge."""
    return {**r, "value": None, "fits": None, "note": "not known: by the plan it starts as it is"}


def _at_most(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Ranks that are enough with a pool each as it was: they would have more."""
    note = "at most so many accelerators: each would have more left than this one; give --gpu for the fewest"
    return [{**r, "note": note} for r in rows if r["flag"] == "--tp" and r["fits"]]


def _narrower_weights(d: Deployment | None) -> list[dict[str, Any]]:
    if d is None or d.model.quantization:
        return []
    try:
        changed = with_quantization(d, "fp8")
        ok = holds(changed, None)
    except KvplanError:
        return []
    size = memory_of(changed, bare)["weight_bytes"]
    note = f"weights of {bytes_text(size)} a rank" if size else "half the weights"
    return [row("--quantization", "fp8" if ok else None, ok, note if ok else f"{note}: not enough alone")]


def calibrated(case: Case, planned: Deployment | None) -> Deployment | None:
    """The plan with what the log measured put in, so that its pool is the log's; None where it cannot be."""
    if planned is None:
        return None
    if case.observed.engine == "sglang":
        return _calibrated_sglang(case, planned)
    if case.observed.engine != "vllm":
        return None
    said = held_pool(case, planned)
    if said is None:
        return None
    ends, o = profiled_ends(planned), case.observed
    weights = o.value("weight_bytes") or memory_of(planned, bare)["weight_bytes"]
    graphs, outside = ends["graph_bytes"][0], ends["overhead_bytes"][0]
    rest = requested_of(planned) - said.value - (weights or 0) - graphs - outside
    if weights is None or rest < 0:
        return None
    return case.attempt(
        weights_memory=round(weights), activation_memory=max(1, round(rest)), graph_memory=max(1, graphs)
    )


def _calibrated_sglang(case: Case, planned: Deployment) -> Deployment | None:
    """Weights as the drop of free memory, and what was missing before them as in use."""
    before, after = (case.observed.value(name) for name in ("free_before_bytes", "free_after_bytes"))
    if before is None or after is None or before <= after:
        return None
    changed: dict[str, Any] = {"weights_memory": round(before - after)}
    if planned.memory_bytes is not None and planned.memory_bytes - before > 1.5 * _OTHERS:
        changed["memory_in_use"] = round(planned.memory_bytes - before - 0.5 * _OTHERS)
    return case.attempt(None, **changed)


def share_in_force(d: Deployment) -> float | None:
    """The engine's share of the device, or of what is free on it."""
    name = _SHARES.get(d.setup.engine)
    given = d.setup.flags.get(name) if name else None
    if given is not None:
        return float(given)
    if d.setup.engine == "vllm":
        return share_of(d)
    if d.setup.engine == "sglang":
        found = mem_fraction_static(d.model, d.setup)
        return None if found is None else float(found)
    return 0.9 if name else None


def lower_share(at: Failed, short: float | None) -> list[dict[str, Any]]:
    """A smaller share for the cache, by what was short and a little more; and no graphs."""
    d = at.planned
    if d is None or not d.memory_bytes or d.setup.engine not in _SHARES:
        return []
    share = share_in_force(d)
    if share is None:
        return []
    less = (short / d.memory_bytes if short is not None else _GUESS) + _MARGIN
    lower = int((share - less) * 100 + 1e-6) / 100
    flag = _SHARES[d.setup.engine]
    if lower <= 0:
        return [row(_option(flag), None, False, "at no share")]
    base = calibrated(at.case, d) or d
    changed = with_flags(base, **{flag: lower})
    ok = fits(changed)
    freed = bytes_text(round((share - lower) * d.memory_bytes))
    note = f"leaves {freed} more beside the cache" + (
        "" if ok else "; too little cache for the longest length"
    )
    rows = [row(_option(flag), lower if ok else None, ok, note)]
    if d.setup.engine == "vllm" and not d.setup.flags.get("enforce_eager"):
        graphs = profiled_ends(d)["graph_bytes"][0]
        enough = (short is None or graphs >= short) if graphs > 0 else None
        size = f"about {bytes_text(graphs)} less" if graphs else "how much they take is not known"
        note = f"no graphs: {size}, and slower decoding"
        rows.append(row("--enforce-eager", None if enough is False else True, enough, note))
    return rows


def with_less_work(at: Failed) -> list[dict[str, Any]]:
    """Fewer tokens in one step, halved until the predicted peak falls by what was short."""
    d, short = at.planned, at.short
    if d is None or d.setup.engine != "vllm" or not d.memory_bytes:
        return []
    tokens = int(limits_of(d.model, d.setup)["max_num_batched_tokens"][0])
    peak = profiled_ends(d)["activation_bytes"][0]
    wanted = short if short is not None else _GUESS * d.memory_bytes
    both = None
    for fewer in (tokens >> steps for steps in range(1, 12) if tokens >> steps >= _LEAST_TOKENS):
        changed = with_flags(d, max_num_batched_tokens=fewer)
        saved = peak - profiled_ends(changed)["activation_bytes"][0]
        if saved < wanted:
            continue
        note = f"the peak of a step falls by about {bytes_text(saved)}, from {tokens:,} tokens"
        if fits(changed):
            return [sure("--max-num-batched-tokens", fewer, note)]
        both = both or _and_shorter(changed, fewer, note)
    none = row("--max-num-batched-tokens", None, False, "not with any number of tokens a step")
    return [both or none]


def _and_shorter(d: Deployment, tokens: int, note: str) -> dict[str, Any] | None:
    """Fewer tokens a step and a shorter longest sequence, where the first alone leaves too little cache."""
    shorter = next(r for r in ways_back(d, None) if r["flag"] == "--max-model-len")
    if shorter["value"] is None:
        return None
    both = f"--max-num-batched-tokens {tokens} --max-model-len"
    return sure(both, shorter["value"], f"{note}; then the longest sequence that fits")


def with_fewer_sequences(at: Failed, count: int) -> list[dict[str, Any]]:
    """Half as many sequences at once, with the bytes that their logits no longer take."""
    if count < 2:
        return []
    note = f"{count:,} were warmed up; half of them halves the logits"
    d = at.planned
    if d is None or not d.memory_bytes:
        return [sure("--max-num-seqs", count // 2, note)]
    peaks = [profiled_ends(with_flags(d, max_num_seqs=n))["activation_bytes"][0] for n in (count, count // 2)]
    saved = peaks[0] - peaks[1]
    ok = at.short is None or saved >= at.short
    note = f"{note}: about {bytes_text(saved)}"
    return [row("--max-num-seqs", count // 2 if ok else None, ok, note)]


def fits(d: Deployment) -> bool:
    """Whether it starts by kvplan's figures."""
    try:
        return holds(d, None)
    except KvplanError:
        return False


def held_by_others(failure: Failure) -> int | None:
    """What other processes hold, where PyTorch's message tells and it is much; None otherwise."""
    total, free, mine = (failure.value(n) for n in ("capacity_bytes", "free_bytes", "process_bytes"))
    if total is None or free is None or mine is None or total - free - mine < _OTHERS:
        return None
    return round(total - free - mine)


def others(failure: Failure) -> str:
    """The same as the end of a sentence."""
    held = held_by_others(failure)
    return "" if held is None else f"; other processes on the device hold about {bytes_text(held)}"


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
