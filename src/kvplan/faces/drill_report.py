"""How practice looks: a question, what is said of an answer, a sheet, scores by topic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvplan.drills.deck import Deck, decks
from kvplan.drills.grade import RIGHT, Verdict
from kvplan.drills.progress import Practised
from kvplan.drills.question import LETTERS, Question
from kvplan.drills.session import PASS_SHARE, Result, Session
from kvplan.faces.table import console
from kvplan.units import counted

if TYPE_CHECKING:
    from kvplan.verbs.drill import Drill


def screen() -> Console:
    """Where questions are asked: a terminal's own width, lines folded to it; a pipe's lines as they are."""
    out = Console(highlight=False)
    return out if out.is_terminal else console()


def time_text(seconds: float) -> str:
    """A person's time: 12 s, 3 min 20 s."""
    whole = round(seconds)
    return f"{whole} s" if whole < 60 else f"{whole // 60} min {whole % 60} s"


def opening(out: Console, session: Session) -> None:
    """What is about to be asked, and what may be typed."""
    done = len(session.results)
    what = "exam" if session.is_exam else "practice"
    start = f", going on at question {done + 1} (--fresh begins anew)" if done else ""
    out.print(Text(f"{what}: {counted(session.count, 'question')}, seed {session.seed}{start}", style="bold"))
    words = "skip or quit" if session.is_exam else "hint, show, skip or quit"
    out.print(Text(f"answer in any unit, roughly; or type {words}", style="dim"))


def question(out: Console, q: Question, number: int, count: int) -> None:
    """One question, its choices, and how near an answer has to be."""
    out.print()
    out.print(Text(f"{number}/{count}  {decks()[q.topic].title}", style="bold"))
    text = Text(q.text)
    if q.kind != "truth":
        text.append(f" ({q.accepts})", style="dim")
    out.print(text)
    for letter, choice in zip(LETTERS, q.choices, strict=False):
        out.print(Text(f"  {letter}) {choice}"))


def verdict(out: Console, q: Question, found: Verdict, seconds: float, usual: float | None) -> None:
    """Whether it was right, and what went wrong where that has a name."""
    if found.status == RIGHT:
        beside = f", usually {time_text(usual)}" if usual is not None else ""
        line = Text(f"right: {q.answer_text}", style="green")
        line.append(f"   {time_text(seconds)}{beside}", style="dim")
        out.print(line)
        if found.says:
            out.print(Text(found.says, style="dim"))
        return
    out.print(Text(f"no: {found.says}" if found.says else "no", style="yellow"))


def solution(out: Console, q: Question) -> None:
    """The answer, the way to it, and the command that shows the same."""
    out.print(Text(f"answer: {q.answer_text}", style="bold"))
    for line in q.solution.splitlines():
        out.print(Text(f"  {line}"))
    out.print(Text(f"  {q.command}", style="dim"))


def score(out: Console, session: Session, asked: Sequence[Question]) -> None:
    """How it went: in all, by topic, and of an exam the way to what was missed."""
    if not session.results:
        return
    out.print()
    total = sum(result.seconds for result in session.results)
    head = f"{session.right} of {len(session.results)} right at once, {time_text(total)}"
    if session.is_exam and len(session.results) == session.count:
        needed = f"{PASS_SHARE:.0%} are needed".replace("%", " %")
        head += f": {'passed' if session.passed else 'not passed'} ({needed})"
    out.print(Text(head, style="bold"))
    out.print(_by_topic(session))
    missed = [topic for topic, right, count in session.by_topic() if right < count]
    if session.is_exam and len(session.results) == session.count:
        _missed(out, session, asked)
    if missed:
        out.print()
        out.print(Text("to read: " + ", ".join(f"docs/lessons/{topic}.md" for topic in missed)))
        out.print(Text("kvplan drill asks these topics again", style="dim"))


def _by_topic(session: Session) -> Table:
    table = Table.grid(padding=(0, 2), pad_edge=False)
    for _ in range(3):
        table.add_column()
    table.columns[1].justify = "right"
    for topic, right, count in session.by_topic():
        slips = dict.fromkeys(r.slip for r in session.results if r.topic == topic and r.slip)
        said = ", ".join(name.replace("_", " ") for name in slips)
        style = "green" if right == count else "yellow"
        table.add_row(
            Text(decks()[topic].title), Text(f"{right} of {count}", style=style), Text(said, style="dim")
        )
    return table


def _missed(out: Console, session: Session, asked: Sequence[Question]) -> None:
    for number, (q, result) in enumerate(zip(asked, session.results, strict=False), 1):
        if result.right:
            continue
        out.print()
        out.print(Text(f"question {number}: {q.text}", style="bold"))
        out.print(Text(f"you: {said(result)}"))
        solution(out, q)


def said(result: Result) -> str:
    """What was typed, as far as a line shows it."""
    text = "".join(c for c in " ".join(result.typed.split()) if c.isprintable())
    return (text if len(text) <= 60 else f"{text[:59]}…") if text else result.ended


def sheet(answer: Drill) -> None:
    """Questions for paper, then their worked answers."""
    out = console()
    out.print(Text(f"{counted(len(answer.questions), 'question')}, seed {answer['seed']}", style="bold"))
    for number, q in enumerate(answer.questions, 1):
        out.print()
        rough = "" if q.kind == "truth" else f" ({q.accepts})"
        out.print(Text(f"{number}. {q.text}{rough}"))
        for letter, choice in zip(LETTERS, q.choices, strict=False):
            out.print(Text(f"   {letter}) {choice}"))
    out.print()
    out.print(Text("Answers", style="bold"))
    for number, q in enumerate(answer.questions, 1):
        out.print()
        out.print(Text(f"{number}. {q.answer_text}", style="bold"))
        for line in q.solution.splitlines():
            out.print(Text(f"   {line}"))
        out.print(Text(f"   $ {q.command}", style="dim"))


def topics(rows: Sequence[tuple[Deck, Practised]]) -> None:
    """What can be practised: right of asked, whether it comes again, and the usual time of an answer."""
    out = screen()
    table = Table.grid(padding=(0, 2), pad_edge=False)
    for _ in range(4):
        table.add_column()
    table.columns[1].justify = "right"
    for deck, done in rows:
        asked = f"{done.right} of {done.asked}" if done.asked else "–"
        again = "comes again" if done.due else ""
        usual = done.usual_seconds
        table.add_row(
            Text(deck.topic, style="bold"),
            Text(asked),
            Text("" if usual is None else time_text(usual)),
            Text("; ".join(part for part in (deck.about, again) if part), style="dim"),
        )
    out.print(table)
