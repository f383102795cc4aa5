"""One figure compared: what was predicted, what was reported, how far apart they may be and why."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

from kvplan.observe.forms import Said

MEASURED = "the log's pool"
FLAGS = "flags alone"
PARTS = "the log's own parts"
STATED = "as stated"


@dataclass(frozen=True, slots=True)
class Check:
    """A row of `verify`: numbers in SI units, `low` and `high` what the prediction allows.

    `basis` says what the prediction rests on; `reason` why the tolerance is what it is.
    """

    name: str
    predicted: Any
    reported: Any
    unit: str
    agrees: bool
    basis: str
    reason: str
    tolerance: float | None = None
    low: float | None = None
    high: float | None = None
    note: str = ""

    @property
    def relative_error(self) -> float | None:
        """How far the prediction is from the report, as a share of it; None where it is no number."""
        if not _is_number(self.predicted) or not _is_number(self.reported):
            return None
        if self.reported == 0:
            return 0.0 if self.predicted == 0 else None
        return _finite(float(self.predicted - self.reported) / abs(self.reported))

    def row(self) -> dict[str, Any]:
        """The contract's row, with what the prediction rests on beside it."""
        return {
            "name": self.name,
            "predicted": self.predicted,
            "reported": self.reported,
            "relative_error": self.relative_error,
            "tolerance": self.tolerance,
            "agrees": self.agrees,
            "note": "; ".join(part for part in (self.note, self.reason) if part),
            "low": self.low,
            "high": self.high,
            "unit": self.unit,
            "basis": self.basis,
        }

    def with_note(self, note: str) -> Check:
        """The same, with a further remark."""
        return replace(self, note="; ".join(part for part in (self.note, note) if part))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _share(part: float, of: float) -> float | None:
    """A share of what was reported; None where it is no finite number."""
    return _finite(part / abs(of)) if of else None


def _known(said: Said | None) -> TypeGuard[Said]:
    """Whether there is a figure, and it is a number."""
    return said is not None and math.isfinite(said.value) and math.isfinite(said.half)


def exact(
    name: str, predicted: Any, said: Said | None, unit: str, basis: str, reason: str = ""
) -> Check | None:
    """A figure that must be what was printed, but for the digits that were not printed."""
    if not _known(said) or predicted is None:
        return None
    slack = said.half * 1.0001 + (abs(said.value) * 1e-12 if said.half else 0)
    agrees = abs(float(predicted) - said.value) <= slack
    why = reason or ("printed rounded" if said.half else "a whole number: exact")
    tolerance = said.half / abs(said.value) if said.value else 0.0
    return Check(name, predicted, _plain(said), unit, agrees, basis, why, tolerance, said.low, said.high)


def between(
    name: str, predicted: Any, bounds: tuple[Any, Any], said: Said | None, unit: str, basis: str, reason: str
) -> Check | None:
    """A figure that is predicted between two bounds."""
    if not _known(said) or predicted is None or bounds[0] is None or bounds[1] is None:
        return None
    low, high = float(min(bounds)), float(max(bounds))
    agrees = low <= said.high and said.low <= high
    edge = low if said.value < predicted else high
    slack = abs(float(predicted) - edge) + said.half
    tolerance = _share(slack, said.value)
    return Check(name, predicted, _plain(said), unit, agrees, basis, reason, tolerance, low, high)


def within(
    name: str, predicted: Any, share: float, said: Said | None, unit: str, basis: str, reason: str
) -> Check | None:
    """A figure that may be off by a share of what was reported."""
    if not _known(said) or predicted is None:
        return None
    slack = share * abs(said.value) + said.half
    agrees = abs(float(predicted) - said.value) <= slack
    tolerance = _share(slack, said.value)
    bounds = (float(predicted) - slack, float(predicted) + slack)
    return Check(name, predicted, _plain(said), unit, agrees, basis, reason, tolerance, *bounds)


def same(name: str, yours: Any, theirs: Any, reason: str) -> Check:
    """A setting that was stated and that the log shows."""
    return Check(name, yours, theirs, "", yours == theirs, STATED, reason)


def found(checks: Iterable[Check | None]) -> list[Check]:
    """Those that could be made."""
    return [check for check in checks if check is not None]


def _plain(said: Said) -> int | float:
    """A whole number as such; a rounded size in whole bytes, which is what its digits stand for."""
    if said.half == 0 or said.half >= 1:
        return round(said.value)
    return round(said.value, 6)
