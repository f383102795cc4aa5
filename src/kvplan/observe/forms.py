"""The forms of lines that engines print at start-up: facts/engines/log_lines/, compiled once.

A form is a regular expression in which `{name}` stands for a figure of that name; what kind of figure it is,
a size, a count, a number or words, says facts/engines/log_lines/figures.toml.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvplan.facts import store

FOLDER = "engines/log_lines"
FILES = ("vllm", "sglang", "tensorrt_llm", "llama_cpp", "any")
ANY = "any"
_PLACE = re.compile(r"\{([a-z_]+)\}")
_NUMBERS = ("size", "count", "number")
_WHOLE = r"-?(?:\d{1,3}(?:,\d{3}){1,5}(?!\d)|\d{1,18})"  # with or without commas between thousands
_GROUPS = {
    "size": _WHOLE + r"(?:\.\d{1,12})?",
    "count": _WHOLE,
    "number": r"-?\d{1,12}(?:\.\d{1,20})?(?:e-?\d{1,3})?",
    "unit": r"[A-Za-z]{1,6}",
    "word": r"[^\s,;()\[\]{}\"'=]{1,300}",
    "text": r".{0,2000}?",
    "rest": r".+",
    "flag": "",
}


@dataclass(frozen=True, slots=True)
class Form:
    """One form of a line.

    `words` must stand in a line before it is tried; `unit` is the bytes of a printed size, `decimals` the
    digits that the engine rounds to; `opens` is how far a start-up has come that begins with it (0 the
    process, 1 its arguments, 2 the engine); `marks`: capacity, ready or failure; `since` and `until` are the
    versions that print it, where that tells versions apart.
    """

    engine: str
    words: str
    pattern: re.Pattern[str]
    unit: int = 1
    decimals: int = 2
    opens: int | None = None
    marks: str = ""
    failure: str = ""
    about: str = "figure"
    since: str = ""
    until: str = ""
    seen: str = ""
    source: str = ""

    @property
    def tells_failure(self) -> bool:
        """Whether it belongs to a failure: the line that says it, or one that stands beside it."""
        return self.marks == "failure" or self.about in ("failure", "error")


@dataclass(frozen=True, slots=True)
class Said:
    """A figure as a line states it, in bytes or its own unit, and half of the last digit printed."""

    value: float
    half: float = 0.0

    @property
    def low(self) -> float:
        """The least that prints so."""
        return self.value - self.half

    @property
    def high(self) -> float:
        """The most that prints so."""
        return self.value + self.half


Value = Said | str


@functools.cache
def forms() -> tuple[Form, ...]:
    """Every form of every engine."""
    return tuple(_form(file, row) for file in FILES for row in store.toml(f"{FOLDER}/{file}.toml")["form"])


@functools.lru_cache(maxsize=1024)
def forms_of(found: tuple[bytes, ...]) -> tuple[Form, ...]:
    """The forms to try on a line that holds these of `words()`."""
    return tuple(form for form in forms() if any(word in form.words.encode() for word in found))


@functools.lru_cache(maxsize=1024)
def _else_words(found: tuple[bytes, ...]) -> tuple[bytes, ...]:
    return tuple(form.words.encode() for form in forms_of(found) if not form.tells_failure)


def only_failures(raw: bytes, found: tuple[bytes, ...]) -> bool:
    """Whether a line, which holds these of `words()`, can only tell of a failure."""
    return not any(word in raw for word in _else_words(found))


@functools.cache
def kinds() -> Mapping[str, str]:
    """What kind of figure each name is."""
    return {name: str(row["kind"]) for name, row in store.toml(f"{FOLDER}/figures.toml").items()}


def _form(file: str, row: Mapping[str, Any]) -> Form:
    engine = ANY if file == ANY else str(store.toml(f"{FOLDER}/{file}.toml")["engine"])
    rest = {name: row[name] for name in row if name not in ("form", "unit")}
    unit = store.toml(f"{FOLDER}/{ANY}.toml")["units"][row["unit"]] if "unit" in row else 1
    return Form(engine=engine, pattern=re.compile(_expanded(str(row["form"]))), unit=unit, **rest)


def _expanded(form: str) -> str:
    return _PLACE.sub(lambda match: f"(?P<{match[1]}>{_GROUPS[_kind(match[1])]})", form)


def _kind(name: str) -> str:
    return "unit" if name.endswith("_unit") else kinds()[name]


@functools.cache
def words() -> tuple[bytes, ...]:
    """What a line must hold to be worth trying: each once, none that contains another."""
    every = sorted({form.words for form in forms()}, key=len)
    kept: list[str] = []
    for word in every:
        if not any(other in word for other in kept):
            kept.append(word)
    return tuple(word.encode() for word in kept)


def values_of(form: Form, match: re.Match[str]) -> dict[str, Value]:
    """The figures of a match by name; sizes in bytes."""
    units = store.toml(f"{FOLDER}/{ANY}.toml")["units"]
    found: dict[str, Value] = {}
    for name, text in match.groupdict().items():
        if text is None or name.endswith("_unit"):
            continue
        kind = kinds()[name]
        if kind not in _NUMBERS:
            found[name] = text.strip() or "yes"
            continue
        own = match.groupdict().get(f"{name}_unit")
        unit = units.get(own, form.unit) if own else form.unit
        found[name] = _said(text, kind, unit, form.decimals)
    return found


def _said(text: str, kind: str, unit: int, decimals: int) -> Said:
    plain = text.replace(",", "")
    if kind == "count":
        return Said(int(plain))
    printed = len(plain.partition("e")[0].partition(".")[2])
    if kind == "size" and unit == 1:
        return Said(float(plain))
    scale = unit if kind == "size" else 1
    return Said(float(plain) * scale, 0.5 * 10.0 ** -max(printed, decimals) * scale)
