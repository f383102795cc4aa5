"""Fit the time of kernels to their work; write facts/efficiency/kernels.json and docs/kernels.md.

`make kernels` fetches the timings, the aiconfigurator-core wheel (Apache-2.0), and calls
`python tools/fit_kernels.py --wheel DIR [--out FILE] [--page FILE]` on it unpacked; numpy, scipy and polars
are the extra `fit`. kernels.json has one row an accelerator, operation and format (kernels_merge.py); the
page has every engine's fit and where it fails (kernels_page.py).

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
from functools import partial
from pathlib import Path
from typing import Any

import kernels_fit as kernels
import kernels_links as links
import kernels_more as more
import kernels_page as pages
import kernels_read as read
import numpy as np
from kernels_merge import Fitted, Row, merged
from kernels_read import FACTS, LEAST, Work

LICENSE = "Apache-2.0"
DATE = "2026-11-29"
HOST = 4e-5  # a matmul that never takes less waited for the host
HELD = ("launch_seconds", "depth_seconds")
HOSTED = 0.2  # median error above which rows beyond the host's floor are left out
READERS = [
    read.matmul, read.prefill, read.decode, read.experts, read.latent_prefill, read.latent_decode,
    read.absorb, more.latent_module, more.state_decode, more.state_prefill,
]  # fmt: skip
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


def kernel_fits(works: list[Work]) -> Iterator[Fitted]:
    """Fits of one operation; those timed behind the host take launch and depth of the same engine's fp8."""
    works = [w for w in works if w.fit.sum() >= LEAST]
    beside = {}
    for work in works:
        if not floor(work):
            v = kernels.fit(work)
            if work.format == "fp8":
                beside[work.accelerator, work.engine] = {n: v[n] for n in HELD if n in v}
            yield Fitted(row(work, work.format, v, kernels.residuals(work, v)), partial(kernels.errors, work))
    for work in works:
        if host := floor(work):
            work.fit = work.fit & (work.seconds > 2 * host)
            if work.fit.sum() < LEAST:
                continue
            v = kernels.fit(work, beside[work.accelerator, work.engine])
            errors = kernels.residuals(work, v)
            if errors["all"][0] < HOSTED:
                found = row(work, work.format, v | {"host_seconds": host}, errors)
                yield Fitted(found, partial(kernels.errors, work))


def collective_fits(data: Path) -> Iterator[Fitted]:
    """Fits of the collectives."""
    for found in [*links.collectives(data), *links.expert_exchanges(data)]:
        v = links.fit(found)
        yield Fitted(row(found, found.format, v, links.residuals(found, v)), partial(links.errors, found))


def package(wheel: Path) -> str:
    """Name and version of the unpacked wheel."""
    (found,) = wheel.glob("*.dist-info")
    name, version = found.name.removesuffix(".dist-info").split("-")
    return f"{name.replace('_', '-')} {version}"


def fitted_on(wheel: Path) -> dict[str, Any]:
    """What the file says of itself."""
    return {
        "package": f"{package(wheel)} ({LICENSE})", "date": DATE, "p": 2,
        "source": "kernel timings under aiconfigurator_core/systems/data of the wheel, which stay there;"
        " figures here are fitted on them",
        "form": "launch_seconds + moved * moved_bytes / bandwidth"
        " + hypot((flops + pad * pad_flops) / (peak * compute),"
        " bytes / (bandwidth * memory) + tiles * tile_seconds, steps * depth_seconds),"
        " of what tools/kernels_read.py counts; collectives: tools/kernels_links.py",
        "weights": "as many rows of each half-decade of time, soft L1 in log time",
        "values": "those of the engine in `of`, the quickest on all timings; a figure left out is nothing",
        "fits": "rows, median error and its 90th percentile of each engine's own fit (docs/kernels.md)",
        "merged": "median error, bias and 90th percentile of the values here on the timings of all of them",
    }  # fmt: skip


def write(out: Path, fitted: dict[str, Any], rows: list[Row]) -> None:
    """The file, one row a line."""
    lines = ",\n".join(json.dumps(found) for found in rows)
    head = json.dumps(fitted, indent=1).replace("\n ", "\n")
    out.write_text(f'{{"fitted_on": {head},\n"rows": [\n{lines}\n]}}\n', encoding="utf-8")


def main() -> None:
    """Read, fit, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wheel", type=Path, required=True, help="folder of the unpacked wheel")
    parser.add_argument("--out", type=Path, default=FACTS / "efficiency" / "kernels.json")
    parser.add_argument("--page", type=Path, default=pages.PAGE)
    given = parser.parse_args()
    data = given.wheel / "aiconfigurator_core" / "systems" / "data"
    fits: list[Fitted] = []
    for reader in READERS:
        fits += kernel_fits(list(reader(data)))
    fits += collective_fits(data)
    rows = merged(fits)
    fitted = fitted_on(given.wheel)
    write(given.out, fitted, rows)
    given.page.write_text(pages.page(fitted, [one.row for one in fits], rows), encoding="utf-8")
    print(f"{len(fits)} fits, {len(rows)} rows in {given.out}")


if __name__ == "__main__":
    main()
