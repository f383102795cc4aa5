"""The lessons cannot lie: their commands run, their outputs are those, every topic has one."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import sys
from pathlib import Path

import pytest

from kvplan.drills.deck import decks
from kvplan.faces.cli import main

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import lessons  # noqa: E402

PAGES = {page.stem: page.read_text("utf-8") for page in lessons.PAGES}
TOPICS = {name: text for name, text in PAGES.items() if name != "practice"}
PARTS = ["## Warm-up", "## Know this", "## Practice", "## On your own model", "## Going further"]
PAPERS = {
    "1911.02150": "multi-query attention", "2305.13245": "GQA", "2309.06180": "PagedAttention",
    "2205.14135": "FlashAttention", "2211.17192": "speculative decoding", "2308.16369": "SARATHI",
    "2403.02310": "Sarathi-Serve", "2401.09670": "DistServe", "2311.18677": "Splitwise", "2405.04434": "MLA",
}  # fmt: skip


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVPLAN_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", PAGES)
def test_every_command_of_a_page_prints_what_stands_below_it(name: str) -> None:
    assert lessons.filled(PAGES[name]) == PAGES[name], "run python tools/lessons.py"


@pytest.mark.parametrize("name", PAGES)
def test_every_command_for_ones_own_model_runs(name: str) -> None:
    blocks = re.findall(r"```sh\n(.*?)```", PAGES[name], re.DOTALL)
    commands = [line for block in blocks for line in block.splitlines() if line.startswith("kvplan ")]
    assert commands
    for line in commands:
        words = shlex.split(line.replace("MODEL", "llama-3.2-1b"), comments=True)[1:]
        said = io.StringIO()
        with (
            contextlib.redirect_stdout(said),
            contextlib.redirect_stderr(said),
            pytest.raises(SystemExit) as ended,
        ):
            main(words)
        assert not ended.value.code, (line, said.getvalue())


def test_every_topic_has_a_lesson_and_no_other_page_is_one() -> None:
    assert set(TOPICS) == set(decks())
    assert {page.parent.name for page in lessons.PAGES} == {"docs", "lessons"}


@pytest.mark.parametrize("name", TOPICS)
def test_a_lesson_has_its_parts_in_their_order(name: str) -> None:
    text = TOPICS[name]
    assert text.startswith(f"# {decks()[name].title}\n")
    places = [text.index(f"\n{part}\n") for part in PARTS]
    assert places == sorted(places)
    practice = text[places[2] : places[3]]
    assert practice.count("*Hint:*") >= 2
    assert practice.count("*Check:*") >= 2
    assert "```console" in practice
    assert f"`kvplan drill --topic {name}`" in practice
    assert re.search(r"arXiv \d{4}\.\d{5}", text[places[4] :])


def test_the_papers_are_named_and_no_other_number_stands_for_one() -> None:
    named = {found for text in TOPICS.values() for found in re.findall(r"arXiv (\d{4}\.\d{5})", text)}
    assert named == set(PAPERS)


def test_the_python_of_the_page_prints_what_its_comment_says() -> None:
    (block,) = re.findall(r"```python\n(.*?)```", PAGES["practice"], re.DOTALL)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(block, {})  # noqa: S102
    assert printed.getvalue().splitlines()[-1] == re.findall(r"# (\w+)$", block, re.MULTILINE)[-1]


def test_links_lead_to_pages_that_are_there() -> None:
    for text in PAGES.values():
        for link in re.findall(r"\]\(([^)]+)\)", text):
            assert (ROOT / "docs" / link).is_file(), link
        for path in re.findall(r"`(docs/[\w/.-]+\.md)`", text):
            assert (ROOT / path).is_file(), path
