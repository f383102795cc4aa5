"""docs/recommend.md cannot lie: its commands run, the options that it names are options."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import polars as pl
import pytest

from kvplan.faces.cli import main
from kvplan.faces.recommend_command import recommend
from kvplan.facts.flags import flags
from kvplan.verbs.order import WAVE

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "recommend.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^\$ kvplan ([^\n]+)$", PAGE, re.MULTILINE)


def run(command: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(shlex.split(command))
    return int(ended.value.code or 0)


def test_every_command_of_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    monkeypatch.chdir(tmp_path)
    assert len(COMMANDS) >= 6
    for command in COMMANDS:
        assert run(f"{command} --workers 1") == 0, command
    assert {path.name for path in tmp_path.iterdir()} == {"tests", "front.svg", "search.parquet"}
    assert "nothing meets the goals; the nearest is" in capsys.readouterr().out
    assert {"stage", "family", "accelerators", "replicas"} <= set(pl.read_parquet("search.parquet").columns)


def test_every_option_that_the_page_names_is_one() -> None:
    known = {f"--{name.replace('_', '-')}" for name in recommend.__annotations__} | {"--json", "--check"}
    known |= {flag.option for flag in flags().values()}
    named = set(re.findall(r"--[a-z][a-z0-9-]+", PAGE.split("## Scenarios")[0]))
    assert named <= known


def test_the_numbers_of_the_search_are_those_of_the_code() -> None:
    assert f"In waves of {WAVE} families" in PAGE
