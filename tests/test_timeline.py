"""`timeline` claims exactly what `size` says is held, at every step, and flattens where windows fill."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import kvplan
from kvplan.cost.growth import Growth, Request, Step, growth_of, steps_of
from kvplan.facts.catalogue import entries
from kvplan.model.locate import load_model
from kvplan.verbs.size import stored_as
from test_figure import assert_all_true

MiB = 2**20
ANY_MODEL = st.sampled_from([entry.id for entry in entries()])


def test_a_prompt_claims_its_cache_at_prefill_and_decode_a_trickle() -> None:
    answer = kvplan.timeline("llama-2-70b", prompt_tokens=2048, output_tokens=128)
    assert answer["prefill_bytes"] == 640 * MiB
    assert answer["decode_bytes"] == 40 * MiB
    assert answer["total_bytes"] == 680 * MiB
    assert answer["decode_share"] == pytest.approx(0.0588, abs=5e-5)
    assert [step["phase"] for step in answer["steps"]] == ["prefill"] + ["decode"] * 128


def test_chunks_of_512_claim_160_mebibytes_each() -> None:
    steps = kvplan.timeline("llama-2-70b", prompt_tokens=2048, output_tokens=128, chunk_tokens=512)["steps"]
    assert [(step["tokens"], step["bytes"]) for step in steps[:4]] == [(512, 160 * MiB)] * 4
    assert {step["phase"] for step in steps[4:]} == {"decode"}


@pytest.mark.parametrize(
    ("model", "flat_from"),
    [("google/gemma-3-27b-it", 1024), ("openai/gpt-oss-20b", 128), ("mistralai/Mistral-7B-v0.1", 4096)],
)
def test_windows_flatten_once_they_are_full(model: str, flat_from: int) -> None:
    kv = kvplan.size(model)["kv"]
    start = flat_from - 5
    steps = kvplan.timeline(model, prompt_tokens=start, output_tokens=10)["steps"][1:]
    claimed = [step["bytes"] for step in steps]
    assert claimed == [kv["bytes_per_token"]] * 5 + [kv["bytes_per_token_after_windows"]] * 5


def test_a_state_is_claimed_once_with_the_first_token() -> None:
    model = "Qwen/Qwen3-Next-80B-A3B-Instruct"
    kv = kvplan.size(model)["kv"]
    steps = kvplan.timeline(model, prompt_tokens=1, output_tokens=3)["steps"]
    assert [step["bytes"] for step in steps] == [
        kv["state_bytes_per_sequence"] + kv["bytes_per_token"],
        *[kv["bytes_per_token"]] * 3,
    ]


@given(
    ANY_MODEL, st.integers(1, 5000), st.integers(0, 60), st.integers(1, 3), st.none() | st.integers(1, 999)
)
def test_every_step_holds_what_size_says(
    model: str, prompt: int, output: int, batch: int, chunk: int | None
) -> None:
    chunk = chunk if chunk is None or prompt * batch / chunk < 400 else None
    answer = kvplan.timeline(
        model, prompt_tokens=prompt, output_tokens=output, batch=batch, chunk_tokens=chunk
    )
    steps = answer["steps"]
    assert steps[-1]["held_bytes"] == answer["total_bytes"] == sum(step["bytes"] for step in steps)
    assert sum(step["tokens"] for step in steps) == batch * (prompt + output)
    assert (
        answer["total_bytes"] == kvplan.size(model, tokens=prompt + output, batch=batch)["kv"]["bytes_total"]
    )
    assert answer["prefill_bytes"] == kvplan.size(model, tokens=prompt, batch=batch)["kv"]["bytes_total"]


@given(ANY_MODEL, st.integers(1, 3000))
def test_one_sequence_decodes_along_size(model: str, prompt: int) -> None:
    for i, step in enumerate(kvplan.timeline(model, prompt_tokens=prompt, output_tokens=12)["steps"]):
        assert step["held_bytes"] == kvplan.size(model, tokens=prompt + i)["kv"]["bytes_per_sequence"]


@given(ANY_MODEL, st.integers(1, 3000), st.integers(0, 3), st.sampled_from([1, 16, 64, 100, 128, 256]))
@example("deepseek-ai/DeepSeek-V4-Flash", 256, 0, 256)
@example("openai/gpt-oss-20b", 127, 2, 16)
def test_a_sequence_in_blocks_holds_what_it_holds_once_its_last_block_is_full(
    model: str, prompt: int, output: int, block: int
) -> None:
    answer = kvplan.timeline(model, prompt_tokens=prompt, output_tokens=output, block_size=block)
    for i, step in enumerate(answer["steps"]):
        full = -(-(prompt + i) // block) * block
        assert step["held_bytes"] == kvplan.size(model, tokens=full)["kv"]["bytes_per_sequence"]
    assert answer["steps"][-1]["held_bytes"] == answer["total_bytes"]


def test_a_block_is_of_tokens_where_a_cache_keeps_one_slot_for_many() -> None:
    model = "deepseek-ai/DeepSeek-V4-Flash"
    exact = kvplan.timeline(model, prompt_tokens=256, output_tokens=0)["total_bytes"]
    assert exact == 7_397_376
    for prompt in (129, 256):
        answer = kvplan.timeline(model, prompt_tokens=prompt, output_tokens=0, block_size=256)
        assert answer["total_bytes"] == exact


def test_requests_that_arrive_later_claim_later() -> None:
    answer = kvplan.timeline("llama-3.1-8b", prompt_tokens=100, output_tokens=20, arrivals=[0, 5, 30])
    steps = answer["steps"]
    assert steps[5]["phase"] == "mixed"
    assert steps[30]["phase"] == "prefill"
    assert steps[27]["phase"] == "idle"
    assert steps[-1]["held_bytes"] == kvplan.size("llama-3.1-8b", tokens=120, batch=3)["kv"]["bytes_total"]


def one_by_one(growth: Growth, requests: list[Request], chunk: int | None) -> list[Step]:
    """The same walk, one request at a time."""
    done, held, steps = [0] * len(requests), 0, []
    while any(n < r.prompt_tokens + r.output_tokens for n, r in zip(done, requests, strict=True)):
        room = 10**12 if chunk is None else chunk
        before, counts = [growth.held(n) for n in done], [0, 0]
        for decoding in (True, False):
            for i, r in enumerate(requests):
                left = r.prompt_tokens - done[i]
                wants = max(0, left) if not decoding else int(left <= 0 and -left < r.output_tokens)
                taken = min(wants, room) if r.arrival_step <= len(steps) else 0
                done[i], room, counts[decoding] = done[i] + taken, room - taken, counts[decoding] + taken
        claimed = sum(growth.held(n) for n in done) - sum(before)
        held += claimed
        phase = {(0, 0): "idle", (1, 0): "prefill", (0, 1): "decode", (1, 1): "mixed"}
        kind = phase[int(counts[0] > 0), int(counts[1] > 0)]
        steps.append(Step(kind, sum(counts), claimed, held))
    return steps


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=9),
    st.integers(1, 40),
    st.integers(0, 9),
    st.none() | st.integers(1, 60),
)
def test_requests_that_are_in_step_may_be_walked_together(
    arrivals: list[int], prompt: int, output: int, chunk: int | None
) -> None:
    model = load_model("gemma-3-27b")
    growth = growth_of(model, stored_as(model, "auto", 1), 16)
    requests = [Request(step, prompt, output) for step in sorted(arrivals)]
    assert list(steps_of(growth, requests, chunk)) == one_by_one(growth, requests, chunk)


def test_thousands_of_requests_in_step_are_walked_as_one() -> None:
    start = time.perf_counter()
    answer = kvplan.timeline("llama-3.1-8b", batch=4096, output_tokens=100_000)
    assert time.perf_counter() - start < 10
    assert (
        answer["total_bytes"] == kvplan.size("llama-3.1-8b", tokens=102_048, batch=4096)["kv"]["bytes_total"]
    )


@pytest.mark.parametrize("load", [{"batch": 3}, {"arrivals": [0, 2, 2]}, {"output_tokens": 0, "batch": 2}])
def test_the_bytes_of_a_step_are_explained(load: dict[str, Any]) -> None:
    answer = kvplan.timeline("gemma-3-27b", prompt_tokens=1100, **{"output_tokens": 5, **load})
    (figure,) = answer.find("steps")
    assert figure.value == answer["steps"][-1]["bytes"]
    assert assert_all_true(figure) >= 1


def test_a_step_never_exceeds_its_token_bound() -> None:
    steps = kvplan.timeline("llama-3.1-8b", prompt_tokens=300, output_tokens=40, batch=5, chunk_tokens=128)[
        "steps"
    ]
    assert max(step["tokens"] for step in steps) == 128


BAD: list[tuple[dict[str, Any], str]] = [
    ({"prompt_tokens": 0}, "--prompt-tokens: 0"),
    ({"output_tokens": -1}, "--output-tokens: -1"),
    ({"chunk_tokens": 0}, "--chunked-prefill-size: 0"),
    ({"block_size": 0}, "--block-size: 0"),
    ({"arrivals": []}, "--arrivals"),
    ({"arrivals": [0, 1], "batch": 2}, "drop --batch 2"),
    ({"arrivals": 5}, "--arrivals: 5 is no list of steps"),
    ({"arrivals": "0,5"}, "is no list of steps"),
    ({"arrivals": [0, "5"]}, "--arrivals: '5' is not a whole number"),
    ({"prompt_tokens": 10**9, "chunk_tokens": 1}, "more than 1,000,000 steps"),
    ({"batch": 4096, "output_tokens": 10**6, "chunk_tokens": 512}, "more than 1,000,000 steps"),
    ({"arrivals": [10**6], "output_tokens": 10}, "after step 1,000,000 are more than 1,000,000 steps"),
    ({"batch": 4096, "output_tokens": 9000, "chunk_tokens": 10**6}, "more than 10,000,000 tokens"),
]


@pytest.mark.parametrize(("given", "says"), BAD)
def test_a_bad_load_is_an_error_that_names_the_flag(given: dict[str, Any], says: str) -> None:
    with pytest.raises(kvplan.KvplanError, match=says):
        kvplan.timeline("llama-3.1-8b", **given)
