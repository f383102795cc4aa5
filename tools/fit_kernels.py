"""Fit the time of an engine's kernels to their work and write facts/efficiency/kernels.json.

`python tools/fit_kernels.py --data DIR [--out FILE]`, DIR being `systems/data` of an unpacked
aiconfigurator-core wheel (Apache-2.0), where numpy, scipy and polars are installed.

An operation takes
    launch_seconds + moved × moved_bytes / bandwidth + √(compute² + memory² + depth²), where
    compute = (flops + pad × pad_flops) / (peak × compute)
    memory = bytes / (bandwidth × memory) + tiles × tile_seconds
    depth = steps × depth_seconds
and a collective what kernels_links.seconds says. Peaks, bandwidths and links are those of accelerators.json.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kernels_fit as kernels
import kernels_links as links
import kernels_more as more
import kernels_read as read
import numpy as np
from kernels_read import FACTS, LEAST, Work

PACKAGE = "aiconfigurator-core 0.12.0 (Apache-2.0)"
DATE = "2026-11-29"
HOST = 4e-5  # a matmul that never takes less waited for the host
HELD = ("launch_seconds", "depth_seconds")
HOSTED = 0.2  # median error above which rows beyond the host's floor are left out
READERS = [
    read.matmul, read.prefill, read.decode, read.experts, read.latent_prefill, read.latent_decode,
    read.absorb, more.latent_module, more.state_decode, more.state_prefill,
]  # fmt: skip
Row = dict[str, Any]
Errors = dict[str, tuple[float, float, float, int]]


def short(value: float) -> float:
    """Three digits."""
    return float(f"{value:.3g}")


def row(found: Any, form: str, v: dict[str, float], errors: Errors) -> Row:
    """One row of the file."""
    error, bias, most, rows = errors["all"]
    return {
        "accelerator": found.accelerator, "engine": found.engine, "engine_version": found.version,
        "operation": found.operation, "format": form, "kernel": found.kernel,
        **{name: short(value) for name, value in v.items()},
        "rows": rows, "median_error": round(error, 3), "bias": round(bias, 3), "p90_error": round(most, 3),
        "regions": {n: [round(e, 2), round(b, 2)] for n, (e, b, _, _) in errors.items() if n != "all"},
    }  # fmt: skip


def floor(work: Work) -> float:
    """The time under which the host lets no kernel go, 0 where it does not show."""
    least = float(np.quantile(work.seconds, 0.1))
    return least if work.operation == "matmul" and least > HOST else 0.0


def kernel_rows(works: list[Work]) -> Iterator[Row]:
    """Rows of one operation; those timed behind the host take launch and depth of the same engine's fp8."""
    works = [w for w in works if w.fit.sum() >= LEAST]
    beside = {}
    for work in works:
        if not floor(work):
            v = kernels.fit(work)
            if work.format == "fp8":
                beside[work.accelerator, work.engine] = {n: v[n] for n in HELD if n in v}
            yield row(work, work.format, v, kernels.residuals(work, v))
    for work in works:
        if host := floor(work):
            work.fit = work.fit & (work.seconds > 2 * host)
            if work.fit.sum() < LEAST:
                continue
            v = kernels.fit(work, beside[work.accelerator, work.engine])
            errors = kernels.residuals(work, v)
            if errors["all"][0] < HOSTED:
                yield row(work, work.format, v | {"host_seconds": host}, errors)


def collective_rows(data: Path) -> Iterator[Row]:
    """Rows of the collectives."""
    for found in [*links.collectives(data), *links.expert_exchanges(data)]:
        v = links.fit(found)
        yield row(found, found.format, v, links.residuals(found, v))


def show(found: Row) -> None:
    """One line of the table."""
    place = ("accelerator", "engine", "engine_version", "operation", "format")
    fixed = {*place, "kernel", "rows", "bias", "median_error", "p90_error", "regions"}
    names = " ".join(str(found[name]) for name in place)
    values = " ".join(f"{name}={value:g}" for name, value in found.items() if name not in fixed)
    regions = " ".join(f"{name}:{e:.2f}/{b:+.2f}" for name, (e, b) in found["regions"].items())
    print(f"{names} {values} n={found['rows']} err={found['median_error']:.3f}/{found['bias']:+.3f}"
          f" p90={found['p90_error']:.2f} {regions}")  # fmt: skip


def write(out: Path, rows: list[Row]) -> None:
    """The file, one row a line."""
    fitted = {
        "package": PACKAGE, "date": DATE, "p": 2,
        "form": "launch_seconds + moved * moved_bytes / bandwidth"
        " + hypot((flops + pad * pad_flops) / (peak * compute),"
        " bytes / (bandwidth * memory) + tiles * tile_seconds, steps * depth_seconds),"
        " of what tools/kernels_read.py counts",
        "weights": "as many rows of each half-decade of time, soft L1 in log time",
    }  # fmt: skip
    lines = ",\n".join(json.dumps(found) for found in rows)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(f'{{"fitted_on": {json.dumps(fitted)},\n"rows": [\n{lines}\n]}}\n', encoding="utf-8")


def main() -> None:
    """Read, fit, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=FACTS / "efficiency" / "kernels.json")
    given = parser.parse_args()
    rows: list[Row] = []
    for reader in READERS:
        rows += kernel_rows(list(reader(given.data)))
    rows += collective_rows(given.data)
    for found in rows:
        show(found)
    write(given.out, rows)


if __name__ == "__main__":
    main()
