"""A number that remembers how it was made.

Formulas in kvplan are plain functions of plain numbers. Give one ints and it returns an int at
full speed; give it figures and it returns a `Figure` that can explain itself, because the
arithmetic wrote the explanation down while it computed the value. There is no second text.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, ParamSpec, TypeVar, cast

_RANK = {"+": 1, "−": 1, "×": 2, "÷": 2, "//": 2}
P = ParamSpec("P")
R = TypeVar("R")


class Trust(IntEnum):
    """Where an input came from, most trustworthy first."""

    MEASURED = 0  # read off a running engine or a file's own bytes
    STATED = 1  # read from a config, a data sheet or the command line
    ENGINE_RULE = 2  # a default or constant in an engine's or library's code
    ASSUMED = 3  # ours, and it says why

    @property
    def label(self) -> str:
        """The word a reader sees."""
        return self.name.lower().replace("_", " ")


@dataclass(frozen=True, slots=True)
class Source:
    """How far an input can be trusted, and where it was read."""

    trust: Trust
    where: str


@dataclass(frozen=True, slots=True, eq=False)
class Figure:
    """A value with its unit, its name, and either a source (an input) or parts (a result)."""

    value: float
    unit: str = ""
    name: str = ""
    source: Source | None = None
    symbol: str = ""
    parts: tuple[Figure, ...] = ()
    doc: str = ""

    def walk(self, _seen: set[int] | None = None) -> Iterator[Figure]:
        """This figure and everything below it, each once."""
        seen = set() if _seen is None else _seen
        if id(self) in seen:
            return
        seen.add(id(self))
        yield self
        for part in self.parts:
            yield from part.walk(seen)

    def inputs(self) -> list[Figure]:
        """The sourced numbers this one rests on, each named input once."""
        found: dict[tuple[str, float, Source], Figure] = {}
        for figure in self.walk():
            if figure.source is not None:
                found.setdefault((figure.name, figure.value, figure.source), figure)
        return list(found.values())

    def weakest(self) -> list[Figure]:
        """The least trustworthy inputs: all that share the worst trust."""
        inputs = self.inputs()
        worst = max((_trust(figure) for figure in inputs), default=None)
        return [figure for figure in inputs if _trust(figure) == worst]

    def expression(self, show: Callable[[Figure], str] | None = None, *, top: bool = True) -> str:
        """The formula behind this figure, its named parts rendered by `show`."""
        show = show or (lambda figure: figure.name)
        if not self.parts or (self.name and not top):
            return show(self) if self.name or self.source else plain(self.value)
        if self.symbol not in _RANK:
            inner = ", ".join(part.expression(show, top=False) for part in self.parts)
            return f"{self.symbol}({inner})"
        left, right = self.parts
        return f"{self._side(left, show)} {self.symbol} {self._side(right, show, right=True)}"

    def _side(self, part: Figure, show: Callable[[Figure], str], *, right: bool = False) -> str:
        text = part.expression(show, top=False)
        if part.name or part.symbol not in _RANK:
            return f"({text})" if part.value < 0 and not part.parts else text
        rank, mine = _RANK[part.symbol], _RANK[self.symbol]
        same = rank == mine and (not right or (self.symbol == part.symbol and self.symbol == "+"))
        return text if rank > mine or same else f"({text})"

    def substituted(self) -> str:
        """The same formula with the numbers put in."""
        return self.expression(lambda figure: plain(figure.value))

    def named_parts(self) -> list[Figure]:
        """The figures the formula names, in order, each once."""
        found: dict[tuple[str, float], Figure] = {}
        for part in self.parts:
            for figure in [part] if part.name else part.named_parts():
                found.setdefault((figure.name, figure.value), figure)
        return list(found.values())

    def explain(self, shown: set[tuple[str, float]] | None = None) -> str:
        """Formula, numbers put in, result, then every part in turn down to its sources.

        What is in `shown` is only named; what is explained is added to it.
        """
        return "\n".join(self._lines(0, set() if shown is None else shown))

    def _lines(self, depth: int, shown: set[tuple[str, float]]) -> Iterator[str]:
        pad = "  " * depth
        head = f"{pad}{self.name or 'result'} = {plain(self.value)} {self.unit}".rstrip()
        key = (self.name, self.value)
        if not self.parts:
            where = f"   [{self.source.trust.label}: {self.source.where}]" if self.source else ""
            yield head + where
            return
        if key in shown:
            yield f"{head}   [shown above]"
            return
        shown.add(key)
        yield head
        yield f"{pad}  = {self.expression()}"
        yield f"{pad}  = {self.substituted()}"
        if self.doc:
            yield f"{pad}  ({self.doc})"
        for part in self.named_parts():
            yield from part._lines(depth + 1, shown)

    def __int__(self) -> int:
        return int(self.value)

    def __float__(self) -> float:
        return float(self.value)

    def __bool__(self) -> bool:
        return bool(self.value)

    def __eq__(self, other: object) -> bool:
        return bool(self.value == value_of(other))

    def __hash__(self) -> int:
        return hash(self.value)

    def __lt__(self, other: Number) -> bool:
        return bool(self.value < value_of(other))

    def __le__(self, other: Number) -> bool:
        return bool(self.value <= value_of(other))

    def __gt__(self, other: Number) -> bool:
        return bool(self.value > value_of(other))

    def __ge__(self, other: Number) -> bool:
        return bool(self.value >= value_of(other))

    def __add__(self, other: Number) -> Figure:
        return _record("+", operator.add, self, other)

    def __radd__(self, other: Number) -> Figure:
        return _record("+", operator.add, other, self)

    def __sub__(self, other: Number) -> Figure:
        return _record("−", operator.sub, self, other)

    def __rsub__(self, other: Number) -> Figure:
        return _record("−", operator.sub, other, self)

    def __mul__(self, other: Number) -> Figure:
        return _record("×", operator.mul, self, other)

    def __rmul__(self, other: Number) -> Figure:
        return _record("×", operator.mul, other, self)

    def __truediv__(self, other: Number) -> Figure:
        return _record("÷", operator.truediv, self, other)

    def __rtruediv__(self, other: Number) -> Figure:
        return _record("÷", operator.truediv, other, self)

    def __floordiv__(self, other: Number) -> Figure:
        return _record("//", operator.floordiv, self, other)

    def __rfloordiv__(self, other: Number) -> Figure:
        return _record("//", operator.floordiv, other, self)


Number = int | float | Figure
Leaf = Callable[[str, float, str, Source], Any]  # how an input enters a formula


def plain(value: float) -> str:
    """A number as a reader sees it in a formula: grouped digits, nothing lost."""
    if isinstance(value, int):
        return f"{value:,}"
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.6g}" if 1e-4 <= abs(value) < 1e6 else f"{value:.6g}"


def value_of(x: Any) -> Any:
    """The bare value of a figure, or the number itself."""
    return x.value if isinstance(x, Figure) else x


def _trust(figure: Figure) -> Trust:
    return figure.source.trust if figure.source else Trust.MEASURED


def _lift(x: Number) -> Figure:
    return x if isinstance(x, Figure) else Figure(x)


def _record(symbol: str, compute: Callable[[Any, Any], Any], a: Number, b: Number) -> Figure:
    if not isinstance(a, (int, float, Figure)) or not isinstance(b, (int, float, Figure)):
        return NotImplemented
    return Figure(compute(value_of(a), value_of(b)), symbol=symbol, parts=(_lift(a), _lift(b)))


def _choice(symbol: str, compute: Callable[..., Any], *xs: Number) -> Number:
    for x in xs:
        if type(x) is not float and type(x) is not int:
            break
    else:  # by far the most calls: one case of many
        plain_value: Number = compute(*xs)
        return plain_value
    if any(hasattr(x, "dtype") for x in xs):
        return cast(Number, _on_arrays(symbol, xs))
    if any(isinstance(x, Figure) for x in xs):
        parts = tuple(_lift(x) for x in xs)
        return Figure(compute(*map(value_of, xs)), symbol=symbol, parts=parts)
    return cast(Number, compute(*xs))


def _on_arrays(symbol: str, xs: tuple[Any, ...]) -> Any:
    """The same choice for every element of numpy arrays; numpy is loaded only by who brings them."""
    import numpy as np

    chosen: dict[str, Callable[..., Any]] = {
        "least": np.minimum,
        "most": np.maximum,
        "power": np.power,
        "whole": lambda a: np.floor(a).astype(np.int64),
        "ceiling": lambda a, b: -(-a // b),
    }
    return functools.reduce(chosen[symbol], xs) if len(xs) > 1 else chosen[symbol](*xs)


def least(*xs: Number) -> Number:
    """The smallest; on a figure the choice is recorded."""
    return _choice("least", min, *xs) if len(xs) > 1 else xs[0]


def most(*xs: Number) -> Number:
    """The largest; on a figure the choice is recorded."""
    return _choice("most", max, *xs) if len(xs) > 1 else xs[0]


def whole(x: Number) -> Number:
    """Rounded down to a whole number."""
    return _choice("whole", math.floor, x)


def half(x: Number) -> Number:
    """Half of it: of an even whole number exactly."""
    value = value_of(x)
    fraction = value.dtype.kind == "f" if hasattr(value, "dtype") else isinstance(value, float)
    return x / 2 if fraction else x // 2


def ceiling(x: Number, y: Number) -> Number:
    """x ÷ y rounded up, exact on integers."""
    return _choice("ceiling", lambda a, b: int(-(-a // b)), x, y)


def total(parts: list[Any]) -> Any:
    """The sum, an empty one being 0."""
    return functools.reduce(operator.add, parts) if parts else 0


def formula(unit: str, cites: str = "") -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Name a formula's result after the function when it is asked with figures."""

    def wrap(function: Callable[P, R]) -> Callable[P, R]:
        first = (function.__doc__ or "").strip().split("\n")[0]
        doc = " ".join(filter(None, [first, cites and f"[{cites}]"]))

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            out = function(*args, **kwargs)
            if isinstance(out, Figure):
                return cast(R, _name(out, function.__name__, unit, doc))
            return out

        return call

    return wrap


def _name(figure: Figure, name: str, unit: str, doc: str = "") -> Figure:
    """Give a result a name; an input keeps its own name, one level below."""
    if not figure.parts:
        return Figure(figure.value, unit, name, symbol="same", parts=(figure,), doc=doc)
    return replace(figure, name=name, unit=unit, doc=doc or figure.doc)


def named(name: str, unit: str, x: Any, doc: str = "") -> Any:
    """Name a computed number; plain numbers pass through."""
    return _name(x, name, unit, doc) if isinstance(x, Figure) else x


def bare(_name: str, value: float, _unit: str, _source: Source) -> float:
    """The leaf of a sweep: only the number."""
    return value


def sourced(name: str, value: float, unit: str, source: Source) -> Figure:
    """The leaf of an explanation: the number with its source."""
    return Figure(value, unit, name, source)


def power(x: Number, y: Number) -> Number:
    """x to the power y."""
    return _choice("power", lambda a, b: a**b, x, y)
