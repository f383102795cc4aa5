"""Caches kept in the host's memory: what it holds of prefixes, and what fetching one takes.

It enlarges no running concurrency: a sequence runs from the device's cache. Mooncake (arXiv 2407.00079).
"""

from __future__ import annotations

from kvplan.figure import Number, formula, whole


@formula("B", "SGLang 0.5.23 arg_groups/fields/memory.py hicache_ratio")
def host_bytes(kv_pool_bytes: Number, ratio: Number) -> Number:
    """The host's pool of one rank, as a multiple of the device's."""
    return whole(kv_pool_bytes * ratio)


@formula("token")
def host_tokens(host_bytes: Number, bytes_per_token: Number) -> Number:
    """Tokens of prefixes that the host holds."""
    return host_bytes // bytes_per_token


@formula("s", "each rank fetches its own part over its own link")
def fetch_seconds(prefix_bytes: Number, host_bytes_per_second: Number) -> Number:
    """A prefix back onto the device."""
    return prefix_bytes / host_bytes_per_second
