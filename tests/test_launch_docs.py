"""docs/launch.md cannot lie: its commands are run, what they print is compared, what they write is read."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml

from kvplan.faces.cli import main

PAGE = (Path(__file__).parents[1] / "docs" / "launch.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)


def run(line: str) -> None:
    """One command of the page."""
    with pytest.raises(SystemExit) as ended:
        main(shlex.split(line)[1:])
    assert ended.value.code == 0, line


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_a_command_prints_or_writes_what_the_page_says(
    block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    commands = re.findall(r"^\$ (kvplan .*)$", block, re.MULTILINE)
    assert commands
    for line in commands:
        run(line)
        shown = block.partition(f"$ {line}\n")[2].partition("\n$ ")[0]
        printed = capsys.readouterr().out
        if shown and not shown.startswith("$ "):
            assert printed == shown
        if " --launch " in line:
            name = line.rpartition(" --launch ")[2]
            assert list(yaml.safe_load_all((tmp_path / name).read_text("utf-8")))


def test_the_page_shows_every_form() -> None:
    from kvplan.verbs.manifests import FORMS

    assert set(FORMS) == set(re.findall(r"\| `(\w+)` \|", PAGE))
    assert len(BLOCKS) == 4
