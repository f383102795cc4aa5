"""Checks of what a user gives on the command line or in Python."""

from __future__ import annotations

import numbers

from kvplan.errors import BadInput, shown


def whole(field: str, value: object, at_least: int, at_most: int) -> int:
    """A whole number in its range; the error names the flag and the value."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise BadInput(f"{field}: {shown(value)} is not a whole number")
    number = int(value)
    if not at_least <= number <= at_most:
        raise BadInput(
            f"{field}: {number:,} is outside {at_least:,} to {at_most:,}; give a number in that range"
        )
    return number
