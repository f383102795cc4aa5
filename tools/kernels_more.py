"""Timings of whole latent-attention modules and of gated delta rules, as work."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from kernels_read import (
    FORMATS,
    NAMES,
    SYSTEMS,
    Work,
    accelerators,
    batches,
    columns,
    groups,
    pairs,
    peak,
    sizes,
    work,
)

HIDDEN, QUERY, LATENT, KEY, VALUE = 7168, 1536, 576, 192, 128  # DeepSeek-V3
CHUNK = 64  # tokens that a chunked delta rule takes at a time


def latent_module(data: Path) -> Iterator[Work]:
    """DeepSeek-V3's attention of one layer with its projections, decode absorbed."""
    for stage in ("context", "generation"):
        for system, engine, version, found, rows in groups(
            data, "mla", f"mla_{stage}_module", ["gemm_type", "kv_cache_dtype"]
        ):
            product, cache = (NAMES.get(str(name), str(name)) for name in found)
            weight, _, kind = FORMATS[product]
            accelerator = accelerators()[SYSTEMS[system]]
            batch, isl, step, heads = columns(rows, ["batch_size", "isl", "step", "num_heads"]).values()
            prefill = stage == "context"
            tokens, length = (batch * isl, isl) if prefill else (batch, step)
            weights = HIDDEN * (QUERY + LATENT) + heads * (QUERY * KEY + VALUE * HIDDEN)
            absorbed = heads * 512 * (128 + VALUE)
            seen = heads * (batch * pairs(isl, np.zeros_like(isl)) if prefill else batch * step)
            ratio = peak(accelerator, "bf16") / peak(accelerator, kind)
            held = batch * length * LATENT * (1 if cache == "fp8" else 2)
            yield work(
                (system, engine, version), "mla_module_prefill" if prefill else "mla_module_decode",
                f"{product} kv {cache}", rows, "bf16",
                flops=2 * tokens * (weights * ratio + absorbed)
                + 2 * seen * (KEY + VALUE if prefill else 2 * 512 + 64),
                bytes=weights * weight + absorbed * 2 + held + tokens * HIDDEN * 4, steps=length,
                regions=sizes(tokens) if prefill else batches(batch),
            )  # fmt: skip


def state_decode(data: Path) -> Iterator[Work]:
    """A gated delta rule's step: a 32-bit state of each sequence and value head read and written."""
    for system, engine, version, (phase, kernel), rows in groups(
        data, "linear_attention", "gdn", ["phase", "kernel_source"]
    ):
        if phase == "generation" and "gated_delta" in str(kernel):
            names = ["batch_size", "num_v_heads", "head_k_dim", "head_v_dim"]
            batch, heads, key, value = columns(rows, names).values()
            state = batch * heads * key * value
            yield work(
                (system, engine, version), "state_decode", "gdn", rows, "bf16",
                flops=8 * state, bytes=8 * state, regions=batches(batch),
            )  # fmt: skip


def state_prefill(data: Path) -> Iterator[Work]:
    """A gated delta rule over prompts, a chunk at a time."""
    for system, engine, version, (phase, kernel), rows in groups(
        data, "linear_attention", "gdn", ["phase", "kernel_source"]
    ):
        if phase == "context" and "gated_delta" in str(kernel):
            names = ["batch_size", "seq_len", "num_v_heads", "head_k_dim", "head_v_dim"]
            batch, length, heads, key, value = columns(rows, names).values()
            tokens = batch * length
            yield work(
                (system, engine, version), "state_prefill", "gdn", rows, "bf16",
                flops=tokens * heads * (6 * key * value + 4 * CHUNK * (key + value)),
                bytes=tokens * heads * (2 * key + 2 * value) * 2 + 8 * batch * heads * key * value,
                steps=length, tiles=batch * heads, regions=sizes(tokens),
            )  # fmt: skip
