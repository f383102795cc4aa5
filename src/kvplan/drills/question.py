"""A question: what is asked, the one right answer, and the wrong ones that have a name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvplan.drills.quantities import QUANTITIES, Quantity
from kvplan.figure import Figure

KINDS = ("number", "choice", "truth")
LETTERS = "abcdefgh"


@dataclass(frozen=True, slots=True)
class Asked:
    """What a product's figure gives a question: the answer, words for its text, named wrong values.

    `options` are figures to choose between, each with its label; `given` what the text states beside the
    draw, as plain numbers.
    """

    figure: Figure
    words: Mapping[str, str] = field(default_factory=dict)
    slips: Mapping[str, float] = field(default_factory=dict)
    options: tuple[tuple[str, Figure], ...] = ()
    given: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Question:
    """One question of a topic, ready to be asked and graded.

    `value` is the answer: a number in base units, a truth (True or False), or the index of a choice.
    """

    topic: str
    name: str
    kind: str
    text: str
    value: float
    figure: Figure
    quantity: Quantity | None = None
    tolerance: float = 0.0
    choices: tuple[str, ...] = ()
    hint: str = ""
    solution: str = ""
    slips: Mapping[str, float] = field(default_factory=dict)
    given: Mapping[str, Any] = field(default_factory=dict)
    command: str = ""

    @property
    def answer_text(self) -> str:
        """The answer as a reader sees it."""
        if self.kind == "truth":
            return "true" if self.value else "false"
        if self.kind == "choice":
            return f"{LETTERS[int(self.value)]}) {self.choices[int(self.value)]}"
        assert self.quantity is not None  # noqa: S101
        return self.quantity.text(self.value)

    @property
    def accepts(self) -> str:
        """How far an answer may be off, in words."""
        if self.kind == "truth":
            return "true or false"
        if self.kind == "choice":
            return "a letter"
        return f"within {self.tolerance:.0%}".replace("%", " %") if self.tolerance else "exactly"

    def row(self, number: int) -> dict[str, Any]:
        """The question in a document: plain values, the answer and its way with it."""
        truth, choice = self.kind == "truth", self.kind == "choice"
        value: Any = bool(self.value) if truth else LETTERS[int(self.value)] if choice else self.value
        return {
            "number": number,
            "topic": self.topic,
            "name": self.name,
            "kind": self.kind,
            "text": self.text,
            "choices": list(self.choices) if choice else None,
            "answer": value,
            "answer_text": self.answer_text,
            "unit": self.quantity.unit if self.quantity else None,
            "quantity": self.quantity.name if self.quantity else None,
            "tolerance": self.tolerance if self.quantity else None,
            "hint": self.hint,
            "solution": self.solution,
            "slips": dict(self.slips),
            "given": dict(self.given),
            "command": self.command,
            "lesson": f"docs/lessons/{self.topic}.md",
        }


def quantity_of(name: str) -> Quantity:
    """The quantity of that name, which a deck writes."""
    return QUANTITIES[name]
