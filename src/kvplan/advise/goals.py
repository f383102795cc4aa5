"""What is wanted of a deployment: times that 99 of 100 requests stay within, and how far it is from them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

KINDS = ("ttft_seconds", "tpot_seconds", "e2e_seconds")


@dataclass(frozen=True, slots=True)
class Goals:
    """Seconds that the 99th percentile may take at most, None for no goal."""

    ttft_seconds: float | None = None
    tpot_seconds: float | None = None
    e2e_seconds: float | None = None

    def given(self) -> dict[str, float]:
        """The goals that there are."""
        found = {kind: getattr(self, kind) for kind in KINDS}
        return {kind: goal for kind, goal in found.items() if goal is not None}

    def ratios(self, times: Mapping[str, float | None]) -> dict[str, float]:
        """Each time over its goal: up to 1 is met; infinite where a time is not known."""
        found = {}
        for kind, goal in self.given().items():
            seconds = times.get(kind)
            known = seconds is not None and math.isfinite(seconds)
            found[kind] = seconds / goal if known and seconds is not None else math.inf
        return found

    def worst(self, times: Mapping[str, float | None]) -> tuple[str, float]:
        """The goal that is missed the most, or met the least, and its ratio; ("", 0) without goals."""
        ratios = self.ratios(times)
        if not ratios:
            return "", 0.0
        kind = max(ratios, key=lambda name: ratios[name])
        return kind, ratios[kind]

    def met(self, times: Mapping[str, float | None]) -> bool:
        """Whether every goal is."""
        return self.worst(times)[1] <= 1.0
