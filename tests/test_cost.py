"""What a deployment costs, against sums done by hand; every explanation reads back to its value."""

from __future__ import annotations

import numpy as np
import pytest

from kvplan.advise import cost
from kvplan.facts.prices import given_prices, price_of
from kvplan.figure import Figure, Source, Trust, sourced, value_of
from test_figure import assert_all_true

STATED = Source(Trust.STATED, "by hand")


def test_eight_accelerators_at_two_and_a_half_dollars_cost_twenty_an_hour() -> None:
    assert cost.usd_per_hour(8, 2.5) == 20


def test_twenty_dollars_an_hour_at_a_thousand_tokens_a_second_are_five_and_a_half_a_million() -> None:
    assert cost.usd_per_million_output_tokens(20, 1000) == pytest.approx(20 / 3.6)
    assert cost.usd_per_million_output_tokens(3.6, 1000) == 1


def test_thirty_six_dollars_an_hour_at_ten_requests_a_second_are_one_a_thousand() -> None:
    assert cost.usd_per_thousand_requests(36, 10) == 1


def test_eight_boards_of_seven_hundred_watts_are_at_most_so_much_energy_a_token() -> None:
    watts = cost.most_watts(8, 700)
    assert watts == 5600
    joules = cost.most_joules_per_output_token(watts, 1000)
    assert joules == 5.6
    assert cost.most_kwh_per_million_output_tokens(joules) == pytest.approx(5.6 / 3.6)


def test_what_costs_nothing_costs_nothing_a_token() -> None:
    assert cost.usd_per_million_output_tokens(cost.usd_per_hour(4, 0.0), 100) == 0


def test_twice_the_accelerators_at_twice_the_throughput_cost_the_same_a_token() -> None:
    one = cost.usd_per_million_output_tokens(cost.usd_per_hour(1, 4.41), 900)
    two = cost.usd_per_million_output_tokens(cost.usd_per_hour(2, 4.41), 1800)
    assert one == two


def figures() -> list[Figure]:
    """Every figure of a deployment's cost, from a listed price down."""
    price = price_of("h100-sxm")
    assert price is not None
    accelerators = sourced("accelerators", 4, "accelerator", STATED)
    each = sourced("usd_per_accelerator_hour", price.usd_per_hour, "$/h", price.source)
    tokens = sourced("output_tokens_per_second", 879.0, "token/s", STATED)
    requests = sourced("requests_per_second", 3.5, "1/s", STATED)
    board = sourced("watts_per_accelerator", 700, "W", STATED)
    hour = cost.usd_per_hour(accelerators, each)
    joules = cost.most_joules_per_output_token(cost.most_watts(accelerators, board), tokens)
    made = [
        hour,
        cost.usd_per_million_output_tokens(hour, tokens),
        cost.usd_per_thousand_requests(hour, requests),
        joules,
        cost.most_kwh_per_million_output_tokens(joules),
    ]
    return [figure for figure in made if isinstance(figure, Figure)]


def test_every_explanation_of_a_cost_is_true() -> None:
    made = figures()
    assert len(made) == 5
    assert sum(assert_all_true(figure) for figure in made) == 10
    price = price_of("h100-sxm")
    assert price is not None
    assert value_of(made[1]) == pytest.approx(4 * price.usd_per_hour / 3600 / 879 * 1e6)


def test_an_explanation_of_a_cost_leads_back_to_the_price_and_its_date() -> None:
    price = price_of("h100-sxm")
    assert price is not None
    text = figures()[1].explain()
    assert "usd_per_hour × 1,000,000 ÷ (3,600 × output_tokens_per_second)" in text
    assert f"read {price.date}" in text
    assert price.provider in text


def test_an_explanation_of_energy_says_that_it_is_an_upper_bound() -> None:
    text = figures()[4].explain()
    assert "an upper bound" in text
    assert "board power is what accelerators may draw" in text


def test_a_given_price_is_what_an_explanation_names() -> None:
    price = given_prices(["h100=2.49"])["h100-sxm"]
    each = sourced("usd_per_accelerator_hour", price.usd_per_hour, "$/h", price.source)
    hour = cost.usd_per_hour(8, each)
    assert isinstance(hour, Figure)
    assert hour.value == 8 * 2.49
    assert "[stated: --price h100=2.49]" in hour.explain()


def test_arrays_cost_what_their_elements_cost() -> None:
    tokens = np.array([10.0, 100.0, 1000.0])
    costs = cost.usd_per_million_output_tokens(20.0, tokens)  # type: ignore[arg-type]
    assert list(costs) == [cost.usd_per_million_output_tokens(20.0, t) for t in (10.0, 100.0, 1000.0)]  # type: ignore[call-overload]
