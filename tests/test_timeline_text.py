"""What `timeline` prints counts steps as its flags do, and every phase that ran."""

from __future__ import annotations

import pytest

import kvplan
from kvplan.faces.cli import main


def printed(capsys: pytest.CaptureFixture[str], *words: str, verb: str = "timeline") -> list[str]:
    """The lines of `kvplan VERB llama-3.1-8b` with more words."""
    with pytest.raises(SystemExit) as ended:
        main([verb, "llama-3.1-8b", *words])
    assert ended.value.code == 0
    return capsys.readouterr().out.splitlines()


def test_a_request_arrives_in_the_step_that_arrivals_names(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, "--arrivals", "5", "--output-tokens", "1")
    assert lines[0] == "7 steps: 1 prefill, 1 decode, 5 idle"
    assert any(line.startswith("step 5  prefill, 2,048 tokens ") for line in lines)
    assert any(line.startswith("step 6  decode, 1 token ") for line in lines)
    assert kvplan.timeline("llama-3.1-8b", arrivals=[5])["steps"][5]["phase"] == "prefill"


def test_steps_that_prefill_and_decode_are_counted_as_mixed(capsys: pytest.CaptureFixture[str]) -> None:
    load = ("--arrivals", "0,1,2,3", "--prompt-tokens", "300", "--output-tokens", "8")
    lines = printed(capsys, *load, "--chunked-prefill-size", "100")
    assert lines[0] == "21 steps: 3 prefill, 10 mixed, 8 decode"


def test_one_step_is_one_step(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, "--output-tokens", "0")[0] == "1 step: 1 prefill"
    assert any(line.startswith("1 token ") for line in printed(capsys, verb="size"))


def test_a_sequence_past_the_model_s_context_is_noted() -> None:
    def notes(output: int) -> list[str]:
        return kvplan.timeline("llama-3.1-8b", prompt_tokens=131_000, output_tokens=output)["notes"]

    assert notes(72) == []
    (note,) = notes(73)
    assert note.startswith("a sequence of 131,073 tokens is longer than the model's 131,072 (")
    assert "max_position_embeddings" in note
