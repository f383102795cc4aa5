"""What a lever leaves, in figures: the same pipeline run on the changed deployment, beside the baseline."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvplan.advise.cost import usd_per_hour, usd_per_million_output_tokens
from kvplan.cost import cache
from kvplan.engines.deployment import Deployment
from kvplan.errors import KvplanError
from kvplan.facts.prices import Price, price_of
from kvplan.figure import Leaf, Source, Trust, bare, named, value_of, whole
from kvplan.verbs import fit as fitting
from kvplan.verbs.asked import Asked
from kvplan.verbs.latency import deployment_row, latency_part
from kvplan.verbs.lever import Lever, unchanged, words
from kvplan.verbs.lever_load import apart_times, host_times
from kvplan.verbs.timing import UNLIMITED, dealt, policy_of

TIMES = ("ttft_seconds", "tpot_seconds", "e2e_seconds", "output_tokens_per_second")
COMPARED = (
    "weight_bytes",
    "kv_pool_bytes",
    "bytes_per_token",
    "load_cache_bytes",
    "kv_tokens",
    "max_concurrency",
    "running_at_once",
    *TIMES,
    "cost_per_million_output_tokens",
)
_JUDGED = (*COMPARED[:-1], "fits", "accelerators")
_OF_MEMORY = ("weight_bytes", "kv_pool_bytes")
_CLOSE = 1e-12
_HALF = 0.5


@dataclass(frozen=True, slots=True)
class Priced:
    """Prices of an hour of an accelerator that the user states, by its key; the listed ones beside them."""

    given: Mapping[str, Price]

    def of(self, d: Deployment) -> Price | None:
        """The price of one of the deployment's accelerators; of a part of one only where it is stated."""
        key = d.accelerator.key if d.accelerator else ""
        if key in self.given or d.memory_source.where == "--gpu-memory":
            return self.given.get(key)
        return price_of(key)


def row_of(lever: Lever, priced: Priced, leaf: Leaf = bare) -> dict[str, Any]:
    """The contract's row of a lever, with memory and more beside it; null figures where it is refused."""
    entry = lever.entry
    row: dict[str, Any] = {"name": lever.name, "kind": lever.kind, "change": dict(lever.change)}
    why = lever.refused
    figures: dict[str, Any] = {}
    if lever.d is not None and not why:
        try:
            figures, why = _figures(lever, lever.d, priced, leaf)
        except KvplanError as error:
            why = " ".join(str(error).split())
    return {
        **row,
        **(figures or _no_figures()),
        "effect": "refused" if why else "changed",
        "ratios": None,
        "costs_you": entry["costs"],
        "source": entry["source"],
        "note": why or lever.note,
    }


def _figures(lever: Lever, d: Deployment, priced: Priced, leaf: Leaf) -> tuple[dict[str, Any], str]:
    """(figures of the row, why there are none where the engine does not serve the model)."""
    asked = lever.asked
    fit = fitting.fit_part(d, None, leaf)
    memory, capacity = fit["memory"], fit["capacity"]
    if capacity["kv_tokens"] is None:
        unserved = [note for note in fit["notes"] if "does not serve" in note]
        return {}, unserved[0] if unserved else "the engine keeps no cache of it that could be sized"
    each = cache.bytes_per_token(d.model, d.stored, leaf, after_windows=False)
    times = _times(lever, d, asked, leaf)
    both = 2 if lever.times == "apart" else 1
    said = Source(Trust.STATED, "ranks, replicas and sides")
    count = leaf("accelerators", deployment_row(d)["accelerators"] * both, "", said)
    found = {
        "accelerators": count,
        "fits": capacity["fits"],
        "memory": memory,
        "bytes_per_token": named("bytes_per_token", "B/token", each),
        "load_cache_bytes": _wanted(d, asked, leaf),
        "kv_tokens": capacity["kv_tokens"],
        "max_concurrency": capacity["max_concurrency"],
        "running_at_once": _running(d, asked, leaf),
        **times,
        "cost_per_million_output_tokens": _cost(d, priced, count, times["output_tokens_per_second"], leaf),
        "host": None,
    }
    if lever.times == "host":
        found["host"] = lever.fields["on_host"].document()
    return found, ""


def _no_figures() -> dict[str, Any]:
    names = ("accelerators", "fits", "memory", *COMPARED[2:], "host")
    return dict.fromkeys(names)


def _wanted(d: Deployment, asked: Asked, leaf: Leaf) -> Any:
    """Bytes of one rank that the whole load would hold at its end; None of a rate, which names no number."""
    if asked.mode == "rate":
        return None
    length = leaf("sequence_tokens", asked.length, "token", asked.lengths_source)
    amount = leaf(asked.mode, asked.amount, "sequence", asked.source)
    each = cache.bytes_per_sequence(d.model, d.stored, length, leaf)
    return named("load_cache_bytes", "B", amount * named("bytes_per_sequence", "B", each))


def _running(d: Deployment, asked: Asked, leaf: Leaf) -> Any:
    """Sequences of the load that run at once on all replicas, as cache and engine let; None: any number."""
    policy = policy_of(d, asked.held(d.setup.engine), leaf, asked.shared)
    if value_of(policy.running) >= UNLIMITED:
        return None
    running = policy.running
    if dealt(d).replicas > 1:
        running = running * leaf("replicas", dealt(d).replicas, "", Source(Trust.STATED, "--dp"))
    return named("running_at_once", "sequence", whole(running))


def _times(lever: Lever, d: Deployment, asked: Asked, leaf: Leaf) -> dict[str, Any]:
    """TTFT, TPOT and tokens a second of the whole deployment under the load; None where not known."""
    found: dict[str, Any] = {}
    if lever.times == "none":
        return dict.fromkeys(TIMES)
    if lever.times == "apart":
        served = apart_times(d, asked)
        found = {name: getattr(served, name) for name in TIMES}
        if asked.output_tokens == 1:
            found["tpot_seconds"] = None
    elif lever.times == "host":
        found = host_times(d, asked, lever.fields["on_host"])
    if not found:
        serving = latency_part(d, asked, leaf)["serving"]
        found = {name: serving[name] for name in TIMES}
    return found


def _cost(d: Deployment, priced: Priced, count: Any, rate: Any, leaf: Leaf) -> Any:
    """Dollars for a million output tokens; None where no price is known, or nothing is made."""
    price = priced.of(d)
    if price is None or not rate:
        return None
    each = leaf("usd_per_accelerator_hour", price.usd_per_hour, "$/h", price.source)
    return usd_per_million_output_tokens(usd_per_hour(count, each), rate)


def compared(row: dict[str, Any], base: dict[str, Any], lever: Lever) -> dict[str, Any]:
    """The row with its ratios to the baseline; where no figure differs it says so, and why."""
    if row["effect"] == "refused":
        return row
    ratios = {name: _ratio(_figure(row, name), _figure(base, name)) for name in COMPARED}
    judged = [name for name in _JUDGED if name not in lever.entry.get("not_judged", ())]
    if lever.times != "none" and all(_equal(_figure(row, n), _figure(base, n)) for n in judged):
        because = lever.because or unchanged("otherwise")
        if row["output_tokens_per_second"] is None and lever.change:
            because = unchanged("room")
        return row | {"ratios": ratios, "effect": "none", "note": f"no effect, because {because}"}
    return row | {"ratios": ratios}


def _figure(row: dict[str, Any], name: str) -> Any:
    if name in _OF_MEMORY:
        return row["memory"][name] if row["memory"] else None
    return row[name]


def _ratio(then: Any, now: Any) -> float | None:
    return None if then is None or not now else then / now


def _equal(then: Any, now: Any) -> bool:
    if then is None or now is None or isinstance(now, bool):
        return then is now
    return math.isclose(then, now, rel_tol=_CLOSE)


@dataclass(frozen=True, slots=True)
class Binds:
    """What stands in the load's way: the `figure` that levers are ordered by, and in words why.

    The figure is one of a row's, or "goals": how far the worst of the `goals` (seconds, by figure) is missed.
    """

    figure: str
    says: str
    goals: Mapping[str, float] = field(default_factory=dict)

    def gain(self, row: dict[str, Any], base: dict[str, Any]) -> float | None:
        """How many times better than the baseline a row is there; None where that is not known.

        Tokens a second are those of each accelerator.
        """
        then, now = self._of(row), self._of(base)
        if then is None or not now or not then or row["fits"] is False:
            return None  # what does not fit gains nothing
        if self.figure == "output_tokens_per_second":
            return float(then / now * base["accelerators"] / row["accelerators"])
        return float(now / then)

    def _of(self, row: dict[str, Any]) -> float | None:
        if self.figure != "goals":
            found: float | None = None if self.figure == "fits" else row[self.figure]
            return found
        times = [None if row[name] is None else row[name] / goal for name, goal in self.goals.items()]
        return None if None in times else max(t for t in times if t is not None)


def binds(base: dict[str, Any], asked: Asked) -> Binds:
    """What binds the baseline: room, a goal missed, places, or the phase that takes most of the time."""
    said = words("binds")
    if base["fits"] is False or base["output_tokens_per_second"] is None:
        return Binds("fits", said["fits"])
    goals = {"ttft_seconds": asked.ttft, "tpot_seconds": asked.tpot}
    asks = {name: goal for name, goal in goals.items() if goal is not None and base[name] is not None}
    missed = {name: base[name] / goal for name, goal in asks.items() if base[name] > goal}
    if missed:
        worst = max(missed, key=lambda name: missed[name])
        name = worst.removesuffix("_seconds").upper()
        return Binds("goals", said["goals"].format(name=name, times=missed[worst]), asks)
    rate, held = "output_tokens_per_second", base["running_at_once"]
    if asked.mode == "rate" and base["e2e_seconds"] is None:
        return Binds(rate, said["rate"])
    if asked.mode != "rate" and held is not None and held < asked.amount:
        return Binds(rate, said["places"].format(held=held, asked=int(asked.amount)))
    first = base["ttft_seconds"] / base["e2e_seconds"]
    phase = "prefill" if first > _HALF else "decode"
    return Binds("e2e_seconds", said[phase].format(share=max(first, 1 - first)))


def ordered(rows: list[dict[str, Any]], base: dict[str, Any], binding: Binds) -> list[dict[str, Any]]:
    """What helps most first; then what changes nothing, then what cannot be had."""
    places = {"changed": 0, "none": 1, "refused": 2}

    def key(row: dict[str, Any]) -> tuple[Any, ...]:
        gain = binding.gain(row, base)
        if binding.figure == "fits" and row["effect"] == "changed":
            ready = row["fits"] is not False and row["output_tokens_per_second"] is not None
            tokens = row["kv_tokens"] or 0
            rate = row["output_tokens_per_second"] or tokens
            return (0, not ready, row["accelerators"] if ready else 0, -rate)
        return (places[row["effect"]], gain is None, -(gain or 0))

    return sorted(rows, key=key)
