"""A session of questions: which topics in which order, what was answered, and where it goes on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from kvplan.drills.deck import decks, fingerprint
from kvplan.drills.draw import Draw
from kvplan.drills.progress import Practised, Progress, Store

MODES = ("practice", "exam")
PASS_SHARE = 0.8


@dataclass(frozen=True, slots=True)
class Result:
    """One question done: right at once or not, how it ended, what was typed last, what slipped, its time."""

    topic: str
    right: bool
    ended: str  # right, helped, wrong, skipped
    typed: str = ""
    slip: str = ""
    seconds: float = 0.0


@dataclass(slots=True)
class Session:
    """What is being asked: enough to draw the same questions again, and what came of those that are done."""

    mode: str
    seed: int
    topics: list[str]
    count: int
    results: list[Result] = field(default_factory=list)
    decks: str = ""
    words: dict[str, Any] = field(default_factory=dict)  # what was asked for: topic, count and seed, if given

    @property
    def is_exam(self) -> bool:
        """Whether nothing is told before the end."""
        return self.mode == "exam"

    @property
    def right(self) -> int:
        """Questions answered right at once."""
        return sum(result.right for result in self.results)

    @property
    def passed(self) -> bool:
        """Whether enough were right."""
        return bool(self.results) and self.right >= PASS_SHARE * len(self.results)

    def by_topic(self) -> list[tuple[str, int, int]]:
        """(topic, right, asked) in the order of the decks."""
        asked = {r.topic for r in self.results}
        rows = [[r for r in self.results if r.topic == topic] for topic in decks() if topic in asked]
        return [(row[0].topic, sum(r.right for r in row), len(row)) for row in rows]

    def document(self) -> dict[str, Any]:
        """What is kept of a session that was left."""
        return asdict(self)


def started(mode: str, seed: int, topics: Sequence[str], count: int, again: Sequence[str] = ()) -> Session:
    """A new session: topics `again` first, then the others in a drawn order, in turns."""
    first = [topic for topic in again if topic in topics][:count]
    others = Draw(seed, -1).shuffled(topics)
    turns = [*first, *(others * (count // len(others) + 1))][:count]
    return Session(mode, seed, turns, count, decks=fingerprint())


def resumed(progress: Progress, mode: str) -> Session | None:
    """The session of that mode that was left, where its questions are still those of the decks."""
    left = progress.open.get(mode)
    try:
        if left is None or left["mode"] != mode or left["decks"] != fingerprint():
            return None
        results = [Result(**row) for row in left["results"]]
        found = Session(**{**left, "results": results})
    except (TypeError, KeyError, ValueError):
        return None
    sound = (
        isinstance(found.seed, int)
        and found.seed >= 0
        and isinstance(found.count, int)
        and len(found.results) < found.count == len(found.topics)
        and isinstance(found.words, dict)
        and all(topic in decks() for topic in found.topics)
        and all(r.topic in decks() and isinstance(r.seconds, int | float) for r in results)
    )
    return found if sound else None


def keep(store: Store, session: Session, result: Result | None = None) -> None:
    """Write down a result, and that the session is open or over; what others wrote meanwhile stays."""
    progress = store.read()
    if result is not None:
        session.results.append(result)
        progress.topics.setdefault(result.topic, Practised()).add(result.right, result.seconds)
    progress.open.pop(session.mode, None)
    if len(session.results) < session.count:
        progress.open[session.mode] = session.document()
    store.write(progress)
