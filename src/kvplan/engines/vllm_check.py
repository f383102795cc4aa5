"""The start check: whether one request of the maximum length fits, and the longest that would.

vLLM v1/core/kv_cache_utils.py `_check_enough_kv_cache_memory`, read in 0.8.5 to 0.32.0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kvplan.engines.vllm_groups import checked_bytes
from kvplan.engines.vllm_request import Request, blocks_of_group, blocks_of_request, blocks_of_spec
from kvplan.engines.vllm_specs import CacheLayer, Group
from kvplan.engines.vllm_version import Rules

Groups = tuple[Group, ...]


@dataclass(frozen=True, slots=True)
class Check:
    """What the start check found on the first rank that fails it, or on the first if none does."""

    fits: bool
    needed_bytes: int
    available_bytes: int
    estimated_length: int | None = None

    @property
    def no_memory(self) -> bool:
        """Whether nothing at all is left, which vLLM says in other words."""
        return self.available_bytes <= 0


def needed_bytes(groups: Groups, layers: tuple[CacheLayer, ...], request: Request, rules: Rules) -> int:
    """Bytes that the check of that version adds up for one request."""
    if rules.check == "layers":
        return sum(int(blocks_of_spec(m.spec, request)) * m.spec.page_bytes for m in layers)
    if not groups:
        return 0
    block = checked_bytes(groups, rules)
    if rules.check == "first_group" and len(groups) > 1:
        return block * int(blocks_of_group(groups[0], request))
    return block * blocks_of_request(groups, request)


def start_check(
    groups: Groups, layers: tuple[CacheLayer, ...], available: int, request: Request, rules: Rules
) -> Check:
    """The check on one rank; `available` is already less what the version holds back."""
    needed = needed_bytes(groups, layers, request, rules)
    if available <= 0:
        return Check(False, needed, available)
    if needed <= available:
        return Check(True, needed, available)

    def fits(length: int) -> bool:
        return needed_bytes(groups, layers, request.of_length(length), rules) <= available

    return Check(False, needed, available, longest(fits, request.max_model_len))


def longest(fits: Callable[[int], bool], at_most: int) -> int:
    """The length that vLLM's binary search ends on; 0 when not even one token fits."""
    if not fits(1):
        return 0
    low, high, best = 1, at_most, 1
    while low <= high:
        middle = (low + high) // 2
        if fits(middle):
            best, low = middle, middle + 1
        else:
            high = middle - 1
    return best
