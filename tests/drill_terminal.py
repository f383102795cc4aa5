"""A `kvplan drill` in a pseudo-terminal, as somebody sits before it."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pexpect

from kvplan.drills.deck import decks
from kvplan.drills.question import Question
from kvplan.drills.session import Session, started
from kvplan.verbs.drill import questions_of

ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
SOURCE = Path(__file__).parents[1] / "src"


def sit(data: Path, *words: str, columns: int = 100, **more: str) -> pexpect.spawn:
    """A terminal in which the command has begun."""
    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    environment |= {"PYTHONPATH": str(SOURCE), "TERM": "xterm-256color", "KVPLAN_DATA": str(data), **more}
    return pexpect.spawn(
        sys.executable,
        ["-m", "kvplan", "drill", *words],
        env=environment,
        encoding="utf-8",
        timeout=60,
        dimensions=(40, columns),
        echo=False,
    )


def rest(child: pexpect.spawn) -> str:
    """Everything to the end, without colours; the process has ended."""
    child.expect(pexpect.EOF)
    child.close()
    return plain(child.before)


def plain(text: str) -> str:
    return ANSI.sub("", text).replace("\r\n", "\n")


def asked(mode: str, seed: int, count: int, *topics: str) -> list[Question]:
    """The questions that such a session asks."""
    session: Session = started(mode, seed, list(topics) or list(decks()), count)
    return list(questions_of(session.topics, session.count, session.seed))


def typed(q: Question) -> str:
    """The right answer as a person types it."""
    return "abcd"[int(q.value)] if q.kind == "choice" else q.answer_text


def wrong(q: Question) -> str:
    """An answer that can be read and is wrong."""
    if q.kind == "truth":
        return "false" if q.value else "true"
    if q.kind == "choice":
        return "b" if q.value == 0 else "a"
    assert q.quantity is not None
    return q.quantity.text(q.value * 37)
