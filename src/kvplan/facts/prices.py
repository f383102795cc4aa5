"""What an hour of an accelerator costs: dated list prices of those who rent them out, or the user's own.

Prices change, and not every accelerator has one: unknown stays unknown. `prices.toml` says what is listed.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from kvplan.errors import BadInput, shown
from kvplan.facts import store
from kvplan.facts.accelerators import find_accelerator
from kvplan.figure import Source, Trust

MAX_USD_PER_HOUR = 1e6


@dataclass(frozen=True, slots=True)
class Price:
    """Dollars for one accelerator and hour, who asks them, for what, and when the page was read.

    A price that the user gave has no provider, instance or date but its own words.
    """

    usd_per_hour: float
    provider: str
    what: str
    date: str
    source: Source


def price_of(accelerator_key: str) -> Price | None:
    """The default price: the median of those listed, or None where no price is known."""
    return prices().get(accelerator_key)


@functools.cache
def prices() -> dict[str, Price]:
    """The default price of every accelerator that has one, by its key."""
    return {key: _median(listed(key)) for key in _tables()}


@functools.cache
def listed(accelerator_key: str) -> tuple[Price, ...]:
    """Every list price of an accelerator, cheapest first; none where none is known."""
    found = [_price(entry) for entry in _tables().get(accelerator_key, {}).get("entries", [])]
    return tuple(sorted(found, key=lambda price: price.usd_per_hour))


def given_prices(texts: Iterable[str]) -> dict[str, Price]:
    """What `--price h100=2.49` states, by accelerator: dollars an hour for one of them.

    Raises BadInput naming `--price` when a text is no price or prices an accelerator twice, UnknownName
    when its accelerator is not known.
    """
    found: dict[str, Price] = {}
    for text in [texts] if isinstance(texts, str) else texts:
        name, equals, amount = text.partition("=")
        if not equals or not name.strip():
            raise BadInput(f"--price: {shown(text)} is not ACCELERATOR=DOLLARS; write such as h100=2.49")
        key = find_accelerator(name.strip(), "--price").key
        if key in found:
            raise BadInput(f"--price: {shown(text)} prices {key} again ({found[key].what}); keep one of them")
        source = Source(Trust.STATED, f"--price {text.strip()}")
        found[key] = Price(_dollars(amount, text), "given", text.strip(), "", source)
    return found


def _tables() -> dict[str, Any]:
    return {key: table for key, table in store.toml("prices.toml").items() if key != "sources"}


def _price(entry: dict[str, Any]) -> Price:
    count = entry.get("accelerators", 1)
    each = entry["usd_per_hour"] / count
    what = entry["what"] if count == 1 else f"{entry['what']}, ${entry['usd_per_hour']:,g} ÷ {count}"
    page = store.toml("prices.toml")["sources"][entry["source"]]
    where = f"{entry['provider']} {what}, list price read {entry['date']}: {page}"
    return Price(each, entry["provider"], what, str(entry["date"]), Source(Trust.STATED, where))


def _median(found: tuple[Price, ...]) -> Price:
    """The price in the middle; of an even number the lower of the two there, which somebody asks."""
    usd = statistics.median_low([price.usd_per_hour for price in found])
    price = next(price for price in found if price.usd_per_hour == usd)
    if len(found) == 1:
        return Price(usd, price.provider, price.what, price.date, _changing(price, "the only price known"))
    low, high = found[0].usd_per_hour, found[-1].usd_per_hour
    of = f"the median of {len(found)} providers' prices, ${low:,.2f} to ${high:,.2f}"
    return Price(usd, price.provider, price.what, price.date, _changing(price, of))


def _changing(price: Price, how: str) -> Source:
    return Source(Trust.STATED, f"{price.source.where}; {how}; prices change, --price replaces it")


def _dollars(amount: str, text: str) -> float:
    try:
        usd = float(amount) if amount.isascii() and "_" not in amount else math.nan
    except ValueError:
        usd = math.nan
    if not math.isfinite(usd):
        raise BadInput(f"--price: {shown(text)} names no amount; write dollars an hour, such as h100=2.49")
    if usd < 0:
        raise BadInput(f"--price: {shown(text)} is less than nothing; write dollars an hour, 0 or more")
    if usd > MAX_USD_PER_HOUR:
        raise BadInput(f"--price: {shown(text)} is more than ${MAX_USD_PER_HOUR:,.0f} an hour; write less")
    return abs(usd)
