"""Words that `recommend` cannot use are one line that names them, and leave nothing behind."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

import kvplan
from kvplan.errors import KvplanError
from kvplan.faces.cli import main

BASE: dict[str, Any] = {
    "model": "llama-3.1-8b", "gpu": "h100", "rate": 2, "requests": 50, "prompt_tokens": 300,
    "output_tokens": 30, "ttft_p99": "1s", "max_accelerators": 2,
}  # fmt: skip
SMALL = "--gpu h100 --rate 2 --requests 50 --prompt-tokens 300 --output-tokens 30 --ttft-p99 1s"
SMALL += " --max-accelerators 2"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"ttft_p99": None}, "--ttft-p99: no goal is given"),
        ({"ttft_p99": "soon"}, "--ttft-p99: 'soon' is not a time"),
        ({"ttft_p99": 0}, "--ttft-p99: 0 is not a time above 0"),
        ({"ttft_p99": -1.0}, "--ttft-p99: -1.0 is not a time above 0"),
        ({"rate": None}, "--rate: no load is given"),
        ({"rate": 0}, "--rate: 0 is not requests a second"),
        ({"rate": -2}, "--rate: -2 is not"),
        ({"rate": float("nan")}, "--rate: nan is not"),
        ({"rate": "often"}, "--rate: 'often' is not"),
        ({"concurrency": 3}, "--concurrency is given too"),
        ({"rate": None, "concurrency": 0}, "--concurrency: 0 is outside"),
        ({"rate_scale": 2}, "--rate-scale: is for --trace"),
        ({"trace": "nothing.csv"}, "--prompt-tokens: the trace says it"),
        ({"trace": "nothing.csv", "prompt_tokens": None, "output_tokens": None}, "--trace: .*nothing.csv"),
        ({"gpu": "here.json"}, "is a machine that was timed, and the search is over built-in ones"),
        ({"gpu": "abacus"}, "--gpu: 'abacus' is not a known accelerator"),
        ({"gpu": " , "}, "--gpu: ' , ' names nothing"),
        ({"gpu": 5}, "--gpu: 5 is not a name"),
        ({"gpu": ["h100", 5]}, "--gpu: 5 is not a name"),
        ({"engine": "steam"}, "--engine: 'steam' is not known"),
        ({"engine_version": "9.9"}, "--engine-version: '9.9' is no known version"),
        ({"engine_version": "0.19", "engine": "vllm,sglang"}, "--engine-version: '0.19' is of one engine"),
        ({"quantization": "origami"}, "--quantization: 'origami' is not known"),
        ({"kv_cache_dtype": "origami"}, "--kv-cache-dtype: 'origami' is not a known"),
        ({"max_accelerators": 0}, "--max-accelerators: 0 is outside 1 to 1,024"),
        ({"max_accelerators": "many"}, "--max-accelerators: 'many' is not a whole number"),
        ({"answers": 0}, "--answers: 0 is outside"),
        ({"workers": 0}, "--workers: 0 is outside"),
        ({"workers": "all"}, "--workers: 'all' is not a whole number"),
        ({"seed": -1}, "--seed: -1 is outside"),
        ({"price": "h100"}, "--price: 'h100' is not ACCELERATOR=DOLLARS"),
        ({"price": "h100=cheap"}, "--price: 'h100=cheap' names no amount"),
        ({"price": "abacus=1"}, "--price: 'abacus' is not a known accelerator"),
        ({"price": "h100=-1"}, "--price: 'h100=-1' is less than nothing"),
        ({"price": ["h100=1", "h100-sxm=2"]}, "--price: 'h100-sxm=2' prices h100-sxm again"),
        ({"price": 3}, "--price: 3 is not a name"),
        ({"speculative_tokens": -1}, "--speculative-tokens: -1 is outside"),
        ({"acceptance": 0.5}, "--acceptance: nothing is drafted"),
        ({"speculative_tokens": 2, "acceptance": 2}, "--acceptance: 2 is not a share"),
        ({"batch": 4}, "--batch: no such setting"),
        ({"ctx_size": 4096}, "--ctx-size: belongs to llama.cpp, not vllm"),
        ({"block_size": "wide"}, "--block-size: 'wide' is not a whole number"),
        ({"model": "nothing-9b"}, "nothing-9b"),
        ({"resume": ""}, "--resume: '' names no file"),
        ({"resume": 5}, "--resume: 5 names no file"),
        ({"resume": "nowhere/search.parquet"}, "--resume: nowhere is not there"),
        ({"ray": "127.0.0.1:1"}, "--ray: '127.0.0.1:1' is not reached|--ray: needs Ray"),
    ],
    ids=str,
)
def test_bad_words_are_one_line_that_names_them(
    words: dict[str, Any], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = {name: value for name, value in {**BASE, **words}.items() if value is not None}
    with pytest.raises(KvplanError, match=said) as caught:
        kvplan.recommend(**given)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_resumed_is_said_before_any_work_and_stays_as_it_is(tmp_path: Path) -> None:
    import polars as pl

    folder, garbage, other = tmp_path / "folder", tmp_path / "garbage.parquet", tmp_path / "other.parquet"
    folder.mkdir()
    garbage.write_bytes(b"not a search")
    pl.DataFrame({"a": [1]}).write_parquet(other)
    before = {path.name: path.read_bytes() for path in (garbage, other)}
    for path, said in (
        (folder, "is a folder"),
        (garbage, "is no file of a search"),
        (other, "is no file of a search"),
        (Path("/proc/search.parquet"), "cannot be written"),
    ):
        with pytest.raises(KvplanError, match=f"--resume: .*{said}") as caught:
            kvplan.recommend(**BASE, resume=str(path), report=nobody)
        assert "\n" not in str(caught.value)
    assert {path.name: path.read_bytes() for path in (garbage, other)} == before
    assert {path.name for path in tmp_path.iterdir()} == {"folder", "garbage.parquet", "other.parquet"}


def nobody(what: str, done: int, of: int) -> None:
    pytest.fail(f"work was done: {what}, {done} of {of}")


def test_another_questions_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "search.parquet"
    kvplan.recommend(**BASE, resume=str(path))
    kept = path.read_bytes()
    for words in ({"rate": 3}, {"ttft_p99": "2s"}, {"seed": 5}, {"model": "llama-3.2-3b"}, {"requests": 51}):
        with pytest.raises(KvplanError, match="holds the search for another model, load, goals or version"):
            kvplan.recommend(**{**BASE, **words}, resume=str(path), report=nobody)
    assert path.read_bytes() == kept


def run(words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["recommend", "llama-3.1-8b", *shlex.split(words)])
    return int(ended.value.code or 0)


def test_the_command_ends_with_status_2_and_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ("--rate 2", f"{SMALL} --gpu abacus", f"{SMALL} --price h100", f"{SMALL} --workers none"):
        assert run(words) == 2
        said = capsys.readouterr()
        assert said.out == ""
        assert said.err.strip().count("\n") == 0


def test_check_turns_goals_that_nothing_meets_into_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(f"{SMALL} --check") == 0
    assert run(f"{SMALL} --tpot-p99 1us --check") == 1
    assert run(f"{SMALL} --tpot-p99 1us") == 0
    said = capsys.readouterr().out
    assert "nothing meets the goals; the nearest is" in said
    assert "it would with --tpot-p99" in said


def test_the_document_on_standard_output_is_that_of_python(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(f"{SMALL} --json --workers 1") == 0
    assert json.loads(capsys.readouterr().out) == kvplan.recommend(**BASE)


def test_the_report_begins_with_the_load_and_the_best_answer(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(SMALL) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("goals --ttft-p99 1.00 s")
    assert "candidates of" in lines[1]
    assert "1 × h100-sxm" in "\n".join(lines[2:6])
    assert any(line.strip().startswith("vllm serve") for line in lines)


@pytest.mark.parametrize("priced", [True, False])
def test_the_front_is_drawn(tmp_path: Path, priced: bool) -> None:
    picture = tmp_path / "front.svg"
    assert run(f"{SMALL.replace('h100', 'h100' if priced else 'h20')} --plot {picture}") == 0
    text = picture.read_text("utf-8")
    assert "Cost against time" in text
    assert ("US dollars an hour" if priced else "accelerators") in text
