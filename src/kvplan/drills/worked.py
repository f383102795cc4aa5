"""The way to an answer, read off its figure: formulas alone as a hint, with the numbers as a solution."""

from __future__ import annotations

from collections.abc import Iterator

from kvplan.drills.quantities import Quantity
from kvplan.figure import Figure, plain

_LONGEST = 400


def steps(figure: Figure) -> list[Figure]:
    """The named results below a figure and itself, each after what it is made of."""
    found: dict[tuple[str, float], Figure] = {}
    for step in _deepest_first(figure):
        found.setdefault((step.name, step.value), step)
    return list(found.values())


def _deepest_first(figure: Figure) -> Iterator[Figure]:
    for part in figure.named_parts():
        yield from _deepest_first(part)
    if figure.parts and figure.name:
        yield figure


def hint(figure: Figure) -> str:
    """What is multiplied by what, without the numbers."""
    lines = []
    for step in steps(figure):
        if step.symbol == "same":
            continue
        lines.append(_short(f"{step.name} = {step.expression(_name_of)}") + _doc(step))
    return "\n".join(dict.fromkeys(lines))


def solution(figure: Figure, quantity: Quantity | None) -> str:
    """Every step with its numbers, the answer last."""
    lines = []
    for step in steps(figure):
        unit = f" {step.unit}" if step.unit else ""
        value = f"{plain(step.value)}{unit}"
        if step.symbol == "same":
            lines.append(f"{step.name} = {step.parts[0].name} = {value}")
            continue
        middle = _short(f"{step.expression(_name_of)} = {step.substituted()}")
        lines.append(f"{step.name} = {middle} = {value}{_doc(step)}")
    if quantity is not None:
        text = quantity.text(figure.value)
        if text.replace(",", "") not in (plain(figure.value).replace(",", ""), ""):
            lines.append(f"that is {text}")
    return "\n".join(lines)


def _name_of(figure: Figure) -> str:
    return figure.name


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _doc(step: Figure) -> str:
    """What a formula means; where its rule was read is left to --explain."""
    said = step.doc.partition(" [")[0].strip()
    return f"   ({said.rstrip('.')})" if said else ""
