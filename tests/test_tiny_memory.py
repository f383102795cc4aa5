"""Too little memory is an answer, not an error: it does not fit, and no part of it is less than nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import kvplan
from kvplan.engines.engine import Setup
from kvplan.engines.sglang_memory import mem_fraction_static, prefill_graphs
from kvplan.verbs.given import given_model

ENGINES = ("sglang", "tensorrt-llm", "llama.cpp", "transformers")
TINY: list[dict[str, Any]] = [
    {"gpu_memory": 5},
    {"gpu_memory": 1},
    {"gpu_memory": "1GiB"},
    {"gpu": "h100", "memory_in_use": "1000GB"},
    {"gpu": "h100", "memory_in_use": "79GiB"},
]


def negative(found: Any, path: str = "") -> Iterator[str]:
    if isinstance(found, dict):
        for name, value in found.items():
            yield from negative(value, f"{path}.{name}")
    elif isinstance(found, list | tuple):
        for i, value in enumerate(found):
            yield from negative(value, f"{path}[{i}]")
    elif isinstance(found, int | float) and found < 0:
        yield path


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("given", TINY, ids=str)
@pytest.mark.parametrize("model", ["llama-3.1-8b", "gpt-oss-20b", "qwen3-next-80b"])
def test_nothing_but_headroom_is_negative_and_it_does_not_fit(
    engine: str, given: dict[str, Any], model: str
) -> None:
    answer = kvplan.fit(model, engine=engine, **given)
    assert answer["capacity"]["fits"] is False
    assert list(negative(dict(answer))) == [".memory.headroom_bytes"]


def test_a_chunk_larger_than_the_device_leaves_no_static_share() -> None:
    answer = kvplan.fit("llama-3.1-8b", engine="sglang", gpu="h100", chunked_prefill_size=99_999_999_999)
    assert answer["capacity"]["fits"] is False
    assert answer["engine"]["settings"]["mem_fraction_static"] == 0
    assert list(negative(dict(answer))) == [".memory.headroom_bytes"]
    assert not any("starts all the same" in note for note in answer["notes"])


def test_prefill_graphs_are_counted_without_being_listed() -> None:
    listed = [4, 5, 32, 33, 255, 256, 288, 4095, 4096, 4607, 4608, 8192, 16384]
    rows = [[4, 32, 4], [48, 256, 16], [288, 512, 32], [576, 1024, 64], [1280, 4096, 256], [4608, 20000, 512]]
    for largest in listed:
        sizes = [n for first, last, step in rows for n in range(first, last + 1, step) if n <= largest]
        assert prefill_graphs(largest) == len(sizes)
    assert prefill_graphs(2**48) > 2**38


@pytest.mark.parametrize("gpu", ["h100", "rtx4090", "b200"])
def test_the_default_share_is_among_the_settings_and_decides_the_pool(gpu: str) -> None:
    settings = kvplan.fit("llama-3.1-8b", engine="sglang", gpu=gpu)["engine"]["settings"]
    stated = settings["mem_fraction_static"]
    assert 0 < stated < 1
    same = {"mem_fraction_static": stated, "engine": "sglang", "gpu": gpu}
    memory = kvplan.fit("llama-3.1-8b", engine="sglang", gpu=gpu)["memory"]
    assert kvplan.fit("llama-3.1-8b", **same)["memory"]["kv_pool_bytes"] == memory["kv_pool_bytes"]


def test_an_older_version_keeps_no_more_than_the_device_has() -> None:
    model = given_model("llama-3.1-8b", "auto", None)
    for version in ("0.4.6", "0.4.9", "0.5.3", "0.5.23"):
        assert mem_fraction_static(model, Setup("sglang", version, memory_bytes=2**20)) >= 0


def test_tensorrt_llm_fits_when_one_sequence_of_the_asked_length_does() -> None:
    short = kvplan.fit("llama-3.1-70b", engine="tensorrt-llm", gpu="h100", tp=2)
    assert short["capacity"]["fits"] is False
    assert any("is reduced to" in note for note in short["notes"])
    length = short["capacity"]["estimated_max_model_len"]
    ways = {row["flag"]: row["value"] for row in short["ways_back"]}
    assert ways["--max-seq-len"] == length
    again = kvplan.fit("llama-3.1-70b", engine="tensorrt-llm", gpu="h100", tp=2, max_seq_len=length)
    assert again["capacity"]["fits"] is True
    wider = kvplan.fit("llama-3.1-70b", engine="tensorrt-llm", gpu="h100", tp=ways["--tp"])
    assert wider["capacity"]["fits"] is True


@pytest.mark.parametrize("name", ["gpt-oss-20b", "qwen3-next-80b", "llama-3.1-8b"])
def test_bytes_are_whole_in_an_explanation(name: str) -> None:
    answer = kvplan.fit(name, engine="sglang", gpu="b200")
    for figure in ("kv_tokens", "needed_kv_bytes", "kv_bytes"):
        lines = answer.explain(f"capacity.{figure}").splitlines()
        assert [line for line in lines if "e+" in line] == []
