"""The units people write, and every way they may be meant."""

from __future__ import annotations

import re
from dataclasses import dataclass

_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
_LONG = {"kilo": "k", "mega": "m", "giga": "g", "tera": "t", "peta": "p"}
_LONG_BINARY = {"kibi": "k", "mebi": "m", "gibi": "g", "tebi": "t", "pebi": "p"}
_SLANG = {"k": "k", "meg": "m", "megs": "m", "m": "m", "gig": "g", "gigs": "g", "g": "g", "t": "t", "p": "p"}
_TIMES = {
    1.0: ("s", "sec", "secs", "second", "seconds"),
    1e-3: ("ms", "msec", "msecs", "milli", "millis", "millisecond", "milliseconds"),
    1e-6: ("us", "µs", "μs", "usec", "micro", "micros", "microsecond", "microseconds"),
    1e-9: ("ns", "nanosecond", "nanoseconds"),
    60.0: ("min", "mins", "minute", "minutes"),
    3600.0: ("h", "hr", "hrs", "hour", "hours"),
}
_COUNTS = {
    1e3: ("thousand", "thousands"),
    1e6: ("m", "mn", "mio", "million", "millions"),
    1e9: ("g", "b", "bn", "billion", "billions"),
    1e12: ("t", "trillion", "trillions"),
}


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a written unit is worth; `power` and `base` say which GB or GiB it was."""

    factor: float
    base: int = 0
    power: int = 0


def meanings(quantity: str, word: str, scale: float) -> list[Meaning] | None:
    """Every meaning of a unit's text for a quantity; None where it is no unit of it.

    `scale` is the unit in which the answer is shown: a number without a unit may be meant in it.
    """
    if quantity == "bytes":
        return _bytes(word, scale)
    lower = word.lower()
    if quantity == "seconds":
        return _plain(scale) if not lower else _times(lower)
    if quantity == "share":
        return _plain(0.01) if not lower else [Meaning(0.01)] if lower == "%" else None
    if quantity == "ratio":
        return _ratio(lower)
    if quantity == "rate":
        return _rate(lower)
    if quantity == "intensity":
        return _counts(re.sub(r"(fl)?ops?(\s*(/|a)\s*b(ytes?)?)?$", "", lower).strip())
    if quantity == "flops":
        return _flops(lower, scale)
    return _counts(lower)


def _plain(scale: float) -> list[Meaning]:
    return [Meaning(1.0)] if scale == 1.0 else [Meaning(1.0), Meaning(scale)]


def _bytes(word: str, scale: float) -> list[Meaning] | None:
    lower = word.lower().replace(" ", "")
    if not lower:
        return _plain(scale)
    if lower in _SLANG:
        return _both(_POWERS[_SLANG[lower]])
    for names, bases in ((_LONG, (1000,)), (_LONG_BINARY, (1024,))):
        for name, letter in names.items():
            if lower.startswith(name):
                return _sized(lower.removeprefix(name), _POWERS[letter], bases)
    match = re.fullmatch(r"([kmgtp]?)(i?)(b|bytes?|bits?|bs)?", lower)
    if match is None or (match[2] and not match[1]):
        return None
    base = 1024 if match[2] else 1000
    found = _sized(match[3] or "b", _POWERS[match[1]], (base,))
    if found and match[1] and word.endswith("b") and word[0].isupper():  # Gb: a gigabit, or a GB typed fast
        found = [*found, *(Meaning(m.factor / 8, m.base, m.power) for m in found)]
    return found


def _sized(ending: str, power: int, bases: tuple[int, ...]) -> list[Meaning] | None:
    if ending not in ("", "b", "bs", "byte", "bytes", "bit", "bits"):
        return None
    share = 1 / 8 if ending.startswith("bit") else 1.0
    return [Meaning(share * float(base) ** power, base if power else 0, power) for base in bases]


def _both(power: int) -> list[Meaning]:
    return [Meaning(1024.0**power, 0, power), Meaning(1000.0**power, 0, power)]


def _times(word: str) -> list[Meaning] | None:
    return next(([Meaning(factor)] for factor, names in _TIMES.items() if word in names), None)


def _counts(word: str) -> list[Meaning] | None:
    if not word:
        return [Meaning(1.0)]
    if word == "k":
        return _both(1)
    if word in ("ki", "mi", "gi"):
        return [Meaning(1024.0 ** _POWERS[word[0]])]
    if word == "m":
        return _both(2)
    return next(([Meaning(factor)] for factor, names in _COUNTS.items() if word in names), None)


def _ratio(word: str) -> list[Meaning] | None:
    if word == "%":
        return [Meaning(0.01)]
    return [Meaning(1.0)] if word.strip("- ") in ("", "x", "×", "times", "fold", "time") else None


def _rate(word: str) -> list[Meaning] | None:
    word = word.replace(" ", "").replace("tps", "").replace("t/s", "")
    match = re.fullmatch(r"(.*?)(/?(?:s|secs?|seconds?)|/(?:min|minutes?))?", word)
    assert match is not None  # noqa: S101
    found = _counts(match[1])
    if found is None:
        return None
    share = 1 / 60 if "min" in (match[2] or "") else 1.0
    return [Meaning(m.factor * share) for m in found]


def _flops(word: str, scale: float) -> list[Meaning] | None:
    word = re.sub(r"\s*(fl)?ops?$", "", word)
    if not word:
        return _plain(scale)
    if len(word) == 1 and word in "kmgtpe":
        return [Meaning(1000.0 ** ("kmgtpe".index(word) + 1))]
    if word in _LONG:
        return [Meaning(1000.0 ** _POWERS[_LONG[word]])]
    return next(([Meaning(factor)] for factor, names in _COUNTS.items() if word in names), None)
