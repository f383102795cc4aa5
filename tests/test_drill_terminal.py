"""Practice and exams in a pseudo-terminal: passed, left, gone on with, stopped, narrow, without colour."""

from __future__ import annotations

import json
from pathlib import Path

import pexpect
import pytest

from drill_terminal import asked, plain, rest, sit, typed, wrong

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # the test process has threads


def prompt(child: pexpect.spawn) -> str:
    """What is on the screen when the next line is awaited."""
    child.expect(r"(?m)^(\x1b\[[0-9;]*m)*> $")
    return plain(child.before)


def test_an_exam_is_passed(tmp_path: Path) -> None:
    questions = asked("exam", 11, 14)
    child = sit(tmp_path, "--exam", "--seed", "11", "--check")
    for number, q in enumerate(questions, 1):
        screen = prompt(child)
        assert f"{number}/14" in screen
        assert "right" not in screen.replace("truth", "")
        child.sendline(typed(q))
    said = rest(child)
    assert child.exitstatus == 0
    assert "14 of 14 right at once" in said
    assert "passed (80 % are needed)" in said
    kept = json.loads((tmp_path / "drill.json").read_text("utf-8"))
    assert kept["open"] == {}
    assert {row["right"] for row in kept["topics"].values()} == {1}


def test_an_exam_is_left_gone_on_with_and_not_passed(tmp_path: Path) -> None:
    questions = asked("exam", 5, 4, "levers", "engines")
    child = sit(tmp_path, "--exam", "--seed", "5", "--count", "4", "--topic", "levers", "--topic", "engines")
    for q in questions[:2]:
        prompt(child)
        child.sendline(typed(q))
    prompt(child)
    child.sendline("quit")
    assert "left at question 3 of 4; kvplan drill --exam goes on" in rest(child)
    assert child.exitstatus == 0

    child = sit(tmp_path, "--exam", "--check")
    screen = prompt(child)
    assert "going on at question 3" in screen
    assert "3/4" in screen
    child.sendline("hint")
    assert "not in an exam" in prompt(child)
    child.sendline(wrong(questions[2]))
    assert "4/4" in prompt(child)
    child.sendline("skip")
    said = rest(child)
    assert "2 of 4 right at once" in said
    assert "not passed" in said
    assert "question 3:" in said
    assert f"answer: {questions[2].answer_text}" in said
    assert child.exitstatus == 1


def test_practice_hints_names_slips_and_shows_the_way(tmp_path: Path) -> None:
    (q,) = asked("practice", 3, 1, "bytes-per-token")
    assert q.kind == "number"
    child = sit(tmp_path, "--topic", "bytes-per-token", "--seed", "3", "--count", "1")
    assert q.text.split(" has ")[0] in prompt(child)
    child.sendline("")
    assert "write a size" in prompt(child)
    child.sendline("hint")
    assert "bytes_per_token = " in prompt(child)
    child.sendline(f"{int(q.slips['keys_only'])} B")
    assert "keys alone" in prompt(child)
    child.sendline("show")
    said = rest(child)
    assert f"that is {q.answer_text}" in said
    assert "0 of 1 right at once" in said
    assert "docs/lessons/bytes-per-token.md" in said


def test_a_missed_topic_is_asked_again_first(tmp_path: Path) -> None:
    child = sit(tmp_path, "--topic", "intensity", "--seed", "9", "--count", "1")
    prompt(child)
    child.sendline("skip")
    rest(child)
    child = sit(tmp_path, "--count", "2")
    assert "1/2  Arithmetic intensity" in prompt(child)
    child.sendline("q")
    rest(child)
    child = sit(tmp_path, "--topics")
    said = rest(child)
    assert "intensity" in said
    assert "0 of 1" in said
    assert "comes again" in said.replace("\n", " ")


def test_ctrl_c_leaves_and_ctrl_d_ends_and_both_are_gone_on_with(tmp_path: Path) -> None:
    questions = asked("practice", 4, 3, "cache-precision")
    child = sit(tmp_path, "--topic", "cache-precision", "--seed", "4", "--count", "3")
    prompt(child)
    child.sendline(typed(questions[0]))
    assert "right: " in prompt(child)
    child.sendintr()
    said = rest(child)
    assert "Traceback" not in said
    assert "left at question 2 of 3" in said
    assert child.exitstatus == 130

    child = sit(tmp_path)
    assert "2/3" in prompt(child)
    child.sendline(typed(questions[1]))
    prompt(child)
    child.sendeof()
    said = rest(child)
    assert "left at question 3 of 3" in said
    assert child.exitstatus == 0

    child = sit(tmp_path)
    assert "3/3" in prompt(child)
    child.sendline(typed(questions[2]))
    assert "3 of 3 right at once" in rest(child)

    child = sit(tmp_path, "--fresh", "--count", "1")
    assert "1/1" in prompt(child)
    child.sendintr()
    rest(child)


def test_a_terminal_of_twenty_columns_is_folded_to(tmp_path: Path) -> None:
    child = sit(tmp_path, "--seed", "8", "--count", "1", columns=20)
    screen = prompt(child)
    child.sendline("show")
    screen += rest(child)
    assert max(len(line) for line in screen.splitlines()) <= 20
    assert child.exitstatus == 0


def test_no_color_is_without_colour(tmp_path: Path) -> None:
    q = asked("practice", 2, 1)[0]
    for more, coloured in (({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)):
        child = sit(tmp_path, "--seed", "2", "--count", "1", "--fresh", **more)
        prompt(child)
        child.sendline(typed(q))
        child.expect(pexpect.EOF)
        child.close()
        assert "right: " in child.before
        assert ("\x1b[32m" in child.before) is coloured


def test_odd_lines_are_asked_again(tmp_path: Path) -> None:
    q = asked("practice", 3, 1, "bytes-per-token")[0]
    child = sit(tmp_path, "--topic", "bytes-per-token", "--seed", "3", "--count", "1")
    prompt(child)
    for line in ("1e999", "💥", "9" * 300, "[bold]x[/bold]", "%s{}", "\x07"):
        child.sendline(line)
        said = prompt(child)
        assert "Traceback" not in said
        assert "write" in said, said
    child.sendline(typed(q))
    assert "1 of 1 right at once" in rest(child)
