"""The lines a start-up prints: blocks, tokens and concurrency, as the version computes each.

vLLM v1/core/kv_cache_utils.py, read in 0.8.5 to 0.32.0; 0.6.6 executor/executor_base.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvplan.engines.vllm_defaults import Settings
from kvplan.engines.vllm_groups import bytes_per_block
from kvplan.engines.vllm_request import Request, blocks_of_group
from kvplan.engines.vllm_specs import Group, page_figure
from kvplan.engines.vllm_version import Rules
from kvplan.figure import Leaf, Number, Source, Trust, ceiling, formula, named, total, whole

Groups = tuple[Group, ...]


@formula("block", "vLLM 0.32.0 v1/core/kv_cache_utils.py get_kv_cache_config_from_groups")
def num_blocks(pool_bytes: Number, bytes_per_block: Number) -> Number:
    """Whole blocks of the pool; one of them, the null block, is never given to a request."""
    return pool_bytes // bytes_per_block


@formula("request", "vLLM 0.32.0 v1/core/kv_cache_utils.py get_max_concurrency_for_kv_cache_config")
def max_concurrency(num_blocks: Number, blocks_per_request: Number) -> Number:
    """Requests of the maximum length that the blocks hold at once."""
    return num_blocks / blocks_per_request


@formula("token", "vLLM 0.32.0 v1/core/kv_cache_utils.py get_kv_cache_capacity")
def kv_tokens(max_concurrency: Number, max_model_len: Number) -> Number:
    """Tokens of that many requests of the maximum length."""
    return whole(max_concurrency * max_model_len)


@formula("token", "vLLM 0.20.0 v1/core/kv_cache_utils.py _report_kv_cache_config")
def kv_tokens_of_blocks(
    num_blocks: Number, groups: Number, smallest_block: Number, context_ranks: Number
) -> Number:
    """Before 0.20.1: every group takes a part of the blocks, each with the smallest block's tokens."""
    return num_blocks // groups * smallest_block * context_ranks


@dataclass(frozen=True, slots=True)
class Printed:
    """The figures of the start-up lines; None where no pool is known."""

    bytes_per_block: Any
    num_blocks: Any = None
    kv_tokens: Any = None
    max_concurrency: Any = None
    kv_bytes: Any = None


def printed(
    stages: tuple[Groups, ...],
    groups: Groups,
    request: Request,
    settings: Settings,
    pool: int | None,
    override: int | None,
    leaf: Leaf,
) -> Printed:
    """The lines, from the stage whose blocks are largest: all stages take the fewest blocks of any."""
    rules = request.rules
    widest = max(stages, key=lambda stage: bytes_per_block(stage, rules))
    block = block_figure(widest, rules, leaf)
    if override is not None:
        count = leaf("num_gpu_blocks_override", override, "block", Source(Trust.STATED, "the flag"))
    elif pool is not None:
        count = num_blocks(leaf("pool_bytes", max(pool, 0), "B", Source(Trust.STATED, "the pool")), block)
    else:
        return Printed(block)
    need = named("blocks_per_request", "block", _need(groups, request, leaf))
    length = leaf("max_model_len", request.max_model_len, "token", _why(settings, "max_model_len"))
    by_blocks = _tokens_of_blocks(groups, count, request, settings, leaf)
    if rules.concurrency == "tokens":
        at_once = max_concurrency(by_blocks, length)
    else:
        at_once = max_concurrency(count, need)
    tokens = kv_tokens(at_once, length) if rules.tokens_as == "concurrency" else by_blocks
    return Printed(block, count, tokens, at_once, named("kv_bytes", "B", count * block))


def _need(groups: Groups, request: Request, leaf: Leaf) -> Any:
    """Blocks of one request: of all groups, or (to 0.26) their bytes in pages of the first group."""
    blocks = [blocks_of_group(g, request, leaf) for g in groups]
    if request.rules.request_blocks == "by_group" or len({g.page_bytes for g in groups}) == 1:
        return total(blocks)
    why = Source(Trust.ENGINE_RULE, request.rules.source("request_blocks"))
    pages = [leaf(f"group_{i}_page_bytes", g.page_bytes, "B", why) for i, g in enumerate(groups)]
    return ceiling(total([n * page for n, page in zip(blocks, pages, strict=True)]), pages[0])


def _tokens_of_blocks(groups: Groups, count: Any, request: Request, settings: Settings, leaf: Leaf) -> Any:
    rules = request.rules
    ranks = request.dcp if rules.context_parallel_tokens else 1
    # before 0.11 the single group's line multiplies by --block-size, which states do not share
    single = len(groups) == 1 and not rules.uniform_type
    smallest = settings.block_size if single else min(g.spec.block_size for g in groups)
    return kv_tokens_of_blocks(
        count,
        leaf("groups", len(groups), "group", Source(Trust.ENGINE_RULE, rules.source("deal"))),
        leaf("block_size", smallest, "token", _why(settings, "block_size")),
        leaf("context_ranks", ranks, "rank", Source(Trust.STATED, "the setup")),
    )


def _why(settings: Settings, name: str) -> Source:
    source = settings.sources.get(name, "")
    return Source(Trust.STATED if source == "given" else Trust.ENGINE_RULE, f"{name}: {source}")


def block_figure(groups: Groups, rules: Rules, leaf: Leaf) -> Any:
    """Bytes of one block over the layers of the widest group."""
    expected = bytes_per_block(groups, rules)
    widest = max(groups, key=lambda g: g.layers_bytes)
    if widest.layers_bytes != expected:  # packed side by side: more than any one group
        source = Source(Trust.ENGINE_RULE, rules.source("packed"))
        return named("bytes_per_block", "B", leaf("packed_block_bytes", expected, "B", source))
    counts: dict[Any, int] = {}
    for spec in widest.specs:
        counts[spec] = counts.get(spec, 0) + 1
    parts = []
    for spec, count in counts.items():
        layers = leaf(f"{spec.role or spec.kind}_layers", count, "layer", spec.origin("layers"))
        parts.append(layers * page_figure(spec, leaf))
    return named("bytes_per_block", "B", total(parts), "One block of the widest group, all its layers.")
