"""`fit` spends memory as it says, answers in the engine's own figures, and reads a pasted command."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvplan

GIB = 2**30
LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
MEMORY = {
    "accelerator_bytes", "budget_bytes", "weight_bytes", "activation_bytes", "graph_bytes", "overhead_bytes",
    "kv_pool_bytes", "kv_pool_low_bytes", "kv_pool_high_bytes", "headroom_bytes",
}  # fmt: skip
CAPACITY = {
    "fits", "num_blocks", "block_tokens", "bytes_per_block", "kv_tokens", "max_concurrency",
    "max_running_requests", "needed_kv_bytes", "estimated_max_model_len", "kv_bytes", "k_bytes", "v_bytes",
    "state_bytes", "groups",
}  # fmt: skip
ENGINES = ("vllm", "sglang", "tensorrt-llm", "llama.cpp")


@pytest.mark.parametrize("engine", ENGINES)
def test_the_document_has_every_key_of_the_contract(engine: str) -> None:
    answer = kvplan.fit(LLAMA, gpu="h100", engine=engine)
    assert set(answer["memory"]) == MEMORY
    assert set(answer["capacity"]) == CAPACITY
    assert set(answer["engine"]) == {"name", "version", "settings"}
    json.dumps(answer, allow_nan=False)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("gpu", ["h100", "rtx4090", "t4"])
def test_the_parts_add_up_and_every_byte_is_whole(engine: str, gpu: str) -> None:
    memory = kvplan.fit(LLAMA, gpu=gpu, engine=engine)["memory"]
    assert all(isinstance(value, int) for value in memory.values())
    parts = ("weight_bytes", "activation_bytes", "graph_bytes", "overhead_bytes", "kv_pool_bytes")
    assert memory["budget_bytes"] == sum(memory[part] for part in parts)
    assert memory["headroom_bytes"] == memory["accelerator_bytes"] - memory["budget_bytes"]
    assert memory["kv_pool_low_bytes"] <= memory["kv_pool_bytes"] <= memory["kv_pool_high_bytes"]


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 64 * GIB), st.integers(1, 131_072))
def test_blocks_are_what_the_given_pool_holds_whole(pool: int, length: int) -> None:
    answer = kvplan.fit(LLAMA, engine_version="0.11", kv_cache_memory_bytes=pool, max_model_len=length)
    assert answer["capacity"]["num_blocks"] == pool // (16 * 131_072)
    assert answer["memory"]["accelerator_bytes"] is None
    assert answer["memory"]["kv_pool_bytes"] == pool
    needed = -(-length // 16) * 16 * 131_072
    assert answer["capacity"]["fits"] is (needed <= pool)


def test_measured_figures_stand_in_place_of_predicted_ones() -> None:
    plain = kvplan.fit(LLAMA, gpu="h100")
    measured = kvplan.fit(
        LLAMA, gpu="h100", weights_memory="15GiB", activation_memory="2GiB", graph_memory="0.5GiB"
    )
    memory = measured["memory"]
    assert (memory["weight_bytes"], memory["activation_bytes"]) == (15 * GIB, 2 * GIB)
    assert memory["graph_bytes"] == GIB // 2
    assert memory["kv_pool_bytes"] < plain["memory"]["kv_pool_bytes"]
    text = measured.explain("weight_bytes")
    assert "--weights-memory" in text
    assert "measured" in text


def test_room_for_adapters_is_taken_while_loading() -> None:
    plain = kvplan.fit("llama-2-7b", gpu="l4", max_model_len=2048)["memory"]
    room = kvplan.fit(
        "llama-2-7b", gpu="l4", max_model_len=2048, enable_lora=True, max_loras=5, max_lora_rank=64
    )["memory"]
    a_layer = 4 * (4096 + 4096) + 3 * (4096 + 11008)
    assert room["weight_bytes"] - plain["weight_bytes"] == 5 * 64 * 2 * 32 * a_layer


def test_a_vision_tower_is_profiled_unless_images_are_left_out() -> None:
    asked = {"gpu": "h200", "max_model_len": 4096, "engine_version": "0.32", "max_num_seqs": 64}
    images = kvplan.fit("gemma-3-27b", **asked)
    without = kvplan.fit("gemma-3-27b", **asked, limit_mm_per_prompt={"image": 0})
    assert images["memory"]["kv_pool_low_bytes"] < without["memory"]["kv_pool_low_bytes"]
    assert images["memory"]["kv_pool_high_bytes"] == without["memory"]["kv_pool_high_bytes"]
    width, inner = 1152, 4304
    tower = 8192 * 4 * (2 * width + 3 * inner) * 2
    assert images.find("encoder_bytes")[0].value == int(tower * 1.15)
    text = kvplan.fit(LLAMA, **asked)
    assert not any("encoder_bytes" in figure.explain() for figure in text.figures().values())


def test_experts_stay_whole_and_are_dealt_over_expert_parallel_ranks() -> None:
    alone, dealt = (
        kvplan.fit("qwen3-30b-a3b", gpu="h200", max_model_len=2048, **ranks)["memory"]["weight_bytes"]
        for ranks in ({}, {"dp": 8, "ep": 8})
    )
    experts = 48 * 128 * 3 * 768 * 2048 * 2
    assert alone - dealt == experts - experts // 8
    flag = kvplan.fit(
        command="vllm serve qwen3-30b-a3b -dp 8 --enable-expert-parallel", gpu="h200", max_model_len=2048
    )
    assert flag["memory"]["weight_bytes"] == dealt


def test_a_batch_must_fit_as_well() -> None:
    assert kvplan.fit(LLAMA, gpu="h100", max_model_len=8192, batch=50)["capacity"]["fits"]
    assert kvplan.fit(LLAMA, gpu="h100", max_model_len=8192, batch=60)["capacity"]["fits"] is False


def test_each_way_back_is_enough_when_followed() -> None:
    answer = kvplan.fit(LLAMA, gpu="rtx4090", engine_version="0.19")
    assert answer["capacity"]["fits"] is False
    ways = {way["flag"]: way["value"] for way in answer["ways_back"]}
    longest = ways["--max-model-len"]
    assert longest == answer["capacity"]["estimated_max_model_len"]
    for length, fits in ((longest, True), (longest + 16, False)):
        tried = kvplan.fit(LLAMA, gpu="rtx4090", engine_version="0.19", max_model_len=length)
        assert tried["capacity"]["fits"] is fits
    assert kvplan.fit(LLAMA, gpu="rtx4090", engine_version="0.19", tp=ways["--tp"])["capacity"]["fits"]
    assert ways["--gpu-memory-utilization"] is None


def test_the_least_share_that_is_enough_is_the_least() -> None:
    answer = kvplan.fit("gemma-3-27b", gpu="h100", engine_version="0.19", gpu_memory_utilization=0.8)
    share = next(w["value"] for w in answer["ways_back"] if w["flag"] == "--gpu-memory-utilization")
    found = [
        kvplan.fit("gemma-3-27b", gpu="h100", engine_version="0.19", gpu_memory_utilization=x)["capacity"][
            "fits"
        ]
        for x in (share, round(share - 0.01, 2))
    ]
    assert found == [True, False]


def test_what_fits_needs_no_way_back() -> None:
    assert kvplan.fit(LLAMA, gpu="h100")["ways_back"] == []


def test_memory_held_by_others_makes_vllm_refuse_and_leaves_llama_cpp_less() -> None:
    assert kvplan.fit(LLAMA, gpu="h100", max_model_len=4096, memory_in_use="2GiB")["capacity"]["fits"]
    refused = kvplan.fit(LLAMA, gpu="h100", max_model_len=4096, memory_in_use="20GiB")
    assert refused["capacity"]["fits"] is False
    assert any("in use" in note for note in refused["notes"])
    whole, less = (
        kvplan.fit(LLAMA, gpu="rtx4090", engine="llama.cpp", ctx_size=8192, **used)["memory"][
            "headroom_bytes"
        ]
        for used in ({}, {"memory_in_use": "4GiB"})
    )
    assert whole - less == 4 * GIB


def test_a_slice_of_a_card_is_given_by_its_memory() -> None:
    whole, piece = kvplan.fit(LLAMA, gpu="h100"), kvplan.fit(LLAMA, gpu="h100", gpu_memory="40GiB")
    assert piece["memory"]["accelerator_bytes"] == 40 * GIB
    assert piece["capacity"]["num_blocks"] < whole["capacity"]["num_blocks"]


def test_another_version_is_compared_figure_by_figure_with_the_rule_that_changed_each() -> None:
    answer = kvplan.fit("gemma-3-27b", gpu="h100", engine_version="0.10", against="0.33")
    found = answer["against"]
    assert found["version"] == "0.33.0"
    moved = {change["figure"] for change in found["changes"]}
    assert {"kv_tokens", "needed_kv_bytes", "kv_pool_bytes"} <= moved
    assert all(change["rules"] and change["before"] != change["after"] for change in found["changes"])
    there = kvplan.fit("gemma-3-27b", gpu="h100", engine_version="0.33")["capacity"]
    assert found["figures"]["kv_tokens"] == there["kv_tokens"]
    same = kvplan.fit("gemma-3-27b", gpu="h100", engine_version="0.33", against="0.33")
    assert same["against"]["changes"] == []


COMMANDS: list[tuple[str, str, dict[str, Any]]] = [
    (
        f"vllm serve {LLAMA} --tensor-parallel-size 2 --max-model-len 8192 --kv-cache-dtype fp8",
        "vllm",
        {"tp": 2, "max_model_len": 8192, "kv_cache_dtype": "fp8"},
    ),
    (
        f"docker run --gpus all vllm/vllm-openai:v0.11.0 --model {LLAMA} -tp 2",
        "vllm",
        {"tp": 2, "engine_version": "0.11.0"},
    ),
    (
        f"python -m sglang.launch_server --model-path {LLAMA} --tp 2 --mem-fraction-static 0.8",
        "sglang",
        {"tp": 2, "mem_fraction_static": 0.8},
    ),
    (f"trtllm-serve {LLAMA} --max_batch_size 64", "tensorrt-llm", {"max_batch_size": 64}),
    (f"llama-server -m {LLAMA} -c 8192", "llama.cpp", {"ctx_size": 8192}),
]


@pytest.mark.parametrize(("command", "engine", "stated"), COMMANDS, ids=[c[1] for c in COMMANDS])
def test_a_pasted_command_answers_as_its_flags_do(command: str, engine: str, stated: dict[str, Any]) -> None:
    read = kvplan.fit(command=command, gpu="h100")
    spelt = kvplan.fit(LLAMA, gpu="h100", engine=engine, **stated)
    for part in ("engine", "memory", "capacity"):
        assert read[part] == spelt[part]


def test_flags_that_are_not_known_are_listed_and_given_ones_win() -> None:
    command = f"vllm serve {LLAMA} --no-such-flag 7 --port 8000 --max-model-len 4096"
    answer = kvplan.fit(command=command, gpu="h100", max_model_len=8192)
    assert answer["command"]["unknown"] == ["--no-such-flag", "7"] or answer["command"]["unknown"] == [
        "--no-such-flag 7"
    ]
    assert any("--no-such-flag" in note for note in answer["notes"])
    assert answer["engine"]["settings"]["max_model_len"] == 8192


@pytest.mark.parametrize(
    "wrong",
    [
        {"engine": 5},
        {"engine_version": 0.19},
        {"against": 0.19},
        {"dtype": 5},
        {"quantization": 5},
        {"gpu": 5},
        {"kv_cache_dtype": 5},
        {"command": 5},
        {"batch": "x"},
        {"tp": 1.5},
        {"gpu_memory": []},
        {"max_model_len": {}},
    ],
    ids=str,
)
def test_a_value_of_a_wrong_type_is_bad_input(wrong: dict[str, Any]) -> None:
    with pytest.raises(kvplan.KvplanError, match=r"^--"):
        kvplan.fit(LLAMA, **{"gpu": "h100", **wrong})


PLACED: list[tuple[str, dict[str, Any]]] = [
    ("llama-3.1-8b", {"ctx_size": 131_072}),
    ("gemma-3-27b", {"ctx_size": 8192}),
    ("llama-3.1-70b", {"ctx_size": 65_536}),
    ("gpt-oss-120b", {"ctx_size": 32_768}),
    ("qwen3-30b-a3b", {"ctx_size": 32_768}),
]


@pytest.mark.parametrize(("model", "asked"), PLACED, ids=[p[0] for p in PLACED])
def test_layers_left_on_the_host_make_it_fit_where_the_way_back_says_so(
    model: str, asked: dict[str, Any]
) -> None:
    answer = kvplan.fit(model, gpu="rtx4090", engine="llama.cpp", **asked)
    assert answer["capacity"]["fits"] is False
    way = next(w for w in answer["ways_back"] if w["flag"] in ("--n-gpu-layers", "--n-cpu-moe"))
    flag = way["flag"].removeprefix("--").replace("-", "_")
    followed = kvplan.fit(model, gpu="rtx4090", engine="llama.cpp", **asked, **{flag: way["value"]})
    assert followed["capacity"]["fits"]
    assert followed["memory"]["headroom_bytes"] >= 0
    assert {p["device"] for p in followed["placement"]} == {"device 0", "host"}


def test_two_cards_share_llama_cpps_layers() -> None:
    one, two = (
        kvplan.fit(LLAMA, gpu="rtx4090", engine="llama.cpp", ctx_size=131_072, tp=tp)["capacity"]["fits"]
        for tp in (1, 2)
    )
    assert (one, two) == (False, True)


def test_more_sequences_than_slots_do_not_run_at_once() -> None:
    slots = {"gpu": "rtx4090", "engine": "llama.cpp", "ctx_size": 8192}
    assert kvplan.fit(LLAMA, **slots, parallel=4, batch=4)["capacity"]["fits"]
    assert kvplan.fit(LLAMA, **slots, parallel=1, batch=4)["capacity"]["fits"] is False
    assert (
        kvplan.fit(LLAMA, gpu="h100", max_model_len=1024, max_num_seqs=2, batch=64)["capacity"]["fits"]
        is False
    )


def test_ways_back_beside_other_programs_are_true_too() -> None:
    answer = kvplan.fit(LLAMA, gpu="h100", memory_in_use="10GiB")
    assert answer["capacity"]["fits"] is False
    ways = {way["flag"]: way["value"] for way in answer["ways_back"]}
    share = ways.pop("--gpu-memory-utilization")
    assert set(ways.values()) == {None}
    for x, fits in ((share, True), (round(share + 0.01, 2), False)):
        tried = kvplan.fit(LLAMA, gpu="h100", memory_in_use="10GiB", gpu_memory_utilization=x)
        assert tried["capacity"]["fits"] is fits


@pytest.mark.parametrize("engine", ENGINES)
def test_every_figure_of_the_capacity_can_be_explained(engine: str) -> None:
    answer = (
        kvplan.fit(LLAMA, gpu="h100", engine=engine, max_model_len=8192)
        if engine == "vllm"
        else kvplan.fit(LLAMA, gpu="h100", engine=engine)
    )
    for name in CAPACITY - {"fits", "groups"}:
        if answer["capacity"][name] is not None:
            assert answer.explain(name)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["fit"], "MODEL"),
        (["fit", LLAMA], "--gpu"),
        (["fit", LLAMA, "--gpu", "h100", "--engine-version", "2026-01-01"], "known: 0.6"),
        (["fit", LLAMA, "--gpu", "h100", "--engine", "nosuch"], "--engine"),
        (["fit", LLAMA, "--gpu", "h100", "--ctx-size", "8"], "belongs to llama.cpp"),
        (["fit", LLAMA, "--gpu", "h100", "--max-model-len", "0"], "--max-model-len"),
        (["fit", LLAMA, "--gpu", "h100", "--max-num-seqs", "x"], "--max-num-seqs"),
        (["fit", LLAMA, "--gpu", "h100", "--memory-in-use", "lots"], "--memory-in-use"),
        (["fit", "--command", "rm -rf /", "--gpu", "h100"], "--command"),
        (["fit", "--command", f"vllm serve {LLAMA}", "--engine", "sglang", "--gpu", "h100"], "--engine"),
        (["fit", LLAMA, "--gpu", "h100", "--against", "9"], "--engine-version"),
        (["fit", LLAMA, "--gpu", "h100", "--kv-cache-dtype", "q8_0"], "--kv-cache-dtype"),
        (["fit", LLAMA, "--gpu", "h100", "--speculative-config", "{"], "--speculative-config"),
    ],
)
def test_bad_input_is_one_line_and_status_2(arguments: list[str], said: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "kvplan", *arguments], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 2
    errors = [line for line in ran.stderr.splitlines() if line.startswith("kvplan: error:")]
    assert len(errors) == 1
    assert said in errors[0]
    assert not ran.stdout


def test_check_exits_1_when_it_does_not_fit() -> None:
    command = [sys.executable, "-m", "kvplan", "fit", "llama-3.1-70b", "--gpu", "h100", "--check", "--json"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert json.loads(ran.stdout)["capacity"]["fits"] is False


@pytest.mark.parametrize("engine", ENGINES)
def test_every_explained_figure_of_a_fit_is_its_value(engine: str) -> None:
    answer = kvplan.fit(LLAMA, gpu="h100", engine=engine)
    for path, figure in answer.figures().items():
        value: Any = answer
        for part in path.split("."):
            value = value[part]
        assert figure.value == value, path
    assert answer.explain("kv_pool_bytes")


def test_ranks_that_do_not_share_the_experts_share_each_of_them() -> None:
    all_ranks, mixed = (
        kvplan.fit("deepseek-ai/DeepSeek-R1", gpu="b200", tp=8, ep=ep, engine="sglang")["memory"][
            "weight_bytes"
        ]
        for ep in (8, 4)
    )
    assert mixed == pytest.approx(all_ranks, rel=0.01)


@pytest.mark.parametrize(
    "flags",
    [
        {"num_gpu_blocks_override": 1000},
        {"engine": "sglang", "max_total_tokens": 16000},
        {"engine": "tensorrt-llm", "max_tokens": 16000},
    ],
    ids=["vllm", "sglang", "tensorrt-llm"],
)
def test_a_flag_that_keeps_the_cache_smaller_than_its_room_is_said(flags: dict[str, Any]) -> None:
    answer = kvplan.fit("llama-3.1-8b", gpu="h100", **flags)
    held = answer["capacity"]["num_blocks"] * answer["capacity"]["bytes_per_block"]
    assert held == 16000 * 131072
    assert any("takes 1.95 GiB of the" in note for note in answer["notes"])
    free = kvplan.fit("llama-3.1-8b", gpu="h100", engine=flags.get("engine"))
    assert not any("left for the cache" in note for note in free["notes"])
