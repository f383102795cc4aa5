"""Times that a server measured beside those of the same load predicted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kvplan.engines.deployment import Deployment
from kvplan.errors import KvplanError
from kvplan.figure import bare
from kvplan.observe.forms import Said
from kvplan.observe.traffic import Traffic
from kvplan.units import seconds_text
from kvplan.verbs.asked import asked_of
from kvplan.verbs.latency import latency_part
from kvplan.verbs.verify_check import Check, between, found

LOAD = "the load that was measured"
_WHY = "80 % of measurements lie in the interval (docs/accuracy.md); "
_MEANS = "one load of mean lengths stands for all requests"
_NAMES = ("ttft_seconds", "tpot_seconds", "e2e_seconds")


@dataclass(frozen=True, slots=True)
class Timed:
    """Rows of times, what was predicted for, and what could not be compared."""

    checks: list[Check] = field(default_factory=list)
    load: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Measured:
    """Mean times of a load: lengths in tokens, users at once, times in seconds, None where not measured."""

    prompt_tokens: float
    output_tokens: float
    concurrency: float
    shared_tokens: float = 0.0
    ttft_seconds: float | None = None
    tpot_seconds: float | None = None
    e2e_seconds: float | None = None


def traffic_times(traffic: Traffic, d: Deployment | None) -> Timed:
    """The means of what a server's histograms hold, beside those predicted."""
    if traffic.requests is None:
        return Timed(notes=["the server counts no requests: its times are not predicted; --probe measures"])
    if not traffic.requests or not any(traffic.mean(name) for name in _NAMES):
        return Timed(notes=[f"{_none_ended(traffic)}: no times to compare"])
    if traffic.prompt_tokens is None or traffic.output_tokens is None:
        return Timed(notes=["the server states no lengths of requests: its times are not predicted"])
    if traffic.batch is None:
        return Timed(notes=["the server does not say how many requests ran at once: times are not predicted"])
    shared = (traffic.prefix_hit_share or 0.0) * traffic.prompt_tokens
    users = traffic.batch * max(1, traffic.reading.replicas)
    means = {name: traffic.mean(name) for name in _NAMES}
    load = Measured(traffic.prompt_tokens, traffic.output_tokens, users, shared, **means)
    return times(load, d, "", _MEANS)


def _none_ended(traffic: Traffic) -> str:
    """That there is nothing to compare, and since when."""
    if traffic.requests:
        return "the server has measured no request"
    if traffic.seconds:
        return f"no request ended in the {seconds_text(traffic.seconds)} for which it was watched"
    return "no request has ended yet"


def times(load: Measured, d: Deployment | None, suffix: str, why: str) -> Timed:
    """Measured means beside those of so many users who ask again; `suffix` goes to each name."""
    if d is None or d.accelerator is None:
        return Timed(notes=["times are not predicted: they need an accelerator, such as --gpu h100"])
    try:
        serving = _predicted(load, d)
    except KvplanError as error:
        return Timed(notes=[f"times are not predicted: {error}"])
    rows = []
    for name in _NAMES:
        value = getattr(load, name)
        predicted = serving[name]
        ends = (serving["low"][name], serving["high"][name])
        if value is not None and predicted is not None:
            rows.append(
                between(
                    f"{name}{suffix}", predicted, ends, Said(value, 1e-9 * value), "s", LOAD, f"{_WHY}{why}"
                )
            )
    return Timed(found(rows), _document(load))


def _predicted(load: Measured, d: Deployment) -> dict[str, Any]:
    prompt = max(1, round(load.prompt_tokens))
    asked = asked_of(
        d,
        prompt_tokens=prompt,
        output_tokens=max(1, round(load.output_tokens)),
        concurrency=max(1, round(load.concurrency)),
        shared_prefix_tokens=min(prompt - 1, round(load.shared_tokens)) or None,
    )
    serving: dict[str, Any] = latency_part(d, asked, bare)["serving"]
    return serving


def _document(load: Measured) -> dict[str, Any]:
    return {
        "prompt_tokens": max(1, round(load.prompt_tokens)),
        "output_tokens": max(1, round(load.output_tokens)),
        "concurrency": max(1, round(load.concurrency)),
        "shared_prefix_tokens": round(load.shared_tokens),
    }
