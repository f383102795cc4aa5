"""What work reaches on a machine that was timed: shares of its best rates, and what is added to them.

Where an accelerator carries this, steps are timed by it and not by the kernels of the catalogue.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

from kvplan.figure import Source, Trust

SHARES = ("product_compute", "product_memory", "prompt_compute", "cache_memory")
ADDED = ("layer_seconds", "step_seconds", "sequence_seconds")


@dataclass(frozen=True, slots=True)
class Reached:
    """Shares of the best rates that were timed, and seconds beside them.

    `product_compute` and `product_memory`: of the peak and of the bandwidth, in matrix products;
    `prompt_compute`: of the peak, in attention over a prompt; `cache_memory`: of the bandwidth, in attention
    over a cache, each pass counted once however often a library makes it. `overlap` is the power under which
    compute and memory are added: 1, one after the other; 2, as kernels of a GPU overlap. Seconds are for each
    layer, each step and each sequence; None where no model was run: an engine's own stand in. `rows` has,
    for products of so many rows, how many times as long as by these shares they were timed. `spreads` has,
    by figure, the factors within which 80 % of the points lay that were kept apart, and their number.
    `dtype` is the format of the weights that were timed, `others` the same machine where products of other
    formats were timed; neither known: None and empty.
    """

    product_compute: float
    product_memory: float
    prompt_compute: float
    cache_memory: float
    overlap: float
    source: Source
    words: str
    layer_seconds: float | None = None
    step_seconds: float | None = None
    sequence_seconds: float | None = None
    rows: tuple[tuple[float, float], ...] = ()
    spreads: Mapping[str, tuple[float, float, int]] = field(default_factory=dict)
    dtype: str | None = None
    others: Mapping[str, Reached] = field(default_factory=dict)

    def of(self, format: str) -> Reached:
        """What is reached with weights of that format; spreads hold only for the one they were found in."""
        if format == self.dtype:
            return self
        if format in self.others:
            return self.others[format]
        source = Source(Trust.ASSUMED, f"{self.source.where}; taken for weights in {format}")
        return replace(self, source=source, spreads={}, dtype=format, others={})

    def added(self, quantity: str) -> float | None:
        """Seconds of that name, where they were timed."""
        return getattr(self, quantity) if quantity in ADDED else None

    def shares(self) -> dict[str, float]:
        """Every number by its name, None left out."""
        named = {f.name: getattr(self, f.name) for f in fields(self) if f.name in (*SHARES, *ADDED)}
        return {name: value for name, value in named.items() if value is not None}
