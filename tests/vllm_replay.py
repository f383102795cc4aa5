"""Recorded answers of vLLM asked again of kvplan: how a record becomes a setup, and what must agree."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from kvplan.engines.engine import Capacity, Setup
from kvplan.engines.vllm import capacity
from kvplan.model.model import Model
from kvplan.model.read import read_config

GOLDEN = Path(__file__).parent / "golden"
MODELS = Path(__file__).parents[1] / "src" / "kvplan" / "facts" / "models"
OWN = ("kv_cache_memory_bytes", "dtype", "tp", "kv_cache_dtype")
FORCED_SETTINGS = ("block_size", "max_num_batched_tokens", "enable_prefix_caching")

Row = dict[str, Any]


def rows(name: str) -> list[Row]:
    """The lines of a golden file."""
    return [json.loads(line) for line in (GOLDEN / name).read_text("utf-8").splitlines()]


def edited(config: Row, edits: list[str]) -> Row:
    """The config with the keys taken out that the record says were taken out."""
    found = copy.deepcopy(config)
    for edit in edits:
        if edit.startswith("-"):
            *path, last = edit[1:].split(".")
            table = found
            for key in path:
                table = table[key]
            table.pop(last, None)
        elif edit.startswith("+model_type="):
            found["model_type"] = edit.partition("=")[2]
    return found


@cache
def model_of(file: str, edits: tuple[str, ...] = ()) -> Model:
    """The model of a shipped config file."""
    return read_config(edited(json.loads((MODELS / file).read_text("utf-8")), list(edits)), file)


def model_for(row: Row) -> Model:
    """The model of a record."""
    if "config" in row:
        return read_config(row["config"], row["id"])
    return model_of(row["config_file"], tuple(row.get("config_edits", ())))


def setup_of_0_32(row: Row) -> Setup:
    """As started on the CPU platform; what the harness forced is given as flags on a GPU."""
    args = row["args"]
    flags = {k: v for k, v in args.items() if k not in OWN}
    forced = {k: v for k, v in row.get("forced", {}).items() if k != "language_model_only"}
    if forced:
        flags |= {k: row["resolved"][k] for k in FORCED_SETTINGS}
    platform = "cuda" if forced else "cpu"
    if forced and not args.get("async_scheduling"):
        flags["async_scheduling"] = False
    return Setup("vllm", "0.32.0", flags, dtype=args["dtype"], platform=platform)


def setup_of_version(row: Row) -> Setup:
    """As handed to that version's planning code, on a GPU unless a flag says otherwise."""
    args = row["args"]
    flags = {k: v for k, v in args.items() if k not in OWN}
    return Setup(
        "vllm",
        row["version"],
        flags,
        dtype=args["dtype"],
        kv_cache_dtype=args.get("kv_cache_dtype", "auto"),
        tp=args["tp"],
    )


def asked(row: Row, setup: Setup) -> Capacity:
    """kvplan's answer to a record."""
    return capacity(model_for(row), setup, row["args"]["kv_cache_memory_bytes"])


def gib(value: int) -> float:
    """Bytes as vLLM prints them."""
    return round(value / 2**30, 2)


def differences(row: Row, got: Capacity, *, ordered: bool = True) -> Iterator[str]:
    """Every figure of the record that kvplan gives another value, in words."""
    if "error" in row:
        yield from _refusal(row, got)
        return
    said = row["reported"]
    pairs = [
        ("num_gpu_blocks", got.num_blocks),
        ("kv_cache_size_tokens", got.kv_tokens),
        ("bytes_per_block", got.bytes_per_block),
        ("block_size", got.block_tokens),
    ]
    exact = said.get("max_concurrency_exact")
    if exact is not None or "max_request_bytes" in said:
        pairs.append(
            ("max_concurrency_exact" if exact is not None else "max_concurrency", got.max_concurrency)
        )
    else:
        pairs.append(("max_concurrency", round(got.max_concurrency, 2)))
    if "max_request_bytes" in said:
        pairs.append(("max_request_bytes", got.needed_kv_bytes))
    for name, value in pairs:
        if name in said and said[name] != value:
            yield f"{name} {value} for {said[name]}"
    groups = [[g.kind, g.layers, g.block_tokens, g.page_bytes] for g in got.groups]
    told = said["groups"]
    if not ordered:
        groups, told = sorted(groups), sorted(told)
    if groups != told:
        yield f"groups {groups} for {told}"
    if got.fits is not True:
        yield f"fits {got.fits} {got.notes}"


def _refusal(row: Row, got: Capacity) -> Iterator[str]:
    said = row["error"]
    if got.fits is not False:
        yield "fits, and vLLM refused"
        return
    if "needed_gib" not in said:
        return
    if gib(got.needed_kv_bytes) != said["needed_gib"]:
        yield f"needed {gib(got.needed_kv_bytes)} GiB for {said['needed_gib']}"
    told = said.get("estimated_max_model_len")
    if told is not None and got.estimated_max_model_len != told:
        yield f"estimated length {got.estimated_max_model_len} for {told}"
    planned = row.get("planned", {})
    if planned and got.bytes_per_block != planned["bytes_per_block"]:
        yield f"bytes per block {got.bytes_per_block} for {planned['bytes_per_block']}"
    if planned and got.needed_kv_bytes != planned["max_request_bytes"]:
        yield f"request bytes {got.needed_kv_bytes} for {planned['max_request_bytes']}"
