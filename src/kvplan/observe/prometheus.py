"""A Prometheus, or what speaks as it does, asked for series over time by its own query language."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kvplan.errors import BadInput, shown
from kvplan.observe.exposition import number
from kvplan.observe.http import Client, Page

_MATCHER = r"\s*[a-zA-Z_][a-zA-Z0-9_]*\s*(?:=~|!~|!=|=)\s*(?:\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*')\s*"
_SELECTOR = re.compile(rf"\{{(?:{_MATCHER}(?:,{_MATCHER})*,?)?\s*\}}")
_ONE = re.compile(_MATCHER)
MOST_SERIES = 20_000
MOST_POINTS = 10_000


@dataclass(frozen=True, slots=True)
class Span:
    """From `start` until `end`, seconds since 1970, in steps of whole seconds, each reaching back."""

    start: float
    end: float
    step: int

    @property
    def count(self) -> int:
        """How many steps."""
        return max(1, round((self.end - self.start) / self.step))

    @property
    def seconds(self) -> float:
        """How long."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Series:
    """Values by the number of their step; a step without one has none."""

    labels: Mapping[str, str]
    values: Mapping[int, float] = field(default_factory=dict)

    @property
    def total(self) -> float:
        """The sum over all steps."""
        return math.fsum(self.values.values())


@dataclass(frozen=True, slots=True)
class Prometheus:
    """Asks for names with the user's selector."""

    client: Client
    selector: str = "{}"

    def matching(self, name: str, without: Iterable[str] = ()) -> str:
        """The series of a name that the selector leaves, matchers of some labels dropped."""
        inner = [part.strip() for part in _ONE.findall(self.selector[1:-1])]
        kept = [part for part in inner if re.split(r"[=!]", part, maxsplit=1)[0].strip() not in without]
        return f"{name}{{{','.join(kept)}}}"

    def series(self, names: Iterable[str], span: Span) -> list[dict[str, str]]:
        """The label sets of those names within the span."""
        inner = self.matching("")[1:-1]
        match = f'{{__name__=~"{"|".join(names)}"{"," if inner else ""}{inner}}}'
        query = [("match[]", match), ("start", f"{span.start:.3f}"), ("end", f"{span.end:.3f}")]
        found = self._data("/api/v1/series", query)
        rows = found if isinstance(found, list) else []
        return [_labels(row) for row in rows[:MOST_SERIES] if isinstance(row, dict)]

    def over(self, query: str, span: Span) -> list[Series]:
        """A query at the end of every step of the span."""
        asked = [
            ("query", query),
            ("start", f"{span.start + span.step:.3f}"),
            ("end", f"{span.end:.3f}"),
            ("step", str(span.step)),
        ]
        result = _result(self._data("/api/v1/query_range", asked))
        return [_series(row, span) for row in result[:MOST_SERIES] if isinstance(row, dict)]

    def at(self, query: str, moment: float) -> list[Series]:
        """A query at one moment; its value stands at step 0."""
        result = _result(self._data("/api/v1/query", [("query", query), ("time", f"{moment:.3f}")]))
        found = []
        for row in result[:MOST_SERIES]:
            value = _value(row.get("value")) if isinstance(row, dict) else None
            if value is not None:
                found.append(Series(_labels(row.get("metric")), {0: value[1]}))
        return found

    def _data(self, path: str, query: list[tuple[str, str]]) -> Any:
        page = self.client.get(path, query)
        document = page.json()
        if not isinstance(document, dict) or document.get("status") != "success":
            raise self._refused(page, document)
        return document.get("data")

    def _refused(self, page: Page, document: Any) -> Exception:
        if page.status in (401, 403):
            return self.client.unreachable(page.url, f"refuses ({page.status})", "give --header")
        if isinstance(document, dict) and isinstance(document.get("error"), str):
            error = shown(self.client.secrets.masked(document["error"]), 160)
            return self.client.unreachable(
                page.url, f"refuses the query: {error}", "shorten --since, or --step"
            )
        what = f"answers {page.status}" if not page.ok else "does not answer as a Prometheus"
        return self.client.unreachable(page.url, what, "give the address of its query API")


def selector_of(given: Any) -> str:
    """A selector, `{name="value", …}`, checked. Raises BadInput for what is none."""
    text = given.strip() if isinstance(given, str) else "{0}"
    if given in (None, ""):
        return "{}"
    if not text.startswith("{"):
        text = f"{{{text}}}"
    if len(text) > 4096 or not _SELECTOR.fullmatch(text):
        raise BadInput(
            f'--selector: {shown(given)} is no selector; write such as \'{{job="vllm", model_name="x"}}\''
        )
    return text


def _result(data: Any) -> list[Any]:
    found = data.get("result") if isinstance(data, dict) else None
    return found if isinstance(found, list) else []


def _series(row: dict[str, Any], span: Span) -> Series:
    points = row.get("values")
    values: dict[int, float] = {}
    for point in points[:MOST_POINTS] if isinstance(points, list) else ():
        read = _value(point)
        if read is not None:
            place = round((read[0] - span.start) / span.step) - 1
            if 0 <= place < span.count:
                values[place] = read[1]
    return Series(_labels(row.get("metric")), values)


def _value(point: Any) -> tuple[float, float] | None:
    """A moment and its value; what is no number, or an absurd one, is none."""
    if not isinstance(point, list) or len(point) != 2:
        return None
    when, value = number(point[0]), number(point[1])
    return (when, value) if when is not None and value is not None else None


def _labels(given: Any) -> dict[str, str]:
    return {n: v for n, v in given.items() if isinstance(v, str)} if isinstance(given, dict) else {}
