"""`plan` spends memory as it says and never promises a time that physics forbids."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import kvplan
from kvplan.errors import BadInput
from kvplan.faces.cli import main
from kvplan.facts.accelerators import accelerators, find_accelerator
from kvplan.facts.catalogue import entries

MODELS = (
    "llama-3.1-8b",
    "llama-3.1-70b",
    "gemma-3-27b",
    "deepseek-v2-lite",
    "qwen3-30b-a3b",
    "qwen3-next-80b-a3b",
)
CARDS = [a.key for a in accelerators() if a.memory_bytes and a.peak("bf16")]
SOME_MODEL, SOME_CARD = st.sampled_from(MODELS), st.sampled_from(CARDS)


def test_llama_70b_on_four_h100_leaves_about_half_of_each_for_the_cache() -> None:
    answer = kvplan.plan("meta-llama/Llama-3.1-70B-Instruct", gpu="h100", tp=4)
    memory, capacity = answer["fit"]["memory"], answer["fit"]["capacity"]
    assert memory["accelerator_bytes"] == pytest.approx(79.18 * 2**30, abs=0.005 * 2**30)
    norms, rotary = (80 * 2 + 1) * 8192, 131_072 * 128
    assert memory["weight_bytes"] == ((70_553_706_496 - norms) // 4 + norms + rotary) * 2
    assert capacity["fits"]
    blocks = memory["kv_pool_bytes"] // (16 * 81_920)
    assert (capacity["num_blocks"], capacity["block_tokens"]) == (blocks, 16)
    assert capacity["kv_tokens"] == pytest.approx(16 * (blocks - 1), abs=16)
    assert answer["launch"] == "vllm serve meta-llama/Llama-3.1-70B-Instruct --tensor-parallel-size 4"


@given(SOME_MODEL, SOME_CARD, st.sampled_from([1, 2, 4]))
def test_the_parts_of_memory_sum_to_the_budget(model: str, card: str, tp: int) -> None:
    memory = kvplan.plan(model, gpu=card, tp=tp, max_model_len=4096)["fit"]["memory"]
    parts = ("weight_bytes", "activation_bytes", "graph_bytes", "overhead_bytes", "kv_pool_bytes")
    assert memory["budget_bytes"] == sum(memory[part] for part in parts)
    assert memory["headroom_bytes"] == memory["accelerator_bytes"] - memory["budget_bytes"]
    assert memory["kv_pool_low_bytes"] <= memory["kv_pool_bytes"] <= memory["kv_pool_high_bytes"]


@given(SOME_MODEL, SOME_CARD)
def test_more_memory_never_holds_fewer_tokens(model: str, card: str) -> None:
    small, large = (
        kvplan.plan(model, gpu=card, gpu_memory=size, max_model_len=8192)["fit"]["capacity"]["kv_tokens"]
        for size in ("80GiB", "96GiB")
    )
    assert large >= small


@given(SOME_MODEL, SOME_CARD, st.integers(1, 64), st.integers(1, 20_000), st.integers(1, 2000))
def test_more_work_never_has_a_lower_floor(model: str, card: str, batch: int, prompt: int, more: int) -> None:
    def floors(batch: int, prompt: int) -> tuple[float, float]:
        latency = kvplan.plan(model, gpu=card, batch=batch, prompt_tokens=prompt)["latency"]
        return latency["prefill"]["lower_bound_seconds"], latency["decode"]["lower_bound_seconds"]

    base, longer, wider = floors(batch, prompt), floors(batch, prompt + more), floors(batch + 1, prompt)
    assert longer[0] > base[0]
    assert longer[1] >= base[1]
    assert wider[0] > base[0]
    assert wider[1] > base[1]


def test_the_floor_is_the_slower_of_compute_and_memory() -> None:
    latency = kvplan.plan("llama-3.1-8b", gpu="h100", batch=1, prompt_tokens=1000, output_tokens=2)["latency"]
    decode = latency["decode"]
    assert decode["bound"] == "memory"
    assert decode["lower_bound_seconds"] == pytest.approx(decode["bytes_read"] / 3.35e12)
    assert decode["bytes_read"] == (8_030_261_248 - 128_256 * 4096 - 65 * 4096) * 2 + 1001 * 131_072
    prefill = latency["prefill"]
    assert prefill["bound"] == "compute"
    body = 8_030_261_248 - 2 * 128_256 * 4096 - 65 * 4096
    pairs = 1000 * 1001 // 2
    assert prefill["flops"] == 2 * body * 1000 + 2 * 128_256 * 4096 + 2 * 32 * 32 * 256 * pairs
    assert latency["ridge_point"] == pytest.approx(989e12 / 3.35e12)


def test_from_the_stated_batch_on_decode_waits_for_compute() -> None:
    def bound(batch: int) -> str:
        latency = kvplan.plan("llama-3.1-8b", gpu="h100", batch=batch, prompt_tokens=16, output_tokens=2)[
            "latency"
        ]
        return str(latency["decode"]["bound"])

    answer = kvplan.plan("llama-3.1-8b", gpu="h100", prompt_tokens=16, output_tokens=2)
    first = answer["latency"]["batches"]["compute_bound_batch"]
    assert (bound(first - 1), bound(first)) == ("memory", "compute")


def test_what_does_not_fit_is_an_answer_that_says_how_much_is_missing() -> None:
    answer = kvplan.plan("meta-llama/Meta-Llama-3.1-405B", gpu="h100", tp=4)
    assert answer["fit"]["capacity"]["fits"] is False
    assert answer["fit"]["capacity"]["kv_tokens"] == 0
    assert answer["fit"]["memory"]["headroom_bytes"] < 0
    assert "does not fit" in answer["limits"][0]


def test_a_context_that_is_too_long_is_answered_with_the_longest_that_fits() -> None:
    answer = kvplan.plan("llama-3.1-8b", gpu="rtx4090")
    capacity = answer["fit"]["capacity"]
    assert not capacity["fits"]
    longest = capacity["estimated_max_model_len"]
    assert 0 < longest < 131_072
    assert kvplan.plan("llama-3.1-8b", gpu="rtx4090", max_model_len=longest)["fit"]["capacity"]["fits"]
    assert not kvplan.plan("llama-3.1-8b", gpu="rtx4090", max_model_len=longest + 1)["fit"]["capacity"][
        "fits"
    ]


def test_a_batch_that_does_not_fit_does_not_fit() -> None:
    few, many = (
        kvplan.plan("llama-3.1-8b", gpu="h100", max_model_len=8192, batch=n)["fit"]["capacity"]["fits"]
        for n in (1, 1000)
    )
    assert few
    assert not many


def test_an_8_bit_cache_holds_twice_the_tokens() -> None:
    wide, narrow = (
        kvplan.plan("llama-3.1-8b", gpu="h100", kv_cache_dtype=dtype)["fit"]["capacity"]["kv_tokens"]
        for dtype in ("auto", "fp8")
    )
    assert narrow == pytest.approx(2 * wide, abs=2 * 16)


def test_a_plan_ends_on_its_assumptions() -> None:
    weakest = {figure.name for figure in kvplan.plan("llama-3.1-8b", gpu="h100").rests_on()}
    assert {"sampler_bytes_per_logit", "graph_bytes", "non_torch_bytes"} <= weakest


@pytest.mark.parametrize("entry", entries(), ids=lambda e: e.id)
def test_every_built_in_model_gets_a_plan(entry: Any) -> None:
    answer = kvplan.plan(entry.id, gpu="b300", max_model_len=2048)
    assert answer["latency"]["decode"]["lower_bound_seconds"] > 0
    assert answer["fit"]["memory"]["weight_bytes"] > 0


@pytest.mark.parametrize("card", [a.key for a in accelerators()])
def test_every_built_in_accelerator_gets_a_plan_or_asks_for_its_memory(card: str) -> None:
    if find_accelerator(card).memory_bytes is None:
        with pytest.raises(kvplan.KvplanError, match="--gpu-memory"):
            kvplan.plan("llama-3.1-8b", gpu=card)
        answer = kvplan.plan("llama-3.1-8b", gpu=card, gpu_memory="32GiB")
    else:
        answer = kvplan.plan("llama-3.1-8b", gpu=card)
    assert answer["latency"]["prefill"]["lower_bound_seconds"] > 0


@given(SOME_MODEL, SOME_CARD, st.integers(2, 16))
def test_more_ranks_never_leave_less_room_on_each(model: str, card: str, tp: int) -> None:
    try:
        split = kvplan.plan(model, gpu=card, tp=tp, max_model_len=4096)["fit"]["memory"]["kv_pool_bytes"]
    except kvplan.KvplanError:
        assume(False)
    assert split >= kvplan.plan(model, gpu=card, max_model_len=4096)["fit"]["memory"]["kv_pool_bytes"]


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm", "llama.cpp", "transformers"])
def test_every_engine_has_its_page(engine: str) -> None:
    answer = kvplan.plan("qwen3-8b", gpu="h100", engine=engine)
    assert answer["fit"]["capacity"]["fits"]
    assert bool(answer["launch"]) == (engine != "transformers")
    assert answer["limits"]


def test_a_page_of_pipeline_stages_counts_sequences_as_the_engine_does() -> None:
    answer = kvplan.plan("llama-3.1-8b", gpu="h100", pp=4)
    assert answer["fit"]["engine"]["settings"]["pipeline_parallel_size"] == 4
    last = answer["contexts"][-1]
    assert last["sequences"] == int(answer["fit"]["capacity"]["max_concurrency"])


def test_sequences_at_a_length_are_those_of_the_lever_of_that_length() -> None:
    for model, gpu in (("gemma-3-27b", "a100-80-sxm"), ("mistral-7b", "rtx4090")):
        answer = kvplan.plan(model, gpu=gpu)
        levers = kvplan.levers(model, gpu=gpu)["levers"]
        lever = next(row for row in levers if row["change"] == {"max_model_len": 8192})
        row = next(row for row in answer["contexts"] if row["tokens"] == 8192)
        assert row["sequences"] == int(lever["max_concurrency"])


def test_running_sequences_are_at_most_what_the_engine_runs() -> None:
    answer = kvplan.plan("gpt-oss-20b", gpu="h100", max_num_seqs=4)
    assert answer["load"]["batch"] == 4
    asked = kvplan.plan("gpt-oss-20b", gpu="h100", max_num_seqs=4, batch=32)
    assert asked["fit"]["capacity"]["fits"] is False


def test_no_launch_is_promised_that_cannot_start() -> None:
    assert kvplan.plan("llama-3.1-405b", gpu="rtx4090")["launch"] == ""
    assert kvplan.plan("rwkv-4-7b-pile", gpu="h100")["launch"] == ""
    shorter = kvplan.plan("llama-3.1-8b", gpu="rtx4090")
    longest = shorter["fit"]["capacity"]["estimated_max_model_len"]
    assert shorter["launch"].endswith(f"--max-model-len {longest}")
    longer = kvplan.plan("qwen3-8b", gpu="h100", max_model_len=100_000)
    assert longer["launch"].startswith("VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 ")


@pytest.mark.parametrize(
    "load",
    [
        {"concurrency": 64, "context_depth": 1000},
        {"rate": 2.0, "shared_prefix_tokens": 500},
        {"batch": 8, "speculative_tokens": 3, "acceptance": 0.6},
    ],
    ids=str,
)
def test_a_plan_takes_the_loads_of_latency_and_answers_the_same(load: dict[str, Any]) -> None:
    found = kvplan.plan("llama-3.1-8b", gpu="h100", **load)
    alone = kvplan.latency("llama-3.1-8b", gpu="h100", **load)
    for part in ("prefill", "decode", "serving"):
        assert found["latency"][part] == alone[part]
    assert load.items() <= found["load"].items()
    assert found["fit"]["capacity"]["fits"]


def test_so_many_users_must_fit_at_once_and_a_rate_may_queue() -> None:
    assert kvplan.plan("llama-3.1-8b", gpu="h100", concurrency=10_000)["fit"]["capacity"]["fits"] is False
    assert kvplan.plan("llama-3.1-8b", gpu="h100", rate=10_000.0)["fit"]["capacity"]["fits"] is True


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--rate", "2"), "2 requests a second, queueing included"),
        (("--concurrency", "8"), "decode with 8 users is memory-bound"),
        (("--batch", "8"), "decode at batch 8 is memory-bound"),
    ],
)
def test_the_page_says_the_load(
    words: tuple[str, str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["plan", "llama-3.1-8b", "--gpu", "h100", *words])
    assert said in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"batch": 2, "concurrency": 2}, "--concurrency: --batch is given too"),
        ({"rate": -1.0}, "--rate: -1.0 is not requests a second"),
        ({"tp": 16, "dcp": 2}, "--dcp: 2 ranks would share a context"),
        ({"seed": 3}, "--seed: is for kvplan simulate"),
    ],
)
def test_a_load_that_cannot_be_used_is_an_error(words: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=re.escape(said)):
        kvplan.plan("llama-3.1-8b", gpu="h100", **words)


def test_a_device_whose_memory_is_not_known_has_its_page(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["plan", "llama-3.1-8b", "--gpu", "m4-max", "--engine", "llama.cpp", "--batch", "2"])
    assert ended.value.code == 0
    assert "not known whether it fits" in capsys.readouterr().out


def test_a_plan_takes_goals_and_says_with_check_whether_they_are_met() -> None:
    words = ["plan", "llama-3.1-8b", "--gpu", "h100", "--concurrency", "8", "--max-model-len", "8192"]
    for goal, status in (("1s", 0), ("1ms", 1)):
        with pytest.raises(SystemExit) as ended:
            main([*words, "--tpot", goal, "--check"])
        assert ended.value.code == status


def test_the_launch_of_a_plan_names_every_kind_of_rank() -> None:
    experts = kvplan.plan("qwen3-30b-a3b", gpu="h100", tp=2, dp=2, ep=4)["launch"]
    assert "--tensor-parallel-size 2 --data-parallel-size 2 --enable-expert-parallel" in experts
    apart = kvplan.plan("qwen3-30b-a3b", gpu="h100", engine="sglang", tp=4, ep=4, attention_dp=2)["launch"]
    assert "--tp-size 4 --dp-size 2 --ep-size 4 --enable-dp-attention" in apart


def test_a_plan_reads_a_launch_command() -> None:
    line = "vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len 8192 --tensor-parallel-size 2"
    said, read = (
        kvplan.plan(gpu="h100", command=line),
        kvplan.plan("meta-llama/Llama-3.1-8B-Instruct", gpu="h100", tp=2, max_model_len=8192),
    )
    assert said["fit"] == read["fit"]
    assert said["launch"] == read["launch"]
