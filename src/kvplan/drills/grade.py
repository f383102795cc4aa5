"""Grading what was typed: right, a slip that has a name, wrong, or nothing that can be read."""

from __future__ import annotations

import functools
import re
import tomllib
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from typing import Any

from kvplan.drills.question import LETTERS, Question
from kvplan.drills.typed import LONGEST, Reading, readings

RIGHT, SLIP, WRONG, UNREAD = "right", "slip", "wrong", "unread"
_ASIDE = (
    "option",
    "answer",
    "choice",
    "its",
    "it",
    "is",
    "that",
    "thats",
    "this",
    "i",
    "think",
    "please",
    "letter",
)
_TRUE = {"t", "true", "yes", "y", "yep", "yeah", "right", "correct", "1", "agree", "so", "holds", "✓"}
_FALSE = {"f", "false", "no", "n", "nope", "wrong", "incorrect", "0", "disagree", "untrue", "not", "✗"}
_NOT_OPPOSED = {
    "1",
    "0",
    "so",
    "holds",
    "agree",
    "disagree",
    "not",
}  # said later, in a reason
_EXACT = 0.004  # nearer than any two units are to one another
_QUOTED = 4  # words in a row of a choice that are taken to mean it


@dataclass(frozen=True, slots=True)
class Verdict:
    """What an answer is worth, and what is said of it; `slips` names what went wrong."""

    status: str
    says: str = ""
    slips: tuple[str, ...] = ()
    value: float | None = None


def grade(question: Question, typed: str) -> Verdict:
    """The verdict on an answer as it was typed."""
    if question.kind == "truth":
        return _truth(question, typed)
    if question.kind == "choice":
        return _choice(question, typed)
    assert question.quantity is not None  # noqa: S101
    scale = question.quantity.scale(question.value)
    found = readings(typed, question.quantity, scale)
    if isinstance(found, str):
        return Verdict(UNREAD, found)
    if question.quantity.name == "share":
        found = _nearer(question, found)
    for reading in found:
        if within(reading.value, question.value, question.tolerance):
            mixed = _mixed(question, reading)
            said = mixed or _remark(question, reading, scale)
            return Verdict(RIGHT, said, ("gb_for_gib",) if mixed else (), reading.value)
    for reading in found:
        mixed = _mixed(question, reading)
        if mixed:
            return Verdict(RIGHT, mixed, ("gb_for_gib",), reading.value * _step(reading))
    taken = (
        f", taken as {found[0].value:.3g}" if len(found) == 1 and _is_bare_share(question, found[0]) else ""
    )
    slips = list(dict.fromkeys(s for reading in found for s in _slips(question, reading, typed)))
    value = min((r.value for r in found), key=lambda v: _distance(v, question.value))
    if slips:
        says = "; or ".join(says for _, says in slips[:2]) + taken
        return Verdict(SLIP, says, tuple(n for n, _ in slips), value)
    return Verdict(WRONG, _how_far(value, question.value), value=value)


def _is_bare_share(question: Question, reading: Reading) -> bool:
    return not reading.unit and question.quantity is not None and question.quantity.name == "share"


def _nearer(question: Question, found: list[Reading]) -> list[Reading]:
    """A bare number below 1 as a share alone, where that is a known wrong answer at least as nearly as the
    same number in per cent is the right one: 0.9903 beside 0.97 % is the rest, not 0.99 %."""
    if len(found) != 2 or not _is_bare_share(question, found[0]):
        return found
    share, hundredth = (reading.value for reading in found)
    near = max(question.tolerance / 2, 0.02)
    wrong = [w for w in (1 - question.value, *question.slips.values()) if w > 0 and within(share, w, near)]
    off = abs(hundredth / question.value - 1)
    return found[:1] if any(abs(share / w - 1) <= off for w in wrong) else found


def _step(reading: Reading) -> float:
    """How many times more a binary unit is than the decimal one that was written."""
    return float(1.024**reading.meaning.power) if reading.meaning.base == 1000 else 1.0


def _mixed(question: Question, reading: Reading) -> str:
    """What is said of a decimal unit that was written for the binary one: 40 GB for 40 GiB; else nothing."""
    step, value, right = _step(reading), reading.value, question.value
    if step == 1 or question.quantity is None or question.quantity.name != "bytes":
        return ""
    off = abs(value * step / right - 1)
    if off >= abs(value / right - 1) or off > max(question.tolerance / 2, 0.02):
        return ""
    near = max(question.tolerance / 2, 0.02)
    if off > _EXACT and any(within(value, wrong, near) for wrong in question.slips.values()):
        return ""
    return f"taken as {' KMGTP'[reading.meaning.power]}iB; {_units_differ(reading.meaning.power)}"


def _units_differ(power: int) -> str:
    letter = " KMGTP"[power]
    more = f"{100 * (1.024**power - 1):.1f} %"
    return f"1 {letter}iB is 2^{10 * power} bytes, {more} more than 1 {letter}B"


def within(value: float, right: float, tolerance: float) -> bool:
    """Whether a value is as near as the tolerance asks; an exact one only to the last digit shown."""
    return abs(value - right) <= max(tolerance, 1e-9) * abs(right)


def _distance(value: float, right: float) -> float:
    return abs(value - right)


def _remark(question: Question, reading: Reading, scale: float) -> str:
    """What is worth saying of an answer that is right."""
    if not reading.unit and scale != 1 and reading.meaning.factor == scale:
        word = question.answer_text.rpartition(" ")[2]
        return f"taken as {word}: write the unit"
    if reading.meaning.base == 1000 and question.quantity and question.quantity.name == "bytes":
        exact = within(reading.value, question.value, _EXACT)
        return "" if exact else f"near enough; {_units_differ(reading.meaning.power)}"
    return ""


@functools.cache
def _table() -> dict[str, Any]:
    text = resources.files("kvplan.drills").joinpath("slips.toml").read_text("utf-8")
    return tomllib.loads(text)


def slip_says(name: str) -> str:
    """What is said of a slip of that name."""
    return str(_table()[name])


def _slips(question: Question, reading: Reading, typed: str) -> Iterator[tuple[str, str]]:
    """Names of what may have gone wrong, the surest first."""
    value, right, near = reading.value, question.value, max(question.tolerance / 2, 0.02)
    others = _other_units(reading)
    if any(within(other, right, near) for other in others):
        yield "gb_for_gib", _units_mixed(reading.meaning.power, typed)
    for name, wrong in question.slips.items():
        if within(value, wrong, near):
            binary = str(question.given.get("binary", "GiB"))  # what a question of units asks for
            mixed = name == "gb_for_gib"
            yield name, _units_mixed(" KMGTP".index(binary[0]), typed) if mixed else slip_says(name)
    assert question.quantity is not None  # noqa: S101
    for name, row in _table()["any"].get(question.quantity.name, {}).items():
        if any(within(value, wrong, near) for wrong in _general(row, right)):
            yield name, row["says"]
    for name, wrong in question.slips.items():
        if not within(value, wrong, near) and any(within(other, wrong, near) for other in others):
            yield name, f"{slip_says(name)}; and GB and GiB are mixed"


def _units_mixed(power: int, typed: str) -> str:
    says = slip_says("gb_for_gib")
    return says.format(differ=_units_differ(power), typed=" ".join(typed.split()))


def _general(row: dict[str, Any], right: float) -> list[float]:
    if row.get("rest"):
        return [1 - right]
    if row.get("inverse"):
        return [1 / right] if right else []
    return [right * factor for factor in row["factors"]]


def _other_units(reading: Reading) -> list[float]:
    """The value had GB been GiB, or GiB been GB; none where no such unit was written."""
    m = reading.meaning
    step = float(1.024**m.power)
    return [reading.value * step, reading.value / step] if m.base else []


def _how_far(value: float, right: float) -> str:
    if value <= 0:
        return "it is more than nothing"
    times = value / right
    if 1 / 1.5 <= times <= 1.5:
        return f"{abs(times - 1):.0%} too {'much' if times > 1 else 'little'}".replace("%", " %")
    return f"{times:.3g} times too much" if times > 1 else f"{1 / times:.3g} times too little"


def _words(typed: str) -> list[str]:
    text = unicodedata.normalize("NFKC", typed[:LONGEST]).lower()
    return re.findall(r"[^\W_]+|[✓✗]", text.replace("'", ""))


def _truth(question: Question, typed: str) -> Verdict:
    said = _said(typed)
    if said is None:
        return Verdict(UNREAD, "write true or false")
    return Verdict(RIGHT if said == question.value else WRONG, value=float(said))


def _said(typed: str) -> bool | None:
    """True or false, whichever the first word says; None where both are said, or neither."""
    words = [w for w in _words(typed) if w not in _ASIDE]
    if not words or len(typed) > LONGEST:
        return None
    if words[0][0].isdigit() and not re.fullmatch(
        r"[\s(]*[01][\s).!]*", unicodedata.normalize("NFKC", typed)
    ):
        return None
    found: list[bool] = []
    for place, word in enumerate(words):
        known = word in _TRUE or word in _FALSE
        if not known or (place and word in _NOT_OPPOSED):
            continue
        denied = place > 0 and words[place - 1] == "not"
        found.append((word in _TRUE) != denied)
    if words[0] == "not" and len(found) > 1:
        found = found[1:]
    return found[0] if (words[0] in _TRUE | _FALSE) and len(set(found)) == 1 else None


def _choice(question: Question, typed: str) -> Verdict:
    found = _chosen(question, typed)
    letters = LETTERS[: len(question.choices)]
    if found is None:
        return Verdict(UNREAD, f"write a letter, {letters[0]} to {letters[-1]}, or words of one choice")
    return Verdict(RIGHT if found == question.value else WRONG, value=float(found))


def _chosen(question: Question, typed: str) -> int | None:
    """The choice that a letter, its place, its text or words of it alone stand for."""
    words = [w for w in _words(typed) if w not in _ASIDE]
    if not words or len(typed) > LONGEST or re.match(r"\s*[-−+]\s*\d", typed):
        return None
    letters = LETTERS[: len(question.choices)]
    if len(words[0]) == 1 and words[0] in letters and (len(words) == 1 or _is_text(question, words)):
        return letters.index(words[0])
    if len(words) == 1 and words[0].isascii() and words[0].isdigit():
        place = int(words[0])
        return place - 1 if 1 <= place <= len(letters) else None
    texts = [_plain_words(choice) for choice in question.choices]
    whole = [i for i, text in enumerate(texts) if text == words]
    held = [i for i, text in enumerate(texts) if _stands_in(words, text)]
    found = whole or held
    return found[0] if len(found) == 1 and (whole or _is_enough(words, texts[found[0]])) else None


def _plain_words(choice: str) -> list[str]:
    return [w for w in _words(choice) if w not in _ASIDE]


def _stands_in(words: list[str], text: list[str]) -> bool:
    """Whether words stand in a text in a row."""
    return any(text[i : i + len(words)] == words for i in range(len(text) - len(words) + 1))


def _is_enough(words: list[str], text: list[str]) -> bool:
    """Whether words of a choice are unmistakable: several in a row, or much of a short one."""
    return len(words) >= _QUOTED or (3 * len(words) >= len(text) and max(map(len, words)) > 2)


def _is_text(question: Question, words: list[str]) -> bool:
    """Whether what follows a letter is that choice's own text: `b) half of it`."""
    return _stands_in(words[1:], _plain_words(question.choices[LETTERS.index(words[0])]))
