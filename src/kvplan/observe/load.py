"""A short load on an OpenAI-compatible server: streamed completions, few, paced, and never for long.

Every request's prompt begins with words of its own, so that no cache of prefixes finds it. Nothing of what is
generated is kept but its times.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from kvplan.errors import Unreachable
from kvplan.observe.http import Client, run

PATHS = ("/v1/completions", "/v1/chat/completions")
_WORDS = (  # short and common: a token each, for most tokenizers
    "time year people way day man thing woman life child world school state family student group country "
    "problem hand part place case week company system program question work number night point home water "
    "room mother area money story fact month lot right study book eye job word business issue side kind "
    "head house service friend father power hour game line end member law car city name team minute idea"
)
TRIES = tuple((path, extras) for path in PATHS for extras in (True, False))
_LONGEST_LINE = 1 << 20
_FORM_TOKENS = 4096  # that the form of a chat may add to a prompt
_SLACK = 16  # tokens that a server may make beyond what was asked for
_MOST_FAILED = 3


@dataclass(frozen=True, slots=True)
class Plan:
    """What to send: levels of requests at once, and how many of each; lengths; bounds of rate and time.

    `requests` are all that may be sent, those included that find out what the server takes.
    """

    model: str
    levels: tuple[tuple[int, int], ...]
    requests: int
    prompt_tokens: int
    output_tokens: int
    rate: float
    seconds: float
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Answered:
    """One request's times in seconds and its tokens as the server counted them, prompts 0 where it did not.

    `claimed` are output tokens that it cannot have made, and for which pieces are taken; else 0.
    """

    ttft_seconds: float
    e2e_seconds: float
    prompt_tokens: int
    output_tokens: int
    claimed: int = 0

    @property
    def tpot_seconds(self) -> float | None:
        """Each token's after the first."""
        later = self.output_tokens - 1
        return (self.e2e_seconds - self.ttft_seconds) / later if later > 0 else None


@dataclass(slots=True)
class Level:
    """So many requests at once: what came back, and what did not."""

    concurrency: int
    answered: list[Answered] = field(default_factory=list)
    failed: int = 0
    cut: bool = False

    @property
    def steady(self) -> list[Answered]:
        """Those after each user's first, which all began together; all where none is left."""
        return self.answered[self.concurrency :] or self.answered


class _TimeOver(Exception):
    """The probe's time ended before a request was sent, or answered: nothing failed."""


@dataclass(slots=True)
class _Sender:
    client: Client
    plan: Plan
    session: Any = None
    path: str = PATHS[0]
    words_per_token: float = 1.0
    extras: bool = True
    sent: int = 0
    tried: int = 0
    answers: bool = False
    next_start: float = 0.0
    until: float = 0.0
    failed_in_a_row: int = 0
    why: str = ""

    def __post_init__(self) -> None:
        self.random = random.Random(self.plan.seed)  # noqa: S311 - words, no secrets

    random: random.Random = field(init=False)

    def body(self) -> dict[str, Any]:
        count = max(1, round(self.plan.prompt_tokens * self.words_per_token))
        text = " ".join(self.random.choices(_WORDS.split(), k=min(count, 1 << 20)))
        asked: dict[str, Any] = {
            "model": self.plan.model,
            "max_tokens": self.plan.output_tokens,
            "temperature": 0,
            "stream": True,
        }
        if self.extras:
            asked |= {"stream_options": {"include_usage": True}, "ignore_eos": True}
        if self.path == PATHS[0]:
            return {**asked, "prompt": text}
        return {**asked, "messages": [{"role": "user", "content": text}]}

    async def pause(self) -> None:
        """Wait until the rate allows another."""
        now = time.monotonic()
        at = max(now, self.next_start)
        if at >= self.until:
            raise _TimeOver
        self.next_start = at + 1 / self.plan.rate
        await asyncio.sleep(at - now)

    async def one(self) -> Answered | None:
        """One request; None where it failed, with the reason kept. Raises _TimeOver."""
        await self.pause()
        url = self.client.address.page(self.path)
        body = self.body()
        self.sent += 1
        try:
            async with self.client.bounded(url, max(0.01, self.until - time.monotonic())):
                begun = time.monotonic()
                async with self.client.opened(self.session, "POST", url, content=body) as answer:
                    if answer.status_code >= 400:
                        self.why = f"{answer.status_code}"
                        return None
                    pieces = self.client.pieces(answer, url, self.client.limits.most_bytes)
                    timed = await _timed(pieces, begun, self.plan.output_tokens, _most_tokens(body))
        except Unreachable as error:
            if time.monotonic() >= self.until:
                raise _TimeOver from None
            self.why = str(error)
            return None
        self.why = self.why if timed is not None else "its stream has no text"
        return timed

    async def first(self) -> Answered | None:
        """A request that finds out which path answers, and how many tokens a word takes."""
        for path, extras in TRIES[: self.plan.requests]:
            self.path, self.extras = path, extras
            found = await self.one()
            self.tried += 1
            if found is not None:
                self.answers = True
                if found.prompt_tokens:
                    self.words_per_token = self.plan.prompt_tokens / found.prompt_tokens
                return found
            if not self.why.isdigit() or self.why in ("401", "403", "429"):
                return None
        return None

    def levels(self) -> list[tuple[int, int]]:
        """Those levels for which requests are left after the first ones, and how many of each."""
        left, found = self.plan.requests - self.sent, []
        for concurrency, count in self.plan.levels:
            now = min(count, left)
            if now > concurrency:
                found.append((concurrency, now))
                left -= now
        return found

    async def level(self, concurrency: int, count: int) -> Level:
        """`count` requests, so many at once."""
        found = Level(concurrency)
        left = count

        async def user() -> None:
            nonlocal left
            while left > 0 and self.failed_in_a_row < _MOST_FAILED:
                left -= 1
                try:
                    answered = await self.one()
                except _TimeOver:
                    found.cut = True
                    return
                self.failed_in_a_row = 0 if answered else self.failed_in_a_row + 1
                if answered is not None:
                    found.answered.append(answered)
                else:
                    found.failed += 1

        await asyncio.gather(*(user() for _ in range(concurrency)))
        return found


@dataclass(frozen=True, slots=True)
class Sent:
    """What was sent and what came back; `why` where something failed, `cut` where the time was over.

    `tried` are the requests that found out what the server takes, `answers` whether one of them did.
    """

    path: str
    requests: int
    levels: tuple[Level, ...]
    why: str = ""
    cut: bool = False
    tried: int = 0
    answers: bool = False


def send(client: Client, plan: Plan) -> Sent:
    """Send the load, level after level, to the server of that client and nobody else."""

    async def work() -> Sent:
        sender = _Sender(client, plan)
        sender.until = time.monotonic() + plan.seconds
        async with client.session() as session:
            sender.session = session
            levels, cut = await _levels(sender)
        return Sent(sender.path, sender.sent, tuple(levels), sender.why, cut, sender.tried, sender.answers)

    return run(work)


async def _levels(sender: _Sender) -> tuple[list[Level], bool]:
    """Every level that could be sent, and whether the time was over before all was."""
    levels: list[Level] = []
    try:
        if await sender.first() is None:
            return levels, False
    except _TimeOver:
        return levels, True
    for concurrency, count in sender.levels():
        levels.append(await sender.level(concurrency, count))
        if levels[-1].cut:
            return levels, True
        if sender.failed_in_a_row >= _MOST_FAILED:
            break
    return levels, False


def _most_tokens(body: dict[str, Any]) -> int:
    """The most tokens that a prompt can have: one of each byte, and those that a chat's form adds."""
    text = body["prompt"] if "prompt" in body else body["messages"][0]["content"]
    return len(text) + _FORM_TOKENS


async def _timed(
    pieces: AsyncIterator[bytes], begun: float, most_tokens: int, most_prompt: int
) -> Answered | None:
    """The times of a stream of events: first and last text, and the tokens that it says it had.

    Tokens that cannot have been are not believed.
    """
    first = last = 0.0
    prompt = made = chunks = 0
    async for event in _events(pieces):
        now = time.monotonic()
        if _has_text(event):
            chunks += 1
            first, last = first or now, now
        usage = event.get("usage")
        if isinstance(usage, dict):
            prompt, made = _count(usage, "prompt_tokens"), _count(usage, "completion_tokens")
        if chunks > 4 * most_tokens + 64:
            break
    if not first:
        return None
    prompt = prompt if prompt <= most_prompt else 0
    if made > most_tokens + _SLACK:
        return Answered(first - begun, last - begun, prompt, chunks, made)
    return Answered(first - begun, last - begun, prompt, made or chunks)


async def _events(pieces: AsyncIterator[bytes]) -> AsyncIterator[dict[str, Any]]:
    """The JSON objects of `data:` lines, until [DONE]; what is none is passed over."""
    rest = b""
    async with aclosing(pieces) as stream:  # type: ignore[type-var]
        async for piece in stream:
            *lines, rest = (rest + piece).split(b"\n")
            if len(rest) > _LONGEST_LINE:
                return
            for line in lines:
                text = line.strip().removeprefix(b"data:").strip() if line.startswith(b"data:") else b""
                if text == b"[DONE]":
                    return
                event = _object(text)
                if event is not None:
                    yield event


def _object(text: bytes) -> dict[str, Any] | None:
    if not text:
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _has_text(event: dict[str, Any]) -> bool:
    choices = event.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        return False
    delta = choices[0].get("delta")
    parts = delta if isinstance(delta, dict) else choices[0]
    return any(isinstance(parts.get(k), str) and parts[k] for k in ("text", "content", "reasoning_content"))


def _count(usage: dict[str, Any], name: str) -> int:
    value = usage.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**62 else 0
