"""Tokens a block: the flag, the backend's preference, and what recurrent states raise it to.

vLLM 0.32.0 platforms/interface.py update_block_size_for_backend, _align_hybrid_block_size;
0.10.1 to 0.19.1 model_executor/models/config.py HybridAttentionMambaModelConfig.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import lcm

from kvplan.engines.vllm_defaults import (
    GIVEN,
    block_size_row,
    compressed,
    is_hybrid,
    is_latent,
    whole_flag,
)
from kvplan.engines.vllm_layers import Rank, is_sparse, layers_of
from kvplan.engines.vllm_specs import MAMBA, Spec

KERNEL_TOKENS = 16  # the smallest block of most attention kernels
CPU_KERNEL_TOKENS = 32
DEFAULT_BLOCK = 16  # vLLM 0.32.0 config/cache.py
_CPU_RULE = "a start-up of vLLM 0.32.0 on a CPU: beside windows, blocks are raised to multiples of 32"
STATE_CHUNK = 2048  # vLLM 0.14.0 config/model.py get_mamba_chunk_size, where the config states none


def settle_block_sizes(rank: Rank) -> None:
    """Fill in the block size, the block of states and the page that states are padded to."""
    _chosen(rank)
    s = rank.settings
    given = whole_flag(rank.setup.flags, "mamba_block_size")
    if is_hybrid(rank.model):
        s.state_block_size = given or (s.block_size if s.state_mode != "none" else s.max_model_len)
        _aligned(rank)
    else:  # set before the platform picks a block size
        block = whole_flag(rank.setup.flags, "block_size") or DEFAULT_BLOCK
        s.state_block_size = given or (block if s.state_mode != "none" else s.max_model_len)


def _chosen(rank: Rank) -> None:
    """The flag, unless the platform takes one size only; else the backend's default."""
    latent = is_latent(rank.model, rank.rules)
    row = block_size_row(
        rank.setup,
        rank.rules,
        latent=latent,
        sparse=is_sparse(rank.model),
        compressed=compressed(rank.model),
        backend=_backend(rank),
    )
    given = whole_flag(rank.setup.flags, "block_size")
    if given and not row.get("forced"):
        raised = _cpu_kernels(rank, given)
        rank.settings.fill("block_size", raised, GIVEN if raised == given else _CPU_RULE)
        return
    if given and given != row["value"]:
        rank.settings.notes.append(f"block_size {given} is overridden by {row['value']}: {row['source']}")
    rank.settings.fill("block_size", row["value"], row["source"])


def _cpu_kernels(rank: Rank, given: int) -> int:
    """The CPU's kernels take multiples of 32 tokens: beside windows a smaller block is raised to that."""
    windows = any(a.window for _, layer in rank.model.grouped() for a in layer.attentions)
    if rank.setup.platform != "cpu" or not windows or not rank.settings.hybrid_manager:
        return given
    return -(-given // CPU_KERNEL_TOKENS) * CPU_KERNEL_TOKENS


def _backend(rank: Rank) -> str:
    """The attention backend that is asked for, by name; empty for none."""
    flags = rank.setup.flags
    config = flags.get("attention_config")
    inner = config.get("backend") if isinstance(config, Mapping) else None
    return str(flags.get("attention_backend") or inner or "").upper().removesuffix("_VLLM_V1")


def _aligned(rank: Rank) -> None:
    """Raise the block until one attention page holds one state, then pad states to that page."""
    s, rules = rank.settings, rank.rules
    specs = [m.spec for m in layers_of(replace(rank, stated_widths=True), 1)]
    state_page = max(spec.unpadded_bytes for spec in specs if spec.kind == MAMBA)
    token = next((spec.page_bytes for spec in specs if _is_attention(spec)), 0)
    if not state_page or not token:
        return
    step = _step(rank)
    if s.state_mode in ("all", "chunked"):
        base = whole_flag(rank.setup.flags, "mamba_block_size") or rank.model.state_chunk or STATE_CHUNK
        step = lcm(base, step)
        tokens = -(-state_page // token)
        block = step * -(-tokens // step)
        s.state_block_size = block
    else:
        block = step * -(-state_page // (step * token))
    if s.block_size < block:
        why = f"raised to hold a state of {state_page:,} B; {rules.source('state_alignment')}"
        s.fill("block_size", block, why)
    if s.state_mode == "align":
        s.state_block_size = s.block_size
    page = s.block_size * token
    s.state_page_padded = page if page != state_page else None


def _is_attention(spec: Spec) -> bool:
    return spec.kind != MAMBA and spec.role != "indexer"


def _step(rank: Rank) -> int:
    """Multiples in which the block is raised."""
    rules, latent = rank.rules, is_latent(rank.model, rank.rules)
    if rules.state_alignment == "fixed":
        return rules.mla_alignment if latent else KERNEL_TOKENS
    kernel = CPU_KERNEL_TOKENS if rank.setup.platform == "cpu" and not latent else KERNEL_TOKENS
    step = max(kernel, rank.settings.block_size)
    return max(step, rules.mla_alignment) if latent else step
