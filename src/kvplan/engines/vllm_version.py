"""What each version of vLLM does differently: switches read from facts/engines/vllm.toml.

A change says from which version it holds, what it sets and where that was read. No other file
compares versions.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from kvplan.errors import UnknownName, shown
from kvplan.facts import store

FACTS = "engines/vllm.toml"


@dataclass(frozen=True, slots=True)
class Rules:
    """The switches of one version; `facts/engines/vllm.toml` says what each means and since when."""

    version: str
    planner: str = "v1"
    hybrid_manager: bool = True
    chunked_spec: bool = True
    chunked_hybrid: bool = True
    uniform_type: bool = True
    deal: str = "strided"
    single_group_below: float = 1.5
    unify_pages: str = "pad"
    packed: str = "widest_group"
    merge_buckets: bool = True
    groups_over: str = "model"
    check: str = "groups"
    check_on: str = "stage"
    null_block_in_check: bool = True
    override_in_check: bool = True
    estimate_printed: bool = True
    auto_fit: bool = True
    concurrency: str = "blocks"
    request_blocks: str = "by_group"
    tokens_as: str = "concurrency"
    context_parallel: bool = True
    context_parallel_tokens: bool = False
    in_flight: str = "every_batch"
    async_default: str = "on"
    batches_with_async: str = "pp + 1"
    state_blocks: str = "by_mode"
    state_mode: str = "align"
    checkpoint_mixers: tuple[str, ...] = ()
    state_alignment: str = "block"
    mla: bool = True
    mla_alignment: int = 128
    sliding_value_width: bool = True
    checkpoint_kv_dtype: bool = True
    sparse_auto_dtype: str = "auto"
    trained_context: bool = True
    latent_kind: str = "MLAAttentionSpec"
    prefix_caching: bool = True
    states_prefix_caching: bool = True
    sources: Mapping[str, str] = field(default_factory=dict, compare=False)

    def source(self, switch: str) -> str:
        """Since when a switch stands as it does, and where that was read."""
        return self.sources.get(switch, "vLLM 0.32.0")


def numbers_of(version: str) -> tuple[int, ...]:
    """A version's leading numbers, as compared: 0.11.0rc2.dev98 is 0.11.0, 0.10.1.1 comes after 0.10.1."""
    match = re.match(r"v?(\d+(?:\.\d+)*)", version.strip())
    if match is None:
        raise UnknownName(
            f"--engine-version: {shown(version)} is no version of vllm; give one such as {newest()}"
        )
    return tuple(int(part) for part in match[1].split("."))


def newest() -> str:
    """The newest version whose rules are known."""
    return str(store.toml(FACTS)["newest"])


def padded(numbers: tuple[int, ...]) -> tuple[int, ...]:
    """Four numbers, so that 0.33 and 0.33.0 compare equal."""
    return (*numbers, 0, 0, 0, 0)[:4]


def since(version: str, first: str) -> bool:
    """Whether `version` is `first` or newer."""
    return padded(numbers_of(version)) >= padded(numbers_of(first))


@functools.cache
def rules_of(version: str) -> Rules:
    """The switches of that version; a version newer than the newest known takes its rules."""
    table = store.toml(FACTS)
    if not since(version, table["oldest"]):
        raise UnknownName(
            f"--engine-version: vllm {shown(version)} is older than {table['oldest']}, the oldest whose "
            "rules are known"
        )
    known = {f.name for f in fields(Rules)} - {"version", "sources"}
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for change in table["change"]:
        if since(version, change["from"]):
            for switch, value in change["set"].items():
                if switch not in known:
                    raise KeyError(f"{FACTS}: {switch} is no switch")
                values[switch] = tuple(value) if isinstance(value, list) else value
                sources[switch] = f"since {change['from']}: {change['source']}"
    return Rules(version=version, sources=sources, **values)


def row_for(rows: list[dict[str, Any]], version: str, **where: Any) -> dict[str, Any] | None:
    """The last row of a table that holds for the version and for everything it names in `where`.

    A row's `from` is its first version; a key of `where` that a row does not name holds anywhere.
    """
    found = None
    for row in rows:
        fits = all(key not in row or value in _listed(row[key]) for key, value in where.items())
        if fits and since(version, row.get("from", "0")):
            found = row
    return found


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def table_of(name: str) -> Any:
    """A table of facts/engines/vllm.toml."""
    return store.toml(FACTS)[name]
