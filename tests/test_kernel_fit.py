"""The fit of kernels: what went into made-up timings comes out again, and merging takes the quickest."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

import kernels_fit
import kernels_links
from kernels_merge import Fitted, merged
from kernels_read import Work

KNOWN = {
    "launch_seconds": 6e-6, "compute": 0.7, "memory": 0.8, "pad": 20.0, "depth_seconds": 4e-10,
    "moved_bytes": 5.0, "tile_seconds": 2e-8,
}  # fmt: skip
LINK = {"launch_seconds": 5e-6, "link": 0.6, "rank_seconds": 8e-7, "share": 0.9}


def made_up(noise: float) -> Work:
    """Products of all sizes, timed by the form itself."""
    draw = np.random.default_rng(7)
    m, n, k = (np.exp(draw.uniform(np.log(least), np.log(most), 4000)) for least, most in
               ((1, 16384), (256, 32768), (256, 32768)))  # fmt: skip
    work = Work("made-up", "none", "1", "matmul", "bf16", "none", 1e15, 3e12, np.ones_like(m), 2 * m * n * k,
                2 * (m * n + n * k + m * k), pad_flops=2 * n * k, tiles=draw.uniform(0, 4000, 4000),
                steps=k, moved=m * k, fit=np.ones_like(m))  # fmt: skip
    work.seconds = kernels_fit.seconds(work, KNOWN) * np.exp(noise * draw.standard_normal(len(m)))
    return work


def test_known_parameters_are_recovered() -> None:
    work = made_up(0)
    found = kernels_fit.fit(work)
    assert found == pytest.approx(KNOWN, rel=0.01)
    assert kernels_fit.residuals(work, found)["all"][0] < 1e-3


def test_of_noisy_timings_those_are_that_bind_somewhere() -> None:
    work = made_up(0.1)
    found = kernels_fit.fit(work)
    hidden = ("pad",)  # of rows that hardly any product is short of
    for name in KNOWN.keys() - hidden:
        assert found[name] == pytest.approx(KNOWN[name], rel=0.15), name
    middle, bias, _, rows = kernels_fit.residuals(work, found)["all"]
    assert rows == 4000
    assert 0.06 < middle < 0.08  # the median of what was added
    assert abs(bias) < 0.01


def test_what_the_timings_cannot_tell_is_not_fitted() -> None:
    work = made_up(0)
    work.pad_flops, work.tiles, work.moved = (np.zeros_like(work.seconds) for _ in range(3))
    work.seconds = kernels_fit.seconds(work, KNOWN)
    assert set(kernels_fit.fit(work)) == {"launch_seconds", "compute", "memory", "depth_seconds"}


def test_a_held_parameter_stays() -> None:
    assert kernels_fit.fit(made_up(0.1), {"launch_seconds": 9e-6})["launch_seconds"] == pytest.approx(
        9e-6, rel=2e-3
    )


def test_a_shared_bus_is_recovered() -> None:
    ranks, wire = np.repeat([2.0, 4.0, 8.0], 30), np.tile(np.geomspace(1e3, 1e9, 30), 3)
    rows = kernels_links.Exchange(
        "made-up", "none", "1", "all_gather", "bf16", "none", 3e10, wire, ranks, True, wire
    )
    rows.seconds = kernels_links.seconds(rows, LINK)
    assert kernels_links.fit(rows) == pytest.approx(LINK, rel=0.01)


def test_merging_takes_the_quickest_fit_whole_and_passes_poor_ones_over() -> None:
    work = made_up(0)
    place = {"accelerator": "made-up", "operation": "matmul", "format": "bf16", "rows": 4000,
             "median_error": 0.0, "engine_version": "1"}  # fmt: skip
    slow = {**KNOWN, "compute": 0.5, "launch_seconds": 9e-6, "memory": 0.9}
    poor = {**KNOWN, "compute": 1.0, "launch_seconds": 1e-9}
    fits = [
        Fitted({**place, "engine": name, "p90_error": p90, **v}, lambda v: kernels_fit.errors(work, v))
        for name, p90, v in (("a", 0.0, KNOWN), ("b", 0.0, slow), ("c", 1.5, poor))
    ]
    (row,) = merged(fits)
    assert (row["of"], row["compute"], row["memory"], row["launch_seconds"]) == ("a 1", 0.7, 0.8, 6e-6)
    assert list(row["fits"]) == ["a 1", "b 1", "c 1"]
    assert abs(row["merged"][1]) < 0.01  # the timings are those it was fitted on


def test_operations_that_nothing_reads_are_not_shipped() -> None:
    assert (
        merged(
            [Fitted({"accelerator": "a", "operation": "moe_dispatch", "format": "f"}, lambda v: np.zeros(1))]
        )
        == []
    )
