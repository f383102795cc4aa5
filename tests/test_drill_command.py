"""`kvplan drill` without a terminal: documents, sheets, odd input, and the file it keeps."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import kvplan
from drill_terminal import SOURCE, asked, typed, wrong
from kvplan.drills.deck import decks, find_topics, fingerprint
from kvplan.drills.progress import FILE, Practised, Progress, Store, data_folder
from kvplan.drills.session import Result, keep, resumed, started
from kvplan.faces.cli import main


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KVPLAN_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["drill", *words])
    return int(ended.value.code or 0)


def answer(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))


# ---------------------------------------------------------------- for teachers
def test_the_document_is_what_python_returns(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--count", "5", "--seed", "3", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document == kvplan.drill(count=5, seed=3)
    row = document["questions"][0]
    names = "number topic name kind text choices answer answer_text unit"
    names += " quantity tolerance hint solution slips given command lesson"
    assert set(row) == set(names.split())


def test_a_seed_gives_the_same_questions_and_another_others() -> None:
    first, again, other = (kvplan.drill(count=20, seed=seed)["questions"] for seed in (1, 1, 2))
    assert first == again
    assert len({row["text"] for row in first} & {row["text"] for row in other}) < 8


def test_without_a_seed_one_is_drawn_and_stated() -> None:
    drawn = kvplan.drill(count=2)
    assert kvplan.drill(count=2, seed=drawn["seed"]) == drawn


def test_a_topic_is_found_by_its_beginning_and_several_take_turns() -> None:
    assert find_topics("chunk") == ["chunked-prefill"]
    assert find_topics("Decode Step") == ["decode-step"]
    drawn = kvplan.drill(["levers", "engines"], count=4, seed=1)["questions"]
    assert [row["topic"] for row in drawn] == ["levers", "engines"] * 2


def test_a_topic_that_has_no_more_questions_gives_those_it_has() -> None:
    drawn = kvplan.drill("first-numbers", count=500, seed=1)["questions"]
    assert 15 < len(drawn) < 60
    assert len({row["text"] for row in drawn}) == len(drawn)


def test_a_sheet_has_questions_then_answers(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--count", "3", "--seed", "3", "--sheet") == 0
    questions, answers = capsys.readouterr().out.split("\nAnswers\n")
    for row in kvplan.drill(count=3, seed=3)["questions"]:
        assert row["text"] in questions
        assert row["answer_text"] in answers
        assert f"$ {row['command']}" in answers


def test_an_exams_own_questions_come_as_a_document_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--exam", "--seed", "7", "--json") == 0
    rows = json.loads(capsys.readouterr().out)["questions"]
    assert [row["text"] for row in rows] == [q.text for q in asked("exam", 7, 14)]
    assert run("--exam", "--seed", "7", "--sheet") == 0
    assert capsys.readouterr().out.startswith("14 questions, seed 7\n")


def test_an_answer_is_explained_down_to_its_sources(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--topic", "first-numbers", "--count", "2", "--seed", "1", "--explain", "q1") == 0
    assert "[stated: meta-llama__Llama-2-70b-hf.json" in capsys.readouterr().out


def test_topics_are_listed_with_how_they_went(capsys: pytest.CaptureFixture[str]) -> None:
    store = Store()
    store.write(Progress({"levers": Practised(4, 3, 1, [10.0, 20.0, 12.0])}))
    assert run("--topics", "--json") == 0
    rows = {row["topic"]: row for row in json.loads(capsys.readouterr().out)}
    assert list(rows) == list(decks())
    assert rows["levers"] | {"about": "", "title": ""} == {
        "topic": "levers",
        "title": "",
        "about": "",
        "asked": 4,
        "right": 3,
        "due": 1,
        "usual_seconds": 12.0,
    }
    assert run("--topics") == 0
    assert "3 of 4" in capsys.readouterr().out


# ---------------------------------------------------------------- odd input
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--count", "0"], "--count: 0 is outside 1 to"),
        (["--count", "-3", "--json"], "--count: -3 is outside"),
        (["--count", "1000000", "--json"], "--count: 1,000,000 is outside"),
        (["--count", "5000"], "--count: 5,000 is outside 1 to 1,000"),
        (["--count", "many"], "--count: 'many' cannot be used"),
        (["--topic", "decoding"], "did you mean decode-step"),
        (["--topic", "bites-per-token"], "did you mean bytes-per-token"),
        (["--topic", "🦙"], "topics: first-numbers, "),
        (["--topic", ""], "topics: first-numbers, "),
        (["--topic", "x" * 5000], "is no topic"),
        (["--seed", "-1"], "--seed: -1 is outside"),
        (["--seed", "1e999"], "--seed: '1e999' cannot be used"),
        (["--seed", str(2**70), "--json"], "is outside 0 to"),
        (["--json", "--sheet"], "--sheet: --json, --sheet and --explain are three forms"),
        (["--explain", "q99", "--seed", "1"], "no figure is called 'q99'"),
        (["--sed", "1"], "No such option"),
    ],
)
def test_bad_input_is_one_line_that_says_what_to_do(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(monkeypatch)
    assert run(*words) == 2
    out = capsys.readouterr()
    assert out.err.count("\n") == 1
    assert said in out.err
    assert "Traceback" not in out.err + out.out


@pytest.mark.parametrize("bad", [3, ["levers", 4], {"a": 1}, b"levers", 1.5, [], (), ""])
def test_a_topic_that_is_no_text_is_refused_in_python(bad: Any) -> None:
    with pytest.raises(kvplan.KvplanError, match="--topic"):
        kvplan.drill(bad)


@pytest.mark.parametrize("bad", [True, 2.0, "7", None])
def test_a_count_that_is_no_whole_number_is_refused_in_python(bad: Any) -> None:
    with pytest.raises(kvplan.KvplanError, match="--count"):
        kvplan.drill(count=bad)


# ---------------------------------------------------------------- answers from a pipe
def test_answers_may_come_from_a_pipe(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    questions = asked("practice", 6, 3)
    answer(monkeypatch, *(typed(q) for q in questions))
    assert run("--seed", "6", "--count", "3") == 0
    assert "3 of 3 right at once" in capsys.readouterr().out


def test_an_exam_that_is_not_passed_ends_with_one_under_check(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    questions = asked("exam", 6, 3)
    for words, status in ((["--check"], 1), ([], 0)):
        answer(monkeypatch, *(wrong(q) for q in questions))
        assert run("--exam", "--seed", "6", "--count", "3", *words) == status
        said = capsys.readouterr().out
        assert "0 of 3 right at once" in said
        assert said.count("\nanswer: ") == 3


def test_after_three_wrong_answers_the_way_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (q,) = asked("practice", 3, 1, "bytes-per-token")
    answer(monkeypatch, wrong(q), wrong(q), wrong(q))
    assert run("--topic", "bytes", "--seed", "3", "--count", "1") == 0
    said = capsys.readouterr().out
    assert f"answer: {q.answer_text}" in said
    assert Store().read().topics["bytes-per-token"].due == 1


def test_a_right_answer_after_a_hint_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    (q,) = asked("practice", 3, 1, "bytes-per-token")
    answer(monkeypatch, "hint", typed(q))
    assert run("--topic", "bytes", "--seed", "3", "--count", "1") == 0
    assert Store().read().topics["bytes-per-token"] == Practised(1, 0, 1, [])


@pytest.mark.parametrize(
    "text", ["", "\n\n\n", "quit\n", "\x00\x01\n", "é" * 100_000, "9" * 100_000 + "\n" + "hint"]
)
def test_whatever_stands_in_a_pipe_it_ends_without_a_traceback(
    text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    assert run("--seed", "6", "--count", "2") == 0
    assert "left at question 1 of 2; kvplan drill goes on" in capsys.readouterr().out


@pytest.mark.parametrize("how", ["<&-", "< /dev/null", "< bytes"])
def test_no_terminal_at_all_is_no_error(how: str, tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(bytes(range(256)) * 20)
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    line = f'"{sys.executable}" -m kvplan drill --seed 1 --count 1 {how}'
    done = subprocess.run(
        ["sh", "-c", line],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "left at question 1 of 1" in done.stdout


def test_a_reader_that_goes_is_no_error(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    line = f'"{sys.executable}" -m kvplan drill --seed 1 --count 300 --sheet | head -1'
    done = subprocess.run(
        ["sh", "-c", line], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert "Traceback" not in done.stderr


# ---------------------------------------------------------------- the file that is kept
@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "null",
        "[]",
        "42",
        '"x"',
        '{"version": 2}',
        '{"version": 1}',
        '{"version": 1, "topics": 3, "open": {}}',
        '{"version": 1, "topics": {"a": {}}, "open": {}}',
        '{"version": 1, "topics": {}, "open": 7}',
        "\x00" * 50,
        "[" * 100_000,
        '{"version": 1, "topics": {"a": {"asked": 1, "right": 5, "due": 0, "seconds": []}}, "open": {}}',
        '{"version": 1, "topics": {"a": {"asked": 1, "right": 1, "due": 0, "seconds": [NaN]}}, "open": {}}',
    ],
)
def test_a_file_that_is_no_record_is_put_aside(
    text: str, data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data.mkdir()
    (data / FILE).write_text(text, "utf-8")
    (q,) = asked("practice", 6, 1)
    answer(monkeypatch, typed(q))
    assert run("--seed", "6", "--count", "1") == 0
    out = capsys.readouterr()
    assert "1 of 1 right at once" in out.out
    assert "was no record of practice" in out.err
    assert (data / f"{FILE}.unread").read_text("utf-8") == text
    assert Store().read().topics[q.topic].right == 1


@pytest.mark.parametrize(
    "left",
    [
        None,
        3,
        [],
        {},
        {"mode": "practice"},
        {"seed": "x"},
        {"topics": ["gone"]},
        {"count": 2},
        {"results": [{"a": 1}]},
        {"results": [["x"]]},
        {"decks": "older"},
        {"seed": -1},
        {"more": 1},
        {"topics": ["levers"] * 3},
    ],
)
def test_a_session_that_cannot_be_gone_on_with_is_begun_anew(left: Any) -> None:
    good = started("practice", 4, ["levers"], 1).document()
    assert resumed(Progress(open={"practice": good}), "practice") is not None
    changed = {**good, **left} if isinstance(left, dict) and left and "mode" not in left else left
    assert resumed(Progress(open={"practice": changed}), "practice") is None
    assert resumed(Progress(open={"practice": good}), "exam") is None


def test_the_same_words_go_on_where_they_left_and_others_begin_anew(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--topic", "levers", "--count", "5", "--seed", "1")
    for more, screen in (
        (words, "1/5"),
        (words, "going on at question 2"),
        ((), "going on at question 3"),
        (("--topic", "lev", *words[2:]), "going on at question 4"),
        ((*words[:-1], "2"), "1/5"),
    ):
        answer(monkeypatch, "skip", "quit")
        assert run(*more) == 0
        out = capsys.readouterr()
        assert screen in out.out
        assert ("left at question 5 of 5 is dropped" in out.err) == (more[-1:] == ("2",))


def test_the_file_is_written_whole_or_not_at_all(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store()
    store.write(Progress({"levers": Practised(1, 1, 0, [3.0])}))
    before = (data / FILE).read_bytes()

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    store.write(Progress({"levers": Practised(2, 2, 0, [3.0])}))
    assert (data / FILE).read_bytes() == before
    assert [path.name for path in data.iterdir()] == [FILE]
    assert store.notes == [f"progress is not kept: {FILE} cannot be written (No space left on device)"]


def test_a_place_that_cannot_be_written_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("", "utf-8")
    monkeypatch.setenv("KVPLAN_DATA", str(tmp_path / "file"))
    questions = asked("practice", 6, 3)
    answer(monkeypatch, *(typed(q) for q in questions))
    assert run("--seed", "6", "--count", "3") == 0
    out = capsys.readouterr()
    assert "3 of 3 right at once" in out.out
    assert out.err.count("progress is not kept") == 1


def test_a_place_that_cannot_be_written_is_said_before_the_first_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("", "utf-8")
    monkeypatch.setenv("KVPLAN_DATA", str(tmp_path / "file"))
    monkeypatch.setattr(sys, "stderr", sys.stdout)  # one stream, so that their order is seen
    answer(monkeypatch, "quit")
    assert run("--seed", "6", "--count", "3") == 0
    said = capsys.readouterr().out
    assert said.index("progress is not kept") < said.index("1/3")
    assert "goes on" not in said


def test_the_users_data_folder_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert data_folder() == tmp_path / "data"
    monkeypatch.delenv("KVPLAN_DATA")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    assert data_folder() == tmp_path / "share" / "kvplan"
    monkeypatch.setenv("XDG_DATA_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_folder() == tmp_path / ".local" / "share" / "kvplan"
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError))
    assert data_folder() is None
    assert Store().read() == Progress()


def test_what_another_session_wrote_meanwhile_stays() -> None:
    here, there = started("practice", 4, ["levers"], 2), started("exam", 5, ["engines"], 2)
    keep(Store(), here, Result("levers", True, "right", seconds=4))
    keep(Store(), there, Result("engines", False, "wrong", seconds=5))
    keep(Store(), here, Result("levers", False, "skipped", seconds=6))
    found = Store().read()
    assert found.topics == {"levers": Practised(2, 1, 1, [4.0]), "engines": Practised(1, 0, 1, [])}
    assert list(found.open) == ["exam"]


def test_due_topics_come_first_and_settle_once_right() -> None:
    found = Practised()
    for right in (False, False, True):
        found.add(right, 3.0)
    assert (found.asked, found.right, found.due) == (3, 1, 1)
    again = Progress({"levers": found, "engines": Practised(3, 0, 3)}).due()
    assert again == ["engines"] * 3 + ["levers"]
    assert started("practice", 1, list(decks()), 6, again).topics[:4] == again
    assert started("practice", 1, ["levers"], 2, again).topics == ["levers", "levers"]


def test_a_deck_that_changed_is_told_by_its_fingerprint() -> None:
    assert len(fingerprint()) == 12
    assert started("exam", 1, ["levers"], 1).decks == fingerprint()
