"""Helpers of the tests of `verify`: a log as text, verified."""

from __future__ import annotations

import io
import json
from functools import cache
from pathlib import Path
from typing import Any

import kvplan
from kvplan.observe.observed import Observed
from kvplan.observe.read import observe_log
from kvplan.verbs.answer import Answer

DATA = Path(__file__).parent / "data"
RUNS, LOGS = DATA / "engine-runs", DATA / "engine-logs"
GIB, MIB = 2**30, 2**20


def stream(text: str | bytes) -> io.BytesIO:
    return io.BytesIO(text if isinstance(text, bytes) else text.encode())


def observed(text: str | bytes) -> Observed:
    return observe_log(stream(text))[1]


def verified(text: str | bytes, model: Any = None, **words: Any) -> Answer:
    return kvplan.verify(model, log=stream(text), **words)


def disagreeing(answer: Answer, *bases: str) -> list[tuple[str, Any, Any]]:
    """Rows that disagree, of these bases or of any."""
    rows = [row for row in answer["checks"] if not row["agrees"] and (not bases or row["basis"] in bases)]
    return [(row["name"], row["predicted"], row["reported"]) for row in rows]


@cache
def records(name: str) -> tuple[dict[str, Any], ...]:
    """The records of one engine."""
    return tuple(json.loads(line) for line in (LOGS / f"{name}.jsonl").read_text("utf-8").splitlines())
