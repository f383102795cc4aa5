"""What kind of JSON value something is, in words."""

from __future__ import annotations


def json_kind(value: object) -> str:
    """The kind with its article: an object, a list, text, a number, true or false, or null."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true or false"
    kinds = {dict: "an object", list: "a list", str: "text", int: "a number", float: "a number"}
    return kinds.get(type(value), "something that is not JSON")
