"""The Pareto front against brute force: nothing beaten is on it, nothing unbeaten is off it."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvplan.advise.front import front

few = st.integers(-2, 3).map(float)  # so few that ties are many
odd = st.sampled_from([math.inf, -math.inf, math.nan, None, -0.0])
figure = few | odd | st.floats(allow_nan=False, width=32)
clouds = st.integers(1, 4).flatmap(lambda width: st.lists(st.lists(figure, min_size=width, max_size=width)))


def unknown(point: list[Any]) -> bool:
    return any(x is None or math.isnan(x) for x in point)


def beats(a: list[Any], b: list[Any]) -> bool:
    return all(x <= y for x, y in zip(a, b, strict=True)) and a != b


def by_brute_force(points: list[list[Any]]) -> list[bool]:
    known = [p for p in points if not unknown(p)]
    return [not unknown(p) and not any(beats(q, p) for q in known) for p in points]


@given(clouds)
def test_the_front_is_what_brute_force_finds(points: list[list[Any]]) -> None:
    assert front(points).tolist() == by_brute_force(points)


@given(st.lists(st.tuples(few, few)))
def test_both_ways_of_finding_it_agree_on_two_figures(points: list[tuple[float, float]]) -> None:
    thrice = [(x, y, y) for x, y in points]
    assert front(points).tolist() == front(thrice).tolist()


@given(clouds, st.randoms())
def test_order_does_not_matter(points: list[list[Any]], random: Any) -> None:
    order = list(range(len(points)))
    random.shuffle(order)
    on = front(points)
    assert front([points[i] for i in order]).tolist() == [bool(on[i]) for i in order]


@given(clouds)
def test_somebody_is_on_the_front_unless_all_are_unknown(points: list[list[Any]]) -> None:
    assert front(points).any() == any(not unknown(p) for p in points)


def test_cost_against_latency_keeps_what_is_cheapest_fastest_or_between() -> None:
    points = [(1.0, 9.0), (2.0, 5.0), (2.0, 6.0), (3.0, 5.0), (4.0, 1.0), (5.0, 1.0)]
    assert front(points).tolist() == [True, True, False, False, True, False]


def test_equal_points_all_stay_or_all_go() -> None:
    assert front([(1.0, 1.0), (1.0, 1.0), (2.0, 2.0), (2.0, 2.0)]).tolist() == [True, True, False, False]


@pytest.mark.parametrize("unknown_figure", [None, math.nan])
def test_an_unknown_figure_is_never_on_the_front_and_beats_none(unknown_figure: Any) -> None:
    assert front([(0.0, unknown_figure), (1.0, 1.0)]).tolist() == [False, True]
    assert front([(unknown_figure, unknown_figure)]).tolist() == [False]


def test_no_points_have_no_front() -> None:
    assert front([]).tolist() == []
    assert front(np.empty((0, 2))).tolist() == []


def test_one_figure_has_its_least_as_its_front() -> None:
    assert front([[3.0], [1.0], [2.0], [1.0]]).tolist() == [False, True, False, True]


def test_half_a_million_points_of_two_figures_take_seconds_even_if_all_are_on_the_front() -> None:
    x = np.arange(500_000, dtype=np.float64)
    began = time.perf_counter()
    assert front(np.column_stack((x, -x))).all()
    assert time.perf_counter() - began < 5
