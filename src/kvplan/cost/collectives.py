"""Seconds of what ranks send one another."""

from __future__ import annotations

from kvplan.figure import Number, formula, least


@formula("s", "ring or switch against reading all others' values at once, whichever is quicker")
def all_reduce_seconds(
    start_seconds: Number,
    ring_seconds: Number,
    wire_bytes: Number,
    ranks: Number,
    link: Number,
    one_shot: Number,
) -> Number:
    """An all-reduce: each rank's link passes 2 (r − 1) ÷ r of the message, or r ÷ 2 times that at once."""
    return start_seconds + least(ring_seconds + wire_bytes / link, wire_bytes * ranks / 2 / one_shot)


@formula("s")
def exchange_seconds(start_seconds: Number, wire_bytes: Number, link: Number) -> Number:
    """Any other collective: a start, and what passes each rank's link."""
    return start_seconds + wire_bytes / link
