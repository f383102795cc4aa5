"""`drill`: practice questions with worked answers, drawn from the catalogue by a seed."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from kvplan.drills.deck import Deck, decks, find_topics
from kvplan.drills.draw import Draw
from kvplan.drills.grade import grade
from kvplan.drills.question import Question
from kvplan.drills.session import started
from kvplan.errors import BadInput, KvplanError
from kvplan.figure import Leaf, bare
from kvplan.verbs.answer import Answer
from kvplan.verbs.check import whole
from kvplan.verbs.drill_build import built

MAX_COUNT = 20_000
MOST_ASKED = 1000  # of one session
MAX_SEED = 2**63 - 1
_TRIES = 80  # draws of a topic before it is taken to have no new question left
_EASY_SEEDS = 100_000  # of those drawn for a person, who may want to write one down


class Drill(Answer):
    """The questions document, with the questions themselves behind it."""

    def __init__(self, questions: Sequence[Question], seed: int, topics: Sequence[str]) -> None:
        self.questions = tuple(questions)

        def compute(leaf: Leaf) -> dict[str, Any]:
            if leaf is not bare:
                return {f"q{i}": q.figure for i, q in enumerate(questions, 1)}
            return {
                "seed": seed,
                "topics": [_row(decks()[topic]) for topic in topics],
                "questions": [q.row(i) for i, q in enumerate(questions, 1)],
            }

        super().__init__(compute)

    def grade(self, number: int, typed: str) -> dict[str, Any]:
        """The verdict on what was typed as an answer to a question of the document, by its number."""
        place = whole("number", number, 1, len(self.questions))
        if not isinstance(typed, str):
            raise BadInput("typed: is no text; give the answer as it was typed")
        return asdict(grade(self.questions[place - 1], typed))


def _row(deck: Deck) -> dict[str, str]:
    return {"topic": deck.topic, "title": deck.title, "about": deck.about}


def drill(topic: str | Sequence[str] | None = None, *, count: int = 10, seed: int | None = None) -> Drill:
    """`count` questions of the topics named (all where none is), the same for the same seed.

    Topics take turns; no text stands in a document twice, so that fewer questions come where a topic has no
    more. Each row has the question, its answer in base units (bytes, seconds; true or false; a letter), how
    far an answer may be off, a hint, the worked solution, wrong answers that have a name, and a command that
    shows the same. `.grade(number, typed)` judges an answer as a person types it.
    Raises UnknownName for a topic that is not known, BadInput for a count or seed out of range.
    """
    topics = find_topics(topic)
    whole("--count", count, 1, MAX_COUNT)
    if seed is None:
        seed = secrets.randbelow(_EASY_SEEDS)
    whole("--seed", seed, 0, MAX_SEED)
    found = list(questions_of(topics, count, seed))
    return Drill(found, seed, topics)


def exam(topic: str | Sequence[str] | None, count: int | None, seed: int | None) -> Drill:
    """The questions that `kvplan drill --exam` asks for the same words; one a topic without a count."""
    topics = find_topics(topic)
    count = len(topics) if count is None else count
    whole("--count", count, 1, MOST_ASKED)
    seed = secrets.randbelow(_EASY_SEEDS) if seed is None else seed
    whole("--seed", seed, 0, MAX_SEED)
    session = started("exam", seed, topics, count)
    return Drill(list(questions_of(session.topics, count, seed)), seed, topics)


def questions_of(topics: Sequence[str], count: int, seed: int) -> Iterator[Question]:
    """Questions of topics that take turns, each text once."""
    seen: set[str] = set()
    left = list(topics)
    place = 0
    for turn in range(count):
        while left:
            topic = left[turn % len(left)]
            question, place = _new(topic, seed, place, seen)
            if question is not None:
                seen.add(question.text)
                yield question
                break
            left = [t for t in left if t != topic]


def _new(topic: str, seed: int, place: int, seen: set[str]) -> tuple[Question | None, int]:
    """A question of a topic whose text is new, and where the next draw begins; None where none was found."""
    templates = decks()[topic].templates
    for tried in range(place, place + _TRIES):
        draw = Draw(seed, tried)
        try:
            question = built(draw.one(templates), draw)
        except KvplanError:
            continue
        if question.text not in seen:
            return question, tried + 1
    return None, place + _TRIES
