"""What a search recommends: ranked answers with reasons, the front, and why the others are not among them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kvplan.advise import cost
from kvplan.advise.families import Family
from kvplan.advise.front import front
from kvplan.advise.goals import KINDS
from kvplan.advise.ranking import groups_of, relaxed
from kvplan.facts.accelerators import find_accelerator
from kvplan.units import counted, seconds_text
from kvplan.verbs.launch import launch_command, launch_notes
from kvplan.verbs.order import Kind, Priced, kind_of
from kvplan.verbs.screening import Candidate, Screened, built
from kvplan.verbs.search import Question
from kvplan.verbs.trial import Tried

WORDS = {"ttft_seconds": "TTFT", "tpot_seconds": "TPOT", "e2e_seconds": "end to end"}
OPTIONS = {"ttft_seconds": "--ttft-p99", "tpot_seconds": "--tpot-p99", "e2e_seconds": "--e2e-p99"}
_REJECTED = 40
_SPANS = 3  # times what a request takes: for less, a run says little of a load that goes on
_DEARER = 1  # the stage at which a family may do, and was not worth simulating
_ROUTERS = {
    "least-loaded": "that sends each request to the least loaded",
    "prefix": "that sends each request to where most of its prompt is cached",
}


def chosen_part(
    question: Question,
    screened: Sequence[Screened],
    tried: Sequence[Tried],
    front_tried: Sequence[Tried],
    priced: Priced,
    wanted: int,
    served: str,
) -> dict[str, Any]:
    """The contract's `recommend` document."""
    goals = question.want.goals
    good = sorted((t for t in tried if t.met(goals)), key=priced.rank)
    best = [group[0] for group in groups_of(good, lambda t: kind_of(t.family)).values()]
    rows = [_row(question, t, priced, served, best) for t in best[:wanted]]
    near = None if rows else _nearest(question, tried, priced, served)
    return {
        "met": bool(rows),
        "answers": rows,
        "nearest": near,
        "front": _front(question, [*tried, *front_tried], priced),
        "rejected": _rejected(screened, tried, priced, {kind_of(t.family) for t in best}),
        "looked_at": sum(s.looked_at for s in screened),
        "families": len(screened),
        "simulated": len(tried) + len(front_tried),
        "goals": {OPTIONS[kind]: goal for kind, goal in goals.given().items()},
        "load": _load(question),
        "notes": _notes(question, best[:wanted], priced),
    }


def deployment_part(question: Question, t: Tried | Candidate) -> dict[str, Any]:
    """What is deployed: of each replica, and how many there are."""
    f = t.family
    d = built(question.model, f, question.want, t.setting)
    return {
        "model": question.model.id,
        "accelerator": f.accelerator,
        "engine": f.engine,
        "engine_version": d.setup.version,
        "replicas": t.replicas,
        "routing": question.routing if t.replicas > 1 else None,
        **{name: getattr(f, name) for name in ("tp", "pp", "dp", "ep", "attention_dp")},
        "quantization": f.quantization or None,
        "kv_cache_dtype": f.kv_cache_dtype,
        "settings": dict(d.setup.flags),
    }


def _figures(t: Tried, priced: Priced) -> dict[str, Any]:
    usd, rate = priced.per_hour(t), t.output_tokens_per_second
    power = find_accelerator(t.family.accelerator).power_watts
    watts = None if power is None else cost.most_watts(t.accelerators, power)
    joules = None if watts is None or not rate else cost.most_joules_per_output_token(watts, rate)
    return {
        "accelerators": t.accelerators,
        "cost_per_hour": usd,
        "cost_per_million_output_tokens": None
        if usd is None or not rate
        else cost.usd_per_million_output_tokens(usd, rate),
        "most_kwh_per_million_output_tokens": None
        if joules is None
        else cost.most_kwh_per_million_output_tokens(joules),
        **{f"{kind.removesuffix('_seconds')}_p99_seconds": t.p99.get(kind) for kind in KINDS},
        **{f"{kind.removesuffix('_seconds')}_mean_seconds": t.mean.get(kind) for kind in KINDS},
        "output_tokens_per_second": rate,
        "preemptions": t.preemptions,
    }


def _row(question: Question, t: Tried, priced: Priced, served: str, best: Sequence[Tried]) -> dict[str, Any]:
    goals = question.want.goals
    d = built(question.model, t.family, question.want, t.setting)
    return {
        "deployment": deployment_part(question, t),
        **_figures(t, priced),
        "again": t.again and _percentiles(t.again),
        "slow": t.slow and {**_percentiles(t.slow), "met": goals.met(t.slow)},
        "reason": _reason(question, t, priced, best),
        "launch": launch_command(d, served, "auto", t.family.quantization or None),
    }


def _percentiles(times: Mapping[str, float | None]) -> dict[str, float | None]:
    return {f"{kind.removesuffix('_seconds')}_p99_seconds": times.get(kind) for kind in KINDS}


def _reason(question: Question, t: Tried, priced: Priced, best: Sequence[Tried]) -> str:
    goals = question.want.goals
    place, usd = list(best).index(t), priced.per_hour(t)
    first = "the cheapest" if place == 0 and usd is not None else f"number {place + 1}"
    money = "whose price is not known" if usd is None else f"at ${usd:,.2f} an hour"
    found = [f"{first} of {counted(len(best), 'kind')} found to meet the goals, {money}"]
    found += [
        f"{WORDS[kind]} p99 {seconds_text(t.p99[kind] or 0)} of {seconds_text(goal)}"
        for kind, goal in goals.given().items()
    ]
    if 1 < t.least == t.replicas:
        found.append(f"{counted(t.replicas - 1, 'replica')} would be overrun by a load that goes on")
    if t.again is None:
        found.append("a trace has one course: other traffic was not tried")
    else:
        kind, ratio = goals.worst(t.again)
        found.append(f"with other requests drawn alike {WORDS[kind]} takes {ratio:.0%} of its goal")
    if t.slow is None:
        found.append("how slow steps may be is not known for this hardware")
    elif goals.met(t.slow):
        found.append("met even if every step takes what the slow end of its 80 % interval allows")
    else:
        kind, ratio = goals.worst(t.slow)
        found.append(
            f"at the slow end of steps' 80 % interval {WORDS[kind]} would take {ratio:.3g} times its goal"
        )
    return "; ".join(found)


def _nearest(
    question: Question,
    tried: Sequence[Tried],
    priced: Priced,
    served: str,
) -> dict[str, Any] | None:
    """What misses the goals the least, and which goal to relax to what."""
    goals = question.want.goals
    played = [t for t in tried if t.p99 and not t.reason and not t.rejected]
    if not played:
        return None
    t = min(played, key=lambda one: (goals.worst(one.worst_times())[1], priced.rank(one)))
    times = t.worst_times()
    missed = {kind: ratio for kind, ratio in goals.ratios(times).items() if ratio > 1}
    d = built(question.model, t.family, question.want, t.setting)
    return {
        "deployment": deployment_part(question, t),
        **_figures(t, priced),
        "misses": missed,
        "relax": {OPTIONS[kind]: relaxed(times[kind] or 0.0) for kind in missed},
        "launch": launch_command(d, served, "auto", t.family.quantization or None),
    }


def _front(question: Question, tried: Sequence[Tried], priced: Priced) -> list[dict[str, Any]]:
    """Simulated deployments that no other beats in cost and in time to the last token, cheapest first."""
    kept = [t for t in tried if t.p99.get("e2e_seconds") and not t.rejected]
    if not kept:
        return []
    mask = front([(w, t.mean["e2e_seconds"]) for w, t in zip(priced.weights(kept), kept, strict=True)])
    on = sorted((t for t, at in zip(kept, mask, strict=True) if at), key=priced.rank)
    unique = [g[0] for g in groups_of(on, lambda t: (kind_of(t.family), t.accelerators)).values()]
    goals = question.want.goals
    return [
        {"deployment": deployment_part(question, t), **_figures(t, priced), "met": t.met(goals)}
        for t in unique
    ]


def _rejected(
    screened: Sequence[Screened], tried: Sequence[Tried], priced: Priced, kept: set[Kind]
) -> list[dict[str, Any]]:
    """Why an accelerator with an engine and number formats is not among the answers: its nearest family."""
    played = groups_of(list(tried), lambda t: t.family)
    groups = groups_of(list(screened), lambda s: kind_of(s.family))
    rows = []
    for kind, members in groups.items():
        if kind not in kept:
            best = min(members, key=lambda s: _distance(s, played, priced))
            far = _distance(best, played, priced)
            row = {**kind_part(kind), "reason": f"{best.family.name}: {_said(best, played, priced)}"}
            rows.append((far, {**row, "misses_by": None if far[0] == _DEARER else _finite(far[1])}))
    return [row for _, row in sorted(rows, key=lambda pair: pair[0])][:_REJECTED]


def _finite(ratio: float) -> float | None:
    return ratio if math.isfinite(ratio) else None


def kind_part(kind: Kind) -> dict[str, Any]:
    """Such a kind in the document's words."""
    accelerator, engine, quantization, kv = kind
    return {
        "accelerator": accelerator,
        "engine": engine,
        "quantization": quantization or None,
        "kv_cache_dtype": kv,
    }


def _distance(
    s: Screened, played: Mapping[Family, list[Tried]], priced: Priced
) -> tuple[int, float, int, str]:
    """How far a family is from an answer: the stage it failed at, by how much there, its ranks, its name."""
    goals, name = priced.goals, s.family.name
    runs = [t for t in played.get(s.family, []) if t.p99]
    if runs:
        return 0, min(goals.worst(t.worst_times())[1] for t in runs), 0, name
    if s.able:
        return _DEARER, priced.rank(s.able[0]).cost_per_hour, s.able[0].accelerators, name
    if s.nearest is not None:
        return 2, goals.worst(s.nearest.times())[1], 0, name
    most = s.family.pp - 1024 * s.family.ranks  # the most ranks come nearest, the fewest stages among equals
    return (3 if s.fits else 4), math.inf, most, name


def _said(s: Screened, played: Mapping[Family, list[Tried]], priced: Priced) -> str:
    """Why a family is not among the answers, in a line."""
    goals = priced.goals
    runs = [t for t in played.get(s.family, []) if t.p99]
    if runs:
        t = min(runs, key=lambda one: goals.worst(one.worst_times())[1])
        if t.rejected:
            return f"{counted(t.rejected, 'request')} are longer than it takes"
        times = t.worst_times()
        kind, ratio = goals.worst(times)
        return (
            f"{t.accelerators} simulated, {WORDS[kind]} p99 is "
            f"{seconds_text(times[kind] or 0)}, {ratio:.3g} times its goal"
        )
    refused = next((t.reason for t in played.get(s.family, []) if t.reason), "")
    if refused:
        return refused
    if s.able:
        c = s.able[0]
        usd = priced.per_hour(c)
        money = "" if usd is None else f", at ${usd:,.2f} an hour"
        return f"dearer: {c.accelerators} may do by arithmetic{money}; not simulated"
    return s.reason


def _load(question: Question) -> dict[str, Any]:
    want = question.want
    return {
        want.mode: want.amount,
        "prompt_tokens": want.load.prompt_tokens,
        "output_tokens": want.load.output_tokens,
        "longest_tokens": want.longest,
        "requests": len(question.workloads[0]),
        "source": question.workloads[0].source,
    }


def _notes(question: Question, best: Sequence[Tried], priced: Priced) -> list[str]:
    """What a reader must know before renting anything."""
    notes = [*question.model.notes, *question.workloads[0].notes]
    for key in dict.fromkeys(t.family.accelerator for t in best):
        price = priced.of(key)
        text = "no price is known; give --price" if price is None else price.source.where
        notes.append(f"price of {key}: {text}")
    for t in best:
        d = built(question.model, t.family, question.want, t.setting)
        notes += launch_notes(d, t.family.quantization or None)
    notes += [*_short_run(question, best), *_drafter(question)]
    if any(t.replicas > 1 for t in best):
        notes.append(
            "replicas: start so many of the launch, each with accelerators of its own "
            f"(CUDA_VISIBLE_DEVICES or its like), behind a router {_ROUTERS[question.routing]}"
        )
    if any(t.family.quantization or t.family.kv_cache_dtype != "auto" for t in best):
        notes.append("fewer bits may cost quality: compare answers before relying on them")
    return list(dict.fromkeys(notes))


def _short_run(question: Question, best: Sequence[Tried]) -> list[str]:
    """A word on requests that arrive for hardly longer than one of them takes."""
    workload = question.workloads[0]
    known = workload.arrival_seconds[~np.isnan(workload.arrival_seconds)]
    span = float(known[-1] - known[0])
    longest = max((t.p99.get("e2e_seconds") or 0.0 for t in best), default=0.0)
    if workload.users or span > _SPANS * longest:
        return []
    return [
        f"requests arrive for {seconds_text(span)} and take up to {seconds_text(longest)}: "
        "a longer --duration, or more --requests, would tell more"
    ]


def _drafter(question: Question) -> list[str]:
    """A word on drafts that no setting of an engine asks for."""
    want = question.want
    stated = any(name.startswith("speculative") for flags in want.flags.values() for name in flags)
    if not want.load.drafts or stated:
        return []
    return [f"the launch starts no drafter: give the engine one that drafts {want.load.drafts} tokens a step"]
