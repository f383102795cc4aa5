"""What a verb returns: the contract's document, and behind it the figures that explain it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvplan.errors import UnknownName, did_you_mean
from kvplan.figure import Figure, Leaf, bare, named, sourced, value_of


class Answer(dict[str, Any]):
    """The contract's JSON document as nested dicts of plain numbers.

    `explain` runs the same computation again with figures in place of numbers, so that what is
    printed is the arithmetic that produced the value.
    """

    def __init__(
        self,
        compute: Callable[[Leaf], dict[str, Any]],
        series: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
    ) -> None:
        super().__init__(_values(compute(bare)))
        self._compute = compute
        self._series = series
        self._figures: dict[str, Figure] | None = None

    def figures(self) -> dict[str, Figure]:
        """Every explained number by its path in the document, such as `kv.bytes_per_token`."""
        if self._figures is None:
            self._figures = dict(_named_figures(self._compute(sourced)))
        return self._figures

    def series(self) -> dict[str, Any]:
        """The rows that this answer's pictures draw, by picture."""
        return self._series(self) if self._series else {}

    def find(self, name: str) -> list[Figure]:
        """The figures of that name: a path, any part of one, or an input's own name."""
        figures = self.figures()
        found = [f for path, f in figures.items() if f".{name}." in f".{path}."]
        if not found:
            inner = {f.name: f for top in figures.values() for f in top.walk() if f.name}
            found = [inner[name]] if name in inner else []
        if not found:
            known = [part for path in figures for part in path.split(".")[1:] or [path]]
            raise UnknownName(
                f"--explain: no figure is called {name!r}; "
                f"{did_you_mean(name, known) or 'figures: ' + ', '.join(dict.fromkeys(known))}"
            )
        return found

    def explain(self, name: str | None = None) -> str:
        """Formula, numbers put in, result and sources: of one figure, or of all, each part once."""
        figures = self.find(name) if name else list(self.figures().values())
        shown: set[tuple[str, float]] = set()
        return "\n\n".join(figure.explain(shown) for figure in figures)

    def rests_on(self) -> list[Figure]:
        """The weakest inputs of the whole document."""
        found = [f for figure in self.figures().values() for f in figure.weakest()]
        worst = max((f.source.trust for f in found if f.source), default=None)
        weakest = {f.name: f for f in found if f.source and f.source.trust == worst}
        return list(weakest.values())


def _values(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _values(value) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [_values(value) for value in tree]
    return value_of(tree)


def _named_figures(tree: dict[str, Any], path: str = "") -> list[tuple[str, Figure]]:
    found = []
    for key, value in tree.items():
        if isinstance(value, dict):
            found += _named_figures(value, f"{path}{key}.")
        elif isinstance(value, Figure):
            figure = value if value.name == key else named(key, value.unit, value)
            found.append((f"{path}{key}", figure))
    return found
