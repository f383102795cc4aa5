"""Plain data as YAML: mappings, lists, text, numbers and booleans, so that any YAML parser reads it back."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

# Text that stands without quotes: nothing that YAML 1.1 or 1.2 reads as a number, a date or a sign.
_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./-]*")
_WORDS = frozenset(("true", "false", "yes", "no", "on", "off", "null", "y", "n"))
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def yaml(value: Any, indent: int = 0) -> str:
    """The lines of a mapping or a list, each ended; nested ones are indented by two."""
    pad = "  " * indent
    if isinstance(value, Mapping):
        return "".join(f"{pad}{scalar(key)}:{_after(item, indent)}" for key, item in value.items())
    return "".join(f"{pad}-{_item(item, indent)}" for item in value)


def _after(value: Any, indent: int) -> str:
    """What follows a key: a scalar, an empty collection, a block of text, or lines below."""
    if isinstance(value, str) and _is_block(value):
        body = "".join(f"{'  ' * (indent + 1)}{line}\n" if line else "\n" for line in value[:-1].split("\n"))
        return f" |\n{body}"
    if isinstance(value, (Mapping, list, tuple)) and value:
        return f"\n{yaml(value, indent + 1)}"
    return f" {scalar(value)}\n"


def _item(value: Any, indent: int) -> str:
    """What follows a dash: a mapping's first key stands on the dash's own line."""
    if isinstance(value, (Mapping, list, tuple)) and value:
        return f" {yaml(value, indent + 1).lstrip()}"
    return f" {scalar(value)}\n"


def _is_block(text: str) -> bool:
    """Whether text can stand line by line: it ends its last line, and blanks neither begin nor end it."""
    lines = text[:-1].split("\n")
    plain = all(line.isprintable() and line == line.rstrip() for line in lines)
    return plain and text.endswith("\n") and len(lines) > 1 and lines[0][:1].strip() != ""


def scalar(value: Any) -> str:
    """One value: text in double quotes wherever YAML would read something else into it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        whole, mark, power = repr(value).partition("e")
        return f"{whole}.0e{power}" if mark and "." not in whole else repr(value)  # YAML 1.1 wants the point
    if isinstance(value, int):
        return repr(value)
    if isinstance(value, (Mapping, list, tuple)):
        return "{}" if isinstance(value, Mapping) else "[]"
    text = str(value)
    if _PLAIN.fullmatch(text) and text.lower() not in _WORDS:
        return text
    return f'"{"".join(_escaped(c) for c in text)}"'


def _escaped(c: str) -> str:
    if c in _ESCAPES:
        return _ESCAPES[c]
    if c.isprintable() and c not in "\ufeff\u2028\u2029":
        return c
    return f"\\u{ord(c):04x}" if ord(c) <= 0xFFFF else f"\\U{ord(c):08x}"


def comment(lines: list[str]) -> str:
    """Lines as comments; what would break out of one is taken out."""
    return "".join(f"# {shown(line)}".rstrip() + "\n" for line in lines)


def shown(line: str) -> str:
    """A line without anything that ends it or cannot be printed."""
    return "".join(c if c.isprintable() else " " for c in line)
