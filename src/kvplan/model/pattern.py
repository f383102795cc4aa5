"""Regular expressions out of a config, matched in time that grows with the name and not with its ways.

A config comes from anyone, and `re` takes for ever on some patterns. Here a pattern becomes a set of
places and a name is read once through it, all ways at the same time. What configs use is understood:
letters, `.`, classes, groups, `|`, `*`, `+`, `?`, counts and anchors; nothing that looks around or back.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field

MOST_CHARACTERS = 1024
_MOST_PLACES = 4096
_MOST_DEPTH = 32
_MOST_COUNT = 64
_MOST_KEPT = 20_000

Test = Callable[[str], bool]
_CLASSES: dict[str, Test] = {
    "d": str.isdecimal,
    "w": lambda c: c.isalnum() or c == "_",
    "s": str.isspace,
    "D": lambda c: not c.isdecimal(),
    "W": lambda c: not (c.isalnum() or c == "_"),
    "S": lambda c: not c.isspace(),
}


class NotUnderstood(ValueError):
    """A pattern that is no regular expression, or one that is not read here."""


@dataclass
class Pattern:
    """A pattern as places: each tests a character and leads on, or (without a test) leads on at once."""

    places: list[tuple[Test | None, list[int]]] = field(default_factory=list)
    only_last: set[int] = field(default_factory=set)  # passed at the name's end alone: `$`
    end: int = -1
    steps: dict[tuple[frozenset[int], str], frozenset[int]] = field(default_factory=dict)
    first: frozenset[int] = frozenset()

    def place(self, test: Test | None = None) -> int:
        """One more place."""
        if len(self.places) >= _MOST_PLACES:
            raise NotUnderstood("it has too many parts")
        self.places.append((test, []))
        return len(self.places) - 1

    def reach(self, starts: list[int], *, last: bool = False) -> frozenset[int]:
        """The places reached from those without reading a character."""
        found, todo = set(starts), [*starts]
        while todo:
            here = todo.pop()
            test, onward = self.places[here]
            if test is None and (last or here not in self.only_last):
                new = [place for place in onward if place not in found]
                found.update(new)
                todo += new
        return frozenset(found)

    def match(self, name: str) -> bool:
        """Whether the name, from its first character on, begins with what the pattern describes."""
        here = self.first
        for character in name:
            if self.end in here:
                return True
            if not here:
                return False
            key = here, character
            after = self.steps.get(key)
            if after is None:
                after = self._step(*key)
            here = after
        return self.end in self.reach([*here], last=True)

    def _step(self, here: frozenset[int], character: str) -> frozenset[int]:
        onward = []
        for place in here:
            test, next_places = self.places[place]
            if test is not None and test(character):
                onward += next_places
        if len(self.steps) >= _MOST_KEPT:
            self.steps.clear()
        found = self.steps[here, character] = self.reach(onward)
        return found


@functools.lru_cache(maxsize=4096)
def understand(text: str) -> Pattern:
    """The pattern of a regular expression's text; raises NotUnderstood, saying why."""
    if len(text) > MOST_CHARACTERS:
        raise NotUnderstood(f"it has more than {MOST_CHARACTERS:,} characters")
    reader = _Reader(text)
    start, end = reader.either(0)
    if reader.at < len(text):
        raise NotUnderstood("a bracket is closed that was not opened")
    reader.pattern.end = end
    reader.pattern.first = reader.pattern.reach([start])
    return reader.pattern


class _Reader:
    """Reads a pattern's text from left to right; every part is a pair of places, its start and its end."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.pattern = Pattern()

    def peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def take(self) -> str:
        if self.at >= len(self.text):
            raise NotUnderstood("it ends too early")
        self.at += 1
        return self.text[self.at - 1]

    def join(self, start: int, *ends: int) -> None:
        self.pattern.places[start][1].extend(ends)

    def either(self, depth: int) -> tuple[int, int]:
        """Sequences with `|` between them."""
        if depth > _MOST_DEPTH:
            raise NotUnderstood("it is nested too deep")
        start, end = self.pattern.place(), self.pattern.place()
        while True:
            first, last = self.sequence(depth)
            self.join(start, first)
            self.join(last, end)
            if self.peek() != "|":
                return start, end
            self.take()

    def sequence(self, depth: int) -> tuple[int, int]:
        start = end = self.pattern.place()
        while self.peek() not in ("", "|", ")"):
            begins = self.at
            first, last = self.atom(depth)
            first, last = self.repeated(first, last, begins, depth)
            self.join(end, first)
            end = last
        return start, end

    def atom(self, depth: int) -> tuple[int, int]:
        """A group, a class, an anchor or a character."""
        character = self.take()
        if character == "(":
            return self.group(depth)
        if character == "^":
            if self.at > 1:
                raise NotUnderstood("^ stands within it")
            place = self.pattern.place()
            return place, place
        if character == "$":
            place, after = self.pattern.place(), self.pattern.place()
            self.pattern.only_last.add(place)
            self.join(place, after)
            return place, after
        if character in "*+?{":
            raise NotUnderstood(f"{character} repeats nothing")
        test = self.one_of() if character == "[" else self.escaped(character)
        place, after = self.pattern.place(test), self.pattern.place()
        self.join(place, after)
        return place, after

    def group(self, depth: int) -> tuple[int, int]:
        if self.peek() == "?":
            if self.text[self.at : self.at + 2] != "?:":
                raise NotUnderstood("it looks around or back")
            self.at += 2
        found = self.either(depth + 1)
        if self.take() != ")":
            raise NotUnderstood("a bracket is not closed")
        return found

    def escaped(self, character: str) -> Test:
        """The test of a character outside a class."""
        if character == ".":
            return lambda c: c != "\n"
        if character != "\\":
            return lambda c: c == character
        return self.after_backslash()

    def after_backslash(self) -> Test:
        letter = self.take()
        if letter in _CLASSES:
            return _CLASSES[letter]
        if letter.isalnum():
            raise NotUnderstood(f"\\{letter} is not read here")
        return lambda c: c == letter

    def one_of(self) -> Test:
        """A class `[...]`, its first bracket taken."""
        negated = self.peek() == "^"
        self.at += negated
        tests: list[Test] = []
        while not (self.peek() == "]" and tests):
            character = self.take()
            if character == "\\":
                tests.append(self.after_backslash())
            elif self.peek() == "-" and self.text[self.at + 1 : self.at + 2] not in ("]", ""):
                self.take()
                tests.append(functools.partial(_between, character, self.take()))
            else:
                tests.append(functools.partial(str.__eq__, character))
        self.take()
        return lambda c: any(test(c) for test in tests) is not negated

    def repeated(self, first: int, last: int, begins: int, depth: int) -> tuple[int, int]:
        """A part with the count behind it, if any; a lazy count matches the same names."""
        character = self.peek()
        if character not in ("*", "+", "?", "{"):
            return first, last
        self.take()
        least, most = (
            self.counts() if character == "{" else {"*": (0, -1), "+": (1, -1), "?": (0, 1)}[character]
        )
        after = self.at + (self.peek() == "?")
        start = end = self.pattern.place()
        for number in range(max(least, most, 1)):
            if number:
                self.at = begins
                first, last = self.atom(depth)
            done = self.pattern.place()
            self.join(end, first)
            self.join(last, done)
            if number >= least:
                self.join(end, done)
            end = done
        if most < 0:
            self.join(end, first)
        self.at = after
        if self.peek() in ("*", "+", "{"):
            raise NotUnderstood("a repeat is repeated")
        return start, end

    def counts(self) -> tuple[int, int]:
        """`{2}`, `{2,}` or `{2,5}`, its first bracket taken; -1 for no most."""
        close = self.text.find("}", self.at)
        low, comma, high = self.text[self.at : max(close, self.at)].partition(",")
        if close < 0 or not low.isdecimal() or (high and not high.isdecimal()):
            raise NotUnderstood("a count is not a number")
        self.at = close + 1
        least, most = int(low), int(high) if high else -1 if comma else int(low)
        if max(least, most) > _MOST_COUNT or (0 <= most < max(least, 1)):
            raise NotUnderstood(f"a count is over {_MOST_COUNT}, none or backwards")
        return least, most


def _between(low: str, high: str, character: str) -> bool:
    return low <= character <= high
