"""On questions with known good answers, the first recommendation is one that an expert would accept."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path
from typing import Any

import pytest

from scenarios import asked, is_one_of, scenarios

ROOT = Path(__file__).parents[1]
_spec = importlib.util.spec_from_file_location("scenarios_tool", ROOT / "tools" / "scenarios.py")
assert _spec is not None
assert _spec.loader is not None
scenarios_tool = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(scenarios_tool)
ALL = {s["name"]: s for s in scenarios()}


@functools.cache
def answer(name: str) -> dict[str, Any]:
    return asked(ALL[name]["asks"])


def test_there_are_ten_and_more_each_with_its_reason_and_source() -> None:
    assert len(ALL) == len(scenarios()) >= 10
    for s in scenarios():
        assert s.keys() - {"also"} == {"name", "asks", "why", "source", "accepts"}
        assert len(s["why"].split()) > 10
        assert s["source"]
        assert s["accepts"]


@pytest.mark.parametrize("name", ALL)
def test_the_first_answer_is_one_that_is_accepted(name: str) -> None:
    found = answer(name)
    assert found["met"]
    first = found["answers"][0]
    assert is_one_of(first, ALL[name]["accepts"]), first["launch"]


@pytest.mark.parametrize("name", [name for name, s in ALL.items() if "also" in s])
def test_the_alternative_that_experts_name_is_among_the_answers(name: str) -> None:
    others = answer(name)["answers"][1:]
    assert any(is_one_of(row, ALL[name]["also"]) for row in others)


def test_what_is_accepted_is_little_of_what_is_on_offer() -> None:
    """Most points of the fronts would not be accepted: agreement is no accident."""
    fronts = [(s, row) for name, s in ALL.items() for row in answer(name)["front"]]
    good = [row for s, row in fronts if is_one_of(row, s["accepts"])]
    assert len(fronts) > 40
    assert len(good) < 0.5 * len(fronts)


def test_drafting_is_what_makes_two_enough_for_the_quickest_tokens() -> None:
    words = ALL["the quickest tokens for one user"]["asks"]
    without = asked(words.replace(" --speculative-tokens 3", ""))["answers"][0]
    assert without["accelerators"] > 2


def test_the_page_has_these_answers() -> None:
    page = (ROOT / "docs" / "recommend.md").read_text("utf-8")
    for name, s in ALL.items():
        assert scenarios_tool.line(s, answer(name)) in page
        assert scenarios_tool.section(s, answer(name)) in page
