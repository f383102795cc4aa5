"""docs/observe.md cannot lie: its commands run, against a server and a Prometheus of this machine."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

import fake_prometheus as fp
import synthetic_traffic as synthetic
from kvplan.faces.cli import main
from kvplan.faces.simulate_command import simulate
from kvplan.faces.verify_command import verify
from kvplan.faces.workload_command import workload
from kvplan.observe import history
from kvplan.serve.traces import read_trace
from test_learned_workload import DAY, NOW, truth_of
from test_probe import Engine
from test_verify_server import page_of, served

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "observe.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^\$ kvplan ([^\n]+)$", PAGE, re.MULTILINE)


def test_every_command_of_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(history.time, "time", lambda: NOW)
    assert len(COMMANDS) >= 10
    truth = truth_of(synthetic.traffic(DAY, scale=0.2), DAY)
    with served(page_of(1000)) as server, fp.prometheus(truth) as kept:
        server.answers["/v1/completions"] = Engine()
        for command in COMMANDS:
            here = command.replace("http://localhost:8000", server.url)
            here = here.replace("http://localhost:9090", kept.url)
            with pytest.raises(SystemExit) as ended:
                main(shlex.split(here))
            said = capsys.readouterr()
            assert int(ended.value.code or 0) in ((0, 1) if "--check" in command else (0,)), (
                command,
                said.err,
            )
    made = {path.name for path in tmp_path.iterdir()}
    assert made == {"tests", "day.jsonl", "peak.jsonl", "prompt_tokens.csv", "output_tokens.csv"}
    assert len(read_trace(tmp_path / "peak.jsonl", 202)) > 100


def test_every_option_that_the_page_names_is_one() -> None:
    known = {
        f"--{name.replace('_', '-')}"
        for command in (verify, workload, simulate)
        for name in command.__annotations__
    }
    known |= {"--json", "--enable-metrics", "--metrics"}
    named = set(re.findall(r"--[a-z][a-z0-9-]+", PAGE))
    assert named <= known


def test_what_is_lost_is_on_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ("drawn apart from one another", "sessions, and which prompts share what", "when it ends"):
        assert words in PAGE
