"""Seconds of one step on one rank: the floor, and the estimate built on timed kernels.

The floor is the sum, over operations that follow one another, of the slower of arithmetic at the peak
and least bytes at the full bandwidth (Williams, Waterman and Patterson 2009). The estimate divides both
by the shares of peak and bandwidth that kernels reach (facts/kernels.py), adds launches, collectives, and
what the engine takes beside the kernels (facts/efficiency.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from kvplan.cost.collectives import all_reduce_seconds, exchange_seconds
from kvplan.cost.operations import Operations
from kvplan.cost.reached import reached_kernel, reached_seconds, rows_factor
from kvplan.cost.step import Item, Step, items_of
from kvplan.facts import store
from kvplan.facts.accelerators import Accelerator
from kvplan.facts.efficiency import era_of, fit_source, fitted, fitted_version
from kvplan.facts.kernels import (
    Kernel,
    Link,
    adjusted,
    find_kernel,
    find_link,
    half_accumulate,
    kernel_format,
    link_bytes_per_second,
)
from kvplan.facts.reached import Reached
from kvplan.figure import (
    Leaf,
    Number,
    Source,
    Trust,
    bare,
    formula,
    most,
    named,
    power,
    total,
    value_of,
)

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "send")
_STATED_LINK = Source(Trust.STATED, "--link")
# What a format's values are multiplied as where an accelerator has no peak for it.
WIDER = {
    "fp4": ("bf16", "fp16"),  # weights alone are narrow then, as in W4A16
    "fp8": ("bf16", "fp16"),
    "int8": ("bf16", "fp16"),
    "bf16": ("fp16",),
    "fp16": ("bf16",),
    "tf32": ("bf16", "fp16"),
}


@formula("s")
def operation_seconds(
    launch_seconds: Number,
    moved_seconds: Number,
    compute_seconds: Number,
    memory_seconds: Number,
    depth_seconds: Number,
) -> Number:
    """A start, a pass that prepares operands, and compute, memory and reduction overlapping imperfectly."""
    squares = (
        compute_seconds * compute_seconds + memory_seconds * memory_seconds + depth_seconds * depth_seconds
    )
    return launch_seconds + moved_seconds + power(squares, 0.5)


@formula("s")
def compute_seconds(flops: Number, peak_flops_per_second: Number, share_of_peak: Number) -> Number:
    """Arithmetic at the share of the peak that kernels reach."""
    return flops / (peak_flops_per_second * share_of_peak)


@formula("s")
def memory_seconds(moved_bytes: Number, bytes_per_second: Number, share_of_bandwidth: Number) -> Number:
    """Bytes at the share of the bandwidth that kernels reach."""
    return moved_bytes / (bytes_per_second * share_of_bandwidth)


@formula("s", "lower bound: compute and memory overlap perfectly")
def floor_seconds(flops: Number, peak: Number, least_bytes: Number, bytes_per_second: Number) -> Number:
    """The slower of arithmetic at the peak and least bytes at the full bandwidth."""
    return most(flops / peak, least_bytes / bytes_per_second)


def _given(leaf: Leaf, owner: str, what: str, value: float, unit: str, source: Source) -> Any:
    """A rate or a share as an input; its name is made only where it is read."""
    return value if leaf is bare else leaf(f"{owner}_{what}", value, unit, source)


@dataclass(frozen=True, slots=True)
class Timed:
    """One operation's share of a step, all layers: estimate, floor, and what binds it."""

    name: str
    kind: str
    layers: int
    seconds: Any
    floor: Any
    flops: Any
    bytes: Any
    bound: str


@dataclass(frozen=True, slots=True)
class Constants:
    """What times one kind of operation: its kernel, peak and scales."""

    kernel: Kernel
    peak: float
    floor_peak: float
    compute: float
    memory: float
    quantising: float = 1.0


class Clock:
    """Times the steps of one deployment: an accelerator, an engine of some version, and its operations."""

    def __init__(
        self,
        ops: Operations,
        accelerator: Accelerator,
        engine: str,
        version: str | None = None,
        scales: Mapping[str, float] | None = None,
    ) -> None:
        """`scales` multiply fitted quantities by name: what a calibration, or the fit itself, changes."""
        self.ops = ops
        self.scales = scales or {}
        self.accelerator = accelerator
        self.engine = era_of(engine, version)
        self.dequantises = engine in store.toml("efficiency/classes.toml")["dequantises"]["engines"]
        self.version = version
        self.bandwidth = accelerator.bytes_per_second
        self.reached = accelerator.reached
        self.layer_seconds = self.fit("layer_seconds")
        self.step_seconds = self.fit("step_seconds")
        self.sequence_seconds = self.fit("sequence_seconds")
        self._constants: dict[tuple[str, str, str], Constants] = {}
        self._links: dict[tuple[str, int], tuple[Link, float, float, float]] = {}
        self._bandwidth_source = accelerator.source("bandwidth")
        self._peak_source = accelerator.source("peak")

    def fit(self, quantity: str, format: str = "", *, shared: bool = False) -> float:
        """A fitted quantity for this engine and accelerator, scaled where a calibration says so."""
        timed = self.reached.added(quantity) if self.reached is not None else None
        if timed is None:
            value = fitted(quantity, self.engine, self.accelerator.key, format, shared)
        else:
            value = timed
        if self.scales:
            value *= self.scales.get(quantity, 1.0)
            if format not in ("", "bf16"):
                value *= self.scales.get(f"{quantity} narrow", 1.0)
        return value

    def front(self, quantity: str) -> float:
        """A fitted quantity of the engine's front end, of its version where that one was measured."""
        return fitted_version(quantity, self.engine, self.version) * self.scales.get(quantity, 1.0)

    def seconds(self, step: Step, leaf: Leaf = bare) -> Any:
        """The estimate of one step: kernels, layers, the step itself and each of its sequences."""
        if leaf is bare:
            kernels: Any = 0.0
            for item in items_of(self.ops, step):
                kernels = kernels + item.layers * self.item_seconds(item, bare)
        else:
            kernels = total([part.seconds for part in self.timed(step, leaf)])
        return kernels + self.overhead_seconds(step, leaf)

    def overhead_seconds(self, step: Step, leaf: Leaf = bare) -> Any:
        """What a step takes beside its kernels: between layers, once, and for each sequence."""
        each = step.decoding + step.prompts
        layer = self._fit(leaf, "layer_seconds", self.layer_seconds)
        once = self._fit(leaf, "step_seconds", self.step_seconds)
        sequence = self._fit(leaf, "sequence_seconds", self.sequence_seconds)
        return named("overhead_seconds", "s", self.ops.layers * layer + once + each * sequence)

    def _fit(self, leaf: Leaf, name: str, value: float) -> Any:
        if leaf is bare:
            return value
        if self.reached is not None and self.reached.added(name) is not None:
            return leaf(name, value, "s", self.reached.source)
        return leaf(name, value, "s", fit_source(name, self.engine, self.accelerator.key))

    def floor(self, step: Step, leaf: Leaf = bare) -> Any:
        """The least time of that step: collectives and overheads left out."""
        return total(
            [
                item.layers * self._item_floor(item, leaf)
                for item in items_of(self.ops, step, leaf)
                if item.kind not in COLLECTIVES and item.kind != "pointwise"
            ]
        )

    def timed(self, step: Step, leaf: Leaf = bare) -> list[Timed]:
        """Every operation of the step with its estimate and its floor."""
        found = []
        for item in items_of(self.ops, step, leaf):
            seconds = named(f"{item.name}_seconds", "s", item.layers * self.item_seconds(item, leaf))
            floor: Any = 0.0
            if item.kind not in COLLECTIVES and item.kind != "pointwise":
                floor = item.layers * self._item_floor(item, leaf)
            bound = self._bound(item)
            found.append(
                Timed(
                    item.name,
                    item.kind,
                    item.layers,
                    seconds,
                    floor,
                    item.layers * item.flops,
                    item.layers * item.bytes,
                    bound,
                )
            )
        return found

    def _bound(self, item: Item) -> str:
        if item.kind in COLLECTIVES:
            return "link"
        if item.kind == "pointwise":
            return "memory"
        c = self.constants(item)
        compute = float(item.flops) / (c.peak * c.kernel.compute * c.compute)
        return (
            "compute"
            if compute > float(item.bytes) / (self.bandwidth * c.kernel.memory * c.memory)
            else "memory"
        )

    def _item_floor(self, item: Item, leaf: Leaf) -> Any:
        c = self.constants(item)
        peak = _given(leaf, item.compute, "peak", c.floor_peak, "FLOP/s", self._peak_source)
        rate = leaf("bytes_per_second", self.bandwidth, "B/s", self._bandwidth_source)
        return floor_seconds(item.least_flops, peak, item.least_bytes, rate)

    def item_seconds(self, item: Item, leaf: Leaf = bare) -> Any:
        """The estimate of one operation of one layer."""
        if item.kind in COLLECTIVES:
            return self._exchange_seconds(item, leaf)
        c = self.constants(item)
        k = c.kernel
        source = k.source
        peak = _given(leaf, item.compute, "peak", c.peak, "FLOP/s", self._peak_source)
        rate = leaf("bytes_per_second", self.bandwidth, "B/s", self._bandwidth_source)
        of_peak = _given(leaf, item.kind, "share_of_peak", k.compute * c.compute, "", source)
        of_rate = _given(leaf, item.kind, "share_of_bandwidth", k.memory * c.memory, "", source)
        flops = item.flops if not k.pad else item.flops + k.pad * item.pad_flops
        busy = memory_seconds(item.bytes, rate, of_rate)
        if self.reached is not None:
            found = reached_seconds(compute_seconds(flops, peak, of_peak), busy, self.reached.overlap)
            return found * self._rows_factor(self.reached, item, leaf)
        if k.tile_seconds:
            busy = busy + item.tiles * k.tile_seconds
        return operation_seconds(
            _given(leaf, item.kind, "launch_seconds", k.launch_seconds, "s", source),
            k.moved_bytes * c.quantising * item.moved / rate if k.moved_bytes else 0,
            compute_seconds(flops, peak, of_peak),
            busy,
            _given(leaf, item.kind, "depth_seconds", k.depth_seconds, "s", source) * item.depth
            if k.depth_seconds
            else 0,
        )

    def _rows_factor(self, reached: Reached, item: Item, leaf: Leaf) -> Any:
        if not reached.rows or item.kind not in ("matmul", "experts"):
            return 1.0
        factor = rows_factor(reached, value_of(item.rows))
        return _given(leaf, item.name, "rows_factor", factor, "", reached.source)

    def _exchange_seconds(self, item: Item, leaf: Leaf) -> Any:
        link, speed, scale, start_scale = self._link_of(item)
        ranks, source = item.ranks, link.source
        start = (link.launch_seconds + link.rank_seconds * (ranks - 1)) * start_scale
        first = _given(leaf, item.kind, "start_seconds", start, "s", source)
        reached = _given(leaf, item.kind, "bytes_per_second", speed * link.link * scale, "B/s", source)
        if item.kind == "send":
            return exchange_seconds(first, item.bytes, reached)
        passes = 2 if item.kind == "all_reduce" else 1
        wire = item.bytes * passes * (ranks - 1) / ranks
        if item.kind != "all_reduce" or not link.one_shot:
            return exchange_seconds(first, wire, reached)
        at_once = leaf("one_shot_bytes_per_second", speed * link.one_shot * scale, "B/s", source)
        ring = leaf("ring_seconds", link.ring_seconds, "s", source)
        return all_reduce_seconds(first, ring, wire, ranks, reached, at_once)

    def _link_of(self, item: Item) -> tuple[Link, float, float, float]:
        key = (item.kind, item.ranks)
        found = self._links.get(key)
        if found is None:
            speed, shared = link_bytes_per_second(self.accelerator, item.ranks)
            link = find_link("all_gather" if item.kind == "send" else item.kind, self.accelerator.key, shared)
            if speed == self.accelerator.stated_link_bytes_per_second:
                link = replace(link, link=1.0, one_shot=0.0, share=0.0, source=_STATED_LINK)
            speed *= (2 / item.ranks) ** link.share if shared else 1
            # no more than all of it
            scale = min(self.fit("link", shared=shared), 1 / max(link.link, link.one_shot))
            if link.source is _STATED_LINK:
                scale = 1.0
            found = link, speed, scale, self.fit("collective_start")
            self._links[key] = found
        return found

    def constants(self, item: Item) -> Constants:
        """The kernel, peak and scales of an operation, found once."""
        key = (item.kind, item.format, item.compute)
        found = self._constants.get(key)
        if found is None:
            found = self._constants[key] = self._find(item)
        return found

    def _find(self, item: Item) -> Constants:
        a = self.accelerator
        peak, taken = self.peak(item)
        floor_peak = self.floor_peak(item)
        if self.reached is not None:
            return Constants(reached_kernel(self.reached, item.kind), peak, floor_peak, 1.0, 1.0)
        if item.kind == "pointwise":
            return Constants(_pointwise(), peak, floor_peak, 1.0, self.fit("pointwise"))
        name = item.format
        if item.kind in ("matmul", "experts"):
            name = _runs_as(kernel_format(item.format), taken)
        elif item.kind != "state_decode":
            name = "fp8" if name == "fp8" and taken == "fp8" else "bf16"
        compute = memory = 1.0
        if item.kind in ("matmul", "experts"):
            compute = self.fit("compute", name)
            memory = self.fit("memory", name)
        if item.kind == "experts":
            compute *= self.fit("experts_compute")
            memory *= self.fit("experts_memory")
        if item.kind.endswith("prefill"):
            compute = self.fit("prefill_attention")
        elif item.kind.endswith("decode"):
            memory = self.fit("decode_attention")
        k = find_kernel(item.kind, name, a.key)
        if not self.dequantises and name == "bf16" and item.kind not in ("pointwise", "state_decode"):
            k = adjusted(k, a.key)
        compute, memory = min(compute, 1 / k.compute), min(memory, 1 / k.memory)  # no more than all of it
        quantising = self.fit("quantising") if item.kind == "matmul" else 1.0
        return Constants(k, peak, floor_peak, compute, memory, quantising)

    def peak(self, item: Item) -> tuple[float, str]:
        """The dense peak an operation's arithmetic runs at, and the format it is that of."""
        a = self.accelerator
        if self.dequantises:
            sixteen = half_accumulate(a.key) or a.peak("fp16") or a.peak("bf16")
            return sixteen or 1.0, "fp16"
        return peak_of(a, item.compute)

    def floor_peak(self, item: Item) -> float:
        """The fastest arithmetic an operation may run in on that accelerator."""
        a = self.accelerator
        names = [item.compute, *(["fp8"] if item.compute == "fp4" else [])]
        if self.dequantises and kernel_format(item.format) != "bf16":
            names.append("int8")
        found = [peak_of(a, name)[0] for name in names]
        return max([*found, half_accumulate(a.key) or 0.0] if item.compute in ("bf16", "fp16") else found)


def peak_of(a: Accelerator, compute: str) -> tuple[float, str]:
    """Dense peak of a format, or of the next wider one where the accelerator has none of its own."""
    for name in (compute, *WIDER.get(compute, ())):
        found = a.peak(name)
        if found:
            return found, name
    return 1.0, compute


def _runs_as(format: str, taken: str) -> str:
    """The kernel's format: narrow weights multiplied in 16 bit where the accelerator has no narrow peak."""
    if format in ("fp8", "fp8_block") and taken not in ("fp8", "fp4"):
        return "int8_wo"
    return "int4_wo" if format == "nvfp4" and taken != "fp4" else format


def _pointwise() -> Kernel:
    found = store.toml("efficiency/classes.toml")["pointwise"]
    source = Source(Trust.ASSUMED, found["source"])
    return Kernel(found["launch_seconds"], 1.0, found["memory"], 0.0, 0.0, 0.0, 0.0, 0, source)
