"""Which layers share a block table: vLLM's grouping, as each version does it.

v1/core/kv_cache_utils.py `get_kv_cache_groups`, read in 0.8.5 to 0.32.0.
"""

from __future__ import annotations

from dataclasses import replace

from kvplan.engines.vllm_packed import packed_groups, tuple_groups
from kvplan.engines.vllm_specs import (
    CHUNKED,
    CIRCULAR,
    CROSS,
    FULL,
    FULL_KINDS,
    MAMBA,
    MLA,
    SLIDING,
    SLIDING_MLA,
    CacheLayer,
    Group,
    Spec,
)
from kvplan.engines.vllm_version import Rules

Layers = tuple[CacheLayer, ...]


class Refused(Exception):
    """vLLM itself stops with an error here that is not about memory; the text says why."""


def groups_of(layers: Layers, rules: Rules, *, hybrid: bool, block_outermost: bool) -> tuple[Group, ...]:
    """The layers in groups, in the order in which vLLM makes them.

    `hybrid`: whether the hybrid KV cache manager is on; `block_outermost`: whether the layout packs
    pages of unlike size into one block.
    """
    if not hybrid:
        layers = promoted(layers, rules)
    if not layers:
        return ()
    merged = merged_spec([m.spec for m in layers])
    if merged is not None:
        return (Group(layers, merged),)
    if rules.uniform_type and is_uniform_type([m.spec for m in layers]):
        return (Group(layers, layers[0].spec, uniform=True),)
    if block_outermost and len({m.spec.page_bytes for m in layers}) > 1:
        if rules.packed == "widest_group":
            return packed_groups(layers, is_uniform_type)
        return tuple_groups(layers, padded=rules.packed != "stacked")
    return split_by_size(with_one_page_size(layers, rules), rules)


def merged_spec(specs: list[Spec]) -> Spec | None:
    """The spec that stands for all, or None when they differ. Full attention may differ in its window."""
    specs = list({id(s): s for s in specs}.values())  # layers alike share theirs
    first = specs[0]
    if first.kind != FULL:
        return first if all(s == first for s in specs) else None
    bare = replace(first, window=None, chunk=None)
    if any(s.kind != FULL or replace(s, window=None, chunk=None) != bare for s in specs):
        return None
    windows = {s.window for s in specs if s.window is not None}
    chunks = {s.chunk for s in specs if s.chunk is not None}
    if len(windows) + len(chunks) > 1:
        return None
    return replace(bare, window=next(iter(windows), None), chunk=next(iter(chunks), None))


def is_uniform_type(specs: list[Spec]) -> bool:
    """Whether all need the same token slots, so that pages of unlike size can share one table."""
    first = specs[0]
    if any(s.block_size != first.block_size or s.dcp_sharded != first.dcp_sharded for s in specs):
        return False
    if first.is_full:
        return all(s.is_full for s in specs)
    if first.kind in (SLIDING, SLIDING_MLA):
        kinds = (SLIDING, SLIDING_MLA) if first.kind == SLIDING else (SLIDING_MLA,)
        return all(s.kind in kinds and s.window == first.window for s in specs)
    if first.kind == CHUNKED:
        return all(s.kind == CHUNKED and s.chunk == first.chunk for s in specs)
    if first.kind == MAMBA:
        return all(
            s.kind == MAMBA and s.request_blocks == first.request_blocks and s.page_bytes == first.page_bytes
            for s in specs
        )
    return first.kind in (CROSS, CIRCULAR) and all(s.kind == first.kind for s in specs)


def promoted(layers: Layers, rules: Rules) -> Layers:
    """Local attention planned as full: what happens when the hybrid manager is off (or not there yet)."""
    specs = [m.spec for m in layers]
    if not specs or merged_spec(specs) is not None or (rules.uniform_type and is_uniform_type(specs)):
        return layers
    if any(s.is_full for s in specs):
        blocks = {s.block_size for s in specs if s.is_full}
        block = blocks.pop() if len(blocks) == 1 else None
        layers = tuple(replace(m, spec=_full(m.spec, block)) for m in layers)
        specs = [m.spec for m in layers]
    if merged_spec(specs) is None and not (rules.uniform_type and is_uniform_type(specs)):
        raise Refused(
            "vLLM stops: without the hybrid KV cache manager it cannot turn this model's caches into one type"
        )
    return layers


def _full(spec: Spec, block: int | None) -> Spec:
    kinds = {SLIDING_MLA: MLA, SLIDING: FULL, CHUNKED: FULL}
    if spec.kind not in kinds:
        return spec
    return replace(spec, kind=kinds[spec.kind], block_size=block or spec.block_size, extra_retained=0)


def with_one_page_size(layers: Layers, rules: Rules) -> Layers:
    """Smaller pages brought to the size of the largest: more tokens a block, or padding."""
    largest = max(m.spec.page_bytes for m in layers)
    return tuple(replace(m, spec=_widened(m.spec, largest, rules)) for m in layers)


def _widened(spec: Spec, page: int, rules: Rules) -> Spec:
    if spec.page_bytes == page:
        return spec
    if spec.kind == MAMBA and rules.unify_pages == "pad_states":
        return replace(spec, page_padded=page)
    if rules.unify_pages != "none" and spec.kind != MAMBA and page % spec.page_bytes == 0:
        return replace(spec, block_size=spec.block_size * (page // spec.page_bytes))
    if rules.unify_pages in ("pad", "pad_states") and spec.kind not in (MAMBA, *FULL_KINDS[1:]):
        return replace(spec, page_padded=page)
    raise Refused(
        f"vLLM {rules.version} stops: a page of {spec.page_bytes:,} B ({spec.kind}) and one of {page:,} B "
        "cannot be brought to one size"
    )


def split_by_size(layers: Layers, rules: Rules) -> tuple[Group, ...]:
    """Layers of one kind dealt into groups of one size: the smallest kind's, or the largest's when close."""
    buckets = _buckets(layers, rules)
    smallest, largest = min(map(len, buckets)), max(map(len, buckets))
    size = largest if largest < smallest * rules.single_group_below else smallest
    groups = []
    for bucket in buckets:
        count = -(-len(bucket) // size)
        for i in range(count):
            part = bucket[i::count] if rules.deal == "strided" else bucket[i * size : (i + 1) * size]
            groups.append(Group(tuple(part), merged_spec([m.spec for m in part]) or part[0].spec))
    return tuple(groups)


def _buckets(layers: Layers, rules: Rules) -> list[list[CacheLayer]]:
    by_spec: dict[Spec, list[CacheLayer]] = {}
    for layer in layers:
        by_spec.setdefault(layer.spec, []).append(layer)
    if not rules.merge_buckets:
        return list(by_spec.values())
    buckets: list[list[CacheLayer]] = []
    for members in by_spec.values():
        for bucket in buckets:
            if merged_spec([m.spec for m in (*bucket, members[0])]) is not None:
                bucket.extend(members)
                break
        else:
            buckets.append(list(members))
    return buckets


def on_stage(groups: tuple[Group, ...], numbers: range) -> tuple[Group, ...]:
    """The groups as one pipeline stage holds them: its own layers, which may be none of a group."""
    found = []
    for group in groups:
        mine = tuple(m for m in group.members if m.number in numbers)
        found.append(replace(group, members=mine))
    return tuple(found)


def bytes_per_block(groups: tuple[Group, ...], rules: Rules) -> int:
    """Bytes that one block of the pool takes over all layers: the widest group's."""
    if rules.packed in ("tuples", "slots") and is_packed(groups):
        if rules.packed == "tuples":
            return tuple_bytes(groups)
        return sum(page * count for page, count in _slots(groups).items())
    return max((g.layers_bytes for g in groups), default=0)


def is_packed(groups: tuple[Group, ...]) -> bool:
    """Whether pages of unlike size stand side by side in a block."""
    return len(groups) > 1 and all(g.uniform for g in groups)


def tuple_bytes(groups: tuple[Group, ...]) -> int:
    """One page of each size that the first group has, as often as any group has one size at most."""
    return sum({s.page_bytes for s in groups[0].specs}) * max(_slots(groups).values())


def _slots(groups: tuple[Group, ...]) -> dict[int, int]:
    """Per page size as many slots as the group with most of that size has."""
    slots: dict[int, int] = {}
    for group in groups:
        counts: dict[int, int] = {}
        for spec in group.specs:
            counts[spec.page_bytes] = counts.get(spec.page_bytes, 0) + 1
        for page, count in counts.items():
            slots[page] = max(slots.get(page, 0), count)
    return slots


def checked_bytes(groups: tuple[Group, ...], rules: Rules) -> int:
    """Bytes of a block as the start check counts it: tuples from 0.20 to 0.28, whatever the pool's are."""
    if rules.packed in ("tuples", "slots", "stacked") and is_packed(groups):
        return tuple_bytes(groups)
    return bytes_per_block(groups, rules)
