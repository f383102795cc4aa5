"""Kernel timings of the aiconfigurator-core wheel, as work: flops, bytes, steps and measured seconds."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

Array = np.ndarray[Any, np.dtype[Any]]
Columns = dict[str, Array]

FACTS = Path(__file__).parents[1] / "src" / "kvplan" / "facts"
SYSTEMS = {
    "a100_sxm": "a100-80-sxm", "b200_sxm": "b200", "b300_sxm": "b300", "b60": "arc-b60", "gb200": "gb200",
    "gb300": "gb300", "h100_sxm": "h100-sxm", "h200_sxm": "h200", "l40s": "l40s",
    "rtx_pro_6000_server": "rtxpro6000",
}  # fmt: skip
ENGINES = {"sglang": "sglang", "trtllm": "tensorrt-llm", "vllm": "vllm"}
NAMES = {"bfloat16": "bf16", "sq": "int8", "float8_e4m3fn": "fp8", "fp8_e4m3": "fp8"}
# bytes a weight (scales included), bytes an activation, and the peak its arithmetic uses
NVFP4, MXFP4, INT4 = 0.5625, 0.53125, 0.515625
FORMATS = {
    "bf16": (2, 2, "bf16"), "fp8": (1, 1, "fp8"), "fp8_block": (1, 1, "fp8"), "int8": (1, 1, "int8"),
    "nvfp4": (NVFP4, NVFP4, "fp4"), "int8_wo": (1, 2, "bf16"), "int4_wo": (INT4, 2, "bf16"),
    "w4a16_mxfp4": (MXFP4, 2, "bf16"), "w4a8_mxfp4_mxfp8": (MXFP4, 1, "fp8"),
    "w4afp8": (INT4, 1, "fp8"),
}  # fmt: skip
WIDE = 20  # a version counts as measured widely with one in so many of the rows of the widest
GROUP = 16  # most query heads to a cached head that are fitted on
LEAST = 40  # rows that are worth a fit
PCIE_LANE = {"3.0": 0.985e9, "4.0": 1.969e9, "5.0": 3.938e9}  # bytes per second, one direction


@dataclass
class Work:
    """Rows of one operation on one accelerator, engine and format."""

    accelerator: str
    engine: str
    version: str
    operation: str
    format: str
    kernel: str
    peak: float
    bandwidth: float
    seconds: Array
    flops: Array
    bytes: Array
    pad_flops: Array  # flops that one unit of `pad` adds
    tiles: Array  # sequences times cached heads, each at least one tile
    steps: Array  # how long the reduction is that one tile walks
    moved: Array  # values that a pass of its own reads and writes: quantising, permuting
    fit: Array  # 1 where the row may be fitted on
    regions: dict[str, Array] = field(default_factory=dict)


def accelerators() -> dict[str, dict[str, Any]]:
    """The accelerators of the facts, by key."""
    found = json.loads((FACTS / "accelerators.json").read_text(encoding="utf-8"))["gpus"]
    return {row["key"]: row for row in found}


def link(accelerator: dict[str, Any]) -> float:
    """Bytes per second that one accelerator sends to its neighbours."""
    if accelerator["interconnect_gbps_per_gpu_bidir"]:
        return float(accelerator["interconnect_gbps_per_gpu_bidir"]) * 1e9 / 2
    generation, width = accelerator["pcie"].split(" x")
    return PCIE_LANE[generation] * int(width)


def order(version: str) -> list[int]:
    """What sorts versions by age."""
    return [int(part) for part in re.findall(r"\d+", version)]


def files(data: Path, family: str, name: str) -> Iterator[tuple[str, str, str, Path]]:
    """Every file of this name: system, engine, version (newest first) and path."""
    for system in SYSTEMS:
        for engine in sorted(path.name for path in (data / system / family).glob("*")):
            found = (data / system / family / engine).glob(f"*/{name}_perf.parquet")
            for path in sorted(found, key=lambda p: order(p.parent.name), reverse=True):
                yield system, engine, path.parent.name, path


def groups(
    data: Path, family: str, name: str, keys: list[Any], where: Any = True
) -> Iterator[tuple[str, str, str, Any, pl.DataFrame]]:
    """Of each system, engine and format: the most used kernel of the newest version measured widely."""
    found: dict[Any, list[tuple[str, pl.DataFrame]]] = {}
    for system, engine, version, path in files(data, family, name):
        frame = pl.read_parquet(path).filter(pl.col("latency") > 0, where)
        frame = frame.unique([c for c in frame.columns if c != "latency"], keep="first", maintain_order=True)
        for values, rows in frame.group_by(keys, maintain_order=True):
            used = rows["kernel_source"].value_counts().sort("count", "kernel_source").tail(1)
            kept = rows.filter(pl.col("kernel_source") == used["kernel_source"][0])
            found.setdefault((system, engine, values), []).append((version, kept))
    for (system, engine, values), choices in found.items():
        most = max(len(rows) for _, rows in choices)
        version, rows = next(choice for choice in choices if len(choice[1]) >= most / WIDE)
        if len(rows) >= LEAST:
            yield system, engine, version, values, rows


def peak(accelerator: dict[str, Any], kind: str) -> float:
    """Peak operations per second of a kind of arithmetic; 16 bits where the accelerator has none of it."""
    rates = accelerator["dense_tflops"]
    return float(rates[kind] or rates["bf16"]) * 1e12


def columns(rows: pl.DataFrame, names: list[str]) -> Columns:
    """Named columns as floats, 0 where a table has none."""
    zero = np.zeros(len(rows))
    return {name: rows[name].to_numpy().astype(float) if name in rows.columns else zero for name in names}


def pairs(length: Array, window: Array) -> Array:
    """Queries times keys that a causal prefill of this length looks at."""
    w = np.where(window > 0, np.minimum(window, length), length)
    seen: Array = w * (w + 1) / 2 + (length - w) * w
    return seen


def work(
    place: tuple[str, str, str], operation: str, form: str, rows: pl.DataFrame, kind: str, **terms: Any
) -> Work:
    """Work of one group, terms left out being nothing."""
    system, engine, version = place
    accelerator = accelerators()[SYSTEMS[system]]
    bandwidth = float(accelerator["mem_bw_gbps"]) * 1e9
    seconds = rows["latency"].to_numpy().astype(float) / 1e3
    zero = np.zeros_like(seconds)
    for name in ("pad_flops", "tiles", "steps", "moved"):
        terms.setdefault(name, zero)
    # a row faster than the memory can read what it must came from a cache that the benchmark left warm
    cold = seconds > terms.pop("floor", terms["bytes"]) / bandwidth
    if operation.split("_")[-1] in {"decode", "experts"}:  # read again: what L2 holds tells nothing of memory
        held = terms["bytes"] <= (accelerator["l2_mb"] or 0) * 1e6
        cold &= ~(held & (terms["bytes"] / bandwidth > seconds / 5))
    terms["fit"] = (terms.get("fit", zero + 1) > 0) & cold
    kernel = str(rows["kernel_source"][0])
    return Work(SYSTEMS[system], ENGINES.get(engine, engine), version, operation, form, kernel,
                peak(accelerator, kind), bandwidth, seconds, **terms)  # fmt: skip


def rows_of(m: Array) -> Columns:
    """Regions by rows of a product."""
    return {"m 1-64": m <= 64, "m 65-512": (m > 64) & (m <= 512), "m 513-": m > 512}


def sizes(tokens: Array) -> Columns:
    """Regions by tokens of a prefill."""
    few, many = tokens <= 2048, tokens > 16384
    return {"tokens -2k": few, "2k-16k": ~few & ~many, "16k-": many}


def batches(batch: Array) -> Columns:
    """Regions by sequences of a decode."""
    return {"batch 1-8": batch <= 8, "16-64": (batch > 8) & (batch <= 64), "128-": batch > 64}


def matmul(data: Path) -> Iterator[Work]:
    """Dense matrix products: m rows by a k × n weight."""
    for system, engine, version, (name,), rows in groups(data, "gemm", "gemm", ["gemm_dtype"]):
        form = NAMES.get(str(name), str(name))
        weight, activation, kind = FORMATS[form]
        c = columns(rows, ["m", "n", "k"])
        m, n, k = c["m"], c["n"], c["k"]
        quantised = form in {"fp8", "fp8_block", "nvfp4", "int8"}
        yield work(
            (system, engine, version), "matmul", form, rows, kind,
            flops=2 * m * n * k, bytes=n * k * weight + m * k * activation + m * n * 2, steps=k,
            moved=m * k * quantised, floor=n * k * weight, fit=(n >= 256) & (k >= 256),
            regions=rows_of(m),
        )  # fmt: skip


def prefill(data: Path) -> Iterator[Work]:
    """Causal attention of whole prompts; `pad` is how many values of head width a softmax costs."""
    for system, engine, version, found, rows in groups(
        data, "attention", "context_attention", ["kv_cache_dtype", "attn_dtype"]
    ):
        cache, math = (NAMES.get(str(name), str(name)) for name in found)
        names = ["batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim", "window_size"]
        batch, length, heads, groups_, width, window = columns(rows, names).values()
        tokens, wide, value = batch * length, (1 if math == "fp8" else 2), (1 if cache == "fp8" else 2)
        seen = batch * heads * pairs(length, window)
        form = cache if math == "bf16" else f"{cache}_math"
        yield work(
            (system, engine, version), "attention_prefill", form, rows, math,
            flops=4 * width * seen, pad_flops=4 * seen,
            bytes=tokens * width * (heads * (wide + 2) + 2 * groups_ * value),
            steps=np.where(window > 0, np.minimum(window, length), length), fit=heads / groups_ <= GROUP,
            regions=sizes(tokens) | {"windowed": window > 0},
        )  # fmt: skip


def decode(data: Path) -> Iterator[Work]:
    """Attention of one new token per sequence over its cache."""
    for system, engine, version, (name,), rows in groups(
        data, "attention", "generation_attention", ["kv_cache_dtype"]
    ):
        cache = NAMES.get(str(name), str(name))
        names = ["batch_size", "step", "num_heads", "num_key_value_heads", "head_dim", "window_size"]
        batch, step, heads, groups_, width, window = columns(rows, names).values()
        length = np.where(window > 0, np.minimum(window, step + 1), step + 1)
        held = batch * groups_ * 2 * width * (1 if cache == "fp8" else 2) * length
        yield work(
            (system, engine, version), "attention_decode", cache, rows, "bf16",
            flops=4 * width * heads * batch * length, bytes=held + batch * heads * width * 4,
            tiles=batch * groups_, steps=length, fit=(heads / groups_ <= GROUP) & (window == 0),
            regions=batches(batch) | {"cache 64 MB-": held > 64e6},
        )  # fmt: skip


def experts(data: Path) -> Iterator[Work]:
    """Gated routed experts of one layer on one rank, tokens spread evenly over all experts."""
    # 22 of 512 and 2,688 wide are experts without a gate, some of them on a narrowed state
    plain = (pl.col("distribution") == "balanced") & (pl.col("topk") != 22) & (pl.col("hidden_size") != 2688)
    for system, engine, version, (name,), rows in groups(data, "moe", "moe", ["moe_dtype"], plain):
        form = NAMES.get(str(name), str(name))
        weight, activation, kind = FORMATS[form]
        names = ["num_tokens", "hidden_size", "inter_size", "topk", "num_experts"]
        tokens, hidden, inter, k, experts_ = columns(rows, names).values()
        tp, ep = columns(rows, ["moe_tp_size", "moe_ep_size"]).values()
        inter = inter / tp
        assignments = np.maximum(tokens * k / ep, 1)
        touched = np.minimum(assignments, experts_ / ep)
        weights = touched * 3 * hidden * inter
        grouped = (hidden == 7168) & (experts_ == 256) & (k == 8)  # its router may not spread evenly
        yield work(
            (system, engine, version), "experts", form, rows, kind,
            flops=6 * hidden * inter * assignments, pad_flops=6 * hidden * inter * touched,
            bytes=weights * weight + assignments * (hidden * (activation + 2) + 6 * inter),
            moved=tokens * k * hidden, fit=(inter >= 128) & ~grouped,
            regions={"tokens 1-16": tokens <= 16, "17-256": (tokens > 16) & (tokens <= 256)}
            | {"257-": tokens > 256, "ep 1": ep == 1, "ep 8": ep == 8, "ep 64": ep == 64},
        )  # fmt: skip


def latent_prefill(data: Path) -> Iterator[Work]:
    """Multi-head latent attention of whole prompts, keys 192 and values 128 wide."""
    for system, engine, version, (name,), rows in groups(data, "mla", "context_mla", ["kv_cache_dtype"]):
        batch, length, heads = columns(rows, ["batch_size", "isl", "num_heads"]).values()
        seen = batch * heads * pairs(length, np.zeros_like(heads))
        yield work(
            (system, engine, version), "mla_prefill", NAMES.get(str(name), str(name)), rows, "bf16",
            flops=2 * (192 + 128) * seen, pad_flops=4 * seen, steps=length,
            bytes=batch * length * heads * (192 + 192 + 128 + 128) * 2, regions=sizes(batch * length),
        )  # fmt: skip


def latent_decode(data: Path) -> Iterator[Work]:
    """Absorbed multi-head latent attention: 576 cached values a token, read once for all heads."""
    for system, engine, version, (name,), rows in groups(data, "mla", "generation_mla", ["kv_cache_dtype"]):
        cache = NAMES.get(str(name), str(name))
        batch, step, heads = columns(rows, ["batch_size", "step", "num_heads"]).values()
        held = batch * 576 * (1 if cache == "fp8" else 2) * (step + 1)
        yield work(
            (system, engine, version), "mla_decode", cache, rows, "bf16",
            flops=2 * (576 + 512) * heads * batch * (step + 1), bytes=held + batch * heads * 1088 * 2,
            tiles=batch, steps=step + 1, regions=batches(batch) | {"cache 64 MB-": held > 64e6},
        )  # fmt: skip


def absorb(data: Path) -> Iterator[Work]:
    """The per-head products around absorbed attention: 128 by 512."""
    for system, engine, version, (name,), rows in groups(data, "mla_bmm", "mla_bmm", ["bmm_dtype"]):
        form = NAMES.get(str(name), str(name))
        weight, activation, kind = FORMATS[form]
        m, heads = columns(rows, ["num_tokens", "num_heads"]).values()
        yield work(
            (system, engine, version), "mla_bmm", form, rows, kind, flops=2 * m * heads * 128 * 512,
            bytes=heads * (128 * 512 * weight + m * (128 * activation + 1024)),
            moved=m * heads * 128 * (form == "fp8"), regions=rows_of(m),
        )  # fmt: skip
