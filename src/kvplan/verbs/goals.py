"""Goals on percentiles, read from what a user gives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvplan.errors import BadInput, shown
from kvplan.units import parse_seconds

GOALS = {"ttft_p99": "ttft_seconds", "tpot_p99": "tpot_seconds", "e2e_p99": "e2e_seconds"}


def goals_of(given: Mapping[str, Any]) -> dict[str, float]:
    """Goals in seconds by the kind of time that they bound.

    Raises BadInput naming the option where it is no time above 0.
    """
    goals = {}
    for name, value in given.items():
        if value is None:
            continue
        field = f"--{name.replace('_', '-')}"
        seconds = parse_seconds(value, field) if isinstance(value, str) else value
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds < 1e9:
            raise BadInput(f"{field}: {shown(value)} is not a time above 0; write one such as 0.5s or 30ms")
        goals[GOALS[name]] = float(seconds)
    return goals
