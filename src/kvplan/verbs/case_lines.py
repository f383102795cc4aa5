"""`latency --cases` line by line: text in, a document or an error out, in order."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from kvplan.errors import BadInput, KvplanError, shown
from kvplan.verbs.cases import read_case, read_lines
from kvplan.verbs.latency import case_answer


def answered(path: str) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Each line's row, None where it is no object, with its `latency` document or `{"error": "…"}`.

    Times in seconds, rates a second. Raises BadInput where the file cannot be read.
    """
    for number, line in read_lines(path):
        row = None
        try:
            row = _row(line, number)
            case = read_case(row)
            found = case_answer(case.clock, case.load, case.policy, case.mode, case.amount)
            yield row, {**found, "notes": [*case.notes]}
        except KvplanError as error:
            yield row, {"error": " ".join(str(error).split())}


def _row(line: str, number: int) -> dict[str, Any]:
    if not line.strip():
        raise BadInput(f"line {number}: empty; write one object a line")
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        raise BadInput(f"line {number}: {shown(line)} is not JSON; write one object a line") from None
    if not isinstance(found, dict):
        raise BadInput(f'line {number}: {shown(line)} is no object; write one such as {{"model": "…"}}')
    return found
