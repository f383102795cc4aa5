"""What a person has practised, kept in a small file: topics missed, times, and a session left open.

The file lies in the user's data folder: `KVPLAN_DATA`, else `kvplan` in `XDG_DATA_HOME` (`~/.local/share`).
It is written whole beside its place and moved there. One that cannot be read is put aside and begun anew;
where none can be written, practice goes on without.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

_VERSION = 1
_KEPT_SECONDS = 20
_MOST_DUE = 3  # misses of a topic that are remembered at once
_LARGEST = 4 << 20
FILE = "drill.json"


@dataclass(slots=True)
class Practised:
    """One topic: questions asked, those right at once, how often it is due again, seconds of late answers."""

    asked: int = 0
    right: int = 0
    due: int = 0
    seconds: list[float] = field(default_factory=list)

    @property
    def usual_seconds(self) -> float | None:
        """The median of late answers that were right."""
        return median(self.seconds) if self.seconds else None

    def add(self, right: bool, seconds: float) -> None:
        """Count an answer: a miss makes the topic due again, a right one settles a miss."""
        self.asked += 1
        self.right += right
        self.due = max(0, self.due - 1) if right else min(_MOST_DUE, self.due + 1)
        if right:
            self.seconds = [*self.seconds, round(max(0.0, seconds), 1)][-_KEPT_SECONDS:]


@dataclass(slots=True)
class Progress:
    """Topics by name, and sessions that were left, by their mode."""

    topics: dict[str, Practised] = field(default_factory=dict)
    open: dict[str, Any] = field(default_factory=dict)

    def due(self) -> list[str]:
        """Topics to ask again, as often as they are due, the most missed first."""
        ranked = sorted(self.topics, key=lambda topic: -self.topics[topic].due)
        return [topic for topic in ranked for _ in range(self.topics[topic].due)]


def data_folder() -> Path | None:
    """Where the user's data lies; None where the user has no home."""
    own = os.environ.get("KVPLAN_DATA")
    if own:
        return Path(own)
    shared = os.environ.get("XDG_DATA_HOME")
    if shared and Path(shared).is_absolute():
        return Path(shared) / "kvplan"
    try:
        return Path.home() / ".local" / "share" / "kvplan"
    except RuntimeError:
        return None


class Store:
    """The file of a person's progress, and what had to be said about it."""

    def __init__(self) -> None:
        folder = data_folder()
        self.path = None if folder is None else folder / FILE
        self.notes: list[str] = []
        self.said: set[str] = set()
        self.keeps = self.path is not None

    def read(self) -> Progress:
        """What is kept; nothing where there is no file, or where it cannot be read."""
        if self.path is None:
            return Progress()
        try:
            if not self.path.exists():
                return Progress()
            return _progress(json.loads(_text(self.path)))
        except OSError as error:
            self._say(f"{FILE} cannot be read ({error.strerror or 'no access'}): progress is not known")
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            with suppress(OSError):
                self.path.replace(self.path.with_name(f"{FILE}.unread"))
            self._say(f"{FILE} was no record of practice: it is kept as {FILE}.unread, and a new one begun")
        return Progress()

    def write(self, progress: Progress) -> None:
        """Keep it, whole or not at all."""
        if self.path is None:
            self._say("progress is not kept: there is no home folder; KVPLAN_DATA may name one")
            return
        part = self.path.with_name(f".{FILE}.{os.getpid()}")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            part.write_text(json.dumps(_document(progress)) + "\n", "utf-8")
            part.replace(self.path)
            self.keeps = True
        except (OSError, ValueError) as error:
            with suppress(OSError):
                part.unlink(missing_ok=True)
            self.keeps = False
            why = getattr(error, "strerror", None) or "no such place"
            self._say(f"progress is not kept: {FILE} cannot be written ({why})")

    def _say(self, note: str) -> None:
        if note not in self.said:
            self.said.add(note)
            self.notes.append(note)


def _text(path: Path) -> str:
    """What a file holds; raises ValueError for one too large to be a record."""
    if path.stat().st_size > _LARGEST:
        raise ValueError
    return path.read_text("utf-8")


def _document(progress: Progress) -> dict[str, Any]:
    topics = {
        name: {"asked": t.asked, "right": t.right, "due": t.due, "seconds": t.seconds}
        for name, t in progress.topics.items()
    }
    return {"version": _VERSION, "topics": topics, "open": progress.open}


def _progress(document: Any) -> Progress:
    """The record of a document; raises ValueError or TypeError for anything else."""
    if not isinstance(document, dict) or document.get("version") != _VERSION:
        raise ValueError
    topics = {str(name): _practised(row) for name, row in dict(document["topics"]).items()}
    return Progress(topics, dict(document["open"]))


def _practised(row: Any) -> Practised:
    asked, right, due = (int(row[key]) for key in ("asked", "right", "due"))
    seconds = [float(x) for x in row["seconds"]][-_KEPT_SECONDS:]
    if not 0 <= right <= asked or not 0 <= due <= _MOST_DUE or not all(0 <= x < 1e6 for x in seconds):
        raise ValueError
    return Practised(asked, right, due, seconds)
