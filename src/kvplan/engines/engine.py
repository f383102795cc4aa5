"""What every engine module answers, and in what words.

An engine module has one entry point,

    capacity(model: Model, setup: Setup, pool_bytes: int | None, leaf: Leaf) -> Capacity

which turns the bytes that one rank gives to its cache into the figures that this engine and version
print. How the pool itself comes about is `engines/budget.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class Setup:
    """An engine as it is started: its version, how it is split, where it runs, and the flags given.

    `flags` holds only what the user gave, under the engine's own flag names with underscores
    (`max_model_len`, `gpu_memory_utilization`, `ctx_size`, …); an absent one takes the engine's
    default for that version and device. `platform`: cuda, rocm, xpu or cpu. `arch` and `memory_bytes`
    are the accelerator's, None when only a pool is given; `device_mib` is its total as nvidia-smi
    shows it, where that is known. `drafter`: layers that a speculative
    decoder adds, as the engine's own setting describes them, or None.
    """

    engine: str
    version: str
    flags: Mapping[str, Any] = field(default_factory=dict)
    dtype: str = "bfloat16"
    kv_cache_dtype: str = "auto"
    tp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1
    dcp: int = 1
    attention_dp: int = 1
    platform: str = "cuda"
    arch: str | None = None
    memory_bytes: int | None = None
    device_mib: float | None = None
    drafter: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """Layers that an engine keeps together: of the contract's `groups`, one entry.

    Paged engines: `kind`, `layers`, `page_bytes` of one layer's block, `blocks_per_request` at the
    maximum length. llama.cpp: `kind` is the cache's name, with cells, streams and bytes.
    """

    kind: str
    layers: int
    page_bytes: int | None = None
    blocks_per_request: int | None = None
    block_tokens: int | None = None
    cells: int | None = None
    streams: int | None = None
    k_bytes: int | None = None
    v_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Capacity:
    """The contract's `capacity` table of one rank. Figures may be `Figure`s; unknown is None.

    `fits` is the engine's own start check for one request of the maximum length; `notes` say in a
    sentence each what the user should know (a rule that changed, a setting overridden, a figure that
    the engine prints differently); `settings` are the defaults that were filled in, each a
    (value, source) pair.
    """

    fits: bool | None
    num_blocks: Any = None
    block_tokens: Any = None
    bytes_per_block: Any = None
    kv_tokens: Any = None
    max_concurrency: Any = None
    max_running_requests: Any = None
    needed_kv_bytes: Any = None
    estimated_max_model_len: Any = None
    kv_bytes: Any = None
    k_bytes: Any = None
    v_bytes: Any = None
    state_bytes: Any = None
    groups: tuple[CacheGroup, ...] = ()
    settings: Mapping[str, tuple[Any, str]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


# The figures of a Capacity, as the contract's `capacity` table lists them.
FIGURES = tuple(f.name for f in fields(Capacity) if f.name not in ("fits", "groups", "settings", "notes"))
