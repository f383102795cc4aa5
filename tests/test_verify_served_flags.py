"""A running server states little: that finds a wrong flag, and what it leaves out is never called exact."""

from __future__ import annotations

import json
from typing import Any

import pytest

import fake_server as fake
import kvplan
from kvplan.faces.verify_words import cells

GPU = (
    'vllm:cache_config_info{block_size="16",num_gpu_blocks="27914",cache_dtype="auto",engine="0",'
    'gpu_memory_utilization="0.9",enable_prefix_caching="True",kv_cache_memory_bytes="None",'
    'kv_cache_size_tokens="446624",kv_cache_max_concurrency="3.4074707"} 1\n'
)
LLAMA = {"id": "m", "root": "meta-llama/Llama-3.1-8B-Instruct", "max_model_len": 131072}
WRONG: dict[str, tuple[dict[str, Any], list[tuple[str, Any]]]] = {
    "ranks": ({"tp": 2}, [("--tp", None)]),
    "a narrower cache": ({"kv_cache_dtype": "fp8"}, [("--kv-cache-dtype", "bfloat16")]),
    "larger blocks": ({"block_size": 32}, [("--block-size", 16)]),
    "a smaller share": ({"gpu_memory_utilization": 0.8}, [("--gpu-memory-utilization", 0.9)]),
    "ranks and blocks": ({"tp": 2, "block_size": 32}, [("--block-size", 16), ("--tp", None)]),
    "another model": ({"model": "qwen2.5-7b"}, [("MODEL", "meta-llama/Llama-3.1-8B-Instruct")]),
}


def asked(page: str = GPU, **words: Any) -> Any:
    models, version = fake.json_page({"data": [LLAMA]}), fake.json_page({"version": "0.32.0"})
    with fake.serving(metrics=page, version=version) as server:
        server.answers["/v1/models"] = models
        return kvplan.verify(url=server.url, **{"gpu": "h100", **words})


def test_a_server_on_a_gpu_agrees_by_what_it_states() -> None:
    answer = asked()
    assert answer["agrees"]
    names = {row["name"] for row in answer["checks"]}
    assert {"kv_tokens", "max_concurrency", "kv_pool_bytes", "kv_tokens_from_flags"} <= names
    assert "num_blocks" not in names  # the pool is made of them: they would agree whatever runs


@pytest.mark.parametrize("name", WRONG)
def test_a_flag_that_a_server_contradicts_is_the_one_to_change(name: str) -> None:
    words, changes = WRONG[name]
    answer = asked(**words)
    assert not answer["agrees"]
    assert sorted((row["flag"], row["value"]) for row in answer["changes"]) == changes
    kept = {
        k: v for k, v in words.items() if f"--{k.replace('_', '-')}" not in dict(changes) and k != "model"
    }
    put = {f.removeprefix("--").replace("-", "_"): v for f, v in changes if v is not None and f != "MODEL"}
    assert asked(**{**kept, **put})["agrees"]


def test_a_pool_of_another_card_names_it() -> None:
    answer = asked(gpu="h100-nvl")
    assert [row["flag"] for row in answer["changes"]] == ["--gpu"]
    assert asked(gpu=answer["changes"][0]["value"])["agrees"]


def test_a_share_that_is_none_breaks_nothing() -> None:
    answer = asked(GPU.replace('utilization="0.9"', 'utilization="1e-300"'))
    assert json.dumps(answer, allow_nan=False)


def props(name: str = "models/gemma-3-270m-q4_k_m.gguf", **words: Any) -> Any:
    page = {
        "total_slots": 4, "default_generation_settings": {"n_ctx": 4096}, "model_path": name,
        "build_info": "b10809-abc",
    }  # fmt: skip
    with fake.serving(props=fake.json_page(page)) as server:
        return kvplan.verify(words.pop("model"), url=server.url, **words)


def test_a_llama_server_is_not_agreed_with_by_its_own_settings() -> None:
    answer = props(model="openai/gpt-oss-120b", gpu="rtx4090")
    assert not answer["agrees"]
    assert answer["checks"] == []
    assert any("nothing that it shows tells them apart" in note for note in answer["notes"])
    stated = props(model="openai/gpt-oss-120b", gpu="rtx4090", ctx_size=16384, parallel=4)
    assert {row["name"] for row in stated["checks"]} == {"n_ctx_seq", "max_running_requests"}


def test_a_file_that_a_llama_server_runs_is_told_by_its_name() -> None:
    answer = props("/m/Qwen2.5-7B-Instruct-Q8_0.gguf", model="openai/gpt-oss-120b", gpu="rtx4090")
    assert [(row["flag"], row["value"]) for row in answer["changes"]] == [
        ("MODEL", "Qwen/Qwen2.5-7B-Instruct")
    ]


def test_bounds_of_times_are_printed_in_their_own_unit() -> None:
    row = {
        "name": "ttft_seconds", "unit": "s", "predicted": 0.0534, "reported": 0.05, "agrees": True,
        "relative_error": 0.068, "tolerance": 0.6, "low": 0.021, "high": 0.083,
    }  # fmt: skip
    assert cells(row)[4] == "21.00 ms to 83.00 ms"


def test_a_block_that_the_engine_sets_itself_is_no_wrong_flag() -> None:
    """Latents on a CPU are held in blocks of 16 tokens, whatever is asked."""
    page = 'vllm:cache_config_info{block_size="16",num_gpu_blocks="1000",cache_dtype="auto",engine="0"} 1\n'
    with fake.serving(metrics=page, version=fake.json_page({"version": "0.32.0"})) as server:
        answer = kvplan.verify("deepseek-v3", url=server.url, gpu="cpu", block_size=64, max_model_len=2048)
    assert {row["name"]: row["agrees"] for row in answer["checks"]}["block_size"]
