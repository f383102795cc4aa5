"""List prices are dated, sourced and a provider's own; what a user states takes their place."""

from __future__ import annotations

import datetime
import statistics
from typing import Any

import pytest

from kvplan.errors import BadInput, UnknownName
from kvplan.facts import store
from kvplan.facts.accelerators import accelerators
from kvplan.facts.prices import given_prices, listed, price_of, prices
from kvplan.figure import Trust

TABLE = store.toml("prices.toml")
ENTRIES = [(key, e) for key, table in TABLE.items() if key != "sources" for e in table["entries"]]


@pytest.mark.parametrize(
    ("key", "entry"), ENTRIES, ids=[f"{key} {entry['provider']}" for key, entry in ENTRIES]
)
def test_every_entry_says_who_asks_how_much_for_what_when_and_where_it_was_read(
    key: str, entry: dict[str, Any]
) -> None:
    assert set(entry) - {"accelerators"} == {"usd_per_hour", "provider", "what", "date", "source"}
    assert entry["usd_per_hour"] > 0
    assert entry["provider"].strip()
    assert entry["what"].strip()
    assert datetime.date(2026, 1, 1) < entry["date"] <= datetime.date(2026, 11, 29)
    assert entry["source"] in TABLE["sources"]
    assert type(entry.get("accelerators", 1)) is int
    assert 0.05 < entry["usd_per_hour"] / entry.get("accelerators", 1) < 20, "an instance not divided?"


def test_every_priced_accelerator_is_in_the_catalogue_and_every_source_is_used() -> None:
    assert set(prices()) <= {a.key for a in accelerators()}
    assert {entry["source"] for _, entry in ENTRIES} == set(TABLE["sources"])


def test_a_provider_asks_one_price_for_an_accelerator() -> None:
    for key in prices():
        providers = [price.provider for price in listed(key)]
        assert len(providers) == len(set(providers)), key


def test_the_price_of_one_is_that_of_the_instance_by_its_accelerators() -> None:
    aws = next(price for price in listed("h100-sxm") if price.provider == "AWS")
    assert aws.usd_per_hour == 55.04 / 8 == 6.88
    assert aws.what == "p5.48xlarge, $55.04 ÷ 8"


@pytest.mark.parametrize("key", sorted(prices()))
def test_the_default_is_the_median_and_one_that_a_provider_asks(key: str) -> None:
    price = price_of(key)
    assert price is not None
    amounts = [p.usd_per_hour for p in listed(key)]
    assert amounts == sorted(amounts)
    assert price.usd_per_hour == statistics.median_low(amounts)
    assert (price.usd_per_hour, price.provider, price.what, price.date) in {
        (p.usd_per_hour, p.provider, p.what, p.date) for p in listed(key)
    }


def test_the_lower_of_the_middle_two_is_taken_of_an_even_number() -> None:
    found = [price.usd_per_hour for price in listed("gh200-96")]
    assert found == [2.29, 6.5]
    assert prices()["gh200-96"].usd_per_hour == 2.29


def test_a_source_names_provider_instance_and_date_and_how_many_were_asked() -> None:
    price = price_of("h200")
    assert price is not None
    assert price.source.trust is Trust.STATED
    for word in (price.provider, price.what, price.date, "median of 10 providers", "prices change"):
        assert word in price.source.where
    only = price_of("mi355x")
    assert only is not None
    assert "the only price known" in only.source.where


@pytest.mark.parametrize("key", ["m4-max", "gb10", "rx7900xtx", "gaudi3", "no such thing"])
def test_unknown_stays_unknown(key: str) -> None:
    assert price_of(key) is None
    assert listed(key) == ()


def test_a_given_price_stands_under_the_key_of_what_was_meant() -> None:
    found = given_prices(["h100=2.49", "NVIDIA A100 80GB PCIe = 1", "rtx 4090=0", "m4-max=1e-2"])
    assert {key: price.usd_per_hour for key, price in found.items()} == {
        "h100-sxm": 2.49,
        "a100-80-pcie": 1.0,
        "rtx4090": 0.0,
        "m4-max": 0.01,
    }
    assert found["h100-sxm"].source.where == "--price h100=2.49"
    assert found["h100-sxm"].source.trust is Trust.STATED


def test_no_given_price_is_none_and_one_text_is_one_price() -> None:
    assert given_prices([]) == {}
    assert list(given_prices("l4=0.5")) == ["l4"]


def test_nothing_is_never_less_than_nothing() -> None:
    assert str(given_prices(["h100=-0"])["h100-sxm"].usd_per_hour) == "0.0"


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["h100"], "'h100' is not ACCELERATOR=DOLLARS; write such as h100=2.49"),
        (["=2.49"], "'=2.49' is not ACCELERATOR=DOLLARS"),
        ([""], "'' is not ACCELERATOR=DOLLARS"),
        (["h100="], "'h100=' names no amount; write dollars an hour"),
        (["h100=cheap"], "'h100=cheap' names no amount"),
        (["h100=nan"], "'h100=nan' names no amount"),
        (["h100=inf"], "'h100=inf' names no amount"),
        (["h100=1e999"], "'h100=1e999' names no amount"),
        (["h100=2_49"], "'h100=2_49' names no amount"),
        (["h100=٢"], "'h100=٢' names no amount"),
        (["h100=2.49=3"], "'h100=2.49=3' names no amount"),
        (["h100=-1"], "'h100=-1' is less than nothing; write dollars an hour, 0 or more"),
        (["h100=2e6"], "'h100=2e6' is more than $1,000,000 an hour"),
        (["h100=2", "H100 SXM=3"], "'H100 SXM=3' prices h100-sxm again (h100=2); keep one of them"),
    ],
)
def test_a_bad_price_is_one_line_that_says_what_to_do(texts: list[str], words: str) -> None:
    with pytest.raises(BadInput) as caught:
        given_prices(texts)
    assert str(caught.value).startswith("--price: ")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_price_for_an_accelerator_that_is_not_known_suggests_one() -> None:
    with pytest.raises(UnknownName, match="--price: 'h1000' is not a known accelerator; did you mean"):
        given_prices(["h1000=2"])
