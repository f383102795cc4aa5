"""What arithmetic is timed with: numpy, or torch where it is installed; a GPU only through torch."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from kvplan.errors import BadInput, shown

DTYPES = {"float32": 4, "bfloat16": 2, "float16": 2}
NO_TORCH = "torch is not installed; pip install 'kvplan[measure]'"


class Arrays(Protocol):
    """Work on arrays: each method does what its name says once, in place where it can."""

    library: str
    platform: str
    threads: int
    dtypes: tuple[str, ...]
    wait: Callable[[], None] | None

    def vector(self, count: int) -> Any:
        """Ones in float32."""

    def matrix(self, rows: int, columns: int, dtype: str) -> Any:
        """Random values."""

    def read(self, x: Any) -> object:
        """Sum it."""

    def copy(self, x: Any, y: Any) -> object:
        """Write x to y."""

    def add(self, x: Any, y: Any) -> object:
        """Add x to y in place: two read, one written."""

    def product(self, rows: Any, weights: Any) -> object:
        """Rows times the transposed weights."""


class NumpyArrays:
    """numpy on the CPU: float32 alone, in as many threads as its library takes."""

    platform = "cpu"
    dtypes: tuple[str, ...] = ("float32",)
    wait: Callable[[], None] | None = None

    def __init__(self) -> None:
        self.library = f"numpy {np.__version__}"
        self.threads = os.cpu_count() or 1

    def vector(self, count: int) -> Any:
        """Ones in float32."""
        return np.ones(count, np.float32)

    def matrix(self, rows: int, columns: int, dtype: str) -> Any:
        """Random values."""
        return np.random.default_rng(0).random((rows, columns), np.float32).astype(dtype)

    def read(self, x: Any) -> object:
        """Sum it."""
        return x.sum()

    def copy(self, x: Any, y: Any) -> object:
        """Write x to y."""
        np.copyto(y, x)
        return y

    def add(self, x: Any, y: Any) -> object:
        """Add x to y in place."""
        return np.add(x, y, out=y)

    def product(self, rows: Any, weights: Any) -> object:
        """Rows times the transposed weights."""
        return rows @ weights.T


class TorchArrays:
    """torch, on the CPU or on one GPU."""

    dtypes: tuple[str, ...] = tuple(DTYPES)

    def __init__(self, torch: Any, device: str, threads: int | None) -> None:
        self.torch, self.device = torch, device
        self.library = f"torch {torch.__version__}"
        self.platform = device
        self.wait: Callable[[], None] | None = torch.cuda.synchronize if device == "cuda" else None
        if threads:
            torch.set_num_threads(threads)
        self.threads = int(torch.get_num_threads())

    def vector(self, count: int) -> Any:
        """Ones in float32."""
        return self.torch.ones(count, dtype=self.torch.float32, device=self.device)

    def matrix(self, rows: int, columns: int, dtype: str) -> Any:
        """Random values."""
        made = self.torch.randn(rows, columns, device=self.device)
        return made.to(getattr(self.torch, dtype))

    def read(self, x: Any) -> object:
        """Sum it."""
        return x.sum()

    def copy(self, x: Any, y: Any) -> object:
        """Write x to y."""
        return y.copy_(x)

    def add(self, x: Any, y: Any) -> object:
        """Add x to y in place."""
        return y.add_(x)

    def product(self, rows: Any, weights: Any) -> object:
        """Rows times the transposed weights."""
        return self.torch.nn.functional.linear(rows, weights)


def torch_or_none() -> Any:
    """The torch module, or None where it is not installed or does not load."""
    try:
        return importlib.import_module("torch")
    except (ImportError, OSError):
        return None


def arrays_of(device: str | None, threads: int | None) -> Arrays:
    """What to time with on that device; a GPU where none is named and torch has one.

    Raises BadInput for a device that is not there, or threads that numpy cannot be told.
    """
    torch = torch_or_none()
    if device not in (None, "cpu", "cuda"):
        raise BadInput(f"--device: {shown(device)} is not cpu or cuda; name one of them")
    if torch is None:
        if device == "cuda":
            raise BadInput(f"--device: cuda: {NO_TORCH}")
        if threads:
            raise BadInput(f"--threads: {NO_TORCH}; numpy's threads are set by OMP_NUM_THREADS")
        return NumpyArrays()
    there = bool(torch.cuda.is_available())
    if device == "cuda" and not there:
        raise BadInput("--device: cuda: torch sees no GPU here; leave it out to measure the CPU")
    return TorchArrays(torch, device or ("cuda" if there else "cpu"), threads)


def memory_of(arrays: Arrays) -> tuple[int | None, int | None]:
    """(all, free) bytes of memory of the device; None where the system does not say."""
    if isinstance(arrays, TorchArrays) and arrays.device == "cuda":
        free, whole = arrays.torch.cuda.mem_get_info()
        return int(whole), int(free)
    rows = _lines("/proc/meminfo")
    found = {name: int(rest.split()[0]) * 1024 for name, rest in rows.items() if rest.split()[:1]}
    return found.get("MemTotal"), found.get("MemAvailable")


def device_words(arrays: Arrays) -> str:
    """The device in words."""
    if isinstance(arrays, TorchArrays) and arrays.device == "cuda":
        return str(arrays.torch.cuda.get_device_name())
    name = _lines("/proc/cpuinfo").get("model name", "").strip() or "a CPU"
    cores = os.cpu_count() or 1
    used = f"{arrays.threads} thread{'s' if arrays.threads > 1 else ''}"
    return f"{name}, {cores} core{'s' if cores > 1 else ''}, {used}"


def _lines(path: str) -> dict[str, str]:
    """Lines `name: value` of a file of the system; none where there is no such file."""
    try:
        text = Path(path).read_text("utf-8", errors="replace")
    except OSError:
        return {}
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        found.setdefault(name.strip(), value)
    return found
