"""Finding a thing by the name a person types: case, spaces and punctuation do not matter."""

from __future__ import annotations

import re
from collections.abc import Iterable

_VARIANTS = ("instruct", "it", "chat", "base", "hf", "bf16")


def squash(name: str) -> str:
    """Letters and digits only, lower case."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def stem(name: str) -> str:
    """The squashed name without a trailing instruct, it, chat, base or hf, and without meta's prefix."""
    words = [w for w in re.split(r"[^a-z0-9.]+", name.lower()) if w]
    while len(words) > 1 and words[-1] in _VARIANTS:
        words.pop()
    if len(words) > 2 and words[0] == "meta" and words[1] == "llama":
        words.pop(0)
    return squash("".join(words))


def same_digits(typed: str, known: str) -> bool:
    """Whether names alike once squashed also part their digits alike: qwen2-57b is not qwen2.5-7b.

    A mark other than a dot between two digits of one name must part them in the other too, unless the
    typed name has no marks at all.
    """
    if not re.search(r"[^a-z0-9]", typed.lower()):
        return True
    return _parted(known, False) <= _parted(typed, True) and _parted(typed, False) <= _parted(known, True)


def _parted(name: str, dots: bool) -> set[int]:
    """How many digits stand before each mark that parts two of them."""
    marks = r"[0-9](?=[^a-z0-9]+[0-9])" if dots else r"[0-9](?=[^a-z0-9.]+[0-9])"
    return {len(re.findall("[0-9]", name[: m.end()])) for m in re.finditer(marks, name.lower())}


def tokens(name: str) -> set[str]:
    """The words of a name, letters and digits kept together."""
    return {w for w in re.split(r"[^a-z0-9]+", name.lower()) if w}


def unique(found: Iterable[str]) -> list[str]:
    """Without repeats, in order."""
    return list(dict.fromkeys(found))
