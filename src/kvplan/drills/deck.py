"""Decks: a topic a file, each question of it a text with blanks, what to ask, and what to draw."""

from __future__ import annotations

import functools
import hashlib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from kvplan.errors import BadInput, UnknownName, did_you_mean, shown

_FOLDER = resources.files("kvplan.drills").joinpath("decks")
_LISTS = "drawn.toml"


@dataclass(frozen=True, slots=True)
class Template:
    """A question with blanks: `asks` names what computes it, `draw` holds what may fill its blanks.

    A number is asked unless the text is a statement (`holds`: what makes it true, `claims`: factors by which
    a stated number may be wrong) or there are choices (`choices`: texts, the right one first; `choose`: which
    of several figures). `of` names lists of models, or a model.
    """

    topic: str
    name: str
    asks: str
    text: str
    quantity: str = "bytes"
    of: tuple[str, ...] = ()
    draw: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    tolerance: float | None = None
    think: str = ""
    reason: str = ""
    holds: str = ""
    claims: tuple[float, ...] = ()
    choices: tuple[str, ...] = ()
    choose: str = ""
    command: str = ""

    @property
    def kind(self) -> str:
        """number, truth or choice."""
        if self.holds or self.claims:
            return "truth"
        return "choice" if self.choices or self.choose else "number"


@dataclass(frozen=True, slots=True)
class Deck:
    """A topic: its name, title, what it is about, and its templates."""

    topic: str
    title: str
    about: str
    templates: tuple[Template, ...]


@functools.cache
def decks() -> dict[str, Deck]:
    """Every deck by its topic, in the order in which they are best learnt."""
    return {topic: _deck(topic) for topic in lists()["topics"]["order"]}


@functools.cache
def lists() -> dict[str, Any]:
    """Models, accelerators and lengths that questions are drawn from, and the order of topics."""
    return tomllib.loads(_FOLDER.joinpath(_LISTS).read_text("utf-8"))


def _deck(topic: str) -> Deck:
    table = tomllib.loads(_FOLDER.joinpath(f"{topic}.toml").read_text("utf-8"))
    return Deck(topic, table["title"], table["about"], tuple(_template(topic, q) for q in table["question"]))


def _template(topic: str, table: dict[str, Any]) -> Template:
    rest = dict(table)
    many: dict[str, Any] = {k: tuple(rest.pop(k)) for k in ("of", "claims", "choices") if k in rest}
    draw = {name: _values(values) for name, values in rest.pop("draw", {}).items()}
    return Template(topic, **rest, **many, draw=draw)


def _values(values: Any) -> tuple[Any, ...]:
    """A list as it is written, or one of drawn.toml by its name."""
    known = {**lists()["models"], **lists()["values"]}
    return tuple(known[values] if isinstance(values, str) else values)


def models_of(template: Template) -> tuple[str, ...]:
    """The models a template may be asked of, by id."""
    known = lists()["models"]
    return tuple(id for name in template.of for id in known.get(name, [name]))


@functools.cache
def fingerprint() -> str:
    """A short text that changes whenever a deck does."""
    files = sorted(_FOLDER.iterdir(), key=lambda file: file.name)
    text = "".join(file.read_text("utf-8") for file in files if file.name.endswith(".toml"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def find_topics(names: object) -> list[str]:
    """The topics that a person means, every one where none is named; raises UnknownName or BadInput."""
    known = list(decks())
    if names is None:
        return known
    asked = [names] if isinstance(names, str) else names
    if asked in ([], ()):
        raise BadInput("--topic: none is named; leave it out for all, or see kvplan drill --topics")
    if not isinstance(asked, list | tuple) or not all(isinstance(name, str) for name in asked):
        raise BadInput(f"--topic: {shown(names)} is no topic's name; see kvplan drill --topics")
    words = [word for name in asked for word in name.split(",")]
    return list(dict.fromkeys(_topic(word, known) for word in words))


def _topic(name: str, known: list[str]) -> str:
    folded = "-".join(name.lower().replace("_", " ").split())
    begun = [topic for topic in known if folded and topic.startswith(folded)]
    if folded in known or len(begun) == 1:
        return folded if folded in known else begun[0]
    hint = did_you_mean(folded[:60], known) or f"topics: {', '.join(known)}"
    raise UnknownName(f"--topic: {shown(name)} is no topic; {hint}")
