"""What a Prometheus has kept of an engine's traffic: rates over time, lengths, prefix hits, concurrency."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from kvplan.errors import shown
from kvplan.facts import store
from kvplan.observe.histogram import Histogram, histogram_of
from kvplan.observe.metrics import ENGINES, FACTS, Reading, bound_of, quantity_names
from kvplan.observe.prometheus import Prometheus, Series, Span

_NICE = (15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400)
_POINTS = 288  # five minutes of a day
_SCRAPES = 4  # in a step: fewer and increase() guesses more than it counts
_COUNTERS = ("requests", "prompt_tokens", "output_tokens", "preemptions", "prefix_queries", "prefix_hits")
_GAUGES = ("running", "waiting", "usage")


@dataclass(frozen=True, slots=True)
class History:
    """Traffic over a span. `rates` are requests a second of each step, None where nothing was kept.

    `means` and `peaks` are those of gauges over the span, all engines together, `busy_mean` that of running
    requests in steps that had any; `reading` has the counts and histograms of the whole span.
    """

    span: Span
    reading: Reading
    rates: tuple[float | None, ...]
    means: dict[str, float] = field(default_factory=dict)
    peaks: dict[str, float] = field(default_factory=dict)
    instances: int = 1
    busy_mean: float | None = None
    notes: tuple[str, ...] = ()

    @property
    def known_seconds(self) -> float:
        """For how long there are values."""
        return sum(rate is not None for rate in self.rates) * float(self.span.step)


@dataclass(frozen=True, slots=True)
class _Asked:
    """Whose series are asked for: an engine's, under the prefix that its names were found with."""

    source: Prometheus
    engine: str
    prefix: str
    model: str | None
    replicas: int
    instances: int

    def names(self, kind: str, quantity: str) -> list[str]:
        """The names of a quantity, the newest first."""
        return [
            f"{self.prefix}{name}" for name in store.toml(FACTS)[self.engine].get(kind, {}).get(quantity, ())
        ]

    def once(self, inner: str) -> str:
        """What ranks that repeat one another say, once."""
        return f"max without ({','.join(store.toml(FACTS)['repeats'])}) ({inner})"

    def grown(self, name: str, span: Span) -> str:
        """What a counter grew by in a step, each series of its own."""
        return self.once(f"increase({self.source.matching(name)}[{span.step}s])")


def read_history(
    source: Prometheus,
    since: float,
    step: int | None = None,
    engine: str | None = None,
    now: float | None = None,
) -> History:
    """The traffic of the last `since` seconds. Raises Unreachable, in one line."""
    end = math.floor(time.time() if now is None else now)
    span = Span(end - since, end, step or 60)
    asked = _found(source, span, engine)
    span = _stepped(asked, span, step)
    counted = {name: s for name in _COUNTERS if (s := _counter(asked, name, span))}
    gauges = {name: g for name in _GAUGES if (g := _gauge(asked, name, span))}
    means = {name: math.fsum(g.values.values()) / len(g.values) for name, g in gauges.items()}
    reading = Reading(
        asked.engine,
        asked.model,
        asked.replicas,
        means,
        {name: s.total for name, s in counted.items()},
        _histograms(asked, span),
        _infos(asked, span),
    )
    peaks = {name: max(g.values.values()) for name, g in gauges.items()}
    rates = _rates(counted.get("requests"), span)
    busy = [value for value in gauges["running"].values.values() if value > 0] if "running" in gauges else []
    busy_mean = math.fsum(busy) / len(busy) if busy else None
    return History(span, reading, rates, means, peaks, asked.instances, busy_mean, tuple(_notes(rates, span)))


def _found(source: Prometheus, span: Span, engine: str | None) -> _Asked:
    """The engine and the model whose series are there; of several the user must choose."""
    groups = _groups(source, span, engine)
    page = source.client.address.page("/api/v1/series")
    if not groups:
        raise source.client.unreachable(
            page,
            "has no series of vLLM, SGLang, TensorRT-LLM or llama-server in that time",
            "check --selector and --since",
        )
    if len(groups) > 1:
        plain = source.client.secrets.masked
        names = ", ".join(f"{kind} {shown(plain(model))}" for kind, model in list(groups)[:4])
        advice = "--selector '{model_name=\"…\"}' takes one"
        raise source.client.unreachable(page, f"has {len(groups)} of them: {names}", advice)
    (kind, model), rows = next(iter(groups.items()))
    labels = store.toml(FACTS)["engines"]
    engines = {tuple((n, row[n]) for n in labels if n in row) for row in rows}
    prefixes = store.toml(FACTS)[kind]["prefixes"]
    prefix = next(p for p in prefixes if any(row["__name__"].startswith(p) for row in rows))
    instances = len({row.get("instance", "") for row in rows})
    return _Asked(source, kind, prefix, model or None, max(1, len(engines)), max(1, instances))


def _groups(
    source: Prometheus, span: Span, engine: str | None
) -> dict[tuple[str, str], list[dict[str, str]]]:
    """Label sets by engine and model."""
    table = store.toml(FACTS)
    pairs = (("gauges", "running"), ("counters", "requests"))
    names = [name for one in ENGINES for kind, q in pairs for name in quantity_names(one, kind, q)]
    found: dict[tuple[str, str], list[dict[str, str]]] = {}
    for row in source.series(names, span):
        name = row.get("__name__", "")
        kind = next((e for e in ENGINES if name.startswith(tuple(table[e]["prefixes"]))), None)
        if kind is not None and engine in (None, kind):
            model = next((row[n] for n in table["models"] if row.get(n)), "")
            found.setdefault((kind, model), []).append(row)
    return found


def _stepped(asked: _Asked, span: Span, step: int | None) -> Span:
    """The span in steps that hold several scrapes each, and not more of them than a curve needs."""
    if step is None:
        least = max(_SCRAPES * _scraped_every(asked, span), span.seconds / _POINTS)
        step = next((nice for nice in _NICE if nice >= least), _NICE[-1])
    step = min(step, max(1, int(span.seconds)))
    count = max(1, int(span.seconds // step))
    return Span(span.end - count * step, span.end, step)


def _scraped_every(asked: _Asked, span: Span) -> float:
    """Seconds between scrapes, of the most scraped series of the last part of the span."""
    back = int(min(span.seconds, 3600))
    for name in asked.names("gauges", "running"):
        counts = asked.source.at(f"max(count_over_time({asked.source.matching(name)}[{back}s]))", span.end)
        if counts and counts[0].total > 1:
            return back / counts[0].total
    return 15.0


def _summed(series: Iterable[Series]) -> Series | None:
    """Several as one; None where there is no value. What is below nothing is none."""
    values: dict[int, float] = {}
    for one in series:
        for place, value in one.values.items():
            if value >= 0:
                values[place] = values.get(place, 0.0) + value
    return Series({}, values) if values else None


def _counter(asked: _Asked, quantity: str, span: Span) -> Series | None:
    """What a counter grew by in each step, over all series."""
    for name in asked.names("counters", quantity):
        got = _grown(asked, name, span)
        if got is not None:
            return got
    return None


def _grown(asked: _Asked, name: str, span: Span) -> Series | None:
    return _summed(asked.source.over(f"sum({asked.grown(name, span)})", span))


def _gauge(asked: _Asked, quantity: str, span: Span) -> Series | None:
    """A gauge's mean in each step: added up over engines, of how full they are the highest."""
    how = "max" if quantity == "usage" else "sum"
    for name in asked.names("gauges", quantity):
        inner = asked.once(f"avg_over_time({asked.source.matching(name)}[{span.step}s])")
        got = _summed(asked.source.over(f"{how}({inner})", span))
        if got is not None:
            return got
    return None


def _histograms(asked: _Asked, span: Span) -> dict[str, Histogram]:
    """The histograms of the whole span: each bucket grew by what it did in all steps."""
    found = {}
    for quantity in store.toml(FACTS)[asked.engine].get("histograms", {}):
        read = _steps(asked, span) if quantity == "step_tokens" else _histogram(asked, quantity, span)
        if read is not None:
            found[quantity] = read
    return found


def _histogram(asked: _Asked, quantity: str, span: Span) -> Histogram | None:
    for name in asked.names("histograms", quantity):
        rows = asked.source.over(f"sum by (le) ({asked.grown(f'{name}_bucket', span)})", span)
        buckets = {bound: s.total for s in rows if (bound := bound_of(s.labels.get("le"))) is not None}
        if buckets and max(buckets.values()) > 0:
            total = _grown(asked, f"{name}_sum", span)
            return histogram_of(buckets, total.total if total is not None else None)
    return None


def _steps(asked: _Asked, span: Span) -> Histogram | None:
    """How many steps the engines took: their number alone."""
    for name in asked.names("histograms", "step_tokens"):
        got = _grown(asked, f"{name}_count", span)
        if got is not None and got.total > 0:
            return Histogram((math.inf,), (got.total,))
    return None


def _rates(requests: Series | None, span: Span) -> tuple[float | None, ...]:
    values = requests.values if requests is not None else {}
    return tuple(max(0.0, values[i]) / span.step if i in values else None for i in range(span.count))


def _infos(asked: _Asked, span: Span) -> dict[str, tuple[Any, ...]]:
    """The settings of the caches, of whichever engine last said them; these name no model."""
    models = store.toml(FACTS)["models"]
    back = int(min(span.seconds, 86400))
    for name in asked.names("infos", "cache"):
        query = f"last_over_time({asked.source.matching(name, models)}[{back}s])"
        rows = asked.source.at(query, span.end)
        if rows:
            return {"cache": tuple(row.labels for row in rows)}
    return {}


def _notes(rates: tuple[float | None, ...], span: Span) -> list[str]:
    missing = sum(rate is None for rate in rates)
    if not missing or missing == len(rates):
        return []
    return [f"{missing} of {span.count} steps of {span.step} s have no value: taken as without requests"]
