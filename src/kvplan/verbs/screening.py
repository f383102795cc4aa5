"""Which deployments can meet a load, by arithmetic alone: every budget of a step and number of replicas."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvplan.advise.families import Family
from kvplan.advise.goals import Goals
from kvplan.cost.estimate import Clock
from kvplan.engines.budget import memory_of
from kvplan.engines.deployment import Deployment
from kvplan.engines.registry import CONTEXT_DECIDES
from kvplan.errors import KvplanError
from kvplan.figure import bare, value_of
from kvplan.model.model import Model
from kvplan.serve import steady
from kvplan.serve.load import Load
from kvplan.units import bytes_text
from kvplan.verbs import fit as fitting
from kvplan.verbs.deploy import Split, deployment, with_flags
from kvplan.verbs.latency import room
from kvplan.verbs.timing import BUDGET_FLAGS, budget_of, clock_of, held_tokens, policy_of
from kvplan.verbs.verdict import LENGTHS

BUDGETS = (1024, 2048, 4096, 8192, 16384)  # tokens a step, beside the engine's own


@dataclass(frozen=True, slots=True)
class Want:
    """A load on the whole, mean lengths in tokens, its goals, and at most how many accelerators.

    `mode` is rate or concurrency; `longest` the longest request; `load` what is shared and drafted; `flags`
    and `versions` are those of each engine.
    """

    mode: str
    amount: float
    load: Load
    longest: int
    goals: Goals
    most: int
    flags: Mapping[str, Mapping[str, Any]]
    versions: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Candidate:
    """Replicas of a family with a budget of tokens a step (None: the engine's own); means by arithmetic."""

    family: Family
    budget: int | None
    replicas: int
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
        return {name: getattr(self, name) for name in ("ttft_seconds", "tpot_seconds", "e2e_seconds")}


@dataclass(frozen=True, slots=True)
class Screened:
    """A family: how many candidates were looked at, those that may meet the goals, the fastest by replicas.

    `able` has for each budget the fewest replicas whose means stay within the goals; `reason` says why there
    are none, `nearest` is the candidate that comes nearest.
    """

    family: Family
    looked_at: int = 0
    able: tuple[Candidate, ...] = ()
    curve: tuple[Candidate, ...] = ()
    nearest: Candidate | None = None
    reason: str = ""
    fits: bool = True


def built(model: Model, family: Family, want: Want, budget: int | None = None) -> Deployment:
    """One replica of a family, with no longer sequences than needed where its own do not fit.

    Raises BadInput or UnknownName where the engine would not take it.
    """
    f, flags = family, {**want.flags.get(family.engine, {})}
    if f.engine == "tensorrt-llm" and f.attention_dp > 1:
        flags["enable_attention_dp"] = True
    if budget is not None:
        flags[BUDGET_FLAGS[f.engine]] = budget
    d = deployment(
        model,
        gpu=f.accelerator,
        engine=f.engine,
        engine_version=want.versions.get(f.engine),
        split=Split(f.tp, f.pp, f.dp, f.ep, attention_dp=1 if f.engine == "tensorrt-llm" else f.attention_dp),
        quantization=f.quantization or None,
        kv_cache_dtype=f.kv_cache_dtype,
        flags=flags,
    )
    length = LENGTHS[f.engine]
    if d.max_model_len > want.longest and length not in flags and not _fits(d):
        rounded = -(-want.longest // 256) * 256
        d = with_flags(d, **{length: min(d.max_model_len, rounded)})
    return d


def _fits(d: Deployment) -> bool:
    return d.setup.engine not in CONTEXT_DECIDES and fitting.concurrency_of(d) is not None


def budgets(d: Deployment) -> list[int | None]:
    """Tokens a step that are tried: the engine's own, and others."""
    if d.setup.engine not in BUDGET_FLAGS or d.setup.engine == "llama.cpp":
        return [None]
    own = int(value_of(budget_of(d)))
    return [None, *(n for n in BUDGETS if n != own)]


def screened(model: Model, family: Family, want: Want) -> Screened:
    """Every candidate of a family, by arithmetic."""
    try:
        d = built(model, family, want)
        lacking = _lacking(d, want)
    except KvplanError as error:
        return Screened(family, reason=str(error), fits=False)
    if lacking:
        return Screened(family, reason=lacking, fits=False)
    looked_at, able, curves, everyone, clock = 0, [], [], [], clock_of(d)
    for budget in budgets(d):
        found = _over_replicas(d, clock, family, budget, want)
        looked_at += len(found)
        everyone += found
        fits = next((c for c in found if want.goals.met(c.times())), None)
        able += [fits] if fits else []
        curves.append(found)
    best = max(curves, key=len)
    nearest = min(everyone, key=lambda c: want.goals.worst(c.times())[1], default=None)
    able.sort(key=lambda c: (c.replicas, want.goals.worst(c.times())[1]))
    reason = "" if able else _why(nearest, want)
    return Screened(family, looked_at, tuple(able), tuple(best), nearest, reason)


def _lacking(d: Deployment, want: Want) -> str:
    """Why a replica does not hold one request of the load; "" where it does."""
    length = int(want.load.prompt_tokens + want.load.output_tokens)
    policy = policy_of(d, held_tokens(d.setup.engine, want.mode, length, int(want.load.output_tokens)))
    if room(d, policy, want.longest) and d.max_model_len >= want.longest:
        return ""
    memory = memory_of(d, bare)
    if d.max_model_len < want.longest:
        return f"a sequence ends at {d.max_model_len:,} tokens and the longest request has {want.longest:,}"
    headroom = memory["headroom_bytes"]
    if headroom is not None and headroom < 0:
        return f"does not fit: {bytes_text(-headroom)} a rank are missing before any cache"
    pool = memory["kv_pool_bytes"] or 0
    return f"does not fit: {bytes_text(pool)} of cache a rank hold no request of {want.longest:,} tokens"


def _over_replicas(
    d: Deployment, clock: Clock, family: Family, budget: int | None, want: Want
) -> list[Candidate]:
    """Means with one replica, two, and so on, as long as accelerators last and requests do not pile up."""
    if budget is not None:
        d = with_flags(d, **{BUDGET_FLAGS[family.engine]: budget})
    load = want.load
    length = int(load.prompt_tokens + load.output_tokens)
    held = held_tokens(d.setup.engine, want.mode, length, int(load.output_tokens))
    policy = policy_of(d, held, shared=int(load.shared))
    if not room(d, policy, want.longest):
        return []
    counts = np.arange(1, want.most // family.ranks + 1)
    if want.mode == "rate":
        found = steady.open_loop(clock, load, policy, want.amount / counts)
    else:
        found = steady.closed_loop(clock, load, policy, np.maximum(1.0, want.amount / counts))
    busy = counts if want.mode == "rate" else np.minimum(counts, want.amount)
    fields = {
        name: np.broadcast_to(np.asarray(getattr(found, name), float), counts.shape)
        for name in ("ttft_seconds", "tpot_seconds", "e2e_seconds", "output_tokens_per_second")
    }
    fields["output_tokens_per_second"] = fields["output_tokens_per_second"] * busy
    steady_ones = np.isfinite(fields["ttft_seconds"]) & np.isfinite(fields["e2e_seconds"])
    return [
        Candidate(family, budget, int(counts[i]), **{k: float(v[i]) for k, v in fields.items()})
        for i in np.flatnonzero(steady_ones)
    ]


def _why(nearest: Candidate | None, want: Want) -> str:
    if nearest is None:
        return f"{want.most} accelerators are overrun by the load: requests queue without end"
    kind, ratio = want.goals.worst(nearest.times())
    seconds, goal = nearest.times()[kind], want.goals.given()[kind]
    word = kind.removesuffix("_seconds").upper().replace("E2E", "end to end")
    return (
        f"{word} is {seconds:.3g} s on average with {nearest.accelerators} accelerators, "
        f"{ratio:.3g} times its goal of {goal:g} s"
    )
