"""The accelerators that are built in: memory, bandwidth and peaks, each with its sources."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Any

from kvplan.errors import BadInput, UnknownName, did_you_mean, shown
from kvplan.facts import store
from kvplan.facts.names import squash, tokens
from kvplan.facts.reached import Reached
from kvplan.figure import Source, Trust

_NOISE = {
    "nvidia",
    "amd",
    "intel",
    "google",
    "aws",
    "apple",
    "geforce",
    "instinct",
    "tesla",
    "gpu",
    "card",
    "quadro",
}


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One accelerator in SI units: bytes, bytes per second, FLOP (or OP) per second, dense.

    `memory_bytes` is what CUDA reports where known, else what the driver shows; None where neither
    is known. `link_bytes_per_second` is one direction; the stated one is what an all-reduce reaches on
    the machine at hand, where somebody measured it. `unsure` names figures that sources dispute.
    """

    key: str
    name: str
    vendor: str
    arch: str | None
    memory_bytes: int | None
    memory_source: str
    bytes_per_second: float
    peaks: dict[str, float]
    link_bytes_per_second: float | None
    pcie: str | None
    power_watts: float | None
    sources: tuple[str, ...]
    unsure: tuple[str, ...]
    notes: str
    stated_link_bytes_per_second: float | None = None
    reached: Reached | None = None  # of a machine that was timed (kvplan measure)

    def peak(self, compute: str) -> float | None:
        """Dense peak for arithmetic of that name (bf16, fp8, …), or None when it has none."""
        return self.peaks.get(compute)

    def source(self, figure: str) -> Source:
        """Where a figure of this accelerator comes from; disputed ones are assumptions."""
        if self.reached is not None:
            return Source(Trust.MEASURED, f"{self.name}: {', '.join(self.sources)}")
        doubts = [text for text in self.unsure if _is_about(figure, text)]
        where = f"{self.name}, kvplan accelerators {self.key} ({', '.join(self.sources) or 'no source'})"
        if doubts:
            return Source(Trust.ASSUMED, f"{where}; unsure: {'; '.join(doubts)}")
        return Source(Trust.STATED, where)


def _is_about(figure: str, doubt: str) -> bool:
    words = {
        "memory": ("memory", "mib"),
        "bandwidth": ("bandwidth", "gb/s", "gbps", "gib/s", "gibps"),
        "peak": ("tensor", "tflop", "all but", "fp16", "int8", "fp8", "fp4", "tf32", "dense"),
    }
    return any(word in doubt.lower() for word in words[figure])


@functools.cache
def accelerators() -> tuple[Accelerator, ...]:
    """Every built-in accelerator."""
    document = store.json_file("accelerators.json")
    return tuple(_accelerator(row) for row in document["gpus"])


def source_names() -> dict[str, str]:
    """What each short source name stands for."""
    found: dict[str, str] = store.json_file("accelerators.json")["sources"]
    return found


def _accelerator(row: dict[str, Any]) -> Accelerator:
    mib, exact = row["memory_mib_reported"], row["cuda_total_bytes"]
    link = row["interconnect_gbps_per_gpu_bidir"]
    return Accelerator(
        key=row["key"],
        name=row["name"],
        vendor=row["vendor"],
        arch=row["arch"],
        memory_bytes=exact or (mib * 2**20 if mib else None),
        memory_source="CUDA's total"
        if exact and exact != (mib or 0) * 2**20
        else row["memory_reported_by"] or "not known",
        bytes_per_second=row["mem_bw_gbps"] * 1e9,
        peaks={k: v * 1e12 for k, v in row["dense_tflops"].items() if v},
        link_bytes_per_second=link * 1e9 / 2 if link else None,
        pcie=row["pcie"],
        power_watts=row["tdp_w"],
        sources=tuple(row["sources"]),
        unsure=tuple(row["unsure"]),
        notes=row["notes"],
    )


def device_total(a: Accelerator) -> tuple[int, Source] | None:
    """Bytes that the runtime reports as the device's total: as logs show it, or the driver's less what it
    holds back. None where no memory is known."""
    table = store.toml("device_total.toml")
    logged = table.get(a.key)
    if logged is not None:
        return round(logged["gib"] * 2**30), Source(Trust.MEASURED, f"{a.name}: {logged['source']}")
    if a.memory_bytes is None:
        return None
    source = a.source("memory")
    if a.memory_source == "CUDA's total":
        return a.memory_bytes, source
    held = table["held_back"].get(a.vendor)
    if held is None:
        return a.memory_bytes, source
    where = f"{source.where}, less {held['gib']:g} GiB that the driver holds back: {held['source']}"
    return a.memory_bytes - round(held["gib"] * 2**30), Source(Trust.ASSUMED, where)


def find_accelerator(name: str, field: str = "--gpu") -> Accelerator:
    """The accelerator a person means: `h100`, `H100-SXM-80GB`, `NVIDIA H100 80GB HBM3`.

    Raises UnknownName with suggestions, or BadInput when the name fits several.
    """
    by_key = {a.key: a for a in accelerators()}
    words = tokens(name) - _NOISE
    plain = "".join(w for w in _ordered(name) if w not in _NOISE)
    aliases = {squash(k): v for k, v in store.toml("aliases.toml")["accelerators"].items()}
    squashed = {squash(a.key): a for a in accelerators()}
    if plain in squashed:
        return squashed[plain]
    if plain in aliases:
        return by_key[aliases[plain]]
    fitting = [a for a in accelerators() if words and words <= _words(a)]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise BadInput(f"{field}: {shown(name)} fits {', '.join(a.key for a in fitting)}; write one of them")
    raise UnknownName(
        f"{field}: {shown(name)} is not a known accelerator; "
        f"{did_you_mean(name, by_key) or 'see kvplan accelerators'}"
    )


def _ordered(name: str) -> list[str]:
    return [w for w in re.split(r"[^a-z0-9]+", name.lower()) if w]


def _words(a: Accelerator) -> set[str]:
    """The words a name may use: the key's, the name's, and those with a trailing version dropped."""
    found = tokens(a.key) | tokens(a.name)
    return found | {w.rstrip("0123456789") for w in found if w.startswith(("sxm", "hbm"))}
