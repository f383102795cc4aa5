"""A Prometheus that knows one truth: it answers the queries that kvplan asks, of series it is given."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

import fake_server as fake

_CALL = re.compile(r"(increase|avg_over_time|count_over_time|last_over_time)\(([^\[]+)\[(\d+)s\]\)")
Labels = Mapping[str, str]


@dataclass
class Truth:
    """Series by name and labels: a value at any moment. Counters grow from nothing; gauges just are."""

    start: float
    end: float
    scrape: float = 15.0
    series: dict[str, list[tuple[dict[str, str], Callable[[float], float]]]] = field(default_factory=dict)
    queries: list[str] = field(default_factory=list)

    def add(self, name: str, labels: dict[str, str], value: Callable[[float], float]) -> None:
        self.series.setdefault(name, []).append((labels, value))

    def matching(self, text: str) -> list[tuple[dict[str, str], Callable[[float], float]]]:
        """Those that a selector with equalities leaves."""
        name, _, inner = text.strip().partition("{")
        wanted = dict(re.findall(r'(\w+)\s*=\s*"([^"]*)"', inner))
        found = self.series.get(name, [])
        return [(one, f) for one, f in found if all(one.get(n) == v for n, v in wanted.items())]

    def at(self, query: str, when: float) -> list[tuple[dict[str, str], float]]:
        """A query at one moment: sums by `le` of what the innermost call gives."""
        call = _CALL.search(query)
        assert call is not None, query
        how, text, back = call[1], call[2], float(call[3])
        rows = []
        for labels, value in self.matching(text):
            since = max(self.start, when - back)
            if when <= self.start or since >= self.end:
                continue
            if how == "increase":
                rows.append((labels, value(when) - value(since)))
            elif how == "count_over_time":
                rows.append((labels, round((when - since) / self.scrape)))
            elif how == "last_over_time":
                rows.append((labels, value(when)))
            else:
                rows.append((labels, (value(when) + value(since)) / 2))
        return rows if how == "last_over_time" else _summed(rows, query)


def _summed(rows: list[tuple[dict[str, str], float]], query: str) -> list[tuple[dict[str, str], float]]:
    groups: dict[str, float] = {}
    by = "le" if "by (le)" in query else ""
    for labels, value in rows:
        key = labels.get(by, "") if by else ""
        groups[key] = (
            max(groups[key], value)
            if query.startswith("max(") and key in groups
            else groups.get(key, 0) + value
        )
    return [({by: key} if by else {}, value) for key, value in groups.items()]


@contextmanager
def prometheus(truth: Truth) -> Iterator[fake.FakeServer]:
    """A server that answers of that truth."""

    def asked(handler: fake.Handler) -> dict[str, str]:
        found = {name: values[0] for name, values in parse_qs(urlsplit(handler.path).query).items()}
        truth.queries.append(found.get("query") or found.get("match[]", ""))
        return found

    def send(handler: fake.Handler, data: Any) -> None:
        body = json.dumps({"status": "success", "data": data}).encode()
        handler.send(200, body, "application/json")

    def series(handler: fake.Handler) -> None:
        match = asked(handler)["match[]"]
        names = re.search(r'__name__=~"([^"]*)"', match)
        wanted = dict(re.findall(r'(\w+)="([^"]*)"', match))
        rows = [
            {"__name__": name, **labels}
            for name, found in truth.series.items()
            if names is not None and re.fullmatch(names[1], name)
            for labels, _ in found
            if all(labels.get(n) == v for n, v in wanted.items())
        ]
        send(handler, rows)

    def query_range(handler: fake.Handler) -> None:
        given = asked(handler)
        first, last, step = (float(given[n]) for n in ("start", "end", "step"))
        found: dict[str, tuple[dict[str, str], list[Any]]] = {}
        when = first
        while when <= last + 1e-6:
            for labels, value in truth.at(given["query"], when):
                found.setdefault(json.dumps(labels), (labels, []))[1].append([when, repr(value)])
            when += step
        send(
            handler,
            {"resultType": "matrix", "result": [{"metric": m, "values": v} for m, v in found.values()]},
        )

    def query(handler: fake.Handler) -> None:
        given = asked(handler)
        when = float(given["time"])
        rows = [{"metric": m, "value": [when, repr(v)]} for m, v in truth.at(given["query"], when)]
        send(handler, {"resultType": "vector", "result": rows})

    with fake.serving() as server:
        server.answers |= {
            "/api/v1/series": series, "/api/v1/query_range": query_range, "/api/v1/query": query,
        }  # fmt: skip
        yield server
