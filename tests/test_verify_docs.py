"""docs/verify.md cannot lie: its commands run, the options that it names are options."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

import kvplan
from kvplan.faces.cli import main
from kvplan.faces.verify_command import verify
from kvplan.observe.source import BLOCK, LONGEST

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "verify.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^\$ kvplan ([^\n]+)$", PAGE, re.MULTILINE)


def test_every_command_of_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    monkeypatch.chdir(tmp_path)
    assert len(COMMANDS) >= 7
    for command in COMMANDS:
        with pytest.raises(SystemExit) as ended:
            main(shlex.split(command))
        assert int(ended.value.code or 0) == 0, (command, capsys.readouterr().err)
        assert capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["tests"]


def test_every_option_that_the_page_names_is_one() -> None:
    known = {f"--{name.replace('_', '-')}" for name in verify.__annotations__} | {"--json"}
    assert set(re.findall(r"--[a-z][a-z0-9-]+", PAGE)) <= known


def test_what_the_page_says_of_sizes_is_so() -> None:
    assert f"blocks of {BLOCK >> 20} MiB" in PAGE
    assert f"cut at {LONGEST >> 10} KiB" in PAGE


def test_the_sample_that_disagrees_does_so_as_the_page_says() -> None:
    log = ROOT / "tests/data/sample-logs/peak.log"
    answer = kvplan.verify(log=log, gpu="h100")
    assert [row["name"] for row in answer["checks"] if not row["agrees"]] == [
        "activation_bytes",
        "kv_pool_bytes",
        "kv_tokens_from_flags",
    ]
    assert {row["flag"] for row in answer["changes"]} == {"--weights-memory", "--activation-memory"}
    assert kvplan.verify(log=log, gpu="h100", activation_memory="12.20GiB", weights_memory="14.99GiB")[
        "agrees"
    ]
