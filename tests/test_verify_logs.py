"""Complete logs of real engines verify exactly; so do whole logs around published figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from conftest import lines
from kvplan.verbs.answer import Answer
from kvplan.verbs.verify_check import FLAGS, MEASURED
from kvplan.verbs.verify_sglang import AT_TOKENS
from verifying import RUNS, disagreeing, records, verified
from written_llama_cpp import llama_cpp_log
from written_logs import vllm_log
from written_sglang import sglang_log
from written_tensorrt_llm import tensorrt_llm_log

MODELS = Path(__file__).parents[1] / "src/kvplan/facts/models"
REFUSED = {"vmx_deepseek_v3", "vmx_llama_b16", "vmx_llama_fp8", "vmx_llama_fp8_e5m2"}
CARDS = {"sm80": "a100", "sm120": "rtx5090", "sm100": "b200", "sm103": "b300", None: "h100"}
# Records whose log cannot agree, each with its reason.
MISSES = {
    "vllm-0054": "its LLM class takes steps of 16,384 tokens, which no line of it says",
    "sg-035": "its drafter is not described",
}
REPORTED = ("sg-047", "sg-050")  # figures in the words of a report: no line of a log has them


def ids(case: Any) -> str:
    return str(case["id"]) if isinstance(case, dict) else str(getattr(case, "stem", case))


@pytest.mark.parametrize("log", sorted(RUNS.glob("vllm/*.log")), ids=ids)
def test_a_complete_log_of_vllm_verifies_exactly(log: Path) -> None:
    answer = verified(log.read_bytes(), log.with_suffix(".config.json"))
    assert disagreeing(answer) == []
    assert (answer["failure"] is not None) == (log.stem in REFUSED)
    if log.stem in REFUSED:
        return
    assert answer["agrees"]
    names = {row["name"]: row for row in answer["checks"]}
    assert {"kv_tokens", "max_concurrency", "fits"} <= set(names)
    assert names["kv_tokens"]["relative_error"] == 0
    assert names["kv_tokens"]["tolerance"] < 1e-4


@pytest.mark.parametrize("log", sorted(RUNS.glob("llama_cpp/*.log")), ids=ids)
def test_a_complete_log_of_llama_cpp_verifies_exactly_with_the_model_that_it_shows(log: Path) -> None:
    answer = verified(log.read_bytes())
    assert answer["agrees"], disagreeing(answer)
    names = {row["name"] for row in answer["checks"]}
    assert {"n_ctx", "n_ctx_seq", "kv_bytes"} <= names
    assert any(name.endswith(".k_bytes") for name in names)


def vllm_row(row: dict[str, Any]) -> dict[str, Any]:
    """A golden row as a record: everything that was asked is an argument of the start."""
    ask = row["ask"]
    flags = dict(ask["flags"])
    flags |= {"dtype": ask["dtype"]} if ask.get("dtype") else {}
    if ask.get("drafter"):
        flags["speculative_config"] = {"num_speculative_tokens": 1, **ask["drafter"]}
    return {
        "version": ask["version"],
        "model": "some/model",
        "reported": row["reported"],
        "flags": flags,
        **{name: ask.get(name) for name in ("tp", "pp", "kv_cache_dtype")},
        "max_model_len": ask["flags"].get("max_model_len"),
    }


VLLM = [row for row in lines("vllm_logs.jsonl") if row["ask"].get("config") or row.get("config")]


@pytest.mark.parametrize("row", VLLM, ids=ids)
def test_a_log_of_vllm_around_published_figures_agrees(row: dict[str, Any]) -> None:
    ask = row["ask"]
    platform = {"cpu": "cpu", "xpu": "arc-b60"}.get(ask.get("platform", ""))
    gpu = platform or CARDS.get(ask.get("arch"), "h100")
    words = {"gpu": gpu} if gpu == "cpu" else {"gpu": gpu, "gpu_memory": f"{ask['memory_gib']}GiB"}
    model = MODELS / (ask.get("config") or row["config"])
    whole = vllm_row(row)
    if ask["version"].startswith(("0.6.", "0.7.")):  # V0 prints its pool among all the parts of its memory
        record = next(r for r in records("vllm") if r["id"] == row["id"])
        whole |= {
            "reported": {k: v for k, v in record["reported"].items() if v is not None} | row["reported"]
        }
    answer = verified(vllm_log(whole).text, model, **words)
    wrong = [name for name, _, _ in disagreeing(answer) if name not in OF_FLAGS]
    assert (wrong == []) == (row["id"] not in MISSES), wrong
    assert [check for check in answer["checks"] if check["basis"] == MEASURED and check["name"] != "fits"]
    if row["id"] in ("vllm-0051", "vllm-0082"):
        assert any("a smaller rank decides" in why["says"] for why in answer["explanations"])


@pytest.mark.parametrize("name", ["vllm-0016", "vllm-0073", "vllm-0129"])
def test_a_development_build_whose_rules_are_another_versions_is_found(name: str) -> None:
    row = next(row for row in VLLM if row["id"] == name)
    text = vllm_log({**vllm_row(row), "version": "0.11.0"}).text.replace("0.11.0", "0.11.0.dev7+gabc")
    model = MODELS / (row["ask"].get("config") or row["config"])
    answer = verified(text, model, gpu="h100", gpu_memory=f"{row['ask']['memory_gib']}GiB")
    assert wrong_of_layout(answer)
    assert "0.11.0.dev7+gabc is a development build: the rules of 0.11.0 are taken" in answer["notes"]
    change = next(change for change in answer["changes"] if change["flag"] == "--engine-version")
    assert "rules every figure is as printed" in change["note"]
    again = verified(text, model, gpu="h100", engine_version=change["value"])
    assert wrong_of_layout(again) == ["engine_version"]


OF_FLAGS = ("kv_pool_bytes", "kv_tokens_from_flags", "weight_bytes", "accelerator_bytes", "activation_bytes",
            "overhead_bytes", "graph_bytes", "consumed_bytes")  # fmt: skip


SGLANG = [row for row in lines("sglang_logs.jsonl") if row["id"] not in REPORTED]


@pytest.mark.parametrize("row", SGLANG, ids=ids)
def test_a_log_of_sglang_around_published_figures_agrees(row: dict[str, Any]) -> None:
    record = next(r for r in records("sglang") if r["id"] == row["id"])
    whole = {**record, "reported": row["reported"], "tp": row["tp"], "model": "some/model"}
    whole["dp"] = row["attention_dp"] if row.get("attention_dp", 1) > 1 else None
    settings = dict(row.get("flags", {}))
    settings |= {"kv_cache_dtype": row["kv_cache_dtype"]} if row.get("kv_cache_dtype") else {}
    words = {"engine_version": row["version"]} if row["version"] else {}
    answer = verified(
        sglang_log(whole, **settings).text, row.get("model") or row["config"], gpu="h200", **words
    )
    wrong = wrong_of_layout(answer)
    assert (wrong == []) == (row["id"] not in MISSES), wrong
    assert [check for check in answer["checks"] if check["basis"] == AT_TOKENS]
    if row["id"] == "sg-035":
        assert any("drafter" in why["says"] for why in answer["explanations"])


def wrong_of_layout(answer: Answer) -> list[str]:
    return [row["name"] for row in answer["checks"] if not row["agrees"] and row["basis"] != FLAGS]


@pytest.mark.parametrize("row", lines("tensorrt_llm_logs.jsonl"), ids=ids)
def test_a_log_of_tensorrt_llm_around_published_figures_agrees(row: dict[str, Any]) -> None:
    record = next(r for r in records("tensorrt_llm") if r["id"] == row["id"])
    flags = dict(row.get("flags", {}))
    whole = {**record, "reported": row["reported"], "tp": row["tp"], "model": "some/model"}
    whole["tokens_per_block"] = flags.pop("tokens_per_block", record["tokens_per_block"])
    cache = {"dtype": row["kv_cache_dtype"]} if row.get("kv_cache_dtype") else {}
    words = {"engine_version": row["version"]} if row["version"] else {}
    text = tensorrt_llm_log(whole, cache=cache, **flags).text
    answer = verified(text, row.get("model") or row["config"], gpu="h200", **words)
    assert wrong_of_layout(answer) == []
    names = {check["name"] for check in answer["checks"]}
    assert names & {"kv_tokens", "kv_bytes_per_token"}


@pytest.mark.parametrize("row", lines("llama_cpp_logs.jsonl"), ids=ids)
def test_a_log_of_llama_cpp_around_published_figures_agrees(row: dict[str, Any]) -> None:
    flags = dict(row["flags"])
    if any("any_ubatch" in group for group in row["reported"].get("groups", {}).values()):
        flags["ubatch_size"] = 128 if row["id"] == "lc-004" else 1024  # not recorded; these make its cells
    written = llama_cpp_log({**row, "flags": flags, "model": row["named"], "version": row.get("build")})
    drafting = {name: value for name, value in flags.items() if name.startswith("spec_")}
    answer = verified(written.text, row.get("model"), gpu="cpu", **drafting)
    assert [row for row in disagreeing(answer) if row[0] not in written.invented] == []
    assert len(answer["checks"]) >= 3
