"""The requests that a deployment is given: when each arrives, how long it is, what its prompt shares."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvplan.errors import BadInput, shown
from kvplan.serve.shared_text import hit_tokens
from kvplan.serve.workload_checks import check

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Workload:
    """Requests in the order they are sent. Lengths in tokens, times in seconds from the start.

    `arrival_seconds` is NaN for a request that waits for another: for `after[i]` to finish and
    `think_seconds[i]` to pass (-1: for none), or, in a closed loop of `users`, for any to finish.

    What prompts share is said in one of two ways, or not at all. The `prefix_ids` of request i, from
    `prefix_start[i]` until `prefix_start[i + 1]`, name its blocks of `prefix_block_tokens`: an id stands for
    its block and all before it. Or the first `stream_tokens[i]` of prompt and output are those of text
    `stream[i]` (-1: of none), whose own first `parent_tokens` are those of text `stream_parent`.

    Raises BadInput where the arrays contradict one another.
    """

    arrival_seconds: Floats
    prompt_tokens: Ints
    output_tokens: Ints
    after: Ints
    think_seconds: Floats
    users: int = 0
    prefix_start: Longs | None = None
    prefix_ids: Ints | None = None
    prefix_block_tokens: int = 512
    stream: Ints | None = None
    stream_tokens: Ints | None = None
    stream_parent: Ints | None = None
    parent_tokens: Ints | None = None
    source: str = ""
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check(self)

    def __len__(self) -> int:
        return len(self.prompt_tokens)

    def scaled(self, rate_factor: float) -> Workload:
        """The same requests `rate_factor` times as fast: arrivals are moved, think times are not.

        Raises BadInput for a closed loop, whose rate is an answer.
        """
        if not 0 < rate_factor < 1e9:
            raise BadInput(f"rate factor: {shown(rate_factor)} is no factor; give a number above 0")
        if self.users:
            raise BadInput(
                f"rate: {self.source} is a closed loop of {self.users} users, whose rate is an answer; "
                "change the number of users"
            )
        return replace(self, arrival_seconds=self.arrival_seconds / rate_factor)

    def at_rate(self, requests_per_second: float) -> Workload:
        """The same requests at that mean rate of arrivals; gaps keep their proportions.

        Raises BadInput where there is no rate to change: fewer than two arrival times.
        """
        if not 0 < requests_per_second < 1e9:
            raise BadInput(
                f"rate: {shown(requests_per_second)} is not requests a second; give a number above 0"
            )
        rate = None if self.users else self.summary().requests_per_second
        if rate is None:
            raise BadInput(
                f"rate: {self.source} has no rate to change, its requests do not arrive at different times"
            )
        return self.scaled(requests_per_second / rate)

    def clipped(
        self, first_seconds: float = 0.0, last_seconds: float | None = None, requests: int | None = None
    ) -> Workload:
        """Those that arrive from `first_seconds` until before `last_seconds`, at most `requests` of them.

        Time then starts at `first_seconds`. A request that waits for another is kept with that one.
        Raises BadInput where nothing is left, or where a closed loop is clipped by time.
        """
        by_time = bool(first_seconds) or last_seconds is not None
        if self.users and by_time:
            raise BadInput(
                f"clip: {self.source} is a closed loop without times; clip by a number of requests"
            )
        if requests is not None and requests < 1:
            raise BadInput(f"clip: {shown(requests)} requests leave nothing; give 1 or more")
        kept = np.flatnonzero(
            self._within(first_seconds, last_seconds) if by_time else np.ones(len(self), bool)
        )
        kept = kept[:requests]
        if not len(kept):
            raise BadInput(
                f"clip: nothing of {self.source} arrives from {first_seconds:g} s until "
                f"{'the end' if last_seconds is None else f'{last_seconds:g} s'}; widen the span"
            )
        return self._only(kept, first_seconds)

    def _within(self, first: float, last: float | None) -> NDArray[np.bool_]:
        """Whether each request arrives in the span, or follows one that does."""
        times = self.arrival_seconds.copy()
        waiting = np.flatnonzero(self.after >= 0)
        while len(waiting):
            times[waiting] = times[self.after[waiting]]
            waiting = waiting[np.isnan(times[waiting])]
        return (times >= first) & (times < (np.inf if last is None else last))

    def _only(self, kept: Longs, first_seconds: float) -> Workload:
        place = np.full(len(self) + 1, -1, np.int32)  # the last entry answers for "after none"
        place[kept] = np.arange(len(kept), dtype=np.int32)
        start, ids = self.prefix_start, self.prefix_ids
        if start is not None and ids is not None:
            start, ids = _chosen(start, ids, start[kept], np.diff(start)[kept])
        return replace(
            self,
            arrival_seconds=self.arrival_seconds[kept] - first_seconds,
            prompt_tokens=self.prompt_tokens[kept],
            output_tokens=self.output_tokens[kept],
            after=place[self.after[kept]],
            think_seconds=self.think_seconds[kept],
            users=min(self.users, len(kept)),
            prefix_start=start,
            prefix_ids=ids,
            stream=None if self.stream is None else self.stream[kept],
            stream_tokens=None if self.stream_tokens is None else self.stream_tokens[kept],
        )

    def limited(self, max_prompt_tokens: int | None = None, max_output_tokens: int | None = None) -> Workload:
        """Prompts and outputs cut to at most so many tokens; `notes` say how many were."""
        for name, limit in (("prompt", max_prompt_tokens), ("output", max_output_tokens)):
            if limit is not None and limit < 1:
                raise BadInput(f"longest {name}: {shown(limit)} is no length; give 1 token or more")
        prompt = _cut(self.prompt_tokens, max_prompt_tokens)
        output = _cut(self.output_tokens, max_output_tokens)
        shorter, briefer = prompt < self.prompt_tokens, output < self.output_tokens
        start, ids, tokens = self.prefix_start, self.prefix_ids, self.stream_tokens
        if start is not None and ids is not None:
            counts = np.minimum(np.diff(start), -(-prompt // self.prefix_block_tokens))
            start, ids = _chosen(start, ids, start[:-1], counts)
        if tokens is not None:  # what follows a prompt that was cut is no text of its stream
            tokens = np.minimum(tokens, np.where(shorter, prompt, prompt + output)).astype(np.int32)
        notes = [
            f"{int(cut.sum()):,} of {len(self):,} {name}s cut to {limit:,} tokens"
            for name, cut, limit in (
                ("prompt", shorter, max_prompt_tokens),
                ("output", briefer, max_output_tokens),
            )
            if cut.any()
        ]
        return replace(
            self,
            prompt_tokens=prompt,
            output_tokens=output,
            prefix_start=start,
            prefix_ids=ids,
            stream_tokens=tokens,
            notes=(*self.notes, *notes),
        )

    def summary(self) -> Summary:
        """What the requests are like, in a few numbers."""
        known = self.arrival_seconds[~np.isnan(self.arrival_seconds)]
        gaps = np.diff(known)
        duration = float(known[-1] - known[0])
        hits = hit_tokens(self)
        return Summary(
            requests=len(self),
            duration_seconds=duration if duration > 0 else None,
            requests_per_second=len(known) / duration if duration > 0 else None,
            gap_variation=float(gaps.std() / gaps.mean()) if duration > 0 else None,
            prompt_tokens=_spread(self.prompt_tokens),
            output_tokens=_spread(self.output_tokens),
            prefix_hit_share=None
            if hits is None
            else float(hits.sum() / self.prompt_tokens.sum(dtype=np.int64)),
        )


@dataclass(frozen=True, slots=True)
class Summary:
    """A workload in numbers: None where it has none such.

    The rate counts requests that arrive by the clock, over the time from the first to the last of them;
    `gap_variation` is the standard deviation of the gaps between them over their mean (Poisson: 1).
    `prefix_hit_share` is the share of prompt tokens found by a cache that keeps everything.
    """

    requests: int
    duration_seconds: float | None
    requests_per_second: float | None
    gap_variation: float | None
    prompt_tokens: dict[str, float]
    output_tokens: dict[str, float]
    prefix_hit_share: float | None

    def document(self) -> dict[str, Any]:
        """The same as the JSON answer has it."""
        return {name: getattr(self, name) for name in self.__slots__}


def workload_of(
    arrival_seconds: Any,
    prompt_tokens: Any,
    output_tokens: Any,
    *,
    after: Any = None,
    think_seconds: Any = None,
    **more: Any,
) -> Workload:
    """A workload of anything that numpy reads as arrays; what waits for nothing need not be said.

    `more` are the other fields of Workload. Raises BadInput as that does.
    """
    prompt = np.asarray(prompt_tokens, np.int32)
    for name, kind in _KINDS.items():
        if more.get(name) is not None:
            more[name] = np.asarray(more[name], kind)
    return Workload(
        arrival_seconds=np.asarray(arrival_seconds, np.float64),
        prompt_tokens=prompt,
        output_tokens=np.asarray(output_tokens, np.int32),
        after=np.full(len(prompt), -1, np.int32) if after is None else np.asarray(after, np.int32),
        think_seconds=np.zeros(len(prompt))
        if think_seconds is None
        else np.asarray(think_seconds, np.float64),
        **more,
    )


_KINDS: dict[str, type] = {
    "prefix_start": np.int64,
    **dict.fromkeys(("prefix_ids", "stream", "stream_tokens", "stream_parent", "parent_tokens"), np.int32),
}


def _cut(tokens: Ints, limit: int | None) -> Ints:
    return tokens if limit is None else np.minimum(tokens, limit).astype(np.int32)


def _chosen(start: Longs, ids: Ints, begin: Longs, counts: Longs) -> tuple[Longs, Ints]:
    """The runs of `counts` ids that begin at `begin`, one after the other; ids dense from 0 again."""
    ends = np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))
    places = np.arange(ends[-1]) + np.repeat(begin - ends[:-1], counts)
    if len(places) == len(ids) == start[-1]:
        return ends, ids
    return ends, np.unique(ids[places], return_inverse=True)[1].astype(np.int32)


def _spread(tokens: Ints) -> dict[str, float]:
    p50, p90, p99 = (float(p) for p in np.percentile(tokens, (50, 90, 99)))
    return {"mean": float(tokens.mean()), "p50": p50, "p90": p90, "p99": p99, "max": float(tokens.max())}
