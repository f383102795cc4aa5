"""From a template and what was drawn to a question: its text, its one right answer, the way to it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from kvplan.drills import worked
from kvplan.drills.deck import Template, models_of
from kvplan.drills.draw import Draw
from kvplan.drills.grade import within
from kvplan.drills.quantities import Quantity
from kvplan.drills.question import LETTERS, Asked, Question, quantity_of
from kvplan.verbs import drill_compute, drill_fit, drill_growth, drill_levers, drill_size, drill_speed
from kvplan.verbs.drill_subject import Asker, Unsuitable, subject, words

ASKERS: dict[str, Asker] = {
    **drill_size.ASKERS,
    **drill_growth.ASKERS,
    **drill_fit.ASKERS,
    **drill_speed.ASKERS,
    **drill_compute.ASKERS,
    **drill_levers.ASKERS,
}
_EQUAL, _UNEQUAL = 0.01, 0.15  # a statement of equality is true within the first, false beyond the second
_ABOUT, _NOT_ABOUT = 0.08, 0.2


def built(template: Template, draw: Draw) -> Question:
    """A question of that template; Unsuitable where the draw makes no sensible one."""
    drawn: dict[str, Any] = {name: draw.one(values) for name, values in template.draw.items()}
    if template.of:
        drawn["model"] = draw.one(models_of(template))
    asked = ASKERS[template.asks](drawn)
    quantity, value = quantity_of(template.quantity), asked.figure.value
    if not template.choose and not quantity.least <= value <= quantity.most:
        raise Unsuitable("not a sensible size")
    filled = {**words(drawn), **asked.words}
    made = {"number": _number, "truth": _truth, "choice": _choice}[template.kind]
    parts = made(template, asked, quantity, filled, draw)
    parts["text"] = singular(parts["text"])
    raw = {**drawn, **({"model": subject(drawn["model"]).name} if "model" in drawn else {})}
    raw["eight"] = " --kv-cache-dtype fp8" if drawn.get("dtype") == "fp8" else ""
    return Question(
        topic=template.topic,
        name=template.name,
        kind=template.kind,
        figure=asked.figure,
        hint=_hint(template, asked),
        given={**drawn, **asked.given, **parts.pop("given", {})},
        command=template.command.format_map(raw),
        **parts,
    )


def singular(text: str) -> str:
    """A text that speaks of one thing as of one: `1 prompts` is 1 prompt, and it does, has and decodes."""
    one = r"(?<![\d.,])1 (prompt|request|sequence|token|rank|step|block|layer)s?\b"
    text = re.sub(rf"\b([Dd])o {one}", r"\1oes 1 \2", text)
    text = re.sub(rf"{one} had prompts of", r"1 \1 had a prompt of", text)
    text = re.sub(rf"{one}( of [\d,]+ tokens)? (have|are|decode)\b", _of_one, text)
    return re.sub(one, r"1 \1", text)


def _of_one(match: re.Match[str]) -> str:
    verb = {"have": "has", "are": "is", "decode": "decodes"}[match[3]]
    return f"1 {match[1]}{match[2] or ''} {verb}"


def _hint(template: Template, asked: Asked) -> str:
    """What to think of, and the formulas; of a choice these would say which it is, or say nothing."""
    formulas = "" if template.kind == "choice" else worked.hint(asked.figure)
    return _lines(template.think, formulas)


def _lines(*parts: str) -> str:
    return "\n".join(part for part in parts if part)


def _number(
    template: Template, asked: Asked, quantity: Quantity, filled: Mapping[str, str], _: Draw
) -> dict[str, Any]:
    value = asked.figure.value
    tolerance = quantity.tolerance if template.tolerance is None else template.tolerance
    apart = {n: v for n, v in asked.slips.items() if v > 0 and not within(v, value, max(tolerance, 0.02))}
    return {
        "text": template.text.format_map(filled),
        "value": value,
        "quantity": quantity,
        "tolerance": tolerance,
        "slips": apart,
        "solution": _lines(template.reason, worked.solution(asked.figure, quantity)),
    }


def _truth(
    template: Template, asked: Asked, quantity: Quantity, filled: Mapping[str, str], draw: Draw
) -> dict[str, Any]:
    value, given = asked.figure.value, {}
    way = worked.solution(asked.figure, quantity)
    if template.claims:
        claim = draw.one(template.claims)
        filled = {**filled, "claimed": quantity.text(value * claim)}
        holds, given = claim == 1, {"claim": claim, "claimed": value * claim}
        if not holds and filled["claimed"] == quantity.text(value):
            raise Unsuitable("the claim looks alike")
    else:
        holds = _holds(template.holds, value, {**asked.given, **filled})
    return {
        "text": template.text.format_map(filled),
        "value": float(holds),
        "given": given,
        "solution": _lines(template.reason, way, f"so it is {'true' if holds else 'false'}"),
    }


def _holds(rule: str, value: float, given: Mapping[str, Any]) -> bool:
    """Whether a statement such as "= times", "~ batch" or "< 1" is true; Unsuitable where it nearly is."""
    sign, _, word = rule.partition(" ")
    operand = float(str(given[word]).replace(",", "")) if word in given else float(word)
    off = abs(value - operand) / operand
    if sign in "=~":
        near, far = (_EQUAL, _UNEQUAL) if sign == "=" else (_ABOUT, _NOT_ABOUT)
        if near < off < far:
            raise Unsuitable("neither true nor false")
        return off <= near
    if 1e-9 < off < _UNEQUAL:
        raise Unsuitable("too near")
    return off > 1e-9 and (value > operand if sign == ">" else value < operand)


def _choice(
    template: Template, asked: Asked, quantity: Quantity, filled: Mapping[str, str], draw: Draw
) -> dict[str, Any]:
    if template.choose:
        return _chosen(template, asked, quantity, filled, draw)
    texts = [text.format_map(filled) for text in template.choices]
    order = draw.shuffled(range(len(texts)))
    return {
        "text": template.text.format_map(filled),
        "value": float(order.index(0)),
        "choices": tuple(texts[i] for i in order),
        "solution": _lines(template.reason, worked.solution(asked.figure, quantity)),
    }


def _chosen(
    template: Template, asked: Asked, quantity: Quantity, filled: Mapping[str, str], draw: Draw
) -> dict[str, Any]:
    """A choice between figures: the least of them is right."""
    options = draw.shuffled(asked.options)
    right = min(range(len(options)), key=lambda i: options[i][1].value)
    sizes = [f"{LETTERS[i]}) {quantity.text(figure.value)}" for i, (_, figure) in enumerate(options)]
    way = worked.solution(options[right][1], quantity)
    return {
        "text": template.text.format_map(filled),
        "value": float(right),
        "choices": tuple(label for label, _ in options),
        "solution": _lines(template.reason, "; ".join(sizes), way),
        "given": {"options": [figure.value for _, figure in options]},
    }
