"""Fit one form of time to work: launch, what is moved before, and the root of three squares."""

from __future__ import annotations

from typing import Any

import numpy as np
from kernels_read import Array, Work
from scipy.optimize import least_squares

# start, least and most of each parameter
BOUNDS = {
    "launch_seconds": (5e-6, 5e-7, 2e-4), "compute": (0.6, 0.01, 1.0), "memory": (0.7, 0.02, 1.0),
    "pad": (16.0, 1e-2, 4096.0), "tile_seconds": (1e-8, 1e-11, 1e-5), "depth_seconds": (3e-10, 1e-13, 1e-7),
    "moved_bytes": (4.0, 1e-3, 100.0),
}  # fmt: skip
SAMPLE = 400  # rows of one half-decade of time


def seconds(work: Work, v: dict[str, float], at: Any = slice(None)) -> Array:
    """What the form says of these rows."""
    compute = (work.flops[at] + v.get("pad", 0) * work.pad_flops[at]) / (work.peak * v["compute"])
    memory = work.bytes[at] / (work.bandwidth * v["memory"]) + work.tiles[at] * v.get("tile_seconds", 0)
    depth = work.steps[at] * v.get("depth_seconds", 0)
    moved = work.moved[at] * v.get("moved_bytes", 0) / work.bandwidth
    found: Array = v["launch_seconds"] + moved + np.sqrt(compute**2 + memory**2 + depth**2)
    return found


def sample(work: Work) -> Array:
    """Rows to fit on: as many of each half-decade of time."""
    draw = np.random.default_rng(0)
    rows = np.flatnonzero(work.fit)
    bins = np.floor(np.log10(work.seconds[rows]) * 2)
    parts = [rows[bins == b] for b in np.unique(bins)]
    return np.concatenate([draw.choice(part, min(len(part), SAMPLE), replace=False) for part in parts])


def parameters(work: Work) -> list[str]:
    """The parameters that these rows can tell."""
    names = ["launch_seconds", "compute", "memory"]
    names += ["pad"] if work.pad_flops.any() else []
    names += ["tile_seconds"] if work.tiles.any() else []
    names += ["depth_seconds"] if work.steps.any() else []
    names += ["moved_bytes"] if work.moved.any() else []
    return names


def fit(work: Work, held: dict[str, float] | None = None) -> dict[str, float]:
    """The parameters that fit best in relative error, large ones counting little more than their size."""
    rows = sample(work)
    names = parameters(work)
    start, least, most = (np.log([BOUNDS[name][i] for name in names]) for i in range(3))
    for name, value in (held or {}).items():
        i = names.index(name)
        start[i], least[i], most[i] = np.log([value, value * 0.999, value * 1.001])

    def error(x: Array) -> Array:
        v = dict(zip(names, np.exp(x).tolist(), strict=True))
        found: Array = np.log(seconds(work, v, rows) / work.seconds[rows])
        return found

    best = least_squares(error, start, bounds=(least, most), loss="soft_l1", f_scale=0.15)
    return dict(zip(names, np.exp(best.x).tolist(), strict=True))


def errors(work: Work, v: dict[str, float]) -> Array:
    """Errors in log time of the rows that are fitted on."""
    found: Array = np.log(seconds(work, v) / work.seconds)[work.fit > 0]
    return found


def residuals(work: Work, v: dict[str, float]) -> dict[str, tuple[float, float, float, int]]:
    """Median error, bias, 90th percentile and rows: of all and of each region."""
    error = np.log(seconds(work, v) / work.seconds)
    found = {}
    for name, where in {"all": work.fit, **work.regions}.items():
        e = error[(where > 0) & (work.fit > 0)]
        if len(e):
            size = np.abs(np.expm1(e))
            middle, bias, most = np.median(size), np.expm1(np.median(e)), np.quantile(size, 0.9)
            found[name] = (float(middle), float(bias), float(most), len(e))
    return found
