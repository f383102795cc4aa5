"""`latency` answers in the contract's words, explains every number, and never promises more than physics."""

from __future__ import annotations

import functools
import json
import operator
from pathlib import Path
from typing import Any

import pytest

import kvplan
from kvplan.errors import BadInput
from kvplan.faces.cli import main
from kvplan.facts.catalogue import entries
from test_figure import assert_all_true, numbers_without_a_figure

MODELS = ("llama-3.1-8b", "deepseek-v3", "gemma-3-27b", "qwen3-next-80b-a3b", "gpt-oss-120b", "deepseek-v3.2")
LOADS: tuple[dict[str, Any], ...] = (
    {"batch": 8},
    {"concurrency": 64, "tpot": 0.05},
    {"rate": 0.5, "prompt_tokens": 20_000},
    {"batch": 4, "speculative_tokens": 2},
    {"concurrency": 4, "speculative_tokens": 3, "context_depth": 500, "shared_prefix_tokens": 1000},
)
TIMES = {"seconds", "step_seconds", "lower_bound_seconds", "low_seconds", "high_seconds"}


@pytest.mark.parametrize("load", LOADS, ids=str)
@pytest.mark.parametrize("model", MODELS)
def test_every_number_is_explained_by_a_formula_that_reads_back_to_it(model: str, load: Any) -> None:
    answer = kvplan.latency(model, gpu="h200", tp=8, **load)
    figures = answer.figures()
    assert sum(assert_all_true(figure) for figure in figures.values()) > 100
    for path, figure in figures.items():
        told = functools.reduce(operator.getitem, path.split("."), answer)
        assert told == pytest.approx(figure.value, rel=1e-12)
    assert numbers_without_a_figure(answer, figures) - {"deployment.accelerators"} == set()


@pytest.mark.parametrize("entry", entries(), ids=lambda e: e.id)
def test_every_built_in_model_has_times_between_floor_and_forever(entry: Any) -> None:
    answer = kvplan.latency(entry.id, gpu="b300", max_model_len=4096, concurrency=16)
    for name, key in (("prefill", "seconds"), ("decode", "step_seconds")):
        part, rows = answer[name], answer["operations"][name]
        assert 0 < part["lower_bound_seconds"] <= part[key] < 1e4
        assert part["low_seconds"] is None or part["low_seconds"] <= part[key] <= part["high_seconds"]
        assert sum(r["lower_bound_seconds"] for r in rows) == pytest.approx(part["lower_bound_seconds"])
        assert sum(r["share"] for r in rows) == pytest.approx(1)
        assert [type(part[k]) for k in ("flops", "bytes_read")] == [int, int]


def test_operations_sum_to_the_estimate() -> None:
    answer = kvplan.latency("llama-3.1-70b", gpu="h100", tp=4, batch=16)
    for name, key in (("prefill", "seconds"), ("decode", "step_seconds")):
        spent = sum(row["seconds"] for row in answer["operations"][name])
        assert spent == pytest.approx(answer[name][key])


@pytest.mark.parametrize("split", [{}, {"tp": 2}, {"pp": 2}])
def test_a_step_with_drafts_has_the_drafting_in_it(split: dict[str, int]) -> None:
    words = {"gpu": "h100", "batch": 8, **split}
    plain = kvplan.latency("llama-3.1-8b", **words)["decode"]
    answer = kvplan.latency("llama-3.1-8b", speculative_tokens=3, acceptance=0.0, **words)
    decode, rows = answer["decode"], {row["name"]: row for row in answer["operations"]["decode"]}
    assert decode["step_seconds"] == pytest.approx(answer["serving"]["tpot_seconds"])
    assert decode["step_seconds"] == pytest.approx(sum(row["seconds"] for row in rows.values()))
    assert rows["drafting"]["seconds"] > 0
    assert decode["step_seconds"] - rows["drafting"]["seconds"] > plain["step_seconds"]
    assert decode["lower_bound_seconds"] <= decode["low_seconds"] <= decode["step_seconds"]


@pytest.mark.parametrize(
    ("gpu", "engine"),
    [("mi355x", "vllm"), ("rtx5090", "sglang"), ("gaudi3", "vllm"), ("m4-max", "llama.cpp"),
     ("h100", "transformers")],
)  # fmt: skip
def test_what_was_never_measured_is_assumed_and_its_interval_no_narrower(gpu: str, engine: str) -> None:
    words: dict[str, Any] = {"batch": 1, "kv_cache_dtype": "auto"}
    known = kvplan.latency("llama-3.1-8b", gpu="h100", **words)
    answer = kvplan.latency("llama-3.1-8b", gpu=gpu, engine=engine, **words)
    assert any(said.startswith(f"assumed: {engine} on ") for said in answer["basis"])
    assert not any(said.startswith("assumed") for said in known["basis"])
    floors = {
        "ttft_seconds": answer["prefill"]["lower_bound_seconds"],
        "tpot_seconds": answer["decode"]["lower_bound_seconds"],
    }
    for figure in ("ttft_seconds", "tpot_seconds", "output_tokens_per_second"):
        (low, high), (near, far) = (
            (s["low"][figure] / s[figure], s["high"][figure] / s[figure])
            for s in (answer["serving"], known["serving"])
        )
        floor = floors.get(figure)
        assert low <= near + 1e-12 or answer["serving"]["low"][figure] == pytest.approx(floor)
        assert high >= far - 1e-12
        assert low <= 1 <= high


def test_replicas_multiply_rates_and_leave_times() -> None:
    one = kvplan.latency("llama-3.1-8b", gpu="h100", concurrency=16)["serving"]
    two = kvplan.latency("llama-3.1-8b", gpu="h100", dp=2, concurrency=32)["serving"]
    assert two["tpot_seconds"] == pytest.approx(one["tpot_seconds"])
    assert two["output_tokens_per_second"] == pytest.approx(2 * one["output_tokens_per_second"])


@pytest.mark.parametrize("load", [{"concurrency": 1}, {"batch": 3}, {"batch": 1}], ids=str)
def test_replicas_without_a_request_add_nothing(load: dict[str, int]) -> None:
    (amount,) = load.values()
    one = kvplan.latency("llama-3.1-8b", gpu="h100", **{k: -(-v // 2) for k, v in load.items()})["serving"]
    two = kvplan.latency("llama-3.1-8b", gpu="h100", dp=2, **load)["serving"]
    assert two["ttft_seconds"] == pytest.approx(one["ttft_seconds"])
    each = one["output_tokens_per_second"] / one["concurrency"]
    assert two["output_tokens_per_second"] == pytest.approx(amount * each)
    assert two["concurrency"] == amount


@pytest.mark.parametrize("rate", [0.01, 3, 1000])
def test_concurrency_is_a_whole_number_under_a_rate_too(rate: float) -> None:
    answer = kvplan.latency("llama-3.1-8b", gpu="h100", rate=rate)
    assert type(answer["serving"]["concurrency"]) is int
    alone = kvplan.latency("llama-3.1-8b", gpu="h100", batch=1)["decode"]
    assert answer["decode"]["step_seconds"] >= alone["step_seconds"]


def test_what_does_not_fit_has_no_serving_figures_and_says_so() -> None:
    answer = kvplan.latency("llama-3.1-70b", gpu="h100", concurrency=4)
    assert answer["serving"]["tpot_seconds"] is None
    assert answer["batches"]["capacity_batch"] == 0
    assert any("does not fit" in note for note in answer["notes"])


def test_a_rate_above_capacity_has_no_steady_state() -> None:
    answer = kvplan.latency("llama-3.1-8b", gpu="h100", rate=1000)
    assert answer["serving"]["ttft_seconds"] is None
    assert answer["serving"]["output_tokens_per_second"] > 0
    assert any("1000 requests a second are more" in note for note in answer["notes"])


def test_the_batch_within_a_goal_meets_it_and_one_more_does_not() -> None:
    goal = kvplan.latency("llama-3.1-8b", gpu="h100", tpot="20ms")["batches"]["goal"]
    assert goal["limit"] == "tpot"
    for more, met in ((0, True), (1, False)):
        asked = {"concurrency": goal["batch"] + more}
        found = kvplan.latency("llama-3.1-8b", gpu="h100", **asked)["serving"]
        assert (found["tpot_seconds"] <= 0.020) is met


def test_a_command_is_read_as_fit_reads_it() -> None:
    words = {"engine_version": "0.19", "gpu": "h100", "concurrency": 8}
    pasted = kvplan.latency(command="vllm serve llama-3.1-70b -tp 4 --kv-cache-dtype fp8", **words)
    given = kvplan.latency("llama-3.1-70b", tp=4, kv_cache_dtype="fp8", **words)
    assert pasted["serving"] == given["serving"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "--gpu: missing"),
        (("--gpu", "cpu"), "--gpu: times need an accelerator"),
        (("--gpu", "h100", "--prompt-tokens", "0"), "--prompt-tokens: 0"),
        (("--gpu", "h100", "--prompt-tokens", "999999999"), "--max-model-len"),
        (("--gpu", "h100", "--batch", "2", "--rate", "3"), "--rate: --batch is given too"),
        (("--gpu", "h100", "--trace", "x"), "--trace: replays a trace in kvplan simulate"),
        (("--gpu", "h100", "--tpot-p99", "20ms"), "latency takes means, --tpot"),
        (("--gpu", "h100", "--tpot", "20"), "write a unit"),
        (("--gpu", "h100", "--acceptance", "0.5"), "give --speculative-tokens too"),
        (("--gpu", "h100", "--rate", "nan"), "--rate: nan"),
        (("--gpu", "h100", "--tp", "16", "--dcp", "2"), "--dcp: 2 ranks would share a context"),
    ],
)
def test_bad_words_are_one_line_and_status_2(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["latency", "llama-3.1-8b", *words])
    captured = capsys.readouterr()
    assert ended.value.code == 2
    assert said in captured.err
    assert captured.err.count("\n") == 1


def test_cases_are_answered_line_by_line_in_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = {
        "model": "llama-3.1-8b", "gpu": "h100", "n_gpus": 1, "engine_name": "vllm",
        "mode": "closed-loop-concurrency", "concurrency_or_batch": 8, "isl": 1000, "osl": 100,
    }  # fmt: skip
    path = tmp_path / "cases.jsonl"
    lines = (json.dumps(row), "[1]", "{", json.dumps({**row, "gpu": "no-such-card"}), json.dumps(row))
    nothing = {**row, "mode": "llama-bench-tg", "concurrency_or_batch": 1, "isl": 0, "osl": 1}
    lines = (*lines, json.dumps(nothing))
    path.write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(SystemExit) as ended:
        main(["latency", "--cases", str(path), "--json"])
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert ended.value.code == 0
    assert ["error" in one for one in found] == [False, True, True, True, False, True]
    assert found[0] == found[4]
    assert set(found[0]) >= {"prefill", "decode", "serving"}


def test_the_report_begins_with_what_users_see(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["latency", "llama-3.1-8b", "--gpu", "h100", "--concurrency", "8", "--tpot", "20ms"])
    out = capsys.readouterr().out
    places = [
        out.index(word) for word in ("TTFT", "prefill of 1 prompt", "decode step", "which batch", "rests on")
    ]
    assert places == sorted(places)
    assert "TPOT within 20.00 ms: up to" in out


def test_check_turns_a_missed_goal_into_exit_status_1() -> None:
    for goal, status in (("1us", 1), ("1s", 0)):
        with pytest.raises(SystemExit) as ended:
            main(["latency", "llama-3.1-8b", "--gpu", "h100", "--batch", "8", "--tpot", goal, "--check"])
        assert (ended.value.code or 0) == status


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"model": "qwen3-30b-a3b", "ep": 8}, "--ep: 8 ranks share the experts and 1 are there"),
        ({"model": "llama-3.1-8b", "tp": 2, "ep": 2}, "has none"),
        ({"model": "llama-3.1-8b", "tp": 4, "attention_dp": 3}, "--attention-dp: 3 does not divide --tp 4"),
    ],
)
def test_ranks_that_are_not_there_share_nothing(words: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        kvplan.latency(gpu="h100", **words)


def test_four_bit_weights_are_multiplied_in_sixteen_where_there_is_no_narrower_peak() -> None:
    words = {"gpu": "h100", "batch": 8, "prompt_tokens": 4096}
    narrow, wide = (kvplan.latency("llama-3.1-8b", quantization=q, **words) for q in ("nvfp4", "awq"))
    assert narrow["ridge_point"] == wide["ridge_point"] == pytest.approx(989e12 / 3.35e12, rel=1e-3)
    assert narrow["prefill"]["seconds"] == pytest.approx(wide["prefill"]["seconds"], rel=0.1)
    assert narrow["prefill"]["lower_bound_seconds"] <= wide["prefill"]["lower_bound_seconds"]


def test_a_shared_prefix_is_held_once() -> None:
    words = {"gpu": "h100", "concurrency": 64, "prompt_tokens": 2048, "output_tokens": 256}
    alone, shared = (
        kvplan.latency("llama-3.1-8b", shared_prefix_tokens=n, **words)["batches"]["capacity_batch"]
        for n in (0, 1024)
    )
    pool = kvplan.fit("llama-3.1-8b", gpu="h100")["capacity"]["kv_tokens"]
    own = 2048 + 128 - 1024
    assert alone == pytest.approx(pool / (2048 + 128), rel=0.01)
    assert shared == pytest.approx((pool - 1024) / own, rel=0.01)


def test_the_intensity_counts_the_experts_that_a_batch_reaches() -> None:
    few, many = (
        kvplan.latency("mixtral-8x7b", gpu="h100", tp=2, batch=n, prompt_tokens=128)["decode"]
        for n in (1, 64)
    )
    assert few["expected_bytes_read"] == pytest.approx(few["bytes_read"], rel=1e-6)
    assert many["expected_bytes_read"] > 2 * many["bytes_read"] * 0.95
    assert many["arithmetic_intensity"] == pytest.approx(many["flops"] / many["expected_bytes_read"])


@pytest.mark.parametrize("load", LOADS, ids=str)
@pytest.mark.parametrize("model", MODELS)
def test_what_is_served_is_never_below_the_floor_of_the_same_answer(model: str, load: Any) -> None:
    answer = kvplan.latency(model, gpu="h200", tp=8, **load)
    serving, drafts = answer["serving"], load.get("speculative_tokens", 0)
    for part in (serving, serving["low"]):
        if part["ttft_seconds"] is not None:
            assert part["ttft_seconds"] >= answer["prefill"]["lower_bound_seconds"] * (1 - 1e-9)
        if part["tpot_seconds"] is not None and not drafts:
            assert part["tpot_seconds"] >= answer["decode"]["lower_bound_seconds"] * (1 - 1e-9)
