"""docs/simulation.md cannot lie: its commands run, its rules, columns and options are the product's own."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from kvplan.faces.cli import main
from kvplan.faces.simulate_command import simulate
from kvplan.facts import store
from kvplan.facts.flags import flags
from kvplan.facts.scheduling import FACTS, scheduling_of
from kvplan.serve.traces import FORMS

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "simulation.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^\$ kvplan ([^\n]+)$", PAGE, re.MULTILINE)


def run(command: str, capsys: pytest.CaptureFixture[str]) -> int:
    """The exit status of a command, its output in the file that `>` names."""
    words, _, target = command.partition(" > ")
    with pytest.raises(SystemExit) as ended:
        main(shlex.split(words))
    said = capsys.readouterr().out
    if target:
        Path(target).write_text(said, "utf-8")
    return int(ended.value.code or 0)


def test_every_command_of_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    monkeypatch.chdir(tmp_path)
    assert len(COMMANDS) > 8
    for command in COMMANDS:
        assert run(command, capsys) == 0, command
    assert {path.name for path in tmp_path.iterdir()} == {"tests", "run.svg", "calm.json", "rows.csv"}


def test_every_option_that_the_page_names_is_one() -> None:
    known = {f"--{name.replace('_', '-')}" for name in simulate.__annotations__} | {"--json"}
    known |= {flag.option for flag in flags().values()}
    named = set(re.findall(r"--[a-z][a-z0-9-]+", PAGE))
    assert {f"--{name.removeprefix('--no-').removeprefix('--')}" for name in named} <= known


def test_the_rules_are_those_of_the_engines() -> None:
    rows = [line.strip("| ").split(" | ") for line in PAGE.splitlines() if line.count("|") == 8]
    told = {(row[0], row[1]): row[2:] for row in rows[2:]}
    for (engine, version), row in told.items():
        g = scheduling_of(engine, version, {})
        assert row == [g.order, "yes" if g.chunked else "no", g.admit, g.victim, str(g.lead)]
    table = store.toml(FACTS)
    for engine in table.keys() - {"caching"}:
        assert {change["from"] for change in table[engine]["change"]} == {
            version for name, version in told if name == engine
        }


def test_every_column_of_a_trace_is_named() -> None:
    for form in FORMS:
        for column in (*form.needs, form.hashes, form.session):
            assert column is None or f"`{column}`" in PAGE or f"`{column}`" in PAGE.lower(), column
