"""Each form of a failed start-up: what was needed, what was there, and a flag that fixes it."""

from __future__ import annotations

from typing import Any

import pytest

import kvplan
from failed_logs import CARD, CASES, ERROR, MADE, MORE, SEVERAL, Failed, cuda, vllm
from kvplan.observe.forms import forms
from verifying import GIB, observed, verified

ROUNDED = 0.006  # GiB


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_a_failure_says_what_was_needed_what_was_there_and_what_fixes_it(case: Failed) -> None:
    words = dict(case.words)
    answer = verified(case.text, words.pop("model", None), **words)
    found = answer["failure"]
    assert (found["kind"], found["when"], found["phase"]) == (case.kind, "start-up", case.phase)
    assert near(found["needed_bytes"], case.needed)
    assert near(found["available_bytes"], case.available)
    if case.needed is not None and case.available is not None:
        assert abs(found["short_bytes"] - max(0, found["needed_bytes"] - found["available_bytes"])) <= 1
    row = next(row for row in found["fixes"] if row["flag"] == case.flag)
    assert row["value"] == case.value
    assert bool(row["fits"]) is (case.value is not None)
    assert found["says"]
    assert case.text.splitlines()[found["line"] - 1]


def near(found: int | None, gib: float | None) -> bool:
    if found is None or gib is None:
        return found is None and gib is None
    return abs(found / GIB - gib) <= ROUNDED


def test_every_kind_of_failure_that_a_form_marks_is_among_them() -> None:
    marked = {form.failure for form in forms() if form.marks == "failure"} - {"stopped"}
    assert marked == {case.kind for case in [*CASES.values(), *MORE.values()]}


FIXED = [
    "vllm: less is free than it asks for",
    "vllm: one sequence is too long",
    "vllm: the weights are too large",
    "vllm: a step is too large",
]


@pytest.mark.parametrize("name", FIXED)
def test_a_fix_of_vllm_makes_fit_say_that_it_starts(name: str) -> None:
    case = CASES[name]
    found = verified(case.text, **case.words)["failure"]
    model = f"meta-llama/Llama-3.1-{'70B' if '70B' in case.text else '8B'}-Instruct"
    given: dict[str, Any] = {**case.words, "engine_version": "0.11.0"}
    row = next(row for row in found["fixes"] if row["flag"] == case.flag)
    *earlier, last = case.flag.split(" --")
    for flag in earlier:
        name, value = flag.removeprefix("--").split(" ")
        given[name.replace("-", "_")] = int(value)
    given[last.removeprefix("--").replace("-", "_")] = row["value"]
    if case.kind == "not_enough_free":
        given["memory_in_use"] = "19.01GiB"
        assert kvplan.fit(model, **{**given, "gpu_memory_utilization": 0.77})["capacity"]["fits"] is False
    if case.kind == "one_request_too_long":
        given |= {"kv_cache_memory_bytes": "4.61GiB"}
    assert kvplan.fit(model, **given)["capacity"]["fits"]


def test_what_other_processes_hold_goes_into_the_plan() -> None:
    answer = verified(CASES["vllm: less is free than it asks for"].text, gpu="h100")
    assert not answer["agrees"]
    assert answer["changes"][0]["flag"] == "--memory-in-use"
    assert answer["failure"]["held_by_others_bytes"] == pytest.approx(19 * GIB, rel=1e-3)
    again = verified(CASES["vllm: less is free than it asks for"].text, gpu="h100", memory_in_use="19GiB")
    assert next(row for row in again["checks"] if row["name"] == "fits")["agrees"]


def test_a_lost_device_among_others_names_them() -> None:
    shared = cuda("2.00 GiB").replace("this process has 78.60 GiB", "this process has 40.10 GiB")
    found = verified(f"{vllm()}{ERROR}torch.OutOfMemoryError: {shared}", gpu="h100")["failure"]
    assert "other processes on the device hold about 38.5" in found["says"]


def test_a_stop_for_something_else_than_memory_is_said_to_be_one() -> None:
    text = f"{vllm()}{ERROR}ValueError: No common block size for 16 (CPU_ATTN: [MultipleOf(32)]).\n"
    answer = verified(f"{text}{ERROR}EngineCore failed to start.\n", **CARD)
    assert answer["failure"]["kind"] == "other"
    assert "No common block size" in answer["failure"]["text"]
    assert "not memory" in answer["failure"]["says"]
    assert answer["failure"]["fixes"] == []


def test_a_failure_that_was_recovered_from_is_none() -> None:
    text = f"{vllm()}{ERROR}torch.OutOfMemoryError: {cuda('1.96 GiB')}"
    started = text + vllm() + "\n".join(
        f"(EngineCore_DP0 pid=78) INFO 03-04 10:05:00 [x.py:1] {line}"
        for line in ("Available KV cache memory: 50.00 GiB", "GPU KV cache size: 409,600 tokens")
    )  # fmt: skip
    answer = verified(f"{started}\nINFO:     Application startup complete.\n", gpu="h100")
    assert answer["failure"] is None
    assert "2 start-ups in the log" in answer["notes"][0]
    assert not [row for row in answer["checks"] if row["name"] == "fits" and not row["agrees"]]


OLD = """INFO 10-01 12:00:00 llm_engine.py:237] Initializing an LLM engine (v0.6.3.post1) with config: \
model='meta-llama/Llama-3.1-8B-Instruct', dtype=torch.bfloat16, max_seq_len=131072, tensor_parallel_size=1
INFO 10-01 12:00:10 gpu_executor.py:122] # GPU blocks: 2300, # CPU blocks: 2048
ValueError: The model's max seq len (131072) is larger than the maximum number of tokens that can be \
stored in KV cache (36800). Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when \
initializing the engine.
"""


@pytest.mark.parametrize(
    "words", [{}, {"gpu": "rtx4090"}, {"gpu": "h100"}], ids=["unknown", "small", "large"]
)
def test_blocks_that_were_printed_bound_what_fixes_a_start(words: dict[str, Any]) -> None:
    fixes = {row["flag"]: row for row in verified(OLD, **words)["failure"]["fixes"]}
    assert 36800 - 16 <= fixes["--max-model-len"]["value"] <= 36800
    assert not fixes["--kv-cache-dtype"]["fits"]  # 16 GiB in half are more than 4.5
    assert fixes["--tp"]["value"] == (2 if words else 4)
    assert ("at most" in fixes["--tp"]["note"]) is not bool(words)


def test_more_ranks_do_not_fix_a_device_that_is_occupied() -> None:
    fixes = verified(CASES["vllm: less is free than it asks for"].text, gpu="h100")["failure"]["fixes"]
    assert not next(row for row in fixes if row["flag"] == "--tp")["fits"]


def test_a_pool_of_another_device_names_it() -> None:
    text = CASES["vllm: one sequence is too long"].text
    assert verified(text, gpu="rtx4090")["agrees"]
    answer = verified(text, gpu="h100")
    assert ("--gpu", "rtx4090") in [(row["flag"], row["value"]) for row in answer["changes"]]
    assert "--gpu-memory-utilization 0.3" in " ".join(why["says"] for why in answer["explanations"])


@pytest.mark.parametrize("case", MORE.values(), ids=list(MORE))
def test_a_lack_of_memory_in_an_engine_s_own_words_is_one(case: Failed) -> None:
    words = dict(case.words)
    found = verified(case.text, words.pop("model", None), **words)["failure"]
    assert (found["kind"], found["when"], found["phase"]) == (case.kind, "start-up", case.phase)
    assert near(found["needed_bytes"], case.needed)
    assert near(found["available_bytes"], case.available)
    assert "not memory" not in found["says"]
    if case.flag:
        row = next(row for row in found["fixes"] if row["flag"] == case.flag)
        assert (row["value"], row["fits"]) == (case.value, True)


def test_of_several_processes_the_one_that_pytorch_s_memory_fits_into_is_the_engine_s_own() -> None:
    found = verified(MORE["vllm: several processes"].text, gpu="h100")["failure"]
    assert found["held_by_others_bytes"] == pytest.approx(70.22 * GIB, rel=1e-3)
    turned = SEVERAL.replace("70.20", "x").replace("8.80", "70.20").replace("x", "8.80")
    again = verified(f"{vllm()}{ERROR}torch.OutOfMemoryError: {turned}", gpu="h100")["failure"]
    assert again["held_by_others_bytes"] == found["held_by_others_bytes"]
    full = SEVERAL.replace("8.31 GiB is allocated", "68.31 GiB is allocated")
    other = verified(f"{vllm()}{ERROR}torch.OutOfMemoryError: {full}", gpu="h100")["failure"]
    assert other["held_by_others_bytes"] == pytest.approx(8.82 * GIB, rel=1e-3)
    none = SEVERAL.replace("8.31 GiB is allocated", "78.31 GiB is allocated")
    assert (
        verified(f"{vllm()}{ERROR}torch.OutOfMemoryError: {none}", gpu="h100")["failure"][
            "held_by_others_bytes"
        ]
        is None
    )


def test_memory_that_another_process_gave_back_is_no_lack_of_memory() -> None:
    answer = verified(MORE["vllm: another process freed memory"].text, gpu="rtx4090")
    assert "about 6.07 GiB" in answer["failure"]["says"]
    assert "no lack of memory of its own" in answer["failure"]["says"]
    assert answer["failure"]["fixes"] == []
    assert not [row for row in answer["checks"] if row["name"] == "fits"]


def test_devices_unlike_each_other_say_what_others_hold() -> None:
    found = verified(MORE["sglang: devices unlike each other"].text, gpu="h100")["failure"]
    assert found["held_by_others_bytes"] == pytest.approx(48.39 * GIB, rel=1e-3)
    assert "other processes hold about 48.39 GiB" in found["says"]


def test_a_warning_of_unlike_devices_is_no_failure() -> None:
    text = MORE["sglang: devices unlike each other"].text.replace("ValueError: ", "WARNING ")
    assert observed(text.replace("Scheduler hit an exception: ", "")).failure is None


def test_a_failure_while_the_engine_ran_has_no_phase_of_its_start() -> None:
    ran = f"{vllm()}{MADE}INFO:     Application startup complete.\n"
    found = verified(f"{ran}{ERROR}torch.OutOfMemoryError: {cuda('1.02 GiB')}", gpu="h100")["failure"]
    assert (found["when"], found["phase"]) == ("running", "")
    assert "while the engine ran" in found["says"]


def test_a_sentence_of_what_was_full_reads_as_one() -> None:
    case = CASES["tensorrt-llm: the C++ runtime"]
    found = verified(case.text, case.words["model"], gpu="l4")["failure"]
    assert found["says"].startswith("the device was full during the dry run")
    assert verified(MORE["llama.cpp: the driver"].text)["failure"]["says"] == (
        "device 0 was full while making the context"
    )


def test_what_the_host_had_no_room_for_is_not_set_against_a_device() -> None:
    found = verified(MORE["llama.cpp: the host"].text)["failure"]
    assert "found no room on the host" in found["says"]


def fixes_of(name: str, **more: Any) -> dict[str, dict[str, Any]]:
    case = {**CASES, **MORE}[name]
    words = {**case.words, **more}
    return {r["flag"]: r for r in verified(case.text, words.pop("model", None), **words)["failure"]["fixes"]}


def test_what_others_hold_is_in_the_plan_that_judges_a_fix() -> None:
    assert not any(row["fits"] for row in fixes_of("vllm: several processes").values())


def test_a_fix_changes_what_was_too_large() -> None:
    """Neither the cache's format nor its share, nor a length, is what a forward pass or the weights take."""
    for name in ("vllm: the weights are too large", "vllm: a step is too large"):
        other = {"--kv-cache-dtype", "--gpu-memory-utilization", "--max-model-len"}
        assert not other & fixes_of(name).keys()


def test_no_fix_is_the_setting_that_ran() -> None:
    for case in (*CASES.values(), *MORE.values()):
        words = dict(case.words)
        answer = verified(case.text, words.pop("model", None), **words)
        ran = {f"--{k.replace('_', '-')}": v for k, v in answer["observed"]["settings"].items()}
        for row in answer["failure"]["fixes"]:
            assert row["value"] is None or row["value"] != ran.get(row["flag"])


def test_what_frees_a_buffer_of_llama_cpp_frees_what_was_short() -> None:
    """16 GiB of caches, of 128 KiB a token, and their compute buffer in 15.03 GiB."""
    rows = fixes_of("llama.cpp: the caches")
    left = (22994 - 7605.33) * 2**20
    assert rows["--ctx-size"]["value"] * 131072 < left < (rows["--ctx-size"]["value"] + 16384) * 131072
    assert rows["--cache-type-k and --cache-type-v"]["value"] == "q8_0"


def test_what_the_plan_cannot_judge_is_not_known() -> None:
    assert {row["fits"] for row in fixes_of("ollama: the host").values()} == {None}
    assert fixes_of("vllm: graphs")["--enforce-eager"]["fits"] is None
    assert {row["fits"] for row in fixes_of("vllm: in words that no form knows").values()} == {None}


def test_a_length_that_the_engine_estimates_is_the_one_to_take() -> None:
    """Hybrid caches start with less than one longest sequence at full concurrency in some versions."""
    row = fixes_of("vllm: one sequence is too long")["--max-model-len"]
    assert (row["value"], row["note"]) == (37760, "the engine's own estimate")
    hybrid = kvplan.fit(
        "google/gemma-3-27b-it", gpu="h100", engine_version="0.14.0", kv_cache_memory_bytes="0.68GiB",
        max_model_len=30000,
    )  # fmt: skip
    back = {row["flag"]: row["value"] for row in hybrid["ways_back"]}
    assert back["--max-model-len"] >= hybrid["capacity"]["estimated_max_model_len"] - 16
    again = kvplan.fit(
        "google/gemma-3-27b-it", gpu="h100", engine_version="0.14.0", kv_cache_memory_bytes="0.68GiB",
        max_model_len=back["--max-model-len"],
    )  # fmt: skip
    assert again["capacity"]["fits"]
