"""Asking: one question at a time, with a hint, a skip and a way out, until all are done or the user goes."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Iterator
from typing import TextIO

from rich.console import Console
from rich.text import Text

from kvplan.drills.grade import RIGHT, UNREAD, Verdict, grade
from kvplan.drills.progress import Store
from kvplan.drills.question import Question
from kvplan.drills.session import Result, Session, keep
from kvplan.faces import drill_report as report
from kvplan.verbs.drill import questions_of

_TRIES = 3
_LINE = 4096  # characters of a line that are read; what is beyond is dropped
_HINT = {"h", "hint", "?", "hints"}
_SHOW = {"show", "solution", "give up", "why"}
_SKIP = {"s", "skip", "pass", "next"}
_QUIT = {"q", "quit", "exit", ":q", "bye", "stop"}


class Left(Exception):
    """The reader has gone: they quit, the input ended, or they stopped it."""


def run(session: Session, store: Store) -> str:
    """Ask what is left of a session; how it ended: done, left, or stopped (Ctrl-C)."""
    out = report.screen()
    asked: list[Question] = []
    _forgive(sys.stdin)
    report.opening(out, session)
    ended = "done"
    try:
        for number, q in enumerate(questions_of(session.topics, session.count, session.seed), 1):
            asked.append(q)
            if number <= len(session.results):
                continue
            report.question(out, q, number, session.count)
            keep(store, session, _exam(out, q) if session.is_exam else _practice(out, q, store))
    except Left:
        ended = "left"
    except KeyboardInterrupt:
        ended = "stopped"
        out.print()
    report.score(out, session, asked)
    if ended != "done":
        flag = " --exam" if session.is_exam else ""
        where = f"question {len(session.results) + 1} of {session.count}"
        on = f"kvplan drill{flag} goes on" if store.keeps else "it could not be kept, so it begins anew"
        out.print(Text(f"left at {where}; {on}", style="dim"))
    return ended


def _exam(out: Console, q: Question) -> Result:
    """One answer, on which nothing is said."""
    began = time.monotonic()
    for typed in _lines(out):
        word = _word(typed)
        if word in _SKIP:
            return Result(q.topic, False, "skipped", seconds=time.monotonic() - began)
        if word in _HINT | _SHOW:
            out.print(Text("not in an exam; skip goes to the next", style="dim"))
            continue
        found = grade(q, typed)
        if found.status == UNREAD:
            out.print(Text(found.says, style="dim"))
            continue
        return _result(q, typed, found, "wrong", time.monotonic() - began)
    raise Left


def _result(q: Question, typed: str, found: Verdict, otherwise: str, seconds: float) -> Result:
    right = found.status == RIGHT
    slip = found.slips[0] if found.slips else ""
    return Result(q.topic, right, "right" if right else otherwise, typed[:80], slip, seconds)


def _practice(out: Console, q: Question, store: Store) -> Result:
    """Answers until one is right, with a hint for who asks, and the way to it for who gives up."""
    began, tries, helped, last = time.monotonic(), 0, False, ("", "")
    usual = None
    known = store.read().topics.get(q.topic)
    if known is not None:
        usual = known.usual_seconds
    for typed in _lines(out):
        seconds, word = time.monotonic() - began, _word(typed)
        if word in _HINT:
            helped = True
            for line in q.hint.splitlines():
                out.print(Text(f"  {line}"))
            continue
        if word in _SKIP | _SHOW:
            if word in _SHOW:
                report.solution(out, q)
            return Result(q.topic, False, "skipped", *last, seconds)
        found = grade(q, typed)
        if found.status == UNREAD:
            out.print(Text(found.says, style="dim"))
            continue
        report.verdict(out, q, found, seconds, usual)
        if found.status == RIGHT:
            clean = tries == 0 and not helped
            slip = last[1] or (found.slips[0] if found.slips else "")
            return Result(q.topic, clean, "right" if clean else "helped", typed[:80], slip, seconds)
        tries, last = tries + 1, (typed[:80], found.slips[0] if found.slips else "")
        if tries == _TRIES or q.kind == "truth":
            report.solution(out, q)
            return Result(q.topic, False, "wrong", *last, seconds)
    raise Left


def _lines(out: Console) -> Iterator[str]:
    """What is typed, line by line, until the input ends; raises Left where it is to be left."""
    while True:
        out.print("> ", end="")
        typed = read_line(sys.stdin)
        if typed is None:
            out.print()
            return
        if not sys.stdin.isatty():
            out.print(Text(report.said(Result("", False, "", typed))))
        if _word(typed) in _QUIT:
            raise Left
        yield typed


def _forgive(stream: TextIO | None) -> None:
    """Bytes that are no text are read as question marks, not as an error."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="replace")


def read_line(stream: TextIO | None) -> str | None:
    """One line without its end, None at the end of the input or where there is none."""
    if stream is None or stream.closed:
        return None
    try:
        line = stream.readline(_LINE)
        rest = line
        while rest and not rest.endswith("\n"):
            rest = stream.readline(_LINE)
    except (OSError, ValueError):  # a terminal that went, a stream that was closed
        return None
    return line.rstrip("\r\n") if line else None


def _word(typed: str) -> str:
    return " ".join(typed.lower().split())[:40]
