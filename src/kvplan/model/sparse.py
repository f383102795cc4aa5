"""Reading sparse attention: how much of what is kept a query reads."""

from __future__ import annotations

from typing import Any

from kvplan.figure import Source, Trust
from kvplan.model.keys import Keys


def selection(keys: Keys, table: dict[str, Any], *, sparse: object) -> tuple[int | None, int]:
    """What the indexer picks at most, in tokens (or slots), and the block they come in; None when not sparse.

    A config that does not say leaves a query its own token, which is sure.
    """
    if not sparse:
        return None, 1
    picked = keys.count("attended", table.get("attended"))
    if picked is None:
        where = f"{keys.file} does not say how many the indexer picks: a query's own token is sure"
        keys.origins["attended"] = Source(Trust.ASSUMED, where)
        return 1, 1
    named = table.get("attended_block")
    block = (keys.count("attended_block", named) if named else None) or 1
    if block > 1:
        source = keys.origins["attended"]
        where = f"{source.where}: {picked} blocks of {block} tokens, the last of one at least"
        keys.origins["attended"] = Source(source.trust, where)
    return picked * block, block
