"""Settings that vLLM refuses before it plans a cache: splits that do not divide, blocks no kernel takes."""

from __future__ import annotations

from kvplan.engines.engine import Setup
from kvplan.engines.vllm_defaults import is_latent, whole_flag
from kvplan.engines.vllm_version import row_for, rules_of, table_of
from kvplan.errors import BadInput
from kvplan.model.model import Model

KERNEL_MULTIPLE = 16  # vLLM 0.32.0 v1/attention/backends/flash_attn.py; 0.8.5: "must be a multiple of 16"


def check_accepted(model: Model, setup: Setup) -> None:
    """Raise BadInput, in vLLM's own terms, for a deployment that it would not start."""
    _check_context_ranks(model, setup)
    _check_block(setup)


def _check_context_ranks(model: Model, setup: Setup) -> None:
    """vLLM 0.32.0 config/parallel.py and config/model.py verify_with_parallel_config."""
    tp, dcp = setup.tp, setup.dcp
    if dcp == 1:
        return
    if tp % dcp:
        raise BadInput(f"--dcp: {dcp} does not divide --tp {tp}; vllm needs tp_size divisible by dcp_size")
    if is_latent(model, rules_of(setup.version)):
        return
    heads = [(a.kv_heads, a.query_heads) for _, layer in model.grouped() for a in layer.attentions if a.holds]
    kv_heads, query_heads = max(heads, default=(0, 0))
    if not kv_heads:
        return
    if tp <= kv_heads:
        raise BadInput(f"--dcp: {dcp} needs --tp above the model's {kv_heads} KV heads, and it is {tp}")
    if dcp > tp // kv_heads:
        most = tp // kv_heads
        raise BadInput(f"--dcp: {dcp} is more than --tp {tp} ÷ {kv_heads} KV heads; give at most {most}")
    if query_heads // kv_heads % dcp:
        each = query_heads // kv_heads
        raise BadInput(f"--dcp: {dcp} does not divide the {each} query heads of each KV head; use a divisor")


def _check_block(setup: Setup) -> None:
    """Before 0.18 a fixed list (config/cache.py BlockSize); on GPUs a multiple of what the kernels take."""
    block = whole_flag(setup.flags, "block_size")
    if block is None:
        return
    row = row_for(table_of("block_sizes"), setup.version)
    if row and row["values"] and block not in row["values"]:
        known = ", ".join(map(str, row["values"]))
        raise BadInput(f"--block-size: {block}; vllm {setup.version} takes {known}")
    if setup.platform in ("cuda", "rocm", "xpu") and block % KERNEL_MULTIPLE:
        raise BadInput(f"--block-size: {block}; vllm's GPU kernels take multiples of {KERNEL_MULTIPLE}")
