"""Arguments as Python prints them: a dict, a call such as `ServerArgs(tp_size=1, …)`, or `name=value` pairs.

Pairs are divided by commas, or by spaces as pydantic prints a model.

Nothing is evaluated but literals; what is no literal (an enum, an object) stays text. Text that ends in the
middle gives what stands before.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

_OPEN, _CLOSE = "([{<", ")]}>"
_CALL = re.compile(r"\s*[A-Za-z_][\w.]{0,100}\(")
_NAME = re.compile(r"\s*(?:'([^']{1,200})'|\"([^\"]{1,200})\"|([A-Za-z_]\w{0,200}))\s*[:=]\s*(.*)", re.DOTALL)
_PAIR = re.compile(r"[A-Za-z_]\w{0,100}=")
_MOST = 1 << 18
_MOST_LITERAL = 1 << 14
_MOST_DEEP = 40


def arguments(text: str) -> dict[str, Any]:
    """The arguments in `text` by name, literals as their values; what cannot be read is left out."""
    inner = text[:_MOST].strip()
    call = _CALL.match(inner)
    if call:
        inner = inner[call.end() :]
    elif inner.startswith("{"):
        inner = inner[1:]
    found: dict[str, Any] = {}
    for part in _parts(inner):
        match = _NAME.fullmatch(part)
        if match:
            name = match[1] or match[2] or match[3]
            found[name] = value(match[4].strip())
    return found


def value(text: str) -> Any:
    """A literal's value; a call's keyword arguments as a dict; else the text itself."""
    if len(text) <= _MOST_LITERAL and _depth(text) <= _MOST_DEEP:
        try:
            return ast.literal_eval(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
            pass
    if _CALL.match(text) and text.endswith(")"):
        inner = arguments(text[:-1])
        return inner or text
    return text.removeprefix("torch.") if text.startswith("torch.") else text


def _depth(text: str) -> int:
    deepest = depth = 0
    for c in text:
        depth += (c in "([{") - (c in ")]}")
        deepest = max(deepest, depth)
    return deepest


def _parts(text: str) -> Iterator[str]:
    """What commas, or spaces before names, divide at the outermost level; ends where its bracket closes."""
    depth, start, quote, skip, divider = 0, 0, "", False, ""
    for i, c in enumerate(text):
        if skip:
            skip = False
        elif quote:
            skip = c == "\\"
            quote = "" if c == quote else quote
        elif c in "'\"":
            quote = c
        elif c in _OPEN:
            depth += 1
        elif c in _CLOSE:
            if depth == 0 and c != ">":
                yield text[start:i]
                return
            depth = max(0, depth - 1)
        elif depth == 0 and (c == "," or (c == " " and _PAIR.match(text, i + 1))) and divider in ("", c):
            divider = c
            yield text[start:i]
            start = i + 1
    if not quote:
        yield text[start:]
