"""Rows of published benchmark tables as cases: what they mean, and what cannot be answered."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvplan.errors import KvplanError
from kvplan.facts import store
from kvplan.facts.readings import applied_rules, weights_word
from kvplan.verbs.cases import read_case

MEASURED = Path(__file__).parent / "data" / "measured.jsonl"
ROW: dict[str, Any] = {
    "config": "meta-llama__Llama-3.1-8B-Instruct.json",
    "weight_dtype": "bf16",
    "kv_dtype": None,
    "gpu_key": "h100-sxm",
    "n_gpus": 1,
    "tp": None,
    "engine_name": "vllm",
    "engine_version": "0.19.0",
    "mode": "closed-loop-concurrency",
    "concurrency_or_batch": 16,
    "isl": 2000,
    "osl": 300,
}


def row(**changed: Any) -> dict[str, Any]:
    return ROW | changed


def test_a_row_becomes_a_clock_a_load_and_a_policy() -> None:
    case = read_case(row())
    assert (case.mode, case.amount, case.engine) == ("concurrency", 16.0, "vllm")
    assert (case.load.prompt_tokens, case.load.output_tokens) == (2000, 300)
    assert case.clock.ops.ranks.tp == 1
    assert case.policy.running > 16


def test_tensor_parallel_ranks_are_all_gpus_where_a_row_leaves_them_out() -> None:
    assert read_case(row(n_gpus=4)).clock.ops.ranks.tp == 4


def test_a_table_that_squares_its_ranks_is_read_as_so_many_gpus() -> None:
    squared = row(
        config="deepseek-ai__DeepSeek-R1.json", weight_dtype="fp8", n_gpus=64, tp=64, ep=8, moe_tp=8, moe_ep=8
    )
    case = read_case(squared)
    assert (case.clock.ops.ranks.tp, case.clock.ops.ranks.ep) == (8, 8)
    assert "product is not a count" in case.notes[0]


def test_ranks_that_are_honestly_so_many_are_left_alone() -> None:
    honest = row(
        config="deepseek-ai__DeepSeek-R1.json",
        weight_dtype="fp8",
        n_gpus=8,
        tp=8,
        moe_tp=2,
        moe_ep=4,
        gpu_key="h200",
    )
    assert read_case(honest).notes == ()
    assert read_case(honest).clock.ops.ranks.ep == 4


def test_attention_data_parallel_ranks_attend_apart_and_share_experts() -> None:
    case = read_case(
        row(
            config="deepseek-ai__DeepSeek-R1.json",
            weight_dtype="fp8",
            n_gpus=8,
            tp=1,
            attention_dp=8,
            moe_ep=8,
        )
    )
    assert (case.clock.ops.ranks.tp, case.clock.ops.ranks.attention_tp, case.clock.ops.ranks.ep) == (8, 1, 8)


def test_llama_cpp_deals_layers_to_its_devices_one_after_another() -> None:
    case = read_case(row(engine_name="llama.cpp", n_gpus=4, mode="llama-bench-tg", weight_dtype="Q4_K_M"))
    assert (case.clock.ops.ranks.tp, case.clock.ops.ranks.pp) == (1, 4)
    assert case.load.prompt_tokens == 0


def test_a_card_of_two_devices_counts_as_two_ranks() -> None:
    case = read_case(row(gpu_key="mi250", n_gpus=2))
    assert case.clock.ops.ranks.tp == 4
    assert case.clock.bandwidth == pytest.approx(1.6385e12)


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"config": "no__such-model.json"}, "config"),
        ({"config": None}, "config"),
        ({"gpu_key": "h1000"}, "gpu_key"),
        ({"gpu_key": None}, "gpu_key"),
        ({"mode": "guess"}, "mode"),
        ({"mode": None}, "mode"),
        ({"isl": None}, "isl"),
        ({"isl": 0}, "isl"),
        ({"osl": "many"}, "osl"),
        ({"osl": float("nan")}, "osl"),
        ({"concurrency_or_batch": None}, "concurrency_or_batch"),
        ({"concurrency_or_batch": -3}, "concurrency_or_batch"),
        ({"mode": "open-loop-rate"}, "request_rate"),
        ({"mode": "open-loop-rate", "request_rate": 0}, "request_rate"),
        ({"n_gpus": 28}, "tp"),
        ({"n_gpus": True}, "n_gpus"),
        ({"disagg": True}, "disagg"),
        ({"weight_dtype": "fp3"}, "quantization"),
    ],
)
def test_what_cannot_be_read_names_its_field(changed: dict[str, Any], field: str) -> None:
    with pytest.raises(KvplanError, match=field):
        read_case(row(**changed))


def test_every_rule_says_why_and_sets_something() -> None:
    for rule in store.toml("efficiency/readings.toml")["rules"]:
        assert len(rule["why"]) > 40
        assert rule["then"]
        assert rule["where"]


def test_every_word_for_weights_in_the_measured_rows_is_known() -> None:
    words = {json.loads(line)["weight_dtype"] for line in MEASURED.read_text("utf-8").splitlines()}
    unknown = {w for w in words if weights_word(w) is None and not w.lower().startswith("q")}
    assert unknown == set()


def test_a_rule_holds_only_where_all_of_its_fields_do() -> None:
    inferencemax = row(engine_name="sglang", isl=1024, osl=8192)
    assert {key for rule in applied_rules(inferencemax) for key in rule["then"]} == {
        "stream_interval",
        "kv_dtype",
    }
    assert applied_rules(inferencemax | {"isl": 1000}) == []


def test_almost_every_measured_row_with_its_inputs_is_answered() -> None:
    rows = [json.loads(line) for line in MEASURED.read_text("utf-8").splitlines()]
    asked = [
        r
        for r in rows
        if r.get("config") and r.get("gpu_key") and r.get("isl") is not None and r.get("osl") is not None
        and not r.get("disagg") and (r["mode"] != "open-loop-rate" or r.get("request_rate"))
    ]  # fmt: skip
    answered = 0
    for r in asked:
        try:
            read_case(r)
        except KvplanError:
            continue
        answered += 1
    assert len(asked) > 2900
    assert answered / len(asked) >= 0.95
