"""What a seed draws: the same on every machine and version of Python."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Draw:
    """A stream of choices that a seed and a place in the run decide."""

    def __init__(self, seed: int, place: int) -> None:
        self._random = random.Random(f"kvplan {seed} {place}")  # noqa: S311  numbers to practise on

    def one(self, of: Sequence[T]) -> T:
        """One of several, each as likely."""
        return of[int(self._random.random() * len(of))]

    def shuffled(self, of: Sequence[T]) -> list[T]:
        """All of them in a drawn order."""
        keyed = sorted((self._random.random(), i) for i in range(len(of)))
        return [of[i] for _, i in keyed]
