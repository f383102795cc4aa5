"""A workload says when requests arrive and what they share, and refuses what contradicts itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kvplan.errors import BadInput
from kvplan.serve.shared_text import hit_tokens
from kvplan.serve.workload import Workload, workload_of

NAN = float("nan")


def plain(**more: Any) -> Workload:
    return workload_of([0, 1, 4, 5], [100, 200, 300, 400], [10, 20, 30, 40], source="test", **more)


def test_a_summary_counts_rate_gaps_and_lengths() -> None:
    s = plain().summary()
    assert (s.requests, s.duration_seconds, s.requests_per_second) == (4, 5.0, 0.8)
    assert s.gap_variation == pytest.approx(np.std([1, 3, 1]) / np.mean([1, 3, 1]))
    assert s.prompt_tokens == {
        "mean": 250,
        "p50": 250,
        "p90": pytest.approx(370),
        "p99": pytest.approx(397),
        "max": 400,
    }
    assert s.document()["prefix_hit_share"] is None


def test_one_request_has_no_rate() -> None:
    s = workload_of([3], [5], [6]).summary()
    assert (s.duration_seconds, s.requests_per_second, s.gap_variation) == (None, None, None)


def test_a_scaled_workload_has_its_times_compressed() -> None:
    assert plain().scaled(2).arrival_seconds.tolist() == [0, 0.5, 2, 2.5]
    assert plain().at_rate(8).summary().requests_per_second == pytest.approx(8)
    with pytest.raises(BadInput, match="no factor"):
        plain().scaled(0)
    with pytest.raises(BadInput, match="no rate to change"):
        workload_of([0, 0], [1, 1], [1, 1], source="test").at_rate(5)


def test_think_times_stay_when_arrivals_are_scaled() -> None:
    w = workload_of([0, NAN, 8], [1, 1, 1], [1, 1, 1], after=[-1, 0, -1], think_seconds=[0, 6, 0]).scaled(4)
    assert w.think_seconds.tolist() == [0, 6, 0]
    assert w.arrival_seconds[[0, 2]].tolist() == [0, 2]


def test_a_clip_keeps_the_span_and_starts_its_time() -> None:
    w = plain().clipped(1, 5)
    assert w.arrival_seconds.tolist() == [0, 3]
    assert w.prompt_tokens.tolist() == [200, 300]
    assert len(plain().clipped(requests=3)) == 3
    assert plain().clipped(1, requests=1).prompt_tokens.tolist() == [200]
    with pytest.raises(BadInput, match="widen the span"):
        plain().clipped(9)


def test_a_clip_keeps_later_turns_with_their_first() -> None:
    w = workload_of([0, NAN, NAN, 5, NAN], [1, 2, 3, 4, 5], [1] * 5, after=[-1, 0, 1, -1, 3])
    later = w.clipped(5)
    assert later.prompt_tokens.tolist() == [4, 5]
    assert later.after.tolist() == [-1, 0]
    assert w.clipped(0, 5).prompt_tokens.tolist() == [1, 2, 3]


def test_a_clip_numbers_prefix_ids_anew() -> None:
    whole = workload_of(
        [0, 1, 4], [200, 200, 200], [1, 1, 1],
        prefix_start=[0, 2, 4, 5], prefix_ids=[0, 1, 2, 3, 2], prefix_block_tokens=100,
    )  # fmt: skip
    part = whole.clipped(1)
    assert part.prefix_start is not None
    assert part.prefix_ids is not None
    assert part.prefix_start.tolist() == [0, 2, 3]
    assert part.prefix_ids.tolist() == [0, 1, 0]


def test_what_is_cut_is_counted_in_the_notes() -> None:
    w = plain().limited(250, 30)
    assert w.prompt_tokens.tolist() == [100, 200, 250, 250]
    assert w.output_tokens.tolist() == [10, 20, 30, 30]
    assert w.notes == ("2 of 4 prompts cut to 250 tokens", "1 of 4 outputs cut to 30 tokens")
    assert plain().limited(1000).notes == ()


def test_a_prompt_that_is_cut_loses_its_last_blocks_and_the_text_of_its_answer() -> None:
    w = workload_of([0], [1000], [5], prefix_start=[0, 2], prefix_ids=[0, 1]).limited(512)
    assert w.prefix_start is not None
    assert w.prefix_start.tolist() == [0, 1]
    text = streams([0], [1005], -1)
    cut = workload_of([0], [1000], [5], **text).limited(512)
    assert cut.stream_tokens is not None
    assert cut.stream_tokens.tolist() == [512]
    briefer = workload_of([0], [1000], [5], **text).limited(None, 2)
    assert briefer.stream_tokens is not None
    assert briefer.stream_tokens.tolist() == [1002]


def test_only_the_leading_run_of_known_blocks_is_a_hit() -> None:
    w = workload_of(
        [0, 1, 2], [250, 250, 210], [1, 1, 1],
        prefix_start=[0, 3, 6, 9], prefix_ids=[0, 1, 2, 0, 3, 4, 0, 1, 2], prefix_block_tokens=100,
    )  # fmt: skip
    hits = hit_tokens(w)
    assert hits is not None
    assert hits.tolist() == [0, 100, 210]


def test_texts_share_what_their_parents_have() -> None:
    """Random trees of texts against the same rule followed token by token."""
    rng = np.random.default_rng(7)
    for _ in range(30):
        texts, count = 5, 12
        parent = [-1] + [int(rng.integers(-1, k)) for k in range(1, texts)]
        inherited = rng.integers(0, 30, texts)
        stream = rng.integers(-1, texts, count)
        prompt, output = rng.integers(1, 40, count), rng.integers(1, 20, count)
        tokens = np.where(stream >= 0, rng.integers(0, prompt + output + 1), 0)
        w = workload_of(
            np.arange(count), prompt, output,
            stream=stream, stream_tokens=tokens, stream_parent=parent, parent_tokens=inherited,
        )  # fmt: skip
        hits = hit_tokens(w)
        assert hits is not None
        assert hits.tolist() == _token_by_token(stream, tokens, prompt, parent, inherited)


def _token_by_token(stream: Any, tokens: Any, prompt: Any, parent: Any, inherited: Any) -> list[int]:
    def owner(text: int, place: int) -> int:
        while parent[text] >= 0 and place < inherited[text]:
            text = parent[text]
        return text

    known: set[tuple[tuple[int, int], ...]] = set()
    found = []
    for text, length, size in zip(stream, tokens, prompt, strict=True):
        words = [(owner(int(text), place), place) for place in range(length)]
        run = 0
        while run < min(length, size) and tuple(words[: run + 1]) in known:
            run += 1
        found.append(run)
        known.update(tuple(words[: end + 1]) for end in range(length))
    return found


def streams(stream: list[int], tokens: list[int], parent: int) -> dict[str, Any]:
    return {"stream": stream, "stream_tokens": tokens, "stream_parent": [parent], "parent_tokens": [0]}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"prompt_tokens": [1, 0]}, r"prompt_tokens\[1\] is 0"),
        ({"output_tokens": [1, -2]}, r"output_tokens\[1\] is -2"),
        ({"output_tokens": [1]}, "shape"),
        ({"arrival_seconds": [5, 4]}, "back in time"),
        ({"arrival_seconds": [0, NAN]}, r"arrival_seconds\[1\] is nan"),
        ({"arrival_seconds": [-1, 0]}, "start at 0"),
        ({"after": [-1, 1]}, r"after\[1\] is 1"),
        ({"after": [-1, 0]}, r"arrival_seconds\[1\]"),
        ({"think_seconds": [0, -1]}, r"think_seconds\[1\]"),
        ({"users": 1}, r"arrival_seconds\[1\]"),
        ({"users": -1}, "users is -1"),
        ({"prefix_start": [0, 1, 2]}, "belong together"),
        ({"prefix_start": [0, 1, 1], "prefix_ids": [0, 1]}, "does not divide"),
        ({"prefix_start": [0, 1, 2], "prefix_ids": [0, 5]}, "densely"),
        ({"prefix_start": [0, 2, 3], "prefix_ids": [0, 1, 2]}, "more blocks"),
        ({"stream": [0, 0]}, "belong together"),
        (streams([0, 1], [0, 0], -1), r"stream\[1\]"),
        (streams([0, 0], [0, 9], -1), "at most prompt"),
        (streams([0, 0], [0, 0], 0), "comes first"),
    ],
)
def test_arrays_that_contradict_are_refused_by_name(change: dict[str, Any], said: str) -> None:
    fields = {"arrival_seconds": [0, 1], "prompt_tokens": [1, 1], "output_tokens": [1, 1]} | change
    with pytest.raises(BadInput, match=said):
        workload_of(**fields, source="test")


def test_no_request_is_no_workload() -> None:
    with pytest.raises(BadInput, match="no request"):
        workload_of([], [], [], source="test")


def test_a_closed_loop_has_no_rate_and_no_times_to_clip() -> None:
    w = workload_of([0, 0, NAN], [1, 1, 1], [1, 1, 1], users=2, source="test")
    with pytest.raises(BadInput, match="closed loop of 2 users"):
        w.scaled(2)
    with pytest.raises(BadInput, match="closed loop"):
        w.clipped(1)
    assert w.clipped(requests=1).users == 1
