"""Two kept answers side by side: what was asked, what came out, and nothing that is no answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import kvplan
from kvplan.errors import BadInput
from kvplan.faces.cli import main

MODEL = "llama-3.1-8b"


def command(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    return int(ended.value.code or 0)


def test_figures_of_two_plans_stand_side_by_side_with_the_better_one_named():
    a, b = (kvplan.plan(MODEL, gpu=gpu, batch=8) for gpu in ("h100", "h200"))
    found = kvplan.compare(a, b)
    rows = {row["name"]: row for row in found["figures"]}
    pool = rows["cache a rank"]
    assert (pool["a"], pool["b"]) == tuple(x["fit"]["memory"]["kv_pool_bytes"] for x in (a, b))
    assert pool["better"] == "b"
    assert pool["ratio"] == pytest.approx(pool["b"] / pool["a"])
    assert rows["TPOT"]["better"] == "b"
    assert rows["bytes per token"]["better"] == ""
    assert {row["name"] for row in found["asked"]} == {"accelerator"}


def test_an_answer_beside_itself_differs_in_nothing():
    a = kvplan.latency(MODEL, gpu="h100", concurrency=8)
    found = kvplan.compare(a, a)
    assert found["asked"] == []
    assert all(row["ratio"] in (None, 1) and row["better"] == "" for row in found["figures"])


@pytest.mark.parametrize(
    "words",
    [
        ["fit", MODEL, "--gpu", "h100"],
        ["latency", MODEL, "--gpu", "h100"],
        ["plan", MODEL, "--gpu", "h100"],
        ["size", MODEL],
        ["simulate", MODEL, "--gpu", "h100", "--batch", "4", "--requests", "8"],
    ],
    ids=lambda words: words[0],
)
def test_what_save_keeps_is_what_json_prints_and_compares(words: list[str], tmp_path: Path, capsys: Any):
    kept = tmp_path / "kept.json"
    assert command(*words, "--json", "--save", str(kept)) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(kept.read_text("utf-8"))
    assert command("compare", str(kept), str(kept)) == 0
    assert "B ÷ A" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["", "[]", "\x00", "{", "[" * 100_000], ids=len)
def test_what_is_no_answer_is_refused_in_a_line(text: str, tmp_path: Path, capsys: Any):
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text(json.dumps(kvplan.size(MODEL)), "utf-8")
    bad.write_text(text, "utf-8")
    assert command("compare", str(good), str(bad)) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "no kept answer" in error


def test_answers_of_different_verbs_with_nothing_in_common_are_refused():
    with pytest.raises(BadInput, match="same verb"):
        kvplan.compare({"met": False}, {"steps": []})


@pytest.mark.parametrize("path", [".", "nowhere/plan.json"])
def test_a_place_that_cannot_be_written_keeps_nothing(
    path: str, tmp_path: Path, capsys: Any, monkeypatch: Any
):
    monkeypatch.chdir(tmp_path)
    assert command("plan", MODEL, "--gpu", "h100", "--save", path) == 2
    assert "--save" in capsys.readouterr().err
    assert list(tmp_path.rglob("*")) == []
