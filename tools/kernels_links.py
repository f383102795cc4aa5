"""Fit collectives: a start, a little more for each further rank, and bytes over the link."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from kernels_read import ENGINES, SYSTEMS, Array, accelerators, columns, groups, link
from scipy.optimize import least_squares

# the part of a message that passes each rank's link, of (ranks - 1) / ranks
PASSES = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}
# start, least and most of each parameter
BOUNDS = {
    "launch_seconds": (3e-6, 5e-7, 2e-3), "rank_seconds": (3e-7, 1e-9, 1e-4), "link": (0.8, 0.01, 10.0),
    "one_shot": (0.5, 0.01, 2.0), "ring_seconds": (1e-5, 1e-8, 1e-3), "share": (0.5, 1e-3, 3.0),
}  # fmt: skip
RANKS = 8  # further ranks may be on other hosts
WIDTHS = {"bfloat16": 2, "half": 2, "int8": 1}


@dataclass
class Exchange:
    """Rows of one collective on one accelerator and library."""

    accelerator: str
    engine: str
    version: str
    operation: str
    format: str
    kernel: str
    link: float
    seconds: Array
    ranks: Array
    shared: bool  # ranks share a bus rather than each having a link of its own
    wire: Array  # bytes that each rank's link passes


def exchange(
    place: tuple[str, str, str], operation: str, form: str, rows: pl.DataFrame, ranks: Array, wire: Array
) -> Exchange:
    """Rows of one exchange."""
    system, engine, version = place
    accelerator = accelerators()[SYSTEMS[system]]
    return Exchange(
        SYSTEMS[system], ENGINES.get(engine, engine), version, operation, form, str(rows["kernel_source"][0]),
        link(accelerator), rows["latency"].to_numpy().astype(float) / 1e3, ranks,
        not accelerator["interconnect_gbps_per_gpu_bidir"], wire,
    )  # fmt: skip


def collective(place: tuple[str, str, str], operation: str, rows: pl.DataFrame, width: int) -> Exchange:
    """Rows of one collective, whose message sizes count values of the whole message."""
    ranks, size = columns(rows, ["num_gpus", "message_size"]).values()
    wire = PASSES[operation] * (ranks - 1) / ranks * size * width
    return exchange(place, operation, "bf16", rows, ranks, wire)


def collectives(data: Path) -> Iterator[Exchange]:
    """All-reduce of the engines, and every collective of the libraries."""
    one = pl.col("num_gpus") <= RANKS
    eager = pl.col("kernel_source").str.contains("eager")
    for system, engine, version, (kind, hosted), rows in groups(
        data, "comm", "custom_allreduce", ["allreduce_dtype", eager], one
    ):
        if not hosted or system == "b60":  # outside CUDA graphs the host is what is timed
            yield collective((system, engine, version), "all_reduce", rows, WIDTHS[str(kind)])
    for library in ("nccl", "oneccl"):
        for system, engine, version, (name, kind), rows in groups(
            data, "comm", library, ["op_name", "nccl_dtype"], one
        ):
            if kind == "half" and engine == library:
                operation = str(name).replace("alltoall", "all_to_all")
                yield collective((system, engine, version), operation, rows, WIDTHS[str(kind)])


def expert_exchanges(data: Path) -> Iterator[Exchange]:
    """Sending tokens to their experts' ranks and summing what comes back; times are in microseconds."""
    for system, engine, version, (backend, phase, kind), rows in groups(
        data, "comm", "moe_a2a", ["comm_backend", "phase", "comm_dtype"]
    ):
        tokens, hidden, k, ranks = columns(rows, ["num_tokens", "hidden_size", "topk", "ep_size"]).values()
        low = str(backend).endswith(("ll", "generation"))  # once an expert; else once a rank
        copies = k * (ranks - 1) / ranks if low else (ranks - 1) * (1 - (1 - 1 / ranks) ** k)
        width = {"fp8": 1, "nvfp4": 0.5625, "fp4": 0.5625}.get(str(kind), 2)
        found = exchange((system, engine, version), f"moe_{phase}", f"{backend} {kind}", rows, ranks,
                         tokens * hidden * copies * width)  # fmt: skip
        found.seconds = found.seconds / 1e3
        yield found


def seconds(rows: Exchange, v: dict[str, float]) -> Array:
    """The quicker of a ring (or tree, or switch) and, reducing, of reading what all others hold."""
    speed = rows.link * (2 / rows.ranks) ** v.get("share", 0)
    ring = v.get("ring_seconds", 0) + rows.wire / (speed * v["link"])
    if "one_shot" in v:
        ring = np.minimum(ring, rows.wire * rows.ranks / 2 / (speed * v["one_shot"]))
    found: Array = v["launch_seconds"] + v.get("rank_seconds", 0) * (rows.ranks - 1) + ring
    return found


def fit(rows: Exchange) -> dict[str, float]:
    """The parameters that fit best in relative error."""
    names = ["launch_seconds", "link"]
    names += ["rank_seconds"] if len(np.unique(rows.ranks)) > 1 else []
    names += ["one_shot", "ring_seconds"] if rows.operation == "all_reduce" else []
    names += ["share"] if rows.shared and len(np.unique(rows.ranks)) > 1 else []
    start, least, most = (np.log([BOUNDS[name][i] for name in names]) for i in range(3))

    def error(x: Array) -> Array:
        v: dict[str, Any] = dict(zip(names, np.exp(x), strict=True))
        found: Array = np.log(seconds(rows, v) / rows.seconds)
        return found

    best = least_squares(error, start, bounds=(least, most), loss="soft_l1", f_scale=0.15)
    return dict(zip(names, np.exp(best.x).tolist(), strict=True))


def errors(rows: Exchange, v: dict[str, float]) -> Array:
    """Errors in log time."""
    found: Array = np.log(seconds(rows, v) / rows.seconds)
    return found


def residuals(rows: Exchange, v: dict[str, float]) -> dict[str, tuple[float, float, float, int]]:
    """Median error, bias, 90th percentile and rows: of all, and of small, middling and large messages."""
    error = errors(rows, v)
    size = rows.wire
    regions = {"all": size > 0, "-64 kB": size <= 65536, "-4 MB": (size > 65536) & (size <= 4e6)}
    regions |= {"4 MB-": size > 4e6}
    regions |= {f"r{int(r)}": rows.ranks == r for r in np.unique(rows.ranks)}
    found = {}
    for name, where in regions.items():
        e = error[where]
        if len(e):
            size = np.abs(np.expm1(e))
            middle, bias, most = np.median(size), np.expm1(np.median(e)), np.quantile(size, 0.9)
            found[name] = (float(middle), float(bias), float(most), len(e))
    return found
