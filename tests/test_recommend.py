"""`recommend` names the fewest accelerators that meet the goals, cheapest first, and `simulate` agrees."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest

import kvplan
from kvplan.errors import BadInput

TRACES = Path(__file__).parent / "data" / "traces"
BASE: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "gpu": "l40s,h100",
    "rate": 12,
    "requests": 200,
    "prompt_tokens": 800,
    "output_tokens": 120,
    "ttft_p99": "1s",
    "tpot_p99": "45ms",
    "max_accelerators": 8,
}
GOALS = {"ttft_p99_seconds": 1.0, "tpot_p99_seconds": 0.045}


@functools.cache
def recommended(**words: Any) -> Any:
    given = {**BASE, **words}
    return kvplan.recommend(**{name: value for name, value in given.items() if value is not None})


def played(row: dict[str, Any], words: dict[str, Any], seed: int, replicas: int | None = None) -> Any:
    """The deployment of a row, as a user would simulate it."""
    d = row["deployment"]
    split = {part: d[part] for part in ("tp", "pp", "ep", "attention_dp") if d[part] > 1}
    count = d["replicas"] if replicas is None else replicas
    load = {name: value for name, value in words.items() if name in LOAD and value is not None}
    return kvplan.simulate(
        d["model"],
        gpu=d["accelerator"],
        engine=d["engine"],
        engine_version=d["engine_version"],
        quantization=d["quantization"],
        kv_cache_dtype=d["kv_cache_dtype"],
        dp=d["dp"] * count,
        routing=d["routing"] if count > 1 else None,
        seed=seed,
        **split,
        **load,
        **d["settings"],
    )


LOAD = (
    "rate", "concurrency", "requests", "prompt_tokens", "output_tokens", "trace", "shared_prefix_tokens",
    "turns", "think", "arrivals", "speculative_tokens", "acceptance",
)  # fmt: skip


def meets(run: Any, goals: dict[str, float]) -> bool:
    kinds = {name: run[name.replace("_p99", "")]["p99"] for name in goals}
    return not run["rejected"] and all(kinds[name] <= goal for name, goal in goals.items())


def test_the_document_has_the_contracts_keys_and_nothing_infinite() -> None:
    answer = recommended()
    assert {"met", "answers", "front", "rejected"} <= set(answer)
    assert json.loads(json.dumps(answer, allow_nan=False)) == answer
    wanted = {
        "deployment", "accelerators", "cost_per_hour", "ttft_p99_seconds", "tpot_p99_seconds",
        "output_tokens_per_second", "reason", "launch",
    }  # fmt: skip
    for row in answer["answers"]:
        assert wanted <= set(row)
        d = row["deployment"]
        assert row["accelerators"] == d["replicas"] * d["tp"] * d["pp"] * d["dp"]
    assert answer["met"] is True
    assert answer["nearest"] is None


def test_an_answers_figures_are_those_of_simulate() -> None:
    for row in recommended()["answers"]:
        first, again = (played(row, BASE, seed) for seed in (0, 1))
        for kind in ("ttft", "tpot", "e2e"):
            assert row[f"{kind}_p99_seconds"] == pytest.approx(first[f"{kind}_seconds"]["p99"])
            assert row["again"][f"{kind}_p99_seconds"] == pytest.approx(again[f"{kind}_seconds"]["p99"])
        assert row["output_tokens_per_second"] == pytest.approx(first["output_tokens_per_second"])
        assert first["deployment"]["accelerators"] == row["accelerators"]


@pytest.mark.parametrize("seed", [2, 3, 4])
def test_other_requests_meet_the_goals_too_or_the_answer_has_said_by_how_much_not(seed: int) -> None:
    for row in recommended()["answers"]:
        run = played(row, BASE, seed)
        if not meets(run, GOALS):
            assert row["slow"]["met"] is False
            assert "times its goal" in row["reason"]
            for name in GOALS:
                assert run[name.replace("_p99", "")]["p99"] <= row["slow"][name]


@pytest.mark.parametrize(
    "words", [{"gpu": "l4", "tpot_p99": "60ms", "max_accelerators": 32}, {"rate": 30, "gpu": "l40s"}], ids=str
)
def test_one_replica_fewer_misses_or_is_overrun(words: dict[str, Any]) -> None:
    row = recommended(**{**words, "max_accelerators": 32})["answers"][0]
    count = row["deployment"]["replicas"]
    assert count > 1
    goals = {**GOALS, "tpot_p99_seconds": 0.06} if "tpot_p99" in words else GOALS
    if "would be overrun" in row["reason"]:
        load = {**BASE, **words, "requests": 4000}
        late = played(row, load, 0, count - 1)
        assert late["ttft_seconds"]["p99"] > 2 * played(row, load, 0)["ttft_seconds"]["p99"]
    else:
        fewer = [played(row, {**BASE, **words}, seed, count - 1) for seed in (0, 1)]
        assert not all(meets(run, goals) for run in fewer)


def test_a_short_run_does_not_hide_that_a_load_piles_up() -> None:
    words = {"gpu": "l4", "rate": 8, "max_accelerators": 32, "ttft_p99": "20s", "tpot_p99": "200ms"}
    short, long = (recommended(**words, requests=n)["answers"][0] for n in (100, 3000))
    assert "would be overrun by a load that goes on" in short["reason"]
    assert short["accelerators"] >= 0.7 * long["accelerators"]


def test_answers_are_ranked_by_cost_and_stand_for_different_kinds() -> None:
    rows = recommended(gpu="l4,l40s,h100,a100-80-sxm", answers=10)["answers"]
    costs = [row["cost_per_hour"] for row in rows]
    assert costs == sorted(costs)
    assert len(rows) > 2
    assert len({row["deployment"]["accelerator"] for row in rows}) == len(rows)


def test_given_prices_change_the_ranking_and_nothing_else() -> None:
    listed = recommended()["answers"]
    dear = recommended(price="l40s=50")["answers"]
    assert [row["deployment"]["accelerator"] for row in listed] == ["l40s", "h100-sxm"]
    assert [row["deployment"]["accelerator"] for row in dear] == ["h100-sxm", "l40s"]
    assert {row["launch"] for row in listed} == {row["launch"] for row in dear}
    assert dear[1]["cost_per_hour"] == 50 * dear[1]["accelerators"]


def test_what_has_no_price_comes_after_all_that_has_one() -> None:
    rows = recommended(gpu="h20,h100")["answers"]
    assert [row["deployment"]["accelerator"] for row in rows] == ["h100-sxm", "h20"]
    assert rows[1]["cost_per_hour"] is None
    assert rows[1]["cost_per_million_output_tokens"] is None
    assert "not known" in rows[1]["reason"]


def test_without_any_price_the_front_is_of_accelerators_against_time() -> None:
    front = recommended(gpu="h20", max_accelerators=4)["front"]
    assert len(front) > 1
    assert [row["accelerators"] for row in front] == sorted(row["accelerators"] for row in front)
    assert all(row["cost_per_hour"] is None for row in front)


@pytest.mark.parametrize(
    "words",
    [
        {"tpot_p99": "2ms", "ttft_p99": "20ms"},
        {"gpu": "l4", "ttft_p99": "100ms", "tpot_p99": None},
        {"rate": None, "concurrency": 40, "e2e_p99": "400ms", "ttft_p99": None, "tpot_p99": None},
    ],
    ids=str,
)
def test_goals_relaxed_as_the_nearest_says_are_met(words: dict[str, Any]) -> None:
    answer = recommended(**words)
    assert answer["met"] is False
    assert answer["answers"] == []
    near = answer["nearest"]
    assert near["relax"].keys() == {OPTIONS[kind] for kind in near["misses"]}
    assert all(ratio > 1 for ratio in near["misses"].values())
    given = {option.removeprefix("--").replace("-", "_"): value for option, value in near["relax"].items()}
    again = recommended(**{**words, **given})
    assert again["met"] is True
    assert again["answers"][0]["cost_per_hour"] <= near["cost_per_hour"]


OPTIONS = {"ttft_seconds": "--ttft-p99", "tpot_seconds": "--tpot-p99", "e2e_seconds": "--e2e-p99"}


def test_the_front_is_a_front() -> None:
    front = recommended()["front"]
    assert len(front) > 2
    points = [(row["cost_per_hour"], row["e2e_mean_seconds"]) for row in front]
    assert points == sorted(points)
    assert [seconds for _, seconds in points] == sorted((seconds for _, seconds in points), reverse=True)
    assert len({usd for usd, _ in points}) == len({seconds for _, seconds in points}) == len(points)
    assert any(row["met"] for row in front)


def test_the_same_seed_gives_the_same_bytes_and_another_other_requests() -> None:
    words = {**BASE, "gpu": "h100"}
    first, again, other = (json.dumps(kvplan.recommend(**words, seed=seed)) for seed in (3, 3, 4))
    assert first == again
    assert first != other


def test_processes_give_the_document_that_one_process_gives() -> None:
    words = {**BASE, "gpu": "l40s,h100,a100-80-sxm"}
    assert json.dumps(kvplan.recommend(**words, workers=2)) == json.dumps(kvplan.recommend(**words))


@pytest.mark.parametrize(
    "words",
    [
        {"rate": None, "concurrency": 24},
        {"rate": None, "concurrency": 24, "think": "2s"},
        {"rate": 6, "arrivals": "gamma(3)"},
        {"rate": 1, "arrivals": "ramp(12, 30)"},
        {"rate": 2, "turns": "uniform(2, 5)", "think": "3s", "system_tokens": 300},
        {"shared_prefix_tokens": 600},
        {"speculative_tokens": 3, "acceptance": 0.7},
        {"prompt_tokens": "lognormal(700, 500)", "output_tokens": "uniform(10, 200)"},
        {"engine": "sglang"},
        {"engine": "tensorrt-llm"},
        {"quantization": "own,fp8", "kv_cache_dtype": "auto,fp8"},
        {"gpu": "mi300x", "engine": "sglang"},
        {"max_accelerators": 1},
        {"max_num_batched_tokens": 2048, "gpu_memory_utilization": 0.8},
    ],
    ids=str,
)
def test_every_kind_of_load_and_deployment_is_answered(words: dict[str, Any]) -> None:
    answer = recommended(**words)
    assert answer["met"] is True
    row = answer["answers"][0]
    assert row["launch"]
    if not {"turns", "speculative_tokens"} & words.keys():
        assert meets(played(row, {**BASE, **words}, 0), GOALS)


def test_a_tenfold_rate_takes_about_ten_times_as_many() -> None:
    few, many = (recommended(gpu="l40s", rate=r, requests=600, max_accelerators=64) for r in (8, 80))
    ratio = many["answers"][0]["accelerators"] / few["answers"][0]["accelerators"]
    assert 4 <= ratio <= 12


@pytest.mark.parametrize("name", ["azure_conv.csv", "azure_code.csv", "mooncake_conversation.jsonl"])
def test_a_trace_is_replayed_in_its_one_course(name: str) -> None:
    words = {
        "trace": str(TRACES / name), "rate": None, "prompt_tokens": None, "output_tokens": None,
        "requests": 150, "ttft_p99": "20s", "tpot_p99": "100ms", "gpu": "h100",
    }  # fmt: skip
    answer = recommended(**words)
    assert answer["met"] is True
    row = answer["answers"][0]
    assert row["again"] is None
    assert "a trace has one course" in row["reason"]
    run = played(row, words, 0)
    assert run["requests"] == answer["load"]["requests"]
    assert meets(run, {"ttft_p99_seconds": 20.0, "tpot_p99_seconds": 0.1})


def test_prefixes_that_are_shared_save_accelerators() -> None:
    words = {"gpu": "l4", "prompt_tokens": 4000, "rate": 4, "ttft_p99": "3s", "tpot_p99": "80ms"}
    alone, shared = (
        recommended(**words, max_accelerators=32),
        recommended(**words, shared_prefix_tokens=3600, max_accelerators=32),
    )
    assert shared["answers"][0]["accelerators"] < 0.7 * alone["answers"][0]["accelerators"]


def test_conversations_are_dealt_to_where_they_are_cached() -> None:
    words = {"rate": 20, "turns": 5, "think": "2s", "gpu": "h100", "requests": 400, "max_accelerators": 16}
    row = recommended(**words)["answers"][0]
    assert row["deployment"]["replicas"] > 1
    assert row["deployment"]["routing"] == "prefix"
    assert any("most of its prompt is cached" in note for note in recommended(**words)["notes"])


def test_a_faster_load_never_costs_less() -> None:
    costs = [recommended(rate=rate, gpu="h100,l40s")["answers"][0]["cost_per_hour"] for rate in (2, 8, 24)]
    assert costs == sorted(costs)


def test_tighter_goals_never_cost_less() -> None:
    costs = [
        recommended(tpot_p99=goal, gpu="h100,l40s")["answers"][0]["cost_per_hour"]
        for goal in ("90ms", "45ms", "15ms")
    ]
    assert costs == sorted(costs)


def test_more_to_choose_from_never_costs_more() -> None:
    few, more = recommended(gpu="h100"), recommended(gpu="h100,l40s,a100-80-sxm,l4")
    assert more["answers"][0]["cost_per_hour"] <= few["answers"][0]["cost_per_hour"]


def test_notes_say_what_a_reader_must_know() -> None:
    def said(**words: Any) -> str:
        return " | ".join(recommended(**words)["notes"])

    assert "price of l40s: " in said()
    assert "a longer --duration" not in said()
    assert "requests arrive for" in said(requests=20)
    assert "the launch starts no drafter" in said(speculative_tokens=3)
    config = '{"method": "ngram", "num_speculative_tokens": 3}'
    assert "the launch starts no drafter" not in said(speculative_config=config)
    assert "--quantization awq needs a checkpoint quantised so" in said(quantization="awq")
    assert "fewer bits may cost quality" in said(quantization="fp8")
    assert "behind a router" in said(gpu="l40s", rate=40, max_accelerators=16)


def test_a_drafter_that_a_setting_names_is_drafted_with() -> None:
    config = '{"method": "ngram", "num_speculative_tokens": 3}'
    words = {"gpu": "h100", "rate": 2}
    plain, drafted = (recommended(**words, **more) for more in ({}, {"speculative_config": config}))
    first, second = (answer["answers"][0]["tpot_p99_seconds"] for answer in (plain, drafted))
    assert second < 0.8 * first


def test_among_equally_dear_answers_those_that_lose_the_fewest_bits_come_first():
    answer = kvplan.recommend(
        "llama-3.1-8b",
        gpu="h100",
        rate=1,
        requests=60,
        prompt_tokens=1000,
        output_tokens=100,
        ttft_p99=1,
        max_accelerators=1,
        quantization="own,fp8",
        kv_cache_dtype="auto,fp8",
    )
    first = answer["answers"][0]["deployment"]
    assert (first["quantization"], first["kv_cache_dtype"]) == (None, "auto")
    assert len(answer["answers"]) == 4


def test_a_search_is_kept_in_a_parquet_file_alone(tmp_path):
    with pytest.raises(BadInput, match=r"does not end in \.parquet"):
        kvplan.recommend("llama-3.1-8b", gpu="h100", rate=1, ttft_p99=1, resume=str(tmp_path / "x.txt"))
