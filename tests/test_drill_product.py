"""Answers to practice questions are what the verbs themselves answer, and their commands run."""

from __future__ import annotations

import contextlib
import io
import shlex
from collections.abc import Callable
from typing import Any

import pytest

import kvplan
from kvplan.drills.deck import Template, decks, models_of
from kvplan.drills.draw import Draw
from kvplan.drills.question import Question
from kvplan.drills.worked import hint, solution, steps
from kvplan.errors import KvplanError
from kvplan.faces.cli import main
from kvplan.facts.catalogue import entries
from kvplan.verbs.drill_build import ASKERS, built

SLOW = {"latency": 16, "levers": 6}  # verbs that take their time: one of so many commands is run


def drawn(topic: str, name: str, count: int = 3) -> list[Question]:
    """A few questions of one template."""
    (template,) = [t for t in decks()[topic].templates if t.name == name]
    return [q for q in (tried(template, place) for place in range(400)) if q is not None][:count]


def tried(template: Template, place: int) -> Question | None:
    try:
        return built(template, Draw(3, place))
    except KvplanError:
        return None


def size(g: dict[str, Any]) -> Any:
    known = {k: g[k] for k in ("tokens", "batch", "tp") if k in g}
    return kvplan.size(g["model"], kv_cache_dtype=g.get("dtype", "bfloat16"), **known)["kv"]


def timeline(g: dict[str, Any]) -> Any:
    return kvplan.timeline(
        g["model"],
        prompt_tokens=g["prompt"],
        output_tokens=g.get("output", 0),
        batch=g.get("batch", g.get("prompts", 1)),
        chunk_tokens=g.get("chunk"),
        kv_cache_dtype=g.get("dtype", "bfloat16"),
    )


def prefills(g: dict[str, Any]) -> int:
    return len(timeline(g)["steps"])


def fit(g: dict[str, Any], **flags: Any) -> Any:
    dtype = "fp8" if g.get("dtype") == "fp8" else None
    pool = f"{g['pool']}GiB"
    return kvplan.fit(
        g["model"], kv_cache_memory_bytes=pool, tp=g.get("tp", 1), kv_cache_dtype=dtype, **flags
    )["capacity"]


def vllm(g: dict[str, Any]) -> Any:
    return fit(g, max_model_len=g["length"], block_size=g.get("block", 16))


def latency(g: dict[str, Any]) -> Any:
    """One decode step at exactly that context: the middle of an output of none."""
    return kvplan.latency(
        g["model"],
        gpu=g["gpu"],
        batch=g.get("batch", 1),
        context_depth=g["context"] - 2,
        prompt_tokens=1,
        output_tokens=2,
    )


def matrices(g: dict[str, Any]) -> float:
    """What the matrices of a prompt take, as `latency --explain prefill.flops` lists them."""
    found = kvplan.latency(g["model"], gpu="h200", batch=1, prompt_tokens=g["prompt"]).figures()[
        "prefill.flops"
    ]
    parts = {part.name: part.value for part in found.named_parts() if "attention" not in part.name}
    layers = kvplan.size(g["model"])["model"]["layers"]
    return sum(value * (1 if name == "head_flops" else layers) for name, value in parts.items())


SAME: dict[tuple[str, str], Callable[[dict[str, Any]], float]] = {
    ("bytes-per-token", "grouped"): lambda g: size(g)["bytes_per_token"],
    ("bytes-per-token", "latent"): lambda g: size(g)["bytes_per_token"],
    ("bytes-per-token", "windows-full"): lambda g: size(g)["bytes_per_token_after_windows"],
    ("sequences-and-batches", "hybrid-sequence"): lambda g: size(g)["bytes_per_sequence"],
    ("sequences-and-batches", "batch"): lambda g: size(g)["bytes_total"],
    ("prefill-and-decode", "prompt"): lambda g: timeline(g)["prefill_bytes"],
    ("prefill-and-decode", "windowed-output"): lambda g: timeline(g)["decode_bytes"],
    ("prefill-and-decode", "windowed-share"): lambda g: timeline(g)["decode_share"],
    ("chunked-prefill", "steps"): prefills,
    ("chunked-prefill", "several"): prefills,
    ("chunked-prefill", "last"): lambda g: timeline(g)["steps"][-1]["tokens"],
    ("chunked-prefill", "claims"): lambda g: timeline(g)["steps"][0]["bytes"],
    ("engines", "vllm-tokens"): lambda g: vllm(g)["kv_tokens"],
    ("engines", "vllm-concurrency"): lambda g: vllm(g)["max_concurrency"],
    ("engines", "vllm-blocks"): lambda g: vllm(g)["num_blocks"],
    ("engines", "vllm-block-bytes"): lambda g: vllm(g)["bytes_per_block"],
    ("engines", "sglang"): lambda g: fit(g, engine="sglang")["kv_tokens"],
    ("engines", "tensorrt-llm"): lambda g: fit(g, engine="tensorrt-llm")["kv_tokens"],
}
# Floors count norms or the positions of a step's middle apart: the same to a thousandth.
NEAR: dict[tuple[str, str], Callable[[dict[str, Any]], float]] = {
    ("intensity", "ridge"): lambda g: kvplan.latency("llama-3.2-1b", gpu=g["gpu"])["ridge_point"],
    ("decode-step", "batch"): lambda g: latency(g)["decode"]["lower_bound_seconds"],
    ("time-to-first-token", "operations"): matrices,
}


@pytest.mark.parametrize(("topic", "name"), SAME)
def test_an_answer_is_that_of_the_verb(topic: str, name: str) -> None:
    for q in drawn(topic, name):
        assert q.value == SAME[topic, name](dict(q.given)), q.text


@pytest.mark.parametrize(("topic", "name"), NEAR)
def test_a_floor_is_that_of_latency(topic: str, name: str) -> None:
    plain = {"tp": 1, "compute": "bf16"}
    questions = [q for q in drawn(topic, name, 12) if all(q.given.get(k, v) == v for k, v in plain.items())]
    for q in questions[:2]:
        assert q.value == pytest.approx(NEAR[topic, name](dict(q.given)), rel=1e-3), q.text


def test_decoding_sequences_take_their_tokens_of_a_step_first() -> None:
    for q in drawn("chunked-prefill", "beside-decoding", 5):
        g = q.given
        decoding = {
            "prompt_tokens": 1,
            "output_tokens": 60,
            "batch": g["decoding"],
            "chunk_tokens": g["chunk"],
        }
        assert kvplan.timeline("llama-3.2-1b", **decoding)["steps"][1]["tokens"] == g["decoding"]
        assert q.value == -(-g["prompt"] // (g["chunk"] - g["decoding"]))


def test_every_command_of_a_question_runs() -> None:
    slow: dict[str, int] = dict.fromkeys(SLOW, 0)
    for deck in decks().values():
        for template in deck.templates:
            q = next(q for q in (tried(template, place) for place in range(400)) if q is not None)
            verb, *words = shlex.split(q.command)[1:]
            if verb in slow:
                slow[verb] += 1
                if slow[verb] % SLOW[verb]:
                    continue
            assert run(verb, *words) == 0, q.command


def run(*words: str) -> int:
    quiet = io.StringIO()
    with (
        contextlib.redirect_stdout(quiet),
        contextlib.redirect_stderr(quiet),
        pytest.raises(SystemExit) as ended,
    ):
        main(list(words))
    return int(ended.value.code or 0)


def test_every_model_of_a_deck_is_a_built_in_one_and_every_asker_is_asked() -> None:
    ids = {entry.id for entry in entries()}
    templates = [t for deck in decks().values() for t in deck.templates]
    assert {id for t in templates for id in models_of(t)} <= ids
    assert {t.asks for t in templates} == set(ASKERS)


def test_the_way_to_an_answer_names_every_step_once_and_in_order() -> None:
    figure = kvplan.size("llama-2-70b", tokens=4096, batch=64).figures()["kv.bytes_total"]
    names = [step.name for step in steps(figure)]
    assert names == ["head_bytes_per_token", "full_bytes_per_token", "bytes_per_sequence", "bytes_total"]
    assert not any(digit in hint(figure) for digit in "0123456789")
    assert solution(figure, None).splitlines()[-1].endswith("= 85,899,345,920 B")
