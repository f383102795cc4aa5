"""The fewest replicas that meet the goals are found by simulation, in few runs, from any start."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

import kvplan
from kvplan.advise.families import Family
from kvplan.advise.goals import Goals
from kvplan.advise.ranking import Rank, known_or_last, relaxed, weighted
from kvplan.facts.prices import given_prices
from kvplan.serve.load import Load
from kvplan.verbs import trial
from kvplan.verbs.given import given_model
from kvplan.verbs.order import WAVE, Order, Priced
from kvplan.verbs.screening import Candidate, Screened, Setting, Want, screened
from kvplan.verbs.trial import Tried
from kvplan.verbs.workloads import workload_of

GOALS = Goals(1.0)
L4 = Family("l4", "vllm")


def tried(family: Family = L4, replicas: int = 1, ttft: float = 0.5, e2e: float = 2.0, **more: Any) -> Tried:
    times = {"ttft_seconds": ttft, "tpot_seconds": 0.01, "e2e_seconds": e2e}
    setting = more.pop("setting", Setting())
    return Tried(family, setting, replicas, times, times, 100.0, 0, 0, **more)


def candidate(family: Family = L4, replicas: int = 1, ttft: float = 0.5, least: int = 1) -> Candidate:
    return Candidate(family, Setting(), replicas, least, ttft, 0.01, 2.0, 100.0)


@dataclass
class Stub:
    """Runs in which so many replicas, and no fewer, meet the goals."""

    needed: int
    least: int = 1
    done: dict[int, Tried] = field(default_factory=dict)
    runs: int = 0

    @property
    def want(self) -> Any:
        return type("Want", (), {"goals": GOALS})

    def at(self, replicas: int) -> Tried:
        if replicas not in self.done:
            self.runs += 1
            self.done[replicas] = tried(replicas=replicas, ttft=0.999 * self.needed / replicas)
        return self.done[replicas]

    def met(self, replicas: int) -> bool:
        return self.at(replicas).met(GOALS)


@pytest.mark.parametrize("needed", [1, 2, 3, 7, 40, 100])
@pytest.mark.parametrize("start", [1, 2, 5, 40, 100])
def test_the_fewest_are_found_from_any_start_in_few_runs(needed: int, start: int) -> None:
    stub = Stub(needed)
    assert trial._fewest(stub, start, 100) == needed  # type: ignore[arg-type]
    assert needed == 1 or needed - 1 in stub.done
    assert stub.runs <= 16


def test_where_all_miss_the_nearest_is_named() -> None:
    assert trial._fewest(Stub(50), 3, 20) == 20  # type: ignore[arg-type]


def test_no_fewer_are_tried_than_a_load_that_goes_on_needs() -> None:
    stub = Stub(2, least=6)
    assert trial._fewest(stub, 9, 100) == 6  # type: ignore[arg-type]
    assert min(stub.done) == 6


def test_requests_that_are_rejected_are_not_tried_with_more_and_more() -> None:
    stub = Stub(500)
    stub.done = {2: Tried(L4, Setting(), 2, {"ttft_seconds": 9.0}, {}, 0.0, 3, 0)}
    assert trial._fewest(stub, 2, 100) == 2  # type: ignore[arg-type]


def test_an_answer_meets_the_goals_with_both_draws_or_not_at_all() -> None:
    late = {"ttft_seconds": 1.2, "tpot_seconds": 0.01, "e2e_seconds": 3.0}
    assert tried().met(GOALS)
    assert not tried(again=late).met(GOALS)
    assert not tried(reason="no").met(GOALS)
    assert tried(again=late).worst_times()["ttft_seconds"] == 1.2
    assert tried(slow=late).at_risk(GOALS)
    assert tried(slow=late).met(GOALS)


def test_cheaper_comes_first_then_safer_then_simpler_then_quicker() -> None:
    priced = Priced(given_prices(["l4=1", "h100=2"]), GOALS)
    late = {"ttft_seconds": 1.2, "tpot_seconds": 0.01, "e2e_seconds": 3.0}
    order = [
        tried(),
        tried(replicas=2, e2e=1.0),
        tried(replicas=2, e2e=1.1),
        tried(replicas=2, e2e=1.1, setting=Setting(1024)),
        tried(Family("l4", "vllm", pp=2), e2e=1.0),
        tried(replicas=2, e2e=0.5, slow=late),
        tried(Family("h100-sxm", "vllm"), replicas=2),
        tried(Family("h20", "vllm"), e2e=0.1),
    ]
    assert sorted(order, key=priced.rank) == order


def test_a_second_way_to_divide_must_be_worth_it() -> None:
    assert weighted(10, Family("l4", "vllm", tp=4)) == 10
    assert weighted(9, Family("l4", "vllm", tp=2, pp=2)) > 10
    assert weighted(8, Family("l4", "vllm", tp=2, pp=2)) < 10


def test_a_cost_that_is_not_known_comes_last() -> None:
    known, unknown = (Rank(known_or_last(usd), 1, False, 0, 1.0, 0, "") for usd in (1e9, None))
    assert known < unknown


@pytest.mark.parametrize(
    ("seconds", "goal"), [(0.0123, 0.013), (1.0, 1.0), (3.0600001, 3.1), (99.1, 100.0), (0.5, 0.5)]
)
def test_a_relaxed_goal_is_the_next_of_two_digits(seconds: float, goal: float) -> None:
    assert relaxed(seconds) == pytest.approx(goal)
    assert relaxed(seconds) >= seconds


def screened_at(family: Family, replicas: int, ttft: float = 0.5) -> Screened:
    one = candidate(family, replicas, ttft)
    return Screened(family, 1, able=(one,) if ttft <= 1 else (), nearest=one)


def in_order(screened: list[Screened], needs: dict[Family, int], wanted: int = 1) -> list[Family]:
    """Families in the order they are simulated, where each needs so many replicas (0: none will do)."""
    order = Order(screened, Priced(given_prices(["l4=1", "h100=3", "l40s=2"]), GOALS), wanted)
    seen: list[Family] = []
    while wave := order.wave():
        assert len(wave) <= WAVE
        seen += [s.family for s in wave]
        found = [(s.family, needs.get(s.family, 1)) for s in wave]
        order.take([tried(f, n or 1, ttft=0.5 if n else 2.0) for f, n in found])
    return seen


def test_the_search_goes_on_until_something_meets_the_goals() -> None:
    families = [Family("l4", "vllm", tp=2**n, pp=m) for n in range(4) for m in range(1, 9)]
    dear = Family("h100-sxm", "vllm", tp=8)
    screened = [screened_at(f, 1) for f in families] + [screened_at(dear, 64)]
    assert dear in in_order(screened, dict.fromkeys(families, 0))
    assert dear not in in_order(screened, {})


def test_what_is_dearer_than_all_answers_that_are_shown_is_left_out() -> None:
    l4, l40s, h100 = (Family(name, "vllm") for name in ("l4", "l40s", "h100-sxm"))
    screened = [screened_at(h100, 4), screened_at(l40s, 2), screened_at(l4, 2)]
    assert in_order(screened, {}, wanted=5) == [l4, l40s, h100]
    many = [Family("l4", "vllm", tp=1, pp=n) for n in range(1, WAVE + 1)]
    assert in_order([*[screened_at(f, 1) for f in many], screened_at(h100, 30)], {}) == many


def test_near_misses_of_arithmetic_are_played_and_far_ones_where_nothing_else_is_left() -> None:
    near, far = Family("l4", "vllm", tp=2), Family("l4", "vllm")
    assert in_order([screened_at(near, 1, 1.05), screened_at(far, 1, 5.0)], {}) == [near]
    assert in_order([screened_at(near, 1, 1.05), screened_at(far, 1, 5.0)], {near: 0, far: 0}) == [near, far]


@pytest.mark.parametrize(
    ("family", "words"),
    [
        (Family("h200", "vllm", dp=8, ep=8), {"dp": 8, "ep": 8}),
        (Family("h200", "sglang", tp=8, ep=8, attention_dp=8), {"tp": 8, "ep": 8, "attention_dp": 8}),
        (Family("h200", "vllm", tp=4, pp=2, ep=4), {"tp": 4, "pp": 2, "ep": 4}),
    ],
    ids=lambda x: x.name if isinstance(x, Family) else "",
)
def test_ranks_that_share_experts_are_played_as_simulate_plays_them(
    family: Family, words: dict[str, Any]
) -> None:
    load: dict[str, Any] = {"rate": 2, "requests": 60, "prompt_tokens": 1000, "output_tokens": 60}
    mixture = given_model("deepseek-v3")
    draws = tuple(workload_of(load, seed) for seed in (0, 1))
    want = Want("rate", 2.0, Load(1000, 60), 1060, Goals(60.0), 16, {}, {})
    found = screened(mixture, family, want)
    one = trial.tried(mixture, found, want, draws, "least-loaded")[0]
    assert one.replicas == 1
    assert one.setting == Setting()
    run = kvplan.simulate(mixture, gpu="h200", engine=family.engine, **words, **load)
    assert one.p99["ttft_seconds"] == pytest.approx(run["ttft_seconds"]["p99"])
    assert one.p99["e2e_seconds"] == pytest.approx(run["e2e_seconds"]["p99"])
