"""Flags of one engine's command line: names under every spelling, values in their own types.

Which flags there are, how they are typed and which do not matter is data: facts/engines/commands.toml.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kvplan.errors import BadInput, shown
from kvplan.facts import store

FACTS = "engines/commands.toml"
_HUMAN = re.compile(r"([+-]?\d+(?:\.\d+)?)([kKmMgGtT]?)")
_STEPS = {
    "": 1,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "K": 2**10,
    "M": 2**20,
    "G": 2**30,
    "T": 2**40,
}
_YES, _NO = ("true", "1", "yes", "on"), ("false", "0", "no", "off")
_NEGATIVE = re.compile(r"-\d+(\.\d+)?([eE][+-]?\d+)?")
_MOST = 2**63


@dataclass(frozen=True, slots=True)
class Grammar:
    """The flags an engine knows: those that matter with their types, others by how many values they take."""

    engine: str
    types: Mapping[str, str]
    aliases: Mapping[str, str]
    negated: Mapping[str, str]
    model: tuple[str, ...]
    files: tuple[str, ...]
    switches: frozenset[str]
    values: frozenset[str]
    lists: frozenset[str]
    abbreviates: bool

    def known(self) -> list[str]:
        """Every name this engine takes."""
        ignored = self.switches | self.values | self.lists
        return [*self.types, *self.aliases, *self.negated, *self.model, *self.files, *ignored]


@functools.cache
def grammar_of(engine: str) -> Grammar:
    """The grammar of that engine's command line."""
    table = store.toml(FACTS)["engine"][engine]
    return Grammar(
        engine,
        table["flags"],
        table["aliases"],
        table.get("negated", {}),
        tuple(table["model"]),
        tuple(table["files"]),
        frozenset(table["ignored_switches"].split()),
        frozenset(table["ignored_values"].split()),
        frozenset(table["ignored_lists"].split()),
        bool(table["abbreviates"]),
    )


@dataclass(slots=True)
class Read:
    """What was read of a command line's flags."""

    model: str | None = None
    flags: dict[str, Any] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def read_flags(words: list[str], grammar: Grammar, *, positional: bool) -> Read:
    """The flags of `words`, the words after the program's name.

    Raises BadInput, in one line that names the flag, for a value that is not of the flag's type.
    """
    read, rest, plain = Read(), list(words), False
    while rest:
        word = rest.pop(0)
        if word == "--" and not plain:
            plain = True
        elif plain or not _is_option(word):
            _positional(read, word, positional)
        else:
            _option(read, grammar, word, rest)
    return read


def _is_option(word: str) -> bool:
    return word.startswith("-") and len(word) > 1 and not _NEGATIVE.fullmatch(word)


def _positional(read: Read, word: str, positional: bool) -> None:
    if positional and read.model is None:
        read.model = word
    elif positional and " " in word:
        read.notes.append("a prompt follows the model's name; it is left out")
    else:
        read.unknown.append(word)


def _option(read: Read, grammar: Grammar, word: str, rest: list[str]) -> None:
    typed, _, value = word.partition("=")
    attached: str | None = value if "=" in word else None
    name, keys = _name(typed, grammar)
    if name is None and re.fullmatch(r"-O\d", typed):  # vLLM's -O3
        name, attached = grammar.aliases.get("O"), typed[2:]
    if name is None and grammar.abbreviates and typed.startswith("--"):
        name = _abbreviation(read, grammar, typed)
    if name is None:
        _unknown(read, word, attached, rest)
    elif name in grammar.model:
        read.model = _one(typed, attached, rest)
    elif name in grammar.files:
        read.notes.append(
            f"{typed} {_one(typed, attached, rest)}: the file is not read; its settings are not counted"
        )
    elif name in grammar.types:
        _typed(read, grammar, (typed, name, keys), attached, rest)
    elif _negation(grammar, name) is not None:
        flag, value_of_it = _negation(grammar, name) or ("", False)
        if flag:
            read.flags[flag] = value_of_it
        else:
            read.ignored.append(typed)
    else:
        _skip(read, grammar, (typed, name), attached, rest)


def _name(typed: str, grammar: Grammar) -> tuple[str | None, tuple[str, ...]]:
    """The engine's own name of an option as typed, and keys after dots (`--hf-overrides.a.b`)."""
    bare, *keys = typed.lstrip("-").split(".")
    name = bare.replace("-", "_")
    if name in grammar.aliases:
        name, *inner = grammar.aliases[name].split(".")
        keys = [*inner, *keys]
    known = name in grammar.types or name in grammar.model or name in grammar.files
    known = known or name in grammar.switches | grammar.values | grammar.lists
    if not known and _negation(grammar, name) is None:
        return None, ()
    return name, tuple(keys)


def _negation(grammar: Grammar, name: str) -> tuple[str, bool] | None:
    """The flag that `no_…` turns off; an empty name where it is one that does not matter."""
    if name in grammar.negated:
        return grammar.negated[name], False
    if not name.startswith("no_"):
        return None
    positive = grammar.aliases.get(name[3:], name[3:])
    if grammar.types.get(positive) in ("bool", "onoff"):
        return positive, False
    return ("", False) if positive in grammar.switches else None


def _abbreviation(read: Read, grammar: Grammar, typed: str) -> str | None:
    """The one flag that starts so, as argparse takes it."""
    start = typed.lstrip("-").replace("-", "_")
    found = {
        grammar.aliases.get(k, k).split(".")[0] for k in grammar.known() if k.startswith(start) and start
    }
    if len(found) != 1:
        return None
    name = found.pop()
    read.notes.append(f"{typed} is read as --{name.replace('_', '-')}, the only flag that starts so")
    return name


def _unknown(read: Read, word: str, attached: str | None, rest: list[str]) -> None:
    """Kept as typed, with the word after it when that is no option."""
    parts = [word]
    if attached is None and rest and not _is_option(rest[0]):
        parts.append(rest.pop(0))
    read.unknown.append(" ".join(parts))


def _one(typed: str, attached: str | None, rest: list[str]) -> str:
    if attached is not None:
        return attached
    if not rest or _is_option(rest[0]):
        raise BadInput(f"{typed}: a value is missing in the command; give one after it")
    return rest.pop(0)


def _several(typed: str, attached: str | None, rest: list[str]) -> list[str]:
    found = [attached] if attached is not None else []
    while rest and not _is_option(rest[0]):
        found.append(rest.pop(0))
    if not found:
        raise BadInput(f"{typed}: a value is missing in the command; give at least one after it")
    return found


def _skip(
    read: Read, grammar: Grammar, names: tuple[str, str], attached: str | None, rest: list[str]
) -> None:
    """A flag that is known and does not matter here, with its values."""
    typed, name = names
    read.ignored.append(typed)
    if attached is not None or name in grammar.switches:
        if name in grammar.switches and rest and rest[0].lower() in ("true", "false"):
            rest.pop(0)
        return
    if name in grammar.lists:
        _several(typed, attached, rest)
    else:
        _one(typed, attached, rest)


def _typed(
    read: Read,
    grammar: Grammar,
    names: tuple[str, str, tuple[str, ...]],
    attached: str | None,
    rest: list[str],
) -> None:
    typed, name, keys = names
    kind = grammar.types[name]
    if keys:
        table = read.flags.get(name)
        raw = attached if attached is not None else _one(typed, attached, rest)
        read.flags[name] = _nested(dict(table) if isinstance(table, dict) else {}, keys, _loose(raw))
        return
    if kind in ("bool", "onoff"):
        read.flags[name] = _switch(typed, kind, attached, rest)
        return
    text = _several(typed, attached, rest) if kind == "list" else [_one(typed, attached, rest)]
    if any(_is_variable(part) for part in text):
        read.unknown.append(f"{typed} {' '.join(text)}")
        read.notes.append(f"{typed} {' '.join(text)}: a variable is not expanded; the flag is left out")
        return
    found = CONVERT[kind](typed, text[0]) if kind != "list" else _items(text)
    before = read.flags.get(name)
    read.flags[name] = {**before, **found} if isinstance(before, dict) and isinstance(found, dict) else found


def _is_variable(text: str) -> bool:
    return bool(re.search(r"\$[A-Za-z_{(]|`|\{\{", text))


def _nested(table: dict[str, Any], keys: tuple[str, ...], value: Any) -> dict[str, Any]:
    here = table
    for key in keys[:-1]:
        inner = here.get(key)
        here[key] = dict(inner) if isinstance(inner, dict) else {}
        here = here[key]
    here[keys[-1]] = value
    return table


def _loose(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _switch(typed: str, kind: str, attached: str | None, rest: list[str]) -> bool | str:
    """On when it stands alone; a word that says yes or no is taken with it."""
    words = (*_YES, *_NO, "auto") if kind == "onoff" else ("true", "false")
    if attached is None:
        attached = rest.pop(0) if rest and rest[0].lower() in words else "true"
    text = attached.lower()
    if kind == "onoff" and text == "auto":
        return "auto"
    if text not in (*_YES, *_NO):
        raise BadInput(f"{typed}: {shown(attached)} is neither on nor off in the command")
    yes = text in _YES
    return ("on" if yes else "off") if kind == "onoff" else yes


def _items(text: list[str]) -> list[Any]:
    parts = [piece for word in text for piece in word.split(",") if piece]
    return [int(p) if re.fullmatch(r"[+-]?\d{1,18}", p) else p for p in parts]


def whole_number(typed: str, text: str) -> int:
    """A plain whole number."""
    if not re.fullmatch(r"\s*[+-]?\d[\d_]*\s*", text) or abs(int(text[:40])) >= _MOST or len(text) > 40:
        raise BadInput(f"{typed}: {shown(text)} is not a whole number in the command; give one, such as 4096")
    return int(text)


def human_number(typed: str, text: str) -> int:
    """A whole number, or one with a unit: k, m, g, t are decimal, K, M, G, T binary (vLLM, SGLang)."""
    match = _HUMAN.fullmatch(text.strip()[:40])
    value = float(match.group(1)) * _STEPS[match.group(2)] if match else math.inf
    if match is None or abs(value) >= _MOST:
        raise BadInput(f"{typed}: {shown(text)} is not a number in the command; give one, such as 8192 or 8k")
    if "." not in match.group(1):
        return int(match.group(1)) * _STEPS[match.group(2)]
    return int(value)


def _length(typed: str, text: str) -> int:
    return -1 if text.strip().lower() == "auto" else human_number(typed, text)


def _number(typed: str, text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise BadInput(f"{typed}: {shown(text)} is not a number in the command; give one, such as 0.9")
    return found


def _json(typed: str, text: str) -> dict[str, Any]:
    """A JSON object; `key=value` pairs and a bare level (`-O3`) are taken as the engines take them."""
    try:
        found = json.loads(text)
    except RecursionError:
        raise BadInput(f"{typed}: the JSON in the command is nested too deep") from None
    except ValueError as error:
        pairs = (
            dict(part.split("=", 1) for part in text.split(","))
            if re.fullmatch(r"(\w+=\w+,?)+", text)
            else None
        )
        if pairs is None:
            raise BadInput(f"{typed}: {shown(text)} is not JSON: {error}; is it quoted?") from None
        return {key: _loose(value) for key, value in pairs.items()}
    if isinstance(found, int) and not isinstance(found, bool):
        return {"mode": found}
    if not isinstance(found, dict):
        raise BadInput(f"{typed}: {shown(text)} is not a JSON object in the command")
    return found


def _layers(typed: str, text: str) -> int | str:
    return text.lower() if text.lower() in ("all", "auto") else whole_number(typed, text)


def _numbers(typed: str, text: str) -> list[float]:
    return [_number(typed, part) for part in text.split(",")]


CONVERT: dict[str, Callable[[str, str], Any]] = {
    "int": whole_number,
    "human": human_number,
    "length": _length,
    "float": _number,
    "str": lambda _typed, text: text,
    "json": _json,
    "layers": _layers,
    "numbers": _numbers,
    "onoff": lambda typed, text: _switch(typed, "onoff", text, []),
}
