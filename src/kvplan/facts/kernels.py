"""How fast kernels run: launch, share of the peak and of the bandwidth, as fitted on timings.

efficiency/kernels.json has one row an accelerator, operation and format, the quickest engine's of those timed
(docs/kernels.md). The form (tools/fit_kernels.py): launch + moved × moved_bytes ÷ bandwidth +
√(compute² + (memory + tiles × tile_seconds)² + depth²).
"""

from __future__ import annotations

import functools
import re
import statistics
from dataclasses import dataclass, replace
from typing import Any

from kvplan.facts import store
from kvplan.facts.accelerators import Accelerator
from kvplan.figure import Source, Trust

_FIELDS = ("launch_seconds", "compute", "memory", "pad", "depth_seconds", "moved_bytes", "tile_seconds")
_LINK_FIELDS = ("launch_seconds", "rank_seconds", "link", "one_shot", "ring_seconds", "share")


@dataclass(frozen=True, slots=True)
class Kernel:
    """One operation's efficiencies: shares of peak and bandwidth, seconds to launch, and what pads it.

    `depth_seconds` is the time of one step of the reduction a tile walks; `moved_bytes` what a value
    costs that a pass of its own reads and writes (quantising, permuting); `tile_seconds` what each head
    of each sequence costs beside its bytes. `known` is how near the
    measurement is: 0 this accelerator, 1 its generation (or another format), 2 elsewhere.
    """

    launch_seconds: float
    compute: float
    memory: float
    pad: float
    depth_seconds: float
    moved_bytes: float
    tile_seconds: float
    known: int
    source: Source
    keys: tuple[str, ...] = ()  # accelerators it was timed on


@dataclass(frozen=True, slots=True)
class Link:
    """A collective's start, what each further rank adds, and its share of the link.

    Where ranks share a bus its speed falls with (2 ÷ ranks) to the power `share`.
    """

    launch_seconds: float
    rank_seconds: float
    link: float
    one_shot: float
    ring_seconds: float
    share: float
    known: int
    source: Source
    keys: tuple[str, ...] = ()


def generation(key: str) -> str:
    """The family of accelerators that share kernels with this one."""
    return _generations().get(key, key)


@functools.cache
def _generations() -> dict[str, str]:
    table = store.toml("efficiency/classes.toml")["generation"]
    return {key: name for name, keys in table.items() for key in keys}


def devices_of(key: str) -> int:
    """How many devices an engine sees in one product of that name."""
    found = store.toml("efficiency/classes.toml")["devices"].get(key)
    return int(found["count"]) if found else 1


def adjusted(kernel: Kernel, accelerator: str) -> Kernel:
    """A relative's kernel on this accelerator: some traits do not carry over (classes.toml, traits)."""
    traits = store.toml("efficiency/classes.toml")["traits"]
    compute, memory, keys = kernel.compute, kernel.memory, kernel.keys
    if kernel.known == 0 or not keys:
        return kernel
    if accelerator in traits["half_rate"] and not set(keys) & set(traits["half_rate"]):
        compute = min(traits["half_rate_share"], 2 * compute)
    if set(keys) <= set(traits["inline_ecc"]) and accelerator not in traits["inline_ecc"]:
        memory = min(1.0, memory / traits["inline_ecc_share"])
    return replace(kernel, compute=compute, memory=memory)


def half_accumulate(key: str) -> float | None:
    """The 16-bit peak with 16-bit accumulation, where it is the higher one."""
    found = store.toml("efficiency/classes.toml")["half_accumulate"].get(key)
    return found["tflops"] * 1e12 if found else None


@functools.cache
def _rows() -> dict[tuple[str, str], list[dict[str, Any]]]:
    """The fitted rows of every operation and format, at most one an accelerator and way of joining ranks."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in store.json_file("efficiency/kernels.json")["rows"]:
        found.setdefault((row["operation"], row["format"]), []).append(row)
    return found


def fitted_on() -> dict[str, Any]:
    """What the kernels were fitted on, and when."""
    found: dict[str, Any] = store.json_file("efficiency/kernels.json")["fitted_on"]
    return found


def kernel_format(name: str) -> str:
    """The name among kernels of a scheme or number format; weight-only where it is not known."""
    found: str = store.toml("efficiency/classes.toml")["format"].get(
        name, "int8_wo" if "8" in name else "int4_wo"
    )
    return found


@functools.lru_cache(maxsize=4096)
def find_kernel(operation: str, format: str, accelerator: str) -> Kernel:
    """The nearest fitted kernel: of this accelerator, else of its generation, else of all."""
    near = store.toml("efficiency/classes.toml")["instead"]
    for name in (format, *near.get(format, ("bf16",))):
        rows = _rows().get((operation, name))
        if rows:
            return Kernel(**_nearest(rows, _FIELDS, accelerator, 0 if name == format else 1))
    return Kernel(**_nearest(_rows()["matmul", "bf16"], _FIELDS, accelerator, 2))


@functools.lru_cache(maxsize=1024)
def find_link(operation: str, accelerator: str, shared: bool = False) -> Link:
    """The nearest fitted collective, over links of one's own or over a bus that ranks share."""
    rows = _rows().get((operation, "bf16")) or _rows()["all_reduce", "bf16"]
    rows = [row for row in rows if ("share" in row) == shared] or rows
    return Link(**_nearest(rows, _LINK_FIELDS, accelerator, 0))


def _nearest(
    rows: list[dict[str, Any]], fields: tuple[str, ...], accelerator: str, worse: int
) -> dict[str, Any]:
    """Of this accelerator, else the median of its generation, else of all; `worse` if of another format."""
    by_accelerator = {row["accelerator"]: row for row in rows}
    family = generation(accelerator)
    tiers = (
        [key for key in by_accelerator if key == accelerator],
        [key for key in by_accelerator if generation(key) == family],
        list(by_accelerator),
    )
    known, keys = next((i, tier) for i, tier in enumerate(tiers) if tier)
    values = {name: statistics.median(by_accelerator[key].get(name, 0.0) for key in keys) for name in fields}
    what, package = f"{rows[0]['operation']} {rows[0]['format']}", fitted_on()["package"]
    known = min(2, known + worse)
    where = f"{package}: {what} on {', '.join(keys[:4])}{' …' if len(keys) > 4 else ''}"
    source = Source(Trust.ASSUMED if known else Trust.MEASURED, where)
    return {**values, "known": known, "source": source, "keys": tuple(keys)}


def link_bytes_per_second(a: Accelerator, ranks: int) -> tuple[float, bool]:
    """One direction of what joins so many ranks, and whether they share it (PCIe)."""
    table = store.toml("efficiency/classes.toml")
    node = table["node"]
    if ranks > node["domain"].get(a.key, node["accelerators"]):
        return float(node["bytes_per_second"]), False
    if a.stated_link_bytes_per_second:
        return a.stated_link_bytes_per_second, not a.link_bytes_per_second
    if a.link_bytes_per_second and (ranks <= 2 or a.key not in table["bridged"]["accelerators"]):
        return a.link_bytes_per_second, False
    return pcie_bytes_per_second(a.pcie or "4.0 x16"), True


def moving_bytes_per_second(a: Accelerator) -> float:
    """What a cache moves over from one deployment to another: the stated link, its own, or an adapter."""
    node = store.toml("efficiency/classes.toml")["node"]
    return float(a.stated_link_bytes_per_second or a.link_bytes_per_second or node["bytes_per_second"])


def pcie_bytes_per_second(text: str) -> float:
    """One direction of a slot such as `5.0 x16`; what it leaves out is taken as 4.0 and x16."""
    table = store.toml("efficiency/classes.toml")["pcie_lane"]
    lane = float(table.get(text[:3], table["4.0"]))
    width = text.split("x")[-1].split()[0] if "x" in text else "16"
    return lane * int(width if width.isdigit() else 16)


def host_bytes_per_second(a: Accelerator) -> float | None:
    """One direction of what joins an accelerator to its host: PCIe, or NVLink where the host has it."""
    if a.pcie is None:
        return None
    both_ways = re.search(r"C2C (\d+) GB/s", a.pcie)
    if both_ways:
        return int(both_ways[1]) * 1e9 / 2
    return pcie_bytes_per_second(a.pcie) if a.pcie[:1].isdigit() else None
