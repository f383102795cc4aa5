"""One start-up of an engine, out of a log that may hold several: what its lines said, in order.

A start-up begins with a line that only a beginning prints, and is complete when the engine has sized its
cache, or failed to. What is kept of it is bounded, whatever the log holds.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from kvplan.observe.forms import ANY, Form, Said, Value
from kvplan.observe.text import NO_RANK, Processes, Rank

_MOST_HITS = 20_000
_MOST_FAILURES = 200  # before the engine is ready, and after
_LAST_FAILURES = 100  # kept beside the first
_MOST_TEXT = 1 << 19  # characters of arguments kept of one start-up


@dataclass(frozen=True, slots=True)
class Hit:
    """A line that a form met: its figures, who wrote it, and the line's number."""

    form: Form
    values: dict[str, Value]
    rank: Rank
    line: int
    text: str = ""
    process: tuple[str, str] = ("", "")


@dataclass(slots=True)
class StartUp:
    """What the lines of one start-up said."""

    first_line: int
    service: str = ""
    opened_by: str = ""
    level: int | None = None
    arguments: str = ""
    hits: list[Hit] = field(default_factory=list)
    engines: Counter[str] = field(default_factory=Counter)
    groups: set[int | None] = field(default_factory=set)
    measured: bool = False
    holds_cache: bool = False
    drafting: bool = False
    complete: bool = False
    ready: bool = False
    last_line: int = 0
    left_out: int = 0
    processes: Processes = field(default_factory=Processes)
    _text: int = 0
    _failures: int = 0
    _was_ready: bool = False
    _latest: deque[Hit] = field(default_factory=lambda: deque(maxlen=_LAST_FAILURES))

    @property
    def engine(self) -> str:
        """The engine that printed most of it, or that opened it."""
        found = self.opened_by or next(iter(self.engines.most_common(1)), ("", 0))[0]
        return found if found != ANY else ""

    def begins_with(self, hit: Hit) -> bool:
        """Whether the line belongs to another start-up, which it opens."""
        opens = hit.form.opens
        if opens is None:
            return False
        if self.opened_by and self.opened_by != hit.form.engine:
            return True
        if hit.form.engine == "llama.cpp" and opens == 2:
            return self.holds_cache and not self.drafting
        if self.measured or self.complete:
            return not (opens == 2 and hit.rank.dp is not None and hit.rank.dp not in self.groups)
        if self.level is None:
            return False
        return opens < self.level or (opens == self.level == 1 and hit.text != self.arguments)

    def add(self, hit: Hit) -> None:
        """Take a line in."""
        form = hit.form
        self.last_line = hit.line
        self.engines[form.engine] += 1
        if hit.process[0]:
            self.processes.see(*hit.process)
        if form.opens is not None:
            self._open(hit)
        if form.marks == "ready":
            self.ready = self.ready or bool(self.measured or self.complete)
            self._failures = self._failures if self._was_ready else 0
            self._was_ready = True
        elif form.tells_failure:
            self._failures += 1
            if self.is_full:
                self._latest.append(hit)
                return
            self.complete = self.complete or form.marks == "failure"
        elif form.about in ("figure", "model", "context", "fit"):
            self.measured = True
        if form.marks == "capacity":
            self.complete = True
        self._llama(hit)
        self._keep(hit)

    @property
    def is_full(self) -> bool:
        """Whether enough failures are known: of further ones only the last are kept."""
        return self._failures > _MOST_FAILURES

    def close(self) -> StartUp:
        """With the last failures in their places, once there are no more lines."""
        self.hits = sorted([*self.hits, *self._latest], key=lambda hit: hit.line)
        self._latest.clear()
        return self

    def _open(self, hit: Hit) -> None:
        self.opened_by = hit.form.engine
        self.level = max(self.level or 0, hit.form.opens or 0)
        if hit.form.opens == 1:
            self.arguments = hit.text
        if hit.form.opens == 2:
            self.groups.add(hit.rank.dp)

    def _llama(self, hit: Hit) -> None:
        """llama.cpp: a cache of no bytes is a dry run's; a second file may be a drafter's."""
        if hit.form.engine != "llama.cpp":
            return
        if "drafting" in hit.values:
            self.drafting = True
        for name in ("kv_buffer_bytes", "rs_buffer_bytes", "kv_device_bytes"):
            size = hit.values.get(name)
            if isinstance(size, Said) and size.value > 0:
                self.holds_cache = True

    def _keep(self, hit: Hit) -> None:
        size = sum(len(value) for value in hit.values.values() if isinstance(value, str))
        if len(self.hits) >= _MOST_HITS or self._text + size > _MOST_TEXT:
            self.left_out += 1
            return
        self._text += size
        self.hits.append(hit)

    def of(self, *names: str) -> Iterator[Hit]:
        """The lines that state one of these figures, in order."""
        for hit in self.hits:
            if any(name in hit.values for name in names):
                yield hit

    def texts(self, name: str) -> list[str]:
        """What was said under a name of words, in order."""
        return [str(hit.values[name]) for hit in self.of(name)]

    def last(self, name: str) -> str:
        """What was said last under a name of words; empty where nothing was."""
        return next(reversed(self.texts(name)), "")

    def ranks(self, name: str) -> dict[Rank, Said]:
        """What each rank stated last of a figure."""
        found: dict[Rank, Said] = {}
        for hit in self.of(name):
            value = hit.values[name]
            if isinstance(value, Said):
                found[hit.rank] = value
        return found

    def figure(self, name: str) -> Said | None:
        """What was stated last of a figure, whoever did."""
        return next((v for h in reversed(list(self.of(name))) if isinstance(v := h.values[name], Said)), None)

    def least(self, name: str) -> Said | None:
        """The least that any rank stated."""
        return min(self.ranks(name).values(), key=lambda said: said.value, default=None)

    def most(self, name: str) -> Said | None:
        """The most that any rank stated."""
        return max(self.ranks(name).values(), key=lambda said: said.value, default=None)


__all__ = ["NO_RANK", "Hit", "StartUp"]
