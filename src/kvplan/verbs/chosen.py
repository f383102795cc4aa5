"""What a search recommends: ranked answers with reasons, the front, and why the others are not among them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvplan.advise import cost
from kvplan.advise.families import Family
from kvplan.advise.front import front
from kvplan.advise.goals import KINDS, Goals
from kvplan.advise.ranking import Rank, groups_of, rank_of, relaxed
from kvplan.facts.accelerators import find_accelerator
from kvplan.facts.prices import Price, price_of
from kvplan.units import seconds_text
from kvplan.verbs.launch import launch_command
from kvplan.verbs.screening import Candidate, Screened, built
from kvplan.verbs.search import Question
from kvplan.verbs.trial import Tried

WORDS = {"ttft_seconds": "TTFT", "tpot_seconds": "TPOT", "e2e_seconds": "end to end"}
OPTIONS = {"ttft_seconds": "--ttft-p99", "tpot_seconds": "--tpot-p99", "e2e_seconds": "--e2e-p99"}
_REJECTED = 40
Kind = tuple[str, str, str, str]  # accelerator, engine, weights, cache


class Priced:
    """Prices by accelerator, the user's before the list's, and what follows from them."""

    def __init__(self, given: Mapping[str, Price]) -> None:
        self.given = given

    def of(self, accelerator: str) -> Price | None:
        """The price of one, None where it is not known."""
        return self.given.get(accelerator) or price_of(accelerator)

    def per_hour(self, family: Family, accelerators: int) -> float | None:
        """Dollars an hour of so many."""
        price = self.of(family.accelerator)
        return None if price is None else float(cost.usd_per_hour(accelerators, price.usd_per_hour))

    def rank(self, one: Candidate | Tried) -> Rank:
        """The order of two deployments that both meet the goals."""
        slack = one.e2e_seconds if isinstance(one, Candidate) else (one.p99.get("e2e_seconds") or 0.0)
        where = f"{one.family.name} {one.replicas} {one.budget or 0:06}"
        return rank_of(self.per_hour(one.family, one.accelerators), one.accelerators, slack, where)

    def fastest(self, screened: Sequence[Screened], count: int) -> list[Candidate]:
        """The front of cost against time by arithmetic, thinned to about so many."""
        everyone = [c for s in screened for c in s.curve]
        mask = front([(self._weight(c), c.e2e_seconds) for c in everyone])
        best = sorted((c for c, on in zip(everyone, mask, strict=True) if on), key=lambda c: c.e2e_seconds)
        unique = [group[0] for group in groups_of(best, lambda c: (self._weight(c), c.e2e_seconds)).values()]
        step = max(1, -(-len(unique) // count))
        return unique[::step]

    def _weight(self, c: Candidate) -> float:
        usd = self.per_hour(c.family, c.accelerators)
        return float(c.accelerators) if usd is None else usd


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
    best = [group[0] for group in groups_of(good, lambda t: _kind(t.family)).values()]
    rows = [_row(question, t, priced, served, best) for t in best[:wanted]]
    near = None if rows else _nearest(question, tried, priced, served)
    return {
        "met": bool(rows),
        "answers": rows,
        "nearest": near,
        "front": _front(question, [*tried, *front_tried], priced),
        "rejected": _rejected(screened, tried, goals, {_kind(t.family) for t in best}),
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
    d = built(question.model, f, question.want, t.budget)
    return {
        "model": question.model.id,
        "accelerator": f.accelerator,
        "engine": f.engine,
        "engine_version": d.setup.version,
        "replicas": t.replicas,
        **{name: getattr(f, name) for name in ("tp", "pp", "dp", "ep", "attention_dp")},
        "quantization": f.quantization or None,
        "kv_cache_dtype": f.kv_cache_dtype,
        "settings": dict(d.setup.flags),
    }


def _figures(t: Tried, priced: Priced) -> dict[str, Any]:
    usd, rate = priced.per_hour(t.family, t.accelerators), t.output_tokens_per_second
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
    d = built(question.model, t.family, question.want, t.budget)
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
    place, usd = list(best).index(t), priced.per_hour(t.family, t.accelerators)
    first = "the cheapest of" if place == 0 else f"number {place + 1} of"
    money = "whose price is not known" if usd is None else f"at ${usd:,.2f} an hour"
    found = [f"{first} {len(best)} kinds that meet the goals, {money}"]
    found += [
        f"{WORDS[kind]} p99 {seconds_text(t.p99[kind] or 0)} of {seconds_text(goal)}"
        for kind, goal in goals.given().items()
    ]
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
    t = min(played, key=lambda one: (goals.worst(one.p99)[1], priced.rank(one)))
    missed = {kind: ratio for kind, ratio in goals.ratios(t.again or t.p99).items() if ratio > 1}
    worst = {kind: max(x for x in (t.p99[kind], (t.again or {}).get(kind)) if x) for kind in missed}
    d = built(question.model, t.family, question.want, t.budget)
    return {
        "deployment": deployment_part(question, t),
        **_figures(t, priced),
        "misses": missed,
        "relax": {OPTIONS[kind]: relaxed(seconds) for kind, seconds in worst.items()},
        "launch": launch_command(d, served, "auto", t.family.quantization or None),
    }


def _front(question: Question, tried: Sequence[Tried], priced: Priced) -> list[dict[str, Any]]:
    """Simulated deployments that no other beats in cost and in time to the last token, cheapest first."""
    kept = [t for t in tried if t.p99.get("e2e_seconds") and not t.rejected]
    if not kept:
        return []
    usd = [priced.per_hour(t.family, t.accelerators) for t in kept]
    mask = front([(price, t.mean["e2e_seconds"]) for price, t in zip(usd, kept, strict=True)])
    on = sorted((t for t, at in zip(kept, mask, strict=True) if at), key=priced.rank)
    unique = [g[0] for g in groups_of(on, lambda t: (t.family, t.replicas, t.budget)).values()]
    goals = question.want.goals
    return [
        {"deployment": deployment_part(question, t), **_figures(t, priced), "met": t.met(goals)}
        for t in unique
    ]


def _rejected(
    screened: Sequence[Screened], tried: Sequence[Tried], goals: Goals, kept: set[Kind]
) -> list[dict[str, Any]]:
    """Why an accelerator with an engine and number formats is not among the answers: its nearest family."""
    played = groups_of(list(tried), lambda t: t.family)
    groups = groups_of(list(screened), lambda s: _kind(s.family))
    rows = []
    for kind, members in groups.items():
        if kind in kept:
            continue
        best = min(members, key=lambda s: _distance(s, played, goals))
        miss = _distance(best, played, goals)
        rows.append({**kind_part(kind), "reason": _said(best, played, goals), "misses_by": miss[1]})
    rows.sort(key=lambda row: (row["misses_by"] is None, row["misses_by"] or 0.0))
    return rows[:_REJECTED]


def _kind(f: Family) -> Kind:
    return f.accelerator, f.engine, f.quantization, f.kv_cache_dtype


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
    s: Screened, played: Mapping[Family, list[Tried]], goals: Goals
) -> tuple[int, float | None, str]:
    """How far a family is from the goals: (stage it failed at, the worst ratio or None, its name)."""
    runs = [t for t in played.get(s.family, []) if t.p99]
    if runs:
        return 0, min(goals.worst(t.p99)[1] for t in runs), s.family.name
    if s.able:
        return 1, 1.0, s.family.name
    if s.nearest is not None:
        return 2, goals.worst(s.nearest.times())[1], s.family.name
    if s.fits:
        return 3, None, s.family.name
    return 4, None, f"{999 - s.family.ranks} {s.family.name}"  # the most ranks come nearest


def _said(s: Screened, played: Mapping[Family, list[Tried]], goals: Goals) -> str:
    """Why a family is not among the answers, in a line."""
    runs = [t for t in played.get(s.family, []) if t.p99]
    if runs:
        t = min(runs, key=lambda one: goals.worst(one.p99)[1])
        times = t.p99 if not goals.met(t.p99) else (t.again or t.p99)
        kind, ratio = goals.worst(times)
        if t.rejected:
            return f"{s.family.name}: {t.rejected:,} requests are longer than it takes"
        return (
            f"{s.family.name}: {t.accelerators} simulated, {WORDS[kind]} p99 is "
            f"{seconds_text(times[kind] or 0)}, {ratio:.3g} times its goal"
        )
    refused = next((t.reason for t in played.get(s.family, []) if t.reason), "")
    if refused:
        return f"{s.family.name}: {refused}"
    if s.able:
        c = s.able[0]
        return f"{s.family.name}: dearer; {c.accelerators} may do by arithmetic, which was not simulated"
    return f"{s.family.name}: {s.reason}"


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
    notes = list(question.model.notes)
    for key in dict.fromkeys(t.family.accelerator for t in best):
        price = priced.of(key)
        text = "no price is known; give --price" if price is None else price.source.where
        notes.append(f"price of {key}: {text}")
    if any(t.replicas > 1 for t in best):
        notes.append("replicas: start so many of the launch, behind a router that sends to the least loaded")
    if any(t.family.quantization or t.family.kv_cache_dtype != "auto" for t in best):
        notes.append("fewer bits may cost quality: compare answers before relying on them")
    return notes
