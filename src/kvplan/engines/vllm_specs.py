"""What vLLM keeps of one layer on one rank: a cache spec, and the bytes of its page (one block).

Names are those of vLLM's v1/kv_cache_interface.py (read in 0.32.0); bytes throughout.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kvplan.figure import Leaf, Number, Source, Trust, bare, ceiling, formula, named, total

FULL = "FullAttentionSpec"
SLIDING = "SlidingWindowSpec"
CHUNKED = "ChunkedLocalAttentionSpec"
MLA = "MLAAttentionSpec"
SLIDING_MLA = "SlidingWindowMLASpec"
MAMBA = "MambaSpec"
CROSS = "CrossAttentionSpec"
CIRCULAR = "CircularBufferSpec"
UNIFORM = "UniformTypeKVCacheSpecs"

FULL_KINDS = (FULL, MLA)
SLIDING_KINDS = (SLIDING, SLIDING_MLA)
_READ = Source(Trust.ENGINE_RULE, "vLLM 0.32.0 v1/kv_cache_interface.py")


@formula("B", "vLLM 0.32.0 v1/kv_cache_interface.py AttentionSpec")
def page_bytes_of(kv_heads: Number, stored_states: Number, content_bytes: Number) -> Number:
    """One layer's block: heads of this rank × states a block holds × bytes of one state of one head."""
    return kv_heads * stored_states * content_bytes


@formula("B", "vLLM 0.32.0 v1/kv_cache_interface.py MambaSpec")
def state_page_bytes(state_bytes: list[Any]) -> Any:
    """One layer's block of a recurrent state: every tensor of it, whatever the tokens."""
    return total(state_bytes)


@formula("B", "vLLM 0.32.0 v1/kv_cache_interface.py")
def aligned_page_bytes(page_bytes: Number, alignment_bytes: Number) -> Number:
    """A page rounded up to the stride that its kernel asks for."""
    return ceiling(page_bytes, alignment_bytes) * alignment_bytes


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a state: how many values this rank keeps, and bytes of each."""

    shape: tuple[int, ...]
    dtype: str
    value_bytes: int

    @property
    def values(self) -> int:
        """Product of the shape."""
        found = 1
        for n in self.shape:
            found *= n
        return found


@dataclass(frozen=True, slots=True)
class Spec:
    """One layer's cache on one rank. Equal specs may share a block table.

    `content_bytes` is what one head keeps of one state; a state covers `tokens_per_state` tokens.
    `role` tells caches apart that are alike in size (an index cache, a mixer's name).
    """

    kind: str
    block_size: int
    kv_heads: int = 1
    key_width: int = 0
    value_width: int = 0
    dtype: str = ""
    content_bytes: int = 0
    window: int | None = None
    chunk: int | None = None
    extra_retained: int = 0
    tokens_per_state: int = 1
    alignment: int | None = None
    page_padded: int | None = None
    tensors: tuple[Tensor, ...] = ()
    request_blocks: int = 0
    role: str = ""
    dcp_sharded: bool = True
    origins: Mapping[str, Source] = field(default_factory=dict, compare=False)

    @property
    def page_bytes(self) -> int:
        """Bytes of one block of one layer."""
        return int(page_figure(self, bare))

    @property
    def unpadded_bytes(self) -> int:
        """The same without padding to other layers' pages."""
        return int(page_figure(replace(self, page_padded=None), bare))

    @property
    def is_full(self) -> bool:
        """Whether it keeps every token."""
        return self.kind in FULL_KINDS

    @property
    def is_sliding(self) -> bool:
        """Whether it keeps a window of tokens."""
        return self.kind in SLIDING_KINDS

    def origin(self, quantity: str) -> Source:
        """Where a quantity was read."""
        return self.origins.get(quantity, _READ)


def page_figure(spec: Spec, leaf: Leaf) -> Any:
    """Bytes of one block of one layer, from its parts."""
    name = f"{spec.role or spec.kind}_page_bytes"
    if spec.page_padded is not None:
        return leaf(name, spec.page_padded, "B", Source(Trust.ENGINE_RULE, "padded to the common page"))
    if spec.kind == MAMBA:
        parts = [
            leaf(f"{spec.role}_state_{i}_values", t.values, "value", spec.origin("state"))
            * leaf(f"{t.dtype}_bytes", t.value_bytes, "B/value", spec.origin("dtype"))
            for i, t in enumerate(spec.tensors)
        ]
        return named(name, "B", state_page_bytes(parts))
    states = leaf("block_size", spec.block_size, "token", spec.origin("block_size"))
    if spec.tokens_per_state > 1:
        states = states // leaf("tokens_per_state", spec.tokens_per_state, "token", spec.origin("stride"))
    page = page_bytes_of(
        leaf("kv_heads_on_rank", spec.kv_heads, "head", spec.origin("kv_heads")),
        states,
        leaf("content_bytes", spec.content_bytes, "B", spec.origin("key_width")),
    )
    if spec.alignment is not None:
        page = aligned_page_bytes(page, leaf("alignment_bytes", spec.alignment, "B", _READ))
    return named(name, "B", page)


@dataclass(frozen=True, slots=True)
class CacheLayer:
    """A cache of the model: the decoder layer it belongs to (drafters after the last), and its spec."""

    number: int
    spec: Spec


@dataclass(frozen=True, slots=True)
class Group:
    """Caches that share one block table. `uniform`: pages of unlike size that add up."""

    members: tuple[CacheLayer, ...]
    spec: Spec
    uniform: bool = False

    @property
    def kind(self) -> str:
        """The class that vLLM gives the group's spec."""
        return UNIFORM if self.uniform else self.spec.kind

    @property
    def specs(self) -> tuple[Spec, ...]:
        """The specs a member is planned with: its own where pages differ, else the group's."""
        return tuple(m.spec for m in self.members) if self.uniform else (self.spec,) * len(self.members)

    @property
    def page_bytes(self) -> int:
        """The page of the group's spec: one layer's, or the sum of unlike ones."""
        return sum(s.page_bytes for s in self.specs) if self.uniform else self.spec.page_bytes

    @property
    def layers_bytes(self) -> int:
        """Bytes that one block takes in all its layers."""
        if self.uniform:
            return sum(s.page_bytes for s in self.specs)
        return self.spec.page_bytes * len(self.members)
