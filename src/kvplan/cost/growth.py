"""When a request claims its cache: the jump at prefill, the trickle of decode, where windows flatten it."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace

from kvplan.cost import cache
from kvplan.cost.cache import Stored
from kvplan.figure import bare
from kvplan.model.model import Model


@dataclass(frozen=True, slots=True)
class Slope:
    """One cache's growth: bytes per slot over all its layers, a slot per `stride` tokens, up to a window."""

    slot_bytes: int
    stride: int
    window: int | None

    def held(self, tokens: int) -> int:
        """Bytes held by a sequence of that many tokens."""
        slots = tokens // self.stride
        if self.window is not None:
            slots = min(slots, self.window)
        return slots * self.slot_bytes


@dataclass(frozen=True, slots=True)
class Growth:
    """What a sequence holds at any length: a state that is there from its first token, and slopes.

    Blocks are of tokens, whatever the stride of a cache: a sequence is held as if it filled its last one.
    """

    state_bytes: int
    slopes: tuple[Slope, ...]
    block_tokens: int = 1

    def held(self, tokens: int) -> int:
        """Bytes of a sequence of that many tokens; none before its first."""
        if tokens <= 0:
            return 0
        paged = -(-tokens // self.block_tokens) * self.block_tokens
        return self.state_bytes + sum(slope.held(paged) for slope in self.slopes)


def growth_of(model: Model, stored: Stored, block_tokens: int = 1) -> Growth:
    """The growth of one sequence on one rank; equal to `cache.bytes_per_sequence` at every length."""
    slopes = []
    for group in cache.groups_of(model):
        a = group.attention
        one = int(cache.group_bytes_per_token(group, stored, bare))
        slopes.append(Slope(group.layers * one, a.stride, a.window))
        if a.index_width:
            slopes.append(
                Slope(group.layers * int(cache.index_bytes(group, stored, bare)), a.index_stride, None)
            )
    state = int(cache.state_bytes_per_sequence(model, stored.tp, bare))
    return Growth(state, tuple(slopes), block_tokens)


@dataclass(frozen=True, slots=True)
class Request:
    """A request by the step in which it arrives and its lengths in tokens."""

    arrival_step: int
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Step:
    """One engine step: what ran, tokens processed, bytes it claimed, and bytes held after it."""

    phase: str  # prefill | decode | mixed | idle
    tokens: int
    bytes: int
    held_bytes: int


@dataclass(slots=True)
class Cohort:
    """Requests next to each other in the queue that are equally far: what one holds, times how many."""

    request: Request
    count: int
    done: int = 0
    held_bytes: int = 0

    def wants(self, *, decoding: bool) -> int:
        """Tokens that each asks for in a step: one when decoding, else what is left of its prompt."""
        left = self.request.prompt_tokens - self.done
        if decoding == (left > 0):
            return 0
        return 1 if decoding else left

    def is_finished(self) -> bool:
        """Whether each has all its output."""
        return self.done >= self.request.prompt_tokens + self.request.output_tokens


def steps_of(growth: Growth, requests: list[Request], chunk_tokens: int | None) -> Iterator[Step]:
    """Steps until every request has all its output: decodes first, then prompts in order of arrival.

    `requests` come in that order. `chunk_tokens` bounds the tokens of a step, prompts being cut to
    fit (None: whole prompts at once).
    A finished request keeps its cache to the end: this is what the load claims, not what is freed.
    """
    coming = deque(Cohort(r, len(list(same))) for r, same in itertools.groupby(requests))
    running: list[Cohort] = []
    held, number = 0, 0
    while coming or running:
        while coming and coming[0].request.arrival_step <= number:
            running.append(coming.popleft())
        decoded, claimed, running = _advance(running, growth, chunk_tokens, decoding=True)
        room = None if chunk_tokens is None else chunk_tokens - decoded
        prefilled, more, running = _advance(running, growth, room, decoding=False)
        held += claimed + more
        phase = (
            "mixed" if decoded and prefilled else "decode" if decoded else "prefill" if prefilled else "idle"
        )
        yield Step(phase, decoded + prefilled, claimed + more, held)
        running = [cohort for cohort in running if not cohort.is_finished()]
        number += 1


def _advance(
    cohorts: list[Cohort], growth: Growth, room: int | None, *, decoding: bool
) -> tuple[int, int, list[Cohort]]:
    """Give every request its tokens in order, as far as there is room: tokens, bytes claimed, cohorts after.

    A request that decodes in a step is not asked again for its prompt, nor the other way round.
    """
    tokens, claimed = 0, 0
    after: list[Cohort] = []
    for cohort in cohorts:
        each = cohort.wants(decoding=decoding)
        pieces = _pieces(cohort.count, each, room)
        for count, taken in pieces:
            piece = cohort if len(pieces) == 1 else replace(cohort, count=count)
            if taken:
                piece.done += taken
                holds = growth.held(piece.done)
                claimed += count * (holds - piece.held_bytes)
                piece.held_bytes = holds
                tokens += count * taken
                room = None if room is None else room - count * taken
            after.append(piece)
    return tokens, claimed, after


def _pieces(count: int, each: int, room: int | None) -> list[tuple[int, int]]:
    """How a cohort parts, as (how many, tokens of each): those served, one served in part, those who wait."""
    if not each or room is None:
        return [(count, each)]
    served = min(count, room // each)
    rest = room - served * each if served < count else 0
    parts = [(served, each), (1 if rest else 0, rest), (count - served - (1 if rest else 0), 0)]
    return [part for part in parts if part[0]]
