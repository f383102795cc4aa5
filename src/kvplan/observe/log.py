"""A start-up log, read: which start-up counts, and what else the log holds."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from kvplan.errors import BadInput, shown
from kvplan.observe.forms import Form, forms_of, only_failures, values_of, words
from kvplan.observe.secrets import redacted
from kvplan.observe.source import LONGEST, Scanner, opened
from kvplan.observe.startup import Hit, StartUp
from kvplan.observe.text import plain, process_of, rank_of

_MOST_SERVICES = 64
_MOST_MATCHES = 64  # of one form in one line
_LAST_LINES = 30  # of failures that repeat


@dataclass(frozen=True, slots=True)
class LogRead:
    """The start-up that counts, and how the log was read."""

    name: str
    startup: StartUp
    lines: int
    startups: int
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class _Service:
    """One program's lines in a log of several: the start-up at hand and the last that was complete."""

    current: StartUp | None = None
    complete: StartUp | None = None
    startups: int = 0


@dataclass(slots=True)
class _Reader:
    services: dict[str, _Service] = field(default_factory=dict)
    waiting: deque[tuple[int, bytes, tuple[bytes, ...]]] = field(
        default_factory=lambda: deque(maxlen=_LAST_LINES)
    )

    def take(self, number: int, raw: bytes, here: Sequence[bytes]) -> None:
        """Read a line; one that tells of a failure waits where enough are known, until others come."""
        found = tuple(word for word in here if word in raw)
        if self._knows_enough() and only_failures(raw, found):
            self.waiting.append((number, raw, found))
            return
        self.settle()
        self._read(number, raw, found)

    def settle(self) -> None:
        """Read the last of the lines that wait: those before them say nothing else."""
        while self.waiting:
            self._read(*self.waiting.popleft())

    def _knows_enough(self) -> bool:
        """Whether of every program enough failures are known."""
        found = [service.current for service in self.services.values()]
        return bool(found) and all(current is not None and current.is_full for current in found)

    def _read(self, number: int, raw: bytes, found: tuple[bytes, ...]) -> None:
        """Try on a line the forms of the words that are in it."""
        name, text = plain(raw)
        tried = forms_of(found)
        matching = [form for form in tried if form.words in text and form.pattern.search(text)]
        if not matching:
            return
        text = redacted(text)
        for form in matching:
            for count, match in enumerate(form.pattern.finditer(text)):
                if count == _MOST_MATCHES:
                    break
                own = text if form.opens == 1 else text[:400] if form.marks == "failure" else ""
                before = text[: match.start() + 1]
                values = values_of(form, match)
                self._add(name, Hit(form, values, rank_of(before), number, own, process_of(before)))

    def _add(self, name: str, hit: Hit) -> None:
        if name not in self.services and len(self.services) >= _MOST_SERVICES:
            return
        service = self.services.setdefault(name, _Service())
        at_hand = service.current
        if at_hand is None or at_hand.begins_with(hit):
            if at_hand is not None and at_hand.complete:
                service.complete = at_hand
            if at_hand is None and not _worth_a_start(hit.form):
                return
            service.current = at_hand = StartUp(hit.line, name)
            service.startups += 1
        at_hand.add(hit)


def _worth_a_start(form: Form) -> bool:
    """Whether a line alone says that an engine started: an error or a banner of a web server does not."""
    return form.marks != "ready" and form.about not in ("error", "failure")


def read_log(log: Any) -> LogRead:
    """The last complete start-up in a log: a path, `-`, or an open file.

    Raises BadInput where it cannot be read, or holds no line of an engine's start-up.
    """
    reader, scanner = _Reader(), Scanner(words())
    with opened(log) as (name, stream):
        scanner.name = name
        for number, raw, here in scanner.scan(stream):
            reader.take(number, raw, here)
    reader.settle()
    return _chosen(reader, scanner, name)


def _chosen(reader: _Reader, scanner: Scanner, name: str) -> LogRead:
    found = [service for service in reader.services.values() if service.current is not None]
    if not scanner.size:
        raise BadInput(f"--log: {shown(name)} is empty; give what the engine printed since its start")
    both = [c for s in found for c in (s.current, s.complete) if c is not None]
    complete = [c for c in both if c.complete and c.engine]
    last = [s.current for s in found if s.current is not None]
    pool = complete or [startup for startup in last if startup.engine]
    if not pool:
        raise BadInput(
            f"--log: {shown(name)} has no line that vLLM, SGLang, TensorRT-LLM, llama.cpp or Ollama prints "
            f"at its start, in {scanner.lines:,} lines; give the log from the engine's start on"
        )
    startup = max(pool, key=lambda one: one.last_line).close()
    _refuse_mixed(startup, name)
    count = sum(service.startups for service in found)
    return LogRead(name, startup, scanner.lines, count, tuple(_notes(reader, scanner, startup, count)))


def _refuse_mixed(startup: StartUp, name: str) -> None:
    """Raise BadInput where lines of two servers take turns: whose figures are whose is not known."""
    seen = startup.processes
    if seen.mixed:
        raise BadInput(
            f"--log: {shown(name)} mixes the lines of several servers: {seen.said()}; give those of one, "
            f"with the pids of its workers where it has any: grep -E 'pid=({seen.one()}|…)[ ,)]' FILE | "
            "kvplan verify --log -"
        )


def _notes(reader: _Reader, scanner: Scanner, startup: StartUp, count: int) -> list[str]:
    notes = []
    own = reader.services[startup.service]
    if count > 1:
        which = "complete " if startup.complete else ""
        notes.append(
            f"{count} start-ups in the log: the last {which}one is taken, from line {startup.first_line:,}"
        )
    if own.current is not None and own.current is not startup:
        notes.append(
            f"the log ends in the middle of a later start-up, begun on line {own.current.first_line:,}"
        )
    if not startup.complete:
        notes.append("the log ends before the engine has sized its cache")
    services = sorted(name for name in reader.services if name)
    if len(services) > 1:
        notes.append(f"several programs in the log ({', '.join(services[:4])}): {startup.service} is taken")
    if scanner.cut:
        notes.append(f"{scanner.cut} lines longer than {LONGEST // 1024} KiB are cut there")
    if startup.left_out:
        notes.append(
            f"{startup.left_out:,} lines of the start-up are left out: more than one start-up prints"
        )
    return notes
