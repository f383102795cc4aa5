"""Reading a number as people type it: rough, in any unit, with powers, products and thousands marks."""

from __future__ import annotations

import math
import re
import unicodedata
from dataclasses import dataclass

from kvplan.drills.quantities import Quantity
from kvplan.drills.vocabulary import Meaning, meanings

LONGEST = 200
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
_SIGNS = str.maketrans("×⋅·∙✕÷∕⁄−–’\u00a0\u202f\u2009", "*****///--'   ")
_FILLER = re.compile(
    r"\b(about|around|approx|approximately|roughly|circa|ca|nearly|almost|some|maybe|say|just|over|under|"
    r"exactly|i|think|guess|it'?s|its|it|is|or|so|ish|equals?|answer|probably|perhaps|like|well|the|of|"
    r"tokens?|toks?|sequences?|seqs?|requests?|reqs?|prompts?|blocks?|pages?|steps?|chunks?|users?|layers?|"
    r"heads?|ranks?|gpus?|cards?|cache|memory|each|total|in|all|at|once|more|less|smaller|larger|"
    r"bigger|factor|by|please|times as (much|many))\b\.?"
)
_WORDS = {
    "half": 0.5, "quarter": 0.25, "third": 1 / 3, "fifth": 0.2, "sixth": 1 / 6, "eighth": 0.125, "tenth": 0.1,
    "sixteenth": 1 / 16, "double": 2, "twice": 2, "zero": 0, "none": 0, "nothing": 0,
    "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9,
    "ten": 10, "eleven": 11, "twelve": 12, "sixteen": 16, "twenty": 20, "thirty": 30, "forty": 40,
    "fifty": 50, "sixty": 60, "seventy": 70, "eighty": 80, "ninety": 90, "hundred": 100,
}  # fmt: skip
_FACTOR = re.compile(
    r"\s*(?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)(?:\s*(?:\^|\*\*)\s*(?P<power>[+-]?\d+))?"
    r"\s*(?P<unit>[a-zµμ%/][a-zµμ%/ -]*?)??\s*(?P<sign>[*/x]\s*(?=[\d.])|$)",
    re.IGNORECASE,
)

_PARTS = re.compile(r"[=;(]|,\s+|\s(?:and|or)\s", re.IGNORECASE)  # an answer said twice, or with another one
_OTHER_BASE = re.compile(r"(?<![\w.])0[xbo][\da-f]", re.IGNORECASE)
_BARE = ("share", "ratio")  # what one amount is over another
_NUMBER_WORD = "|".join(_WORDS)
_PART_OF = re.compile(
    r"\b(half|quarter|third|fifth|sixth|eighth|tenth|sixteenth)\s+of\s+(?=[\d.])", re.IGNORECASE
)
_ONE_IN = re.compile(
    rf"((?:\d|\b(?:{_NUMBER_WORD}))\s*[a-z]*)\s+(?:out\s+of|of|in)\s+(?=[\d.]|(?:{_NUMBER_WORD})\b)",
    re.IGNORECASE,
)
Factor = tuple[float, str, bool]  # a number (turned over where it divides), its unit, whether it divides


@dataclass(frozen=True, slots=True)
class Reading:
    """One way a typed answer may be meant: its value in base units, and its unit."""

    value: float
    unit: str = ""
    meaning: Meaning = Meaning(1.0)  # noqa: RUF009  a frozen record


def readings(typed: str, quantity: Quantity, scale: float = 1.0) -> list[Reading] | str:
    """Every reading of a typed number, or a sentence that says why there is none."""
    if len(typed) > LONGEST:
        return f"that is longer than {LONGEST} characters; write one number, such as {quantity.example}"
    found = _readings(typed, quantity, scale)
    if not isinstance(found, str):
        return found
    parts = [_readings(part, quantity, scale) for part in _PARTS.split(typed) if part.strip()]
    read = [part for part in parts if not isinstance(part, str)]
    if len(read) == 1:
        return read[0]
    if read and re.search(r"[=(]", typed):  # said twice: the first with a unit, else what it comes to
        return next((part for part in read if part[0].unit), read[-1 if "=" in typed else 0])
    return found


def _readings(typed: str, quantity: Quantity, scale: float) -> list[Reading] | str:
    """The readings of a text as one number."""
    text = _cleaned(typed, quantity.name)
    if not text:
        return f"write {quantity.noun}, such as {quantity.example}"
    factors = None if _OTHER_BASE.search(typed) else _factors(text)
    if factors is None:
        return f"that is not {quantity.noun}; write one number, such as {quantity.example}"
    found = _in_units(factors, quantity.name, scale)
    if not found:
        word = next((unit for _, unit, _ in reversed(factors) if unit), "")
        return f"{word!r} is no unit of {quantity.noun}; write such as {quantity.example}"
    usable = [r for r in found if math.isfinite(r.value)]
    return usable or f"that is not a number to compare; write such as {quantity.example}"


def _in_units(factors: list[Factor], quantity: str, scale: float) -> list[Reading]:
    """The readings of a product of which one factor bears the unit: the last that can, where others count."""
    product = math.prod(number for number, _, _ in factors)
    bearers = [i for i in reversed(range(len(factors))) if factors[i][1]] or [len(factors) - 1]
    for i in bearers:
        unit = factors[i][1]
        others = [meanings("count", word, 1.0) for j, (_, word, _) in enumerate(factors) if j != i]
        known = meanings(quantity, unit, scale)
        if known is None or None in others:
            continue
        found = [Reading(product * m.factor, unit, m) for m in known]
        for counts in others:
            found = [Reading(r.value * m.factor, r.unit, r.meaning) for r in found for m in counts or ()]
        return found
    return _quotient(factors, product) if quantity in _BARE else []


def _quotient(factors: list[Factor], product: float) -> list[Reading]:
    """One size over another, or one time over another: 40 MiB / 680 MiB."""
    borne = [(unit, divides) for _, unit, divides in factors if unit]
    if len(borne) != 2 or [divides for _, divides in borne] != [False, True]:
        return []
    for kind in ("bytes", "seconds"):
        above, below = (meanings(kind, unit, 1.0) for unit, _ in borne)
        if above and below:
            pairs = zip(above, below, strict=False)
            return [Reading(product * m.factor / n.factor, "/") for m, n in pairs]
    return []


def _cleaned(typed: str, quantity: str) -> str:
    """The text without filler, in plain digits, with one decimal point and no thousands marks."""
    text = re.sub(r"(?<=\d)([⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+)", lambda m: "^" + m[1].translate(_SUPERSCRIPTS), typed)
    text = re.sub(r"(\d*)\s?([¼½¾⅓⅔⅛⅜⅝⅞])", _vulgar, text)
    text = unicodedata.normalize("NFKC", text.translate(_SIGNS)).translate(_SIGNS)
    text = "".join(_digit(c) for c in text if c.isprintable())
    text = re.sub(r"(?i)\bper\s?cents?\b|\bpct\b", "%", text)
    text = re.sub(r"(?i)(?<=\d)-?ish\b", " ", text)
    text = re.sub(r"(?i)\bper\b|\ba\b(?=\s*(token|second|sec|byte|sequence|request))", "/", text)
    text = re.sub(r"(?<=\d)\s*:\s*(?=\d)", "/", text)
    text = re.sub(r"[~≈≃≅?!()\[\]\"<>:;]|^\s*=", " ", text)
    text = _PART_OF.sub(r"\1 * ", text)
    if quantity in _BARE:
        text = _ONE_IN.sub(r"\1 / ", text)
    text = _without_filler(text)
    text = re.sub(r"(?i)\b[a-z]+\b", lambda m: _number_word(m[0]), text)
    text = re.sub(r"(?i)(?<=\d)\s*\ban?\s+(?=[a-z])|(?<=\d)\s*-\s*(?=[a-z])", " ", text)
    text = re.sub(r"(?i)^\s*an?\s+(?=[\d.])", "", text)
    text = re.sub(r"(?i)^\s*an?\s+(?=[a-z])", "1 ", text)
    text = re.sub(r"(?<=\d)\s*\*\s*$", " x", text)
    text = re.sub(r"(?i)^\s*[x*]\s*(?=[\d.])", "", text)
    return _one_point(text).rstrip(" /,-.").strip()


def _without_filler(text: str) -> str:
    """Words that say nothing left out; a unit beside a number keeps its letters."""
    kept = re.sub(r"(?i)(?<=\d)(?=[a-z])", "\0", text)  # 40tokens: a word of its own
    kept = re.sub(_FILLER.pattern, " ", kept, flags=re.IGNORECASE).replace("\0", "")
    return re.sub(r"\b(an?)\b(?=\s*(half|quarter|third|hundred))", "", kept, flags=re.IGNORECASE)


def _number_word(word: str) -> str:
    folds = _WORDS.get(word.lower().removesuffix("fold")) if word.lower().endswith("fold") else None
    if folds is not None:
        return f" {folds:.12g} x"
    value = _WORDS.get(word.lower())
    return word if value is None else f" {value:.12g} "


def _vulgar(match: re.Match[str]) -> str:
    return str(int(match[1] or 0) + unicodedata.numeric(match[2]))


def _digit(character: str) -> str:
    decimal = unicodedata.decimal(character, None)
    return character if decimal is None else str(decimal)


def _one_point(text: str) -> str:
    """1,048,576 and 1 048 576 and 1.048.576 are whole; 37,25 has a decimal comma."""
    text = re.sub(r"(?<=\d)[_'](?=\d)", "", text)
    text = re.sub(r"(?<![\d.,])([1-9]\d{0,2})((?:[ ]\d{3})+)(?![\d])", _joined, text)
    text = re.sub(r"(?<![\d.,])([1-9]\d{0,2})((?:,\d{3})+)(?![\d,])", _joined, text)
    text = re.sub(r"(?<![\d.,])([1-9]\d{0,2})((?:\.\d{3}){2,})(?![\d.])", _joined, text)
    return re.sub(r"(?<=\d),(?=\d)", ".", text)


def _joined(match: re.Match[str]) -> str:
    return re.sub(r"\D", "", match[0])


def _factors(text: str) -> list[Factor] | None:
    """Numbers with their units, of a product or a quotient; None where the text is neither."""
    found: list[Factor] = []
    place, divides = 0, False
    while place < len(text):
        match = _FACTOR.match(text, place)
        if match is None:
            return None
        number = _power(float(match["number"]), match["power"])
        if divides and number:
            number = 1 / number
        elif divides:
            return None
        found.append((number, (match["unit"] or "").strip(" /-"), divides))
        place, divides = match.end(), match["sign"].startswith("/")
        if not match["sign"]:
            break
    return found if place == len(text) and found else None


def _power(number: float, power: str | None) -> float:
    try:
        return number if power is None else number ** int(power[:6])
    except (OverflowError, ZeroDivisionError):
        return math.inf
