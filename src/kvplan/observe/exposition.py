"""A /metrics page: the samples of the names that are asked for, whatever else stands on it.

Every line is read by prometheus-client's parser on its own, so that a line that it refuses takes no other
with it. Lines, samples and seconds are bounded.
"""

from __future__ import annotations

import importlib
import math
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kvplan.errors import BadInput

LONGEST = 1 << 14
MOST_SAMPLES = 100_000
MOST_SECONDS = 10.0
MOST_VALUE = 1e18  # no engine counts or measures more
_LONGEST_NUMBER = 64
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]{0,200}")
_PART = re.compile(r"_(?:bucket|sum|count)$")


@dataclass(frozen=True, slots=True)
class Sample:
    """One value with its labels."""

    name: str
    labels: dict[str, str]
    value: float


@dataclass(slots=True)
class Samples:
    """What a page holds of the names asked for; `refused` lines could not be read, `cut`: more were there."""

    found: list[Sample] = field(default_factory=list)
    lines: int = 0
    refused: int = 0
    cut: bool = False


def samples_of(text: str, wanted: Callable[[str], bool]) -> Samples:
    """The samples of a page whose name, without _bucket, _sum or _count, is wanted."""
    parse = parser()
    read, until = Samples(), time.monotonic() + MOST_SECONDS
    for line in text.split("\n"):
        read.lines += 1
        match = _NAME.match(line)
        if match is None or not (wanted(match[0]) or wanted(_PART.sub("", match[0]))):
            continue
        if len(read.found) >= MOST_SAMPLES or time.monotonic() > until:
            read.cut = True
            break
        sample = _sample(parse, line) if len(line) <= LONGEST else None
        if sample is None:
            read.refused += 1
        else:
            read.found.append(sample)
    return read


def absurd(value: float) -> bool:
    """Whether it is no number, or a finite one that nobody counts."""
    return math.isnan(value) or MOST_VALUE < abs(value) < math.inf


def number(value: Any) -> float | None:
    """A number as a page or a document has it, as text or not; None for what is none, and for the absurd."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    if isinstance(value, str) and not (len(value) <= _LONGEST_NUMBER and value.isascii()):
        return None
    try:
        found = float(value)
    except (ValueError, OverflowError):
        return None
    return found if abs(found) <= MOST_VALUE else None  # nan is not


def _sample(parse: Any, line: str) -> Sample | None:
    try:
        families = list(parse(line))
        one = families[0].samples[0]
        value = float(one.value)
    except (ValueError, IndexError, KeyError, TypeError, OverflowError):
        return None
    labels = {str(name): str(text) for name, text in one.labels.items()}
    return None if absurd(value) else Sample(str(one.name), labels, value)


def parser() -> Any:
    """prometheus-client's parser. Raises BadInput that says how to install it."""
    try:
        return importlib.import_module("prometheus_client.parser").text_string_to_metric_families
    except ImportError:
        raise BadInput(
            "--url: reading metrics needs prometheus-client, not installed; pip install 'kvplan[observe]'"
        ) from None
