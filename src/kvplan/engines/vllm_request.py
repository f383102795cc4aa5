"""How many blocks one request of the maximum length takes in each group.

vLLM v1/kv_cache_interface.py `max_memory_usage_bytes` ÷ page, read in 0.8.5 to 0.32.0.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from kvplan.engines.vllm_specs import CHUNKED, CIRCULAR, CROSS, MAMBA, Group, Spec
from kvplan.engines.vllm_version import Rules
from kvplan.figure import Leaf, Number, Source, Trust, bare, ceiling, formula, least


@formula("block", "vLLM 0.32.0 v1/kv_cache_interface.py FullAttentionSpec")
def full_blocks(max_model_len: Number, dcp: Number, block_size: Number) -> Number:
    """Every token of this rank's share, in whole blocks."""
    return ceiling(ceiling(max_model_len, dcp), block_size)


@formula("block", "vLLM 0.32.0 v1/kv_cache_interface.py SlidingWindowSpec")
def sliding_blocks(window: Number, in_flight: Number, max_model_len: Number, block_size: Number) -> Number:
    """The window, less the token being made, and the tokens in flight; a window may start inside a block."""
    return ceiling(least(window - 1 + in_flight, max_model_len), block_size) + 1


@formula("block", "vLLM 0.32.0 v1/kv_cache_interface.py ChunkedLocalAttentionSpec")
def chunked_blocks(chunk: Number, in_flight: Number, max_model_len: Number, block_size: Number) -> Number:
    """One chunk and the tokens in flight."""
    return ceiling(least(chunk + in_flight, max_model_len), block_size)


@dataclass(frozen=True, slots=True)
class Request:
    """The request that capacity is stated for: of the maximum length, with what is in flight."""

    max_model_len: int
    in_flight_tokens: int
    encoder_tokens: int
    dcp: int
    rules: Rules

    def of_length(self, tokens: int) -> Request:
        """The same with another maximum length."""
        return replace(self, max_model_len=tokens)


def blocks_of_spec(spec: Spec, request: Request, leaf: Leaf = bare) -> Any:
    """Blocks of one layer that the request needs."""
    if spec.kind == CIRCULAR:
        return leaf("circular_blocks", 1, "block", _rule("CircularBufferSpec: one block a request"))
    if spec.kind == MAMBA:
        return _state_blocks(spec, request, leaf)
    block = leaf("block_size", spec.block_size, "token", spec.origin("block_size"))
    if spec.kind == CROSS:
        encoder = leaf("encoder_tokens", request.encoder_tokens, "token", _rule("CrossAttentionSpec"))
        return ceiling(encoder, block)
    length = leaf("max_model_len", request.max_model_len, "token", _GIVEN)
    if spec.is_full:
        sharded = request.dcp if spec.dcp_sharded and request.rules.context_parallel else 1
        return full_blocks(length, leaf("dcp", sharded, "rank", _GIVEN), block)
    in_flight = leaf("in_flight_tokens", request.in_flight_tokens, "token", _rule("max_in_flight_tokens"))
    if spec.kind == CHUNKED:
        chunk = leaf("chunk_tokens", spec.chunk or 0, "token", spec.origin("window"))
        return chunked_blocks(chunk, in_flight, length, block)
    window = leaf("window_tokens", (spec.window or 0) + spec.extra_retained, "token", spec.origin("window"))
    return sliding_blocks(window, in_flight, length, block)


_GIVEN = Source(Trust.STATED, "the setup")


def _rule(where: str) -> Source:
    return Source(Trust.ENGINE_RULE, f"vLLM 0.32.0 v1/kv_cache_interface.py {where}")


def _state_blocks(spec: Spec, request: Request, leaf: Leaf) -> Any:
    """A recurrent state: a fixed number of blocks, or in old versions one per state block of tokens."""
    rules = request.rules
    if spec.request_blocks:
        count, why = spec.request_blocks, rules.source("state_blocks")
    else:
        count, why = -(-request.max_model_len // spec.block_size), "one state per block of tokens"
    return leaf(f"{spec.role}_state_blocks", count, "block", Source(Trust.ENGINE_RULE, f"MambaSpec: {why}"))


def blocks_of_group(group: Group, request: Request, leaf: Leaf = bare) -> Any:
    """Blocks that the request takes from the pool for this group: the most any of its layers needs."""
    distinct = list(dict.fromkeys(group.specs)) or [group.spec]  # a stage may hold no layer of the group
    if len(distinct) == 1:
        return blocks_of_spec(distinct[0], request, leaf)
    return blocks_of_spec(max(distinct, key=lambda s: int(blocks_of_spec(s, request))), request, leaf)


def blocks_of_request(groups: tuple[Group, ...], request: Request) -> int:
    """Blocks over all groups: they draw from one pool."""
    return sum(int(blocks_of_group(g, request)) for g in groups)
