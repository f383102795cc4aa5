"""What a /metrics page says, whichever engine wrote it: gauges, counters, histograms, the cache's settings.

The names of each engine and version are facts/engines/metrics.toml. Series of ranks that repeat one another
count once, those of engines with caches of their own are added up.
"""

from __future__ import annotations

import functools
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvplan.facts import store
from kvplan.observe.exposition import MOST_VALUE, Sample, Samples, absurd, samples_of
from kvplan.observe.histogram import Histogram, added, histogram_of

FACTS = "engines/metrics.toml"
ENGINES = ("vllm", "sglang", "tensorrt-llm", "llama.cpp")
_FULL = 1.01  # of a cache: what says more is no share
KINDS = ("gauges", "counters", "histograms", "infos")
_MOST = (
    "usage",
    "prefix_hit_rate",
    "kv_tokens",
    "block_tokens",
    "num_blocks",
    "context_length",
    "busy_slots",
)
_ENDING = re.compile(r"_(bucket|sum|count)$")
_MOST_ENGINES = 4096


@dataclass(frozen=True, slots=True)
class Reading:
    """One engine's page, or several like engines' together, at one moment.

    `replicas` are engines with caches of their own; gauges and counters are sums over them, but those that
    say what one of them is like: the highest. `infos` has the labels of each engine's settings.
    """

    engine: str
    model: str | None = None
    replicas: int = 1
    gauges: Mapping[str, float] = field(default_factory=dict)
    counters: Mapping[str, float] = field(default_factory=dict)
    histograms: Mapping[str, Histogram] = field(default_factory=dict)
    infos: Mapping[str, tuple[Mapping[str, str], ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def prefix_hit_rate(self) -> float | None:
        """The share of prompt tokens found in the cache, since the counts began; None before the first."""
        asked, hits = self.counters.get("prefix_queries"), self.counters.get("prefix_hits", 0.0)
        if asked:
            return min(1.0, hits / asked)
        return self.gauges.get("prefix_hit_rate") if asked is None else None

    def since(self, earlier: Reading) -> Reading:
        """What was counted between an earlier reading and this one; gauges stay as they are now."""
        counters = {
            name: now - before if (before := earlier.counters.get(name, 0.0)) <= now else now
            for name, now in self.counters.items()
        }
        histograms = {
            name: now.minus(earlier.histograms[name]) if name in earlier.histograms else now
            for name, now in self.histograms.items()
        }
        return Reading(
            self.engine, self.model, self.replicas, self.gauges, counters, histograms, self.infos, self.notes
        )


@functools.cache
def names_of(engine: str) -> dict[str, tuple[str, str, int]]:
    """Every name of an engine by kind: the quantity it stands for, and how old the name is (0 the newest)."""
    table = store.toml(FACTS)[engine]
    found: dict[str, tuple[str, str, int]] = {}
    for kind in KINDS:
        for quantity, names in table.get(kind, {}).items():
            for age, name in enumerate(names):
                for prefix in table["prefixes"]:
                    found.setdefault(f"{kind}/{prefix}{name}", (kind, quantity, age))
    return found


def quantity_names(engine: str, kind: str, quantity: str) -> list[str]:
    """The names of a quantity under every prefix, the newest first."""
    table = store.toml(FACTS)[engine]
    names = table.get(kind, {}).get(quantity, [])
    return [f"{prefix}{name}" for name in names for prefix in table["prefixes"]]


@functools.cache
def _wanted() -> frozenset[str]:
    return frozenset(name.partition("/")[2] for engine in ENGINES for name in names_of(engine))


def readings_of(text: str) -> tuple[list[Reading], Samples]:
    """What a page says: a reading for each engine and model on it, and how the page was read."""
    read = samples_of(text, _wanted().__contains__)
    return readings(read.found), read


def readings(samples: Iterable[Sample]) -> list[Reading]:
    """A reading for each engine and model that these samples are of."""
    table = store.toml(FACTS)
    groups: dict[tuple[str, str], list[Sample]] = defaultdict(list)
    for sample in samples:
        engine = next((e for e in ENGINES if sample.name.startswith(tuple(table[e]["prefixes"]))), None)
        if engine is not None:
            model = next((sample.labels[n] for n in table["models"] if sample.labels.get(n)), "")
            groups[engine, model].append(sample)
    _share_unnamed(groups)
    return [_reading(engine, model, group) for (engine, model), group in groups.items()]


def _share_unnamed(groups: dict[tuple[str, str], list[Sample]]) -> None:
    """Samples that name no model, as vLLM's settings of the cache, belong to each model of their engine."""
    for engine, model in list(groups):
        named = [key for key in groups if key[0] == engine and key[1]]
        if not model and named:
            loose = groups.pop((engine, ""))
            for key in named:
                groups[key] = [*groups[key], *loose]


def _reading(engine: str, model: str, samples: Sequence[Sample]) -> Reading:
    kinds: dict[str, dict[str, Any]] = {kind: {} for kind in KINDS}
    best: dict[tuple[str, str], tuple[int, list[Sample]]] = {}
    for (kind, quantity, age), group in _by_quantity(engine, samples).items():
        kept = best.get((kind, quantity))
        if kept is None or age < kept[0]:
            best[kind, quantity] = (age, group)
    for (kind, quantity), (_, group) in best.items():
        value = _value(kind, quantity, group)
        if value is not None:
            kinds[kind][quantity] = value
    gauges, counters, histograms, infos = (kinds[kind] for kind in KINDS)
    return Reading(engine, model or None, _replicas(samples), gauges, counters, histograms, infos)


def _by_quantity(engine: str, samples: Sequence[Sample]) -> dict[tuple[str, str, int], list[Sample]]:
    names = names_of(engine)
    found: dict[tuple[str, str, int], list[Sample]] = defaultdict(list)
    for sample in samples:
        base = _ENDING.sub("", sample.name)
        for key in (f"gauges/{sample.name}", f"counters/{sample.name}", f"infos/{sample.name}"):
            if key in names:
                found[names[key]].append(sample)
        if base != sample.name and f"histograms/{base}" in names:
            found[names[f"histograms/{base}"]].append(sample)
    _all_meanings(engine, found)
    return found


def _all_meanings(engine: str, found: dict[tuple[str, str, int], list[Sample]]) -> None:
    """A counter that stands for two quantities, as SGLang's prompt tokens, counts for both."""
    table = store.toml(FACTS)[engine]["counters"]
    for quantity, names in table.items():
        for other, theirs in table.items():
            if other != quantity and names == theirs and ("counters", quantity, 0) in found:
                found.setdefault(("counters", other, 0), found["counters", quantity, 0])


def _value(kind: str, quantity: str, samples: list[Sample]) -> Any:
    if kind == "infos":
        return tuple(sample.labels for sample in samples[:_MOST_ENGINES])
    if kind == "histograms":
        return _histogram(samples)
    most = _FULL if quantity == "usage" else MOST_VALUE
    plain = [s for s in samples if not s.labels.get("priority") and 0 <= s.value <= most]
    values = [max(group) for group in _distinct(plain).values()]
    if not values:
        return None
    return max(values) if quantity in _MOST else sum(values)


def _distinct(samples: Iterable[Sample]) -> dict[tuple[tuple[str, str], ...], list[float]]:
    """Values by their labels, those of ranks that repeat one another apart."""
    repeats = store.toml(FACTS)["repeats"]
    found: dict[tuple[tuple[str, str], ...], list[float]] = defaultdict(list)
    for sample in samples:
        key = tuple(sorted((n, v) for n, v in sample.labels.items() if n not in repeats))
        found[key].append(sample.value)
    return found


def _histogram(samples: Sequence[Sample]) -> Histogram | None:
    """The buckets of every series as one histogram."""
    repeats = store.toml(FACTS)["repeats"]
    series: dict[tuple[tuple[str, str], ...], tuple[dict[float, float], list[float]]] = {}
    for sample in samples:
        rest = {n: v for n, v in sample.labels.items() if n not in repeats and n != "le"}
        buckets, sums = series.setdefault(tuple(sorted(rest.items())), ({}, []))
        if sample.name.endswith("_sum"):
            sums.append(sample.value)
        elif sample.name.endswith("_bucket") and (bound := bound_of(sample.labels.get("le"))) is not None:
            buckets[bound] = max(buckets.get(bound, 0.0), sample.value)
        elif sample.name.endswith("_count"):
            buckets[math.inf] = max(buckets.get(math.inf, 0.0), sample.value)
    found = [histogram_of(buckets, max(sums, default=None)) for buckets, sums in series.values()]
    return added(h for h in found if h is not None)


def bound_of(text: str | None) -> float | None:
    """A bucket's upper bound, as its label has it; None for what is no number."""
    try:
        value = float(text or "")
    except ValueError:
        return None
    return None if absurd(value) else value


def _replicas(samples: Iterable[Sample]) -> int:
    names = store.toml(FACTS)["engines"]
    found = {tuple((n, s.labels[n]) for n in names if n in s.labels) for s in samples}
    return max(1, len({key for key in found if key}))
