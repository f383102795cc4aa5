"""`kvplan drill`: the command and its flags."""

from __future__ import annotations

import json
import secrets
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

import kvplan
from kvplan.errors import BadInput
from kvplan.faces import options, output

if TYPE_CHECKING:
    from kvplan.drills.progress import Store
    from kvplan.drills.session import Session
    from kvplan.verbs.drill import Drill

_PRACTICE = 10


def drill(
    topic: Annotated[
        list[str] | None,
        typer.Option("--topic", metavar="NAME", help="only this one; may be given again; see --topics"),
    ] = None,
    count: Annotated[
        int, typer.Option(help="questions; 10, of an exam one a topic, else", show_default=False)
    ] = 0,
    seed: Annotated[int, typer.Option(help="the same questions for the same number", show_default=False)] = 0,
    exam: Annotated[
        bool, typer.Option("--exam", help="one try each, no hints, a score by topic at the end")
    ] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="not the session that was left, a new one")] = False,
    topics: Annotated[bool, typer.Option("--topics", help="what can be practised, and how it went")] = False,
    sheet: Annotated[
        bool, typer.Option("--sheet", help="print questions, then worked answers; nothing is asked")
    ] = False,
    as_json: options.Json = False,
    explain: options.Explain = "",
    check: Annotated[bool, typer.Option("--check", help="exit 1 when an exam is not passed")] = False,
) -> None:
    """Practise the arithmetic: questions from real models and accelerators, with hints and worked answers."""
    given = output.given()
    wanted = {
        "count": count if "count" in given else None,
        "seed": seed if "seed" in given else None,
        "topic": topic or None,
    }
    if topics:
        _topics(as_json)
    elif as_json or sheet or explain:
        _document(wanted, as_json, sheet, explain, exam=exam)
    else:
        _ask(wanted, exam=exam, fresh=fresh, check=check)


def _document(wanted: dict[str, Any], as_json: bool, sheet: bool, explain: str, *, exam: bool) -> None:
    """Questions with their answers, for teachers: a document, a sheet, or where a number comes from."""
    if sum((as_json, sheet, bool(explain))) > 1:
        raise BadInput("--sheet: --json, --sheet and --explain are three forms; give one of them")
    answer = _exam(wanted) if exam else kvplan.drill(**{k: v for k, v in wanted.items() if v is not None})
    if not sheet:
        output.show(answer, "drill", as_json, explain, {})
        return
    from kvplan.faces import drill_report

    drill_report.sheet(answer)


def _exam(wanted: dict[str, Any]) -> Drill:
    from kvplan.verbs.drill import exam

    return exam(**wanted)


def _topics(as_json: bool) -> None:
    from kvplan.drills.deck import decks
    from kvplan.drills.progress import Practised, Store
    from kvplan.faces import drill_report

    store = Store()
    known = store.read().topics
    rows = [(deck, known.get(deck.topic, Practised())) for deck in decks().values()]
    _say(store)
    if as_json:
        found = [
            {
                "topic": deck.topic,
                "title": deck.title,
                "about": deck.about,
                "asked": done.asked,
                "right": done.right,
                "due": done.due,
                "usual_seconds": done.usual_seconds,
            }
            for deck, done in rows
        ]
        print(json.dumps(found, indent=1))
    else:
        drill_report.topics(rows)


def _ask(wanted: dict[str, Any], *, exam: bool, fresh: bool, check: bool) -> None:
    from kvplan.drills.progress import Store
    from kvplan.drills.session import keep
    from kvplan.faces import drill_session

    store = Store()
    session = _session(wanted, store, exam=exam, fresh=fresh)
    keep(store, session)
    _say(store)
    ended = drill_session.run(session, store)
    _say(store)
    if ended == "stopped":
        raise typer.Exit(130)
    if check and exam and not session.passed:
        raise typer.Exit(1)


def _session(wanted: dict[str, Any], store: Store, *, exam: bool, fresh: bool) -> Session:
    """The session that was left, where the same words or none are given; else a new one, which is said."""
    from kvplan.drills.deck import find_topics
    from kvplan.drills.session import resumed, started
    from kvplan.verbs.check import whole
    from kvplan.verbs.drill import MAX_SEED, MOST_ASKED

    mode, progress = "exam" if exam else "practice", store.read()
    chosen = find_topics(wanted["topic"])
    count = wanted["count"] if wanted["count"] is not None else len(chosen) if exam else _PRACTICE
    whole("--count", count, 1, MOST_ASKED)
    number = secrets.randbelow(100_000) if wanted["seed"] is None else wanted["seed"]
    whole("--seed", number, 0, MAX_SEED)
    words = {**wanted, "topic": chosen if wanted["topic"] else None}
    asked = {name: value for name, value in words.items() if value is not None}
    left = resumed(progress, mode)
    if left is not None and not fresh and asked in ({}, left.words):
        return left
    if left is not None and left.results:
        where = f"question {len(left.results) + 1} of {left.count}"
        print(f"kvplan: note: a new session; the one left at {where} is dropped", file=sys.stderr)
    again = progress.due() if not exam and wanted["seed"] is None else []
    session = started(mode, number, chosen, count, again)
    session.words = asked
    return session


def _say(store: Store) -> None:
    for note in store.notes:
        print(f"kvplan: note: {note}", file=sys.stderr)
    store.notes.clear()
