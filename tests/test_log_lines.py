"""The forms of logs' lines are data: each names its sources, is bounded, and is met by a test."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from failed_logs import CASES, MORE
from kvplan.facts import store
from kvplan.observe.forms import ANY, FILES, FOLDER, Form, Said, forms, kinds, values_of, words
from kvplan.observe.text import plain
from sample_lines import LINES
from test_observe_records import WRITERS
from verifying import RUNS, records

FIGURE_KINDS = {"size", "count", "number", "word", "text", "rest", "flag"}
MARKS = {"", "capacity", "ready", "failure", "profiled"}
FORMS = forms()


def ids(case: Any) -> str:
    return f"{case.engine}: {case.words.strip()[:30]}" if isinstance(case, Form) else str(case)[:40]


@pytest.mark.parametrize("form", FORMS, ids=ids)
def test_a_form_says_where_it_was_seen_and_what_it_is_from(form: Form) -> None:
    assert form.source
    assert form.seen or form.engine == ANY
    assert form.marks in MARKS
    assert (form.failure != "") == (form.marks == "failure")
    assert not set(form.words) & set("\"'\\\n\t\x1b")  # so that they survive JSON and colours
    assert len(form.words) >= 4
    assert any(word in form.words.encode() for word in words())


@pytest.mark.parametrize("form", FORMS, ids=ids)
def test_a_form_takes_a_bounded_time_on_lines_made_against_it(form: Form) -> None:
    for filler in ("a", "9", " ", "1,", "(", "TP0 ", "x=1, ", "a.", "[a"):
        half = filler * (20_000 // len(filler))
        for line in (f"{half}{form.words}{half}", f"{form.words}{filler}" * 800):
            began = time.process_time()
            assert len(list(form.pattern.finditer(line))) <= 2000
            assert time.process_time() - began < 1


@pytest.mark.parametrize(("line", "said"), LINES, ids=ids)
def test_a_line_says_what_it_prints(line: str, said: dict[str, Any]) -> None:
    found: dict[str, Any] = {}
    for form in FORMS:
        match = form.pattern.search(line) if form.words in line else None
        found |= values_of(form, match) if match else {}
    for name, value in said.items():
        got = found[name].value if isinstance(found[name], Said) else found[name]
        assert got == (pytest.approx(value) if isinstance(value, (int, float)) else value), name


def every_line() -> Iterator[str]:
    for name, writer in WRITERS.items():
        for row in records(name):
            yield from writer(row).text.splitlines()
    for case in [*CASES.values(), *MORE.values()]:
        yield from case.text.splitlines()
    for log in sorted(RUNS.glob("*/*.log")):
        yield from log.read_text("utf-8").splitlines()
    yield from (line for line, _ in LINES)


def test_every_form_is_met_by_a_line_of_the_tests() -> None:
    left = dict(enumerate(FORMS))
    for line in every_line():
        met = [i for i, f in left.items() if f.words in line and f.pattern.search(plain(line.encode())[1])]
        for i in met:
            del left[i]
    assert [f"{form.engine}: {form.words}" for form in left.values()] == []


def test_every_figure_is_described_and_used() -> None:
    named = {name for form in FORMS for name in form.pattern.groupindex if not name.endswith("_unit")}
    assert named - set(kinds()) == set()
    assert set(kinds()) - named == set()
    assert set(kinds().values()) <= FIGURE_KINDS
    assert all(row["what"] for row in store.toml(f"{FOLDER}/figures.toml").values())


def test_every_engine_has_forms_for_its_start_its_capacity_and_its_failures() -> None:
    engines = {form.engine for form in FORMS} - {ANY}
    assert engines == {"vllm", "sglang", "tensorrt-llm", "llama.cpp"}
    assert len(FILES) == len(engines) + 1
    for engine in engines:
        marks = {form.marks for form in FORMS if form.engine == engine}
        assert {"capacity", "failure"} <= marks
        assert any(form.opens is not None for form in FORMS if form.engine == engine)
