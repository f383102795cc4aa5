"""When a request claims its cache: the jump at prefill, the trickle of decode, where windows flatten it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

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


def steps_of(growth: Growth, requests: list[Request], chunk_tokens: int | None) -> Iterator[Step]:
    """Steps until every request has all its output: decodes first, then prompts in order of arrival.

    `chunk_tokens` bounds the tokens of a step, prompts being cut to fit (None: whole prompts at once).
    A finished request keeps its cache to the end: this is what the load claims, not what is freed.
    """
    done = [0] * len(requests)
    held, number = 0, 0
    while any(n < r.prompt_tokens + r.output_tokens for n, r in zip(done, requests, strict=True)):
        room = chunk_tokens
        decoded, prefilled, claimed = 0, 0, 0
        for decoding in (True, False):
            for i, request in enumerate(requests):
                taken = _take(request, done[i], number, room, decoding=decoding)
                if not taken:
                    continue
                claimed += growth.held(done[i] + taken) - growth.held(done[i])
                done[i] += taken
                room = None if room is None else room - taken
                decoded, prefilled = decoded + taken * decoding, prefilled + taken * (not decoding)
        held += claimed
        phase = (
            "mixed" if decoded and prefilled else "decode" if decoded else "prefill" if prefilled else "idle"
        )
        yield Step(phase, decoded + prefilled, claimed, held)
        number += 1


def _take(request: Request, done: int, number: int, room: int | None, *, decoding: bool) -> int:
    """Tokens a request gets in this step: one when decoding, as much prompt as there is room for else."""
    if number < request.arrival_step or (room is not None and room <= 0):
        return 0
    left = request.prompt_tokens - done
    if decoding:
        return 1 if left <= 0 and done < request.prompt_tokens + request.output_tokens else 0
    return max(0, left if room is None else min(left, room))
