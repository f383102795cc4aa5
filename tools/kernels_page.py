"""docs/kernels.md: every engine's fit with its errors by region, and what the fits show."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from kernels_fit import BOUNDS
from kernels_links import BOUNDS as LINK_BOUNDS
from kernels_merge import LINKS, READ, Row
from kernels_words import FAILS, HEAD, OPERATIONS, SURPRISES, TABLE

PAGE = Path(__file__).parents[1] / "docs" / "kernels.md"
# column, field and how many of its unit are one of the field's
COLUMNS = (
    ("launch µs", "launch_seconds", 1e6), ("compute", "compute", 1), ("memory", "memory", 1),
    ("pad", "pad", 1), ("tile ns", "tile_seconds", 1e9), ("depth ns", "depth_seconds", 1e9),
    ("moved B", "moved_bytes", 1),
    ("host µs", "host_seconds", 1e6), ("rank µs", "rank_seconds", 1e6), ("link", "link", 1),
    ("one shot", "one_shot", 1), ("ring µs", "ring_seconds", 1e6), ("share", "share", 1),
)  # fmt: skip
POOR = (0.2, 0.6)  # median error and 90th percentile from which a fit is listed


def line(cells: list[str]) -> str:
    """A row of a table."""
    return f"| {' | '.join(cells)} |"


def table(heads: list[str], rows: list[list[str]]) -> list[str]:
    """A table and the empty line after it."""
    return [line(heads), "|" + "---|" * len(heads), *map(line, rows), ""]


def per_cent(value: float) -> str:
    """A share as whole per cent."""
    return f"{100 * value:.0f}"


def signed(value: float) -> str:
    """A bias as whole per cent with its sign."""
    return f"{100 * value:+.0f}"


def fits_of(rows: list[Row], fits: list[Row]) -> list[str]:
    """One operation: each engine's fit, after it what is shipped of the accelerator and format."""
    used = [c for c in COLUMNS if any(c[1] in row for row in fits)]
    regions = list(dict.fromkeys(name for row in fits for name in row["regions"]))
    heads = [
        "accelerator",
        "format",
        "engine",
        *(c[0] for c in used),
        "rows",
        "error",
        "bias",
        "p90",
        *regions,
    ]

    def values(row: Row) -> list[str]:
        return [f"{row[name] * unit:.3g}" if name in row else "" for _, name, unit in used]

    lines = []
    for kept in rows:
        place = [kept["accelerator"], kept["format"]]
        for row in fits:
            if [row["accelerator"], row["format"]] == place:
                by = [row["regions"].get(name) for name in regions]
                errors = [per_cent(row["median_error"]), signed(row["bias"]), per_cent(row["p90_error"])]
                cells = [f"{per_cent(r[0])}/{signed(r[1])}" if r else "" for r in by]
                engine = f"{row['engine']} {row['engine_version']}"
                lines.append([*place, engine, *values(row), f"{row['rows']:,}", *errors, *cells])
        error, bias, most = kept["merged"]
        total = f"{sum(fit[0] for fit in kept['fits'].values()):,}"
        errors = [per_cent(error), signed(bias), per_cent(most)]
        lines.append([*place, "**shipped**", *values(kept), total, *errors, *("" for _ in regions)])
    return table(heads, lines)


def poor(fits: list[Row]) -> list[list[str]]:
    """Fits that miss widely, worst first, with the region that misses most."""
    found = [r for r in fits if r["median_error"] > POOR[0] or r["p90_error"] > POOR[1]]
    lines = []
    for row in sorted(found, key=lambda r: -float(r["p90_error"])):
        name, (error, bias) = max(row["regions"].items(), key=lambda item: float(item[1][0]))
        what = [row["operation"], row["format"], row["accelerator"], row["engine"], f"`{row['kernel'][:40]}`"]
        errors = [per_cent(row["median_error"]), per_cent(row["p90_error"])]
        lines.append([*what, *errors, f"{name}: {per_cent(error)}/{signed(bias)}"])
    return lines


def optimistic(rows: list[Row]) -> list[list[str]]:
    """What merging costs by operation and format: the shipped values' bias beside the engines' own error."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        found.setdefault((row["operation"], row["format"]), []).append(row)
    lines = []
    for (operation, form), group in found.items():
        own = statistics.median(fit[1] for row in group for fit in row["fits"].values())
        error = statistics.median(row["merged"][0] for row in group)
        least = min(group, key=lambda row: float(row["merged"][1]))
        bias = statistics.median(row["merged"][1] for row in group)
        furthest = f"{signed(least['merged'][1])} {least['accelerator']}"
        lines.append(
            [operation, form, str(len(group)), per_cent(own), per_cent(error), signed(bias), furthest]
        )
    return lines


def at_bounds(fits: list[Row]) -> list[list[str]]:
    """How many fits end on a parameter's bound: there the form, or the timings, tell nothing of it."""

    def ends(row: Row, name: str, bounds: dict[str, Any]) -> str:
        _, least, most = bounds[name]
        return "least" if row[name] <= least * 1.01 else "most" if row[name] >= most * 0.99 else ""

    counts: dict[tuple[str, str, str], int] = {}
    for row in fits:
        bounds = LINK_BOUNDS if row["operation"] in LINKS else BOUNDS
        for name in bounds:
            end = ends(row, name, bounds) if name in row else ""
            if end:
                key = (row["operation"], name, f"{end}, {bounds[name][1 if end == 'least' else 2]:g}")
                counts[key] = counts.get(key, 0) + 1
    totals = {name: sum(row["operation"] == name for row in fits) for name in READ}
    return [[o, f"`{n}`", end, f"{count} of {totals[o]}"] for (o, n, end), count in counts.items()]


def beside(fits: list[Row]) -> list[list[str]]:
    """Operations that are fitted and not read: how well the form holds there."""
    found: dict[str, list[Row]] = {}
    for row in fits:
        if row["operation"] not in READ:
            found.setdefault(row["operation"], []).append(row)

    def middle(group: list[Row], name: str) -> str:
        return per_cent(statistics.median(row[name] for row in group))

    return [
        [name, OPERATIONS[name], str(len(group)), middle(group, "median_error"), middle(group, "p90_error")]
        for name, group in found.items()
    ]


def page(fitted: dict[str, Any], fits: list[Row], rows: list[Row]) -> str:
    """The page's text."""
    lines = [HEAD.format(package=fitted["package"], date=fitted["date"], fits=len(fits), rows=len(rows))]
    read = [row for row in fits if row["operation"] in READ]
    lines += ["## What merging costs", "", FAILS["merged"], ""]
    heads = ["operation", "format", "accelerators", "own error", "error shipped", "bias shipped", "furthest"]
    lines += table(heads, optimistic(rows))
    lines += ["## Where it fails", "", FAILS["poor"], ""]
    heads = ["operation", "format", "accelerator", "engine", "kernel", "error", "p90", "worst region"]
    lines += table(heads, poor(read))
    lines += [FAILS["bounds"], "", *table(["operation", "parameter", "bound", "fits"], at_bounds(read))]
    lines += ["## What surprised", "", *(f"- {text}" for text in SURPRISES), ""]
    lines += ["## Fitted, not read", "", FAILS["beside"], ""]
    lines += table(["operation", "what", "fits", "error", "p90"], beside(fits))
    lines += ["## Every fit", "", TABLE, ""]
    for name in READ:
        kept = [row for row in rows if row["operation"] == name]
        lines += [f"### {name}", "", OPERATIONS[name], ""]
        lines += fits_of(kept, [row for row in fits if row["operation"] == name])
    return "\n".join(lines).rstrip() + "\n"
