"""What is drawn has the distribution that was asked for, and a seed draws the same again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from kvplan.errors import BadInput
from kvplan.serve.arrivals import Arrivals, Think, at_once, closed, constant, gamma, poisson, ramp
from kvplan.serve.lengths import Lengths, parse_lengths, rng_of
from kvplan.serve.synthetic import Sessions, drawn
from kvplan.serve.workload import Workload

LAWS = [
    poisson(10),
    gamma(10, 3),
    constant(10),
    ramp(2, 20, 30),
    at_once(),
    closed(4, Think(2, exponential=True)),
]


def lengths(text: str) -> Lengths:
    return parse_lengths(text, "--prompt-tokens")


def same(one: Workload, other: Workload) -> bool:
    arrays = [field.name for field in fields(Workload)]
    pairs = ((getattr(one, name), getattr(other, name)) for name in arrays)
    return all(a.tobytes() == b.tobytes() if hasattr(a, "tobytes") else a == b for a, b in pairs)


@pytest.mark.parametrize(
    ("text", "mean", "spread"),
    [
        ("512", 512, 0),
        ("normal(512, 64)", 512, 64),
        ("LogNormal(512,1024)", 512, 1024),
        ("uniform(1,9)", 5, (80 / 12) ** 0.5),
    ],
)
def test_lengths_have_the_mean_and_spread_that_were_asked(text: str, mean: float, spread: float) -> None:
    found = lengths(text).draw(rng_of(3), 200_000)
    assert found.mean() == pytest.approx(mean, rel=0.02)
    assert found.std() == pytest.approx(spread, rel=0.05)
    assert found.min() >= 1


def test_uniform_lengths_include_both_ends() -> None:
    assert set(lengths("uniform(2,4)").draw(rng_of(0), 1000).tolist()) == {2, 3, 4}


def test_empirical_lengths_are_those_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "l.csv"
    path.write_text("tokens\n5\n\n7\n7\n7\n")
    found = lengths(f"empirical({path})").draw(rng_of(1), 40_000)
    assert set(found.tolist()) == {5, 7}
    assert (found == 7).mean() == pytest.approx(0.75, abs=0.01)


@pytest.mark.parametrize(
    "text", ["10,3\n20,1\n30,0\n", "tokens,count\n20,0.25\n10,0.75\n", '{"10": 3, "20": 1}']
)
def test_histogram_lengths_come_as_often_as_weighed(tmp_path: Path, text: str) -> None:
    path = tmp_path / "h"
    path.write_text(text)
    found = lengths(f"histogram({path})").draw(rng_of(1), 40_000)
    assert set(found.tolist()) == {10, 20}
    assert (found == 10).mean() == pytest.approx(0.75, abs=0.01)


@pytest.mark.parametrize(
    "text",
    ["", "foo", "0", "-5", "1.5", "normal(5)", "normal(a,5)", "normal(0,5)", "uniform(9,1)",
     "lognormal(5,nan)", "lognormal(5,-1)", "fixed()", "empirical()",
     "histogram(/nowhere)", "1e99", "normal(5,6", "nan", "∞"],
)  # fmt: skip
def test_a_text_that_is_no_distribution_is_refused(text: str) -> None:
    with pytest.raises(BadInput) as caught:
        lengths(text)
    assert "--prompt-tokens" in str(caught.value) or "/nowhere" in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        ("empirical", "5\nx\n", "line 2: 'x'"),
        ("empirical", "tokens\n5\n0\n", "line 3: '0'"),
        ("empirical", "5,6\n", "2 columns"),
        ("empirical", "tokens\n", "no lengths"),
        ("histogram", "5,1\n6,-1\n", "line 2: '-1'"),
        ("histogram", "5,0\n", "no weight above 0"),
        ("histogram", '{"x": 1}', "at 'x'"),
        ("histogram", "{oops", "not JSON"),
    ],
)
def test_a_bad_line_of_lengths_is_named(tmp_path: Path, kind: str, text: str, said: str) -> None:
    (tmp_path / "f").write_text(text)
    with pytest.raises(BadInput, match="--prompt-tokens") as caught:
        lengths(f"{kind}({tmp_path / 'f'})")
    assert said in str(caught.value)


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.kind)
def test_the_same_seed_draws_the_same_bytes_and_more_requests_begin_alike(law: Arrivals) -> None:
    few, again = (
        drawn(lengths("normal(500,100)"), lengths("uniform(1,99)"), law, requests=200, seed=4) for _ in "ab"
    )
    assert same(few, again)
    more = drawn(lengths("normal(500,100)"), lengths("uniform(1,99)"), law, requests=300, seed=4)
    assert same(more.clipped(requests=200), few)
    other = drawn(lengths("normal(500,100)"), lengths("uniform(1,99)"), law, requests=200, seed=5)
    assert not np.array_equal(other.prompt_tokens, few.prompt_tokens)


@pytest.mark.parametrize(("law", "variation"), [(poisson(10), 1), (gamma(10, 3), 3), (gamma(10, 0.2), 0.2)])
def test_random_arrivals_have_their_rate_and_bursts(law: Arrivals, variation: float) -> None:
    s = drawn(lengths("1"), lengths("1"), law, requests=50_000).summary()
    assert s.requests_per_second == pytest.approx(10, rel=0.05)
    assert s.gap_variation == pytest.approx(variation, rel=0.05)


def test_even_arrivals_are_even() -> None:
    assert constant(4).times(3, 0).tolist() == [0, 0.25, 0.5]
    assert len(drawn(lengths("1"), lengths("1"), constant(4), seconds=10)) == 40


@pytest.mark.parametrize(("first", "last"), [(0, 200), (200, 50), (50, 50)])
def test_a_ramp_grows_evenly_and_then_stays(first: float, last: float) -> None:
    times = ramp(first, last, 100).until(200, seed=1)
    middle = (first + last) / 2
    assert (times < 50).sum() == pytest.approx(50 * (first + middle) / 2, rel=0.08)
    assert ((times >= 50) & (times < 100)).sum() == pytest.approx(50 * (middle + last) / 2, rel=0.08)
    assert (times >= 100).sum() == pytest.approx(100 * last, rel=0.08)


def test_a_duration_draws_the_beginning_of_the_same_arrivals() -> None:
    by_time = drawn(lengths("9"), lengths("9"), gamma(10, 5), seconds=60, seed=2)
    by_count = drawn(lengths("9"), lengths("9"), gamma(10, 5), requests=len(by_time), seed=2)
    assert same(by_time, by_count)
    assert by_time.arrival_seconds[-1] < 60


def test_a_closed_loop_sends_by_its_users_alone() -> None:
    w = drawn(lengths("9"), lengths("9"), closed(3, Think(2)), requests=5)
    assert w.users == 3
    assert np.isnan(w.arrival_seconds).tolist() == [False, False, False, True, True]
    assert w.think_seconds.tolist() == [2.0] * 5


def test_exponential_think_times_have_their_mean() -> None:
    w = drawn(lengths("9"), lengths("9"), closed(3, Think(2, exponential=True)), requests=20_000)
    assert w.think_seconds.mean() == pytest.approx(2, rel=0.05)


def test_a_shared_prefix_is_found_by_all_but_the_first() -> None:
    w = drawn(lengths("100"), lengths("50"), poisson(2), requests=200, shared_prefix_tokens=80)
    assert w.summary().prefix_hit_share == pytest.approx(0.8 * 199 / 200)
    short = drawn(
        lengths("uniform(50,150)"), lengths("50"), poisson(2), requests=200, shared_prefix_tokens=100
    )
    assert "are shorter than the shared prefix" in short.notes[0]


def test_a_turn_holds_all_that_was_said_before() -> None:
    talk = Sessions(lengths("3"), Think(5), system_tokens=200)
    w = drawn(lengths("100"), lengths("50"), poisson(1), requests=7, sessions=talk)
    assert w.prompt_tokens.tolist() == [300, 450, 600, 300, 450, 600, 300]
    assert w.after.tolist() == [-1, 0, 1, -1, 3, 4, -1]
    assert w.think_seconds.tolist() == [0, 5, 5, 0, 5, 5, 0]
    assert np.isnan(w.arrival_seconds).tolist() == [False, True, True] * 2 + [False]
    known = [0, 350, 500, 200, 350, 500, 200]
    assert w.summary().prefix_hit_share == pytest.approx(sum(known) / w.prompt_tokens.sum())


@pytest.mark.parametrize("law", [poisson(1), closed(3, Think(9))], ids=lambda law: law.kind)
def test_more_turns_begin_with_the_same_sessions(law: Arrivals) -> None:
    talk = Sessions(lengths("uniform(1,6)"), Think(5, exponential=True), system_tokens=20)
    few = drawn(lengths("normal(100,20)"), lengths("50"), law, requests=50, sessions=talk)
    more = drawn(lengths("normal(100,20)"), lengths("50"), law, requests=90, sessions=talk).clipped(
        requests=50
    )
    for name in ("arrival_seconds", "prompt_tokens", "after", "think_seconds", "stream", "stream_tokens"):
        assert getattr(few, name).tobytes() == getattr(more, name).tobytes()


def test_users_begin_their_next_session_when_theirs_has_ended() -> None:
    w = drawn(
        lengths("9"), lengths("9"), closed(2, Think(7)), requests=8, sessions=Sessions(lengths("2"), Think(1))
    )
    assert w.after.tolist() == [-1, 0, -1, 2, 1, 4, 3, 6]
    assert w.think_seconds.tolist() == [0, 1, 0, 1, 7, 1, 7, 1]
    assert w.users == 0


def test_sessions_of_a_duration_are_those_that_begin_in_it() -> None:
    w = drawn(lengths("9"), lengths("9"), constant(1), seconds=10, sessions=Sessions(lengths("3")))
    assert len(w) == 30


def test_what_cannot_be_drawn_is_refused() -> None:
    def refused(said: str, **more: object) -> None:
        asked: dict[str, object] = {"arrivals": poisson(1), "requests": 5} | more
        with pytest.raises(BadInput, match=said):
            drawn(lengths("9"), lengths("9"), **asked)  # type: ignore[arg-type]

    refused("one of the two", seconds=5)
    refused("not a number from 1", requests=0)
    refused("seed", seed=-1)
    refused("no length", shared_prefix_tokens=-1)
    refused("give a number of requests", arrivals=at_once(), requests=None, seconds=5)
    refused("no request arrives", arrivals=poisson(1e-9), requests=None, seconds=1)
    refused("system prompt", shared_prefix_tokens=5, sessions=Sessions(lengths("2")))


@pytest.mark.parametrize(
    "make",
    [
        lambda: poisson(0),
        lambda: gamma(1, 0),
        lambda: ramp(1, 0, 5),
        lambda: ramp(1, 1, 0),
        lambda: closed(0),
        lambda: Think(-1),
        lambda: Sessions(lengths("2"), system_tokens=-1),
    ],
)
def test_a_law_that_is_none_is_refused_where_it_is_made(make: Callable[[], object]) -> None:
    with pytest.raises(BadInput):
        make()
