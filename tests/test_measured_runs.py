"""Runs of an engine that were measured, simulated: the figures, the curves, and the page that has them."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

import replayed
from replayed import PAGE, PICTURES, Run, Way

RUNS = {run.name: run for run in replayed.runs()}
GEFORCE, ONE, TWO = (
    RUNS["rtx4090-llama-3.1-8b"],
    RUNS["rtxpro6000-llama-3.1-8b"],
    RUNS["rtxpro6000-qwen3-32b-tp2"],
)
MOMENTS = {
    "request_id", "input_toks", "output_toks", "arrival_time", "queued_ts", "scheduled_ts", "first_token_ts",
    "last_token_ts",
}  # fmt: skip
KB = 1000


def way(run: Run, *, stated: bool = False, calibrated: bool = False) -> Way:
    return next(w for w in run.ways() if (w.stated, w.calibrated) == (stated, calibrated))


def assert_on_target(run: Run, how: Way) -> None:
    for key, most in how.targets.items():
        assert abs(replayed.error(run, how, key)) <= most, key


@pytest.mark.parametrize("run", [GEFORCE, ONE, TWO], ids=lambda run: run.name)
def test_runs_are_met_as_they_stand(run: Run) -> None:
    assert_on_target(run, way(run))


@pytest.mark.parametrize("run", [GEFORCE, TWO], ids=lambda run: run.name)
def test_a_run_is_met_with_what_is_known_of_its_machine(run: Run) -> None:
    assert_on_target(run, way(run, stated=True))


@pytest.mark.parametrize(
    ("run", "stated"),
    [(GEFORCE, True), (TWO, False), (TWO, True)],
    ids=["rtx4090, pool stated", "two cards", "two cards, link stated"],
)
def test_calibrated_runs_are_met(run: Run, stated: bool) -> None:
    assert_on_target(run, way(run, stated=stated, calibrated=True))


def test_a_calibrated_run_in_a_smaller_cache_than_its_own_is_met_but_for_the_time_of_a_token() -> None:
    """In 3 % less cache fewer run at once and tokens come quicker; the fit leaves that error where it is.

    Tokens are 4 % off at most, not 3 %: slower ones would put the end off by as much.
    """
    how = way(GEFORCE, calibrated=True)
    off = {key: abs(replayed.error(GEFORCE, how, key)) for key in how.targets}
    assert off.pop(("tpot_seconds", "mean")) <= 0.04
    assert all(value <= how.targets[key] for key, value in off.items())


@pytest.mark.parametrize(
    ("run", "stated", "calibrated", "most"),
    [
        (GEFORCE, False, False, {"running": 4, "waiting": 6, "kv_fraction": 0.05}),
        (GEFORCE, True, False, {"running": 2, "waiting": 4, "kv_fraction": 0.03}),
        (GEFORCE, False, True, {"running": 4, "waiting": 6, "kv_fraction": 0.04}),
        (TWO, True, False, {"running": 11, "waiting": 8}),
        (TWO, False, True, {"running": 3, "waiting": 3}),
    ],
    ids=[
        "rtx4090",
        "rtx4090, pool stated",
        "rtx4090, calibrated",
        "two cards, link stated",
        "two cards, calibrated",
    ],
)
def test_curves_follow_the_measured_ones(
    run: Run, stated: bool, calibrated: bool, most: dict[str, float]
) -> None:
    off = replayed.apart(run, way(run, stated=stated, calibrated=calibrated))
    assert set(off) == set(most)
    for key, limit in most.items():
        assert off[key] <= limit, key


def test_percentiles_in_the_engines_own_cache_are_met_within_5_percent() -> None:
    how = way(GEFORCE, stated=True)
    for key in replayed.SHOWN:
        assert abs(replayed.error(GEFORCE, how, key)) <= 0.05, key


def test_measured_figures_are_those_that_were_published() -> None:
    rows = [json.loads(line) for line in (replayed.DATA / "measured.jsonl").read_text("utf-8").splitlines()]
    for run, key in ((GEFORCE, "rtx4090"), (TWO, "rtxpro6000")):
        of = [
            r
            for r in rows
            if (r.get("src"), r.get("gpu_key"), r.get("model")) == ("lss", key, run.raw["words"]["model"])
        ]
        told = {r["metric"]: r["value_si"] for r in of}
        found = replayed.measured(run)
        for kind in ("ttft", "tpot", "e2e"):
            for stat, name in (("mean", "mean"), ("p50", "median"), ("p99", "p99")):
                if f"{kind}_{name}" in told:
                    assert found[f"{kind}_seconds", stat] == pytest.approx(told[f"{kind}_{name}"], abs=6e-5)


def test_the_copies_hold_lengths_and_moments_alone() -> None:
    for run in (GEFORCE, TWO):
        for line in Path(run.trace).read_text("utf-8").splitlines():
            row = json.loads(line)
            assert set(row) == MOMENTS
            assert re.fullmatch(r"bench-\d+", row.pop("request_id"))
            assert all(isinstance(value, int | float) for value in row.values())
    for line in Path(ONE.trace).read_text("utf-8").splitlines():
        assert set(json.loads(line)) == {"input_toks", "output_toks", "arrival_time_ns"}


def test_the_page_is_fresh() -> None:
    assert PAGE.read_text("utf-8") == replayed.page()


def test_the_page_shows_every_picture_and_each_is_small() -> None:
    shown = re.findall(r"\(replayed/([^)]+)\)", PAGE.read_text("utf-8"))
    assert sorted(shown) == sorted(path.name for path in PICTURES.iterdir())
    for name in shown:
        assert 10 * KB < (PICTURES / name).stat().st_size < 150 * KB
