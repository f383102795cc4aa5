"""Groups of caches with unlike pages, packed side by side in one block (DeepSeek-V4, pooled index caches).

v1/core/kv_cache_utils.py `_get_packed_kv_cache_groups` (0.29 to 0.32.0) and
`_get_kv_cache_groups_uniform_groups` (0.20.0 to 0.28.0).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from kvplan.engines.vllm_specs import CIRCULAR, MAMBA, SLIDING_MLA, CacheLayer, Group, Spec

Layers = tuple[CacheLayer, ...]
Uniform = Callable[[list[Spec]], bool]


@dataclass(frozen=True, slots=True)
class Bucket:
    """Caches that may share a table: by page size, in order."""

    layers: Layers

    @property
    def by_page(self) -> dict[int, list[CacheLayer]]:
        """Its caches by the bytes of their page."""
        found: dict[int, list[CacheLayer]] = {}
        for layer in self.layers:
            found.setdefault(layer.spec.page_bytes, []).append(layer)
        return found

    @property
    def repeats(self) -> int:
        """How often the pattern of page sizes repeats, at most."""
        return max(map(len, self.by_page.values()))

    @property
    def balanced(self) -> bool:
        """Whether every page size has equally many caches."""
        return len(set(map(len, self.by_page.values()))) == 1

    def widest(self, groups: int) -> int:
        """Bytes of the widest of so many groups that it is split into."""
        return sum(-(-len(layers) // groups) * page for page, layers in self.by_page.items())

    def split(self, groups: int) -> list[Group]:
        """The bucket dealt into so many groups, a whole pattern at a time."""
        if groups == 1:
            return [_group(self.layers)]
        patterns = list(zip(*self.by_page.values(), strict=False))
        return [_group(tuple(layer for p in patterns[i::groups] for layer in p)) for i in range(groups)]


def _group(layers: Layers) -> Group:
    return Group(layers, layers[0].spec, uniform=True)


def packed_groups(layers: Layers, uniform: Uniform) -> tuple[Group, ...]:
    """Buckets of one type, split so that all groups fill about one block."""
    buckets = [Bucket(tuple(b)) for b in _buckets(layers, uniform)]
    floor = max((b.repeats for b in buckets if b.balanced and len(b.by_page) > 1), default=0)
    repeats = common_size([b.repeats for b in buckets if b.balanced], floor) if floor else None

    def count(bucket: Bucket) -> int:
        return -(-bucket.repeats // repeats) if bucket.balanced and repeats else 1

    def is_state(bucket: Bucket) -> bool:
        first = bucket.layers[0].spec
        return first.kind in (MAMBA, CIRCULAR) or (repeats is None and first.is_sliding)

    anchor = max(b.widest(len(b.layers) if is_state(b) else count(b)) for b in buckets)
    groups: list[Group] = []
    for bucket in buckets:
        parts = count(bucket)
        if is_state(bucket):
            fitting = max(anchor // bucket.layers[0].spec.page_bytes, 1)
            parts = max(parts, -(-len(bucket.layers) // fitting))
        groups += bucket.split(parts)
    return tuple(groups)


def _buckets(layers: Layers, uniform: Uniform) -> list[list[CacheLayer]]:
    buckets: list[list[CacheLayer]] = []
    for layer in layers:
        for bucket in buckets:
            if uniform([m.spec for m in (*bucket, layer)]):
                bucket.append(layer)
                break
        else:
            buckets.append([layer])
    return buckets


def common_size(counts: list[int], at_least: int) -> int:
    """The size to which counts are rounded up with the least padding; of equals the largest."""
    best, least = at_least, None
    for size in range(max(1, at_least), max(counts) + 1):
        padding = sum(-n % size for n in counts)
        if least is None or padding <= least:
            best, least = size, padding
    return best


def tuple_groups(layers: Layers, *, padded: bool) -> tuple[Group, ...]:
    """0.20.0 to 0.28.0: latent caches first, then windows by block and width, to 0.26 `padded` up."""
    full = Bucket(tuple(m for m in layers if m.spec.kind != SLIDING_MLA))
    windows: dict[tuple[int, int | None], list[CacheLayer]] = {}
    for m in layers:
        if m.spec.kind == SLIDING_MLA:
            windows.setdefault((m.spec.block_size, m.spec.window), []).append(m)
    pages = sorted(full.by_page) if padded else []
    sliding = [Bucket(tuple(_padded_up(m, pages) for m in members)) for members in windows.values()]
    size = common_size([b.repeats for b in (full, *sliding)], full.repeats)
    groups = [_group(full.layers)]
    for bucket in sliding:
        groups += bucket.split(-(-bucket.repeats // size))
    return tuple(groups)


def _padded_up(layer: CacheLayer, pages: list[int]) -> CacheLayer:
    page = next((p for p in pages if p >= layer.spec.page_bytes), layer.spec.page_bytes)
    if page == layer.spec.page_bytes:
        return layer
    return replace(layer, spec=replace(layer.spec, page_padded=page))
