"""Which deployments can meet a load, by arithmetic alone: every setting of a step and number of replicas."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvplan.advise.families import Family
from kvplan.advise.goals import KINDS, Goals
from kvplan.cost.estimate import Clock
from kvplan.engines.budget import memory_of
from kvplan.engines.deployment import Deployment
from kvplan.engines.registry import capacity_of
from kvplan.errors import KvplanError
from kvplan.facts.accelerators import find_accelerator
from kvplan.facts.runs_on import method_of, why_not
from kvplan.figure import bare, value_of
from kvplan.model.model import Model
from kvplan.serve import steady
from kvplan.serve.load import Load, Policy
from kvplan.units import bytes_text, counted
from kvplan.verbs.deploy import Split, deployment, with_flags
from kvplan.verbs.instance import finds_prefixes
from kvplan.verbs.latency import room
from kvplan.verbs.timing import BUDGET_FLAGS, budget_of, clock_of, held_tokens, policy_of
from kvplan.verbs.verdict import LENGTHS, pool_for, starts, would_start

BUDGETS = (1024, 2048, 4096, 8192, 16384)  # tokens a step, beside the engine's own
SLOTS = (1, 2, 4, 8, 16, 32, 64)  # sequences at once, where the engine sets a context aside for each
SLOTTED = "llama.cpp"
_ROUND = 256  # tokens that a shorter context is rounded up to
_EASE = 0.5  # of a goal
_CHANGE = 0.95  # of the time to the last token: what another setting must bring to be on a curve
_WORTH = 0.99  # of the time to the last token: what a further replica must bring to be on a curve
Floats = NDArray[np.float64]


class Setting(NamedTuple):
    """What is tuned of an engine: tokens a step, and slots of llama.cpp; None for its own."""

    budget: int | None = None
    slots: int | None = None

    @property
    def changed(self) -> int:
        """1 where something is not the engine's own; llama.cpp has no slots that fit every load."""
        return int(self.budget is not None)


@dataclass(frozen=True, slots=True)
class Want:
    """A load on the whole, mean lengths in tokens, its goals, and at most how many accelerators.

    `mode` is rate or concurrency; `longest` the longest request; `load` what is shared and drafted, `once`
    the tokens that all prompts share; `flags` and `versions` are those of each engine.
    """

    mode: str
    amount: float
    load: Load
    longest: int
    goals: Goals
    most: int
    flags: Mapping[str, Mapping[str, Any]]
    versions: Mapping[str, str]
    once: int = 0


@dataclass(frozen=True, slots=True)
class Candidate:
    """So many replicas of a family with a setting; means by arithmetic.

    Fewer than `least` replicas are overrun by the load, if it goes on.
    """

    family: Family
    setting: Setting
    replicas: int
    least: int
    ttft_seconds: float
    tpot_seconds: float
    e2e_seconds: float
    output_tokens_per_second: float

    @property
    def accelerators(self) -> int:
        """All of them."""
        return self.family.ranks * self.replicas

    def times(self) -> dict[str, float | None]:
        """Mean seconds by kind."""
        return {name: getattr(self, name) for name in KINDS}


@dataclass(frozen=True, slots=True)
class Screened:
    """A family: how many candidates were looked at, those that may meet the goals, the fastest by replicas.

    `able` has for each setting the fewest replicas whose means stay within the goals, the engine's own first
    among equals; `reason` says why there are none, `nearest` is the candidate that comes nearest.
    """

    family: Family
    looked_at: int = 0
    able: tuple[Candidate, ...] = ()
    curve: tuple[Candidate, ...] = ()
    nearest: Candidate | None = None
    reason: str = ""
    fits: bool = True


def built(model: Model, family: Family, want: Want, setting: Setting = Setting()) -> Deployment:
    """One replica of a family, with the longest context that fits where the model's own does not.

    Raises BadInput or UnknownName where the engine would not take it.
    """
    f = family
    apart = f.engine == "tensorrt-llm"
    flags, kv = _flags(f, want, setting)
    d = deployment(
        model,
        gpu=f.accelerator,
        engine=f.engine,
        engine_version=want.versions.get(f.engine),
        split=Split(f.tp, f.pp, f.dp, f.ep, attention_dp=1 if apart else f.attention_dp),
        quantization=f.quantization or None,
        kv_cache_dtype=kv,
        flags=flags,
    )
    return _shortened(d, want) if LENGTHS[f.engine] not in flags else d


def _shortened(d: Deployment, want: Want) -> Deployment:
    """As it is where its own context fits, else with the longest that does, not below the load's.

    The longest by the least pool that start-up logs leave room for: an engine refuses to start with more.
    """
    memory = memory_of(d, bare)
    capacity = capacity_of(d, value_of(pool_for(d, memory)), bare)
    if d.max_model_len <= want.longest or starts(d, memory, capacity) is not False:
        return d
    name, needed = LENGTHS[d.setup.engine], min(d.max_model_len, _rounded(want.longest))
    least = capacity_of(d, value_of(memory["kv_pool_low_bytes"]), bare).estimated_max_model_len
    most = int(value_of(least) or 0) // _ROUND * _ROUND
    longest = with_flags(d, **{name: most}) if most > needed else d
    return longest if most > needed and _starts(longest) else with_flags(d, **{name: needed})


def _flags(f: Family, want: Want, setting: Setting) -> tuple[dict[str, Any], str]:
    """(the engine's settings, the cache's format where it is not one of them)."""
    flags, kv = {**want.flags.get(f.engine, {})}, f.kv_cache_dtype
    if f.engine == "tensorrt-llm" and f.attention_dp > 1:
        flags["enable_attention_dp"] = True
    if setting.budget is not None:
        flags[BUDGET_FLAGS[f.engine]] = setting.budget
    if f.engine == SLOTTED:
        flags = {**_slotted(int(flags.get("parallel") or setting.slots or 1), want), **flags}
        if kv != "auto":
            flags, kv = {"cache_type_k": kv, "cache_type_v": kv, **flags}, "auto"
    return flags, kv


def _slotted(slots: int, want: Want) -> dict[str, int]:
    """llama.cpp's settings for so many sequences at once, each as long as the longest request."""
    return {"parallel": slots, "ctx_size": slots * _rounded(want.longest)}


def _rounded(tokens: int) -> int:
    return -(-tokens // _ROUND) * _ROUND


def _starts(d: Deployment) -> bool:
    """Whether weights, all else and one longest sequence find room, or nobody knows."""
    return would_start(d) is not False


def settings(d: Deployment, want: Want) -> list[Setting]:
    """What is tried: the engine's own, and others."""
    engine, flags = d.setup.engine, want.flags.get(d.setup.engine, {})
    if engine == SLOTTED and not {"parallel", "ctx_size"} & flags.keys():
        most = want.amount if want.mode == "concurrency" else np.inf
        return [Setting(slots=n) for n in SLOTS if n < 2 * most]
    if engine == SLOTTED or engine not in BUDGET_FLAGS or BUDGET_FLAGS[engine] in flags:
        return [Setting()]
    own = int(value_of(budget_of(d)))
    return [Setting(), *(Setting(n) for n in BUDGETS if n != own)]


class _Way(NamedTuple):
    """A setting, what it is deployed as, and how that schedules the load."""

    setting: Setting
    d: Deployment
    policy: Policy


def screened(model: Model, family: Family, want: Want) -> Screened:
    """Every candidate of a family, by arithmetic."""
    method = method_of(model.quantization, family.quantization)
    refused = why_not(family.engine, find_accelerator(family.accelerator), method, family.quantization)
    if refused:
        return Screened(family, reason=refused, fits=False)
    try:
        first = built(model, family, want)
        lacking = _lacking(model, first, want)
        ways = [] if lacking else _ways(family, first, want)
        if not ways:
            return Screened(family, reason=lacking or _short(first, want), fits=False)
        clock = clock_of(first)
    except KvplanError as error:
        return Screened(family, reason=str(error), fits=False)
    return _found(family, want, ways, _times(clock, family, ways, want))


def _ways(family: Family, first: Deployment, want: Want) -> list[_Way]:
    """The settings under which the longest request is held, with how they schedule."""
    ways, held = [], _held(first, want)
    once = want.once if finds_prefixes(first) else 0
    for setting in settings(first, want):
        d = first
        if setting.slots is not None:
            d = with_flags(first, **_slotted(setting.slots, want))
        elif setting.budget is not None:
            d = with_flags(first, **{BUDGET_FLAGS[family.engine]: setting.budget})
        policy = policy_of(d, held, shared=once)
        if room(d, policy, want.longest) and (_no_larger(setting, first) or _starts(d)):
            ways.append(_Way(setting, d, policy))
    return ways


def _no_larger(setting: Setting, first: Deployment) -> bool:
    """Whether steps are no larger than the engine's own, with which it starts: they leave no less room."""
    if setting.slots is not None:
        return False
    return setting.budget is None or setting.budget <= value_of(budget_of(first))


def _held(d: Deployment, want: Want) -> int:
    output = int(want.load.output_tokens)
    return held_tokens(d.setup.engine, want.mode, int(want.load.prompt_tokens) + output, output)


def _lacking(model: Model, d: Deployment, want: Want) -> str:
    """Why a replica does not hold the longest request of the load; "" where it may."""
    longest = d.max_model_len
    if d.setup.engine == SLOTTED and model.max_context is not None:
        longest = model.max_context
    if longest < want.longest:
        return f"a sequence ends at {longest:,} tokens and the longest request has {want.longest:,}"
    return "" if d.setup.engine == SLOTTED or _starts(d) else _short(d, want)


def _short(d: Deployment, want: Want) -> str:
    """What a replica lacks to hold its weights and the longest request."""
    memory = memory_of(d, bare)
    headroom, pool = memory["headroom_bytes"], memory["kv_pool_bytes"] or 0
    if headroom is not None and headroom < 0:
        return f"does not fit: {bytes_text(-headroom)} a rank are missing"
    return f"does not fit: {bytes_text(pool)} of cache a rank hold no request of {want.longest:,} tokens"


def _times(clock: Clock, family: Family, ways: Sequence[_Way], want: Want) -> dict[str, Floats]:
    """Means by name, one row a setting, one column a number of replicas; infinite where requests pile up."""
    counts = np.arange(1, want.most // family.ranks + 1)
    load = want.load if finds_prefixes(ways[0].d) else replace(want.load, shared=0)
    policy = replace(
        ways[0].policy,
        budget=np.array([[float(value_of(way.policy.budget))] for way in ways]),
        running=np.array([[float(value_of(way.policy.running))] for way in ways]),
    )
    if want.mode == "rate":
        served, busy = steady.open_loop(clock, load, policy, want.amount / counts[None, :]), counts
    else:
        each = np.maximum(1.0, want.amount / counts)
        served, busy = steady.closed_loop(clock, load, policy, each[None, :]), np.minimum(counts, want.amount)
    shape = len(ways), len(counts)
    names = (*KINDS, "output_tokens_per_second")
    found = {n: np.broadcast_to(np.asarray(getattr(served, n), float), shape) for n in names}
    piled = ~(np.isfinite(found["ttft_seconds"]) & np.isfinite(found["e2e_seconds"]))
    found = {n: np.where(piled, np.inf, values) for n, values in found.items()}
    return {**found, names[-1]: found[names[-1]] * busy}


def _found(family: Family, want: Want, ways: Sequence[_Way], times: Mapping[str, Floats]) -> Screened:
    """What the times say of the family."""

    def candidate(row: int, column: int) -> Candidate:
        figures = {name: float(values[row, column]) for name, values in times.items()}
        return Candidate(family, ways[row].setting, column + 1, least[row], **figures)

    worst = np.max([times[kind] / goal for kind, goal in want.goals.given().items()], axis=0)
    looked_at, least = int(worst.size), [int(np.argmax(np.isfinite(row))) + 1 for row in worst]
    if not np.isfinite(worst).any():
        return Screened(family, looked_at, reason=_why(None, want))
    able = [
        candidate(row, int(np.argmax(worst[row] <= 1))) for row in range(len(ways)) if worst[row].min() <= 1
    ]
    able.sort(key=lambda c: (c.replicas, c.setting.changed, _step(c, want), _whole(c), c.setting.slots or 0))
    nearest = candidate(*(int(i) for i in np.unravel_index(int(np.argmin(worst)), worst.shape)))
    seconds = times["e2e_seconds"] * np.array([[1.0 if way.setting.changed else _CHANGE] for way in ways])
    quickest = seconds.argmin(axis=0)
    curve = tuple(candidate(int(quickest[n]), n) for n in _falling(seconds.min(axis=0)))
    return Screened(family, looked_at, tuple(able), curve, nearest, "" if able else _why(nearest, want))


def _step(c: Candidate, want: Want) -> int:
    """How much of its worst goal a candidate takes, in steps of a twentieth; up to a half is all the same."""
    return max(0, math.ceil(20 * math.log(want.goals.worst(c.times())[1] / _EASE)))


def _whole(c: Candidate) -> int:
    """The time to the last token in steps of a tenth: nearly equal ones are equal."""
    return round(10 * math.log(c.e2e_seconds))


def _falling(seconds: Floats) -> list[int]:
    """The places where seconds are less than at every place before, by enough to matter."""
    places: list[int] = []
    least = np.inf
    for i, value in enumerate(seconds):
        if value < least * _WORTH or (np.isfinite(value) and not places):
            places.append(i)
            least = float(value)
    return places


def _why(nearest: Candidate | None, want: Want) -> str:
    if nearest is None:
        return f"{counted(want.most, 'accelerator')} overrun by the load: requests queue without end"
    kind, ratio = want.goals.worst(nearest.times())
    seconds, goal = nearest.times()[kind], want.goals.given()[kind]
    word = kind.removesuffix("_seconds").upper().replace("E2E", "end to end")
    return (
        f"{word} is {seconds:.3g} s on average with {nearest.accelerators} accelerators, "
        f"{ratio:.3g} times its goal of {goal:g} s"
    )
