"""What llama.cpp allocates for tiny models of many architectures, under several settings, is predicted.

The golden holds each model's GGUF metadata (and a config, where GGUF is not read yet) and what llama.cpp
logged; tests/oracle/test_live_llama_cpp.py asks again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from conftest import lines
from kvplan.engines.engine import Setup
from kvplan.engines.llama_cpp import capacity
from kvplan.engines.llama_cpp_placement import output_bytes, placement
from kvplan.errors import BadInput
from kvplan.model.gguf_model import model_of
from kvplan.model.model import Model
from kvplan.model.read import read_config
from kvplan.model.tensors import Tensor, TensorList
from test_llama_cpp_runs import caches_in, predicted_as_logged

ROWS = lines("llama_cpp_archs.jsonl")
NAMES = {
    "n_ctx": "ctx_size",
    "n_parallel": "parallel",
    "n_ubatch": "ubatch_size",
    "flash_attn_type": "flash_attn",
}


def flags_of(parameters: dict[str, Any]) -> dict[str, Any]:
    """llama.cpp's parameters under the flags of its server."""
    found = {NAMES.get(name, name): value for name, value in parameters.items()}
    if found.get("flash_attn") == "LLAMA_FLASH_ATTN_TYPE_DISABLED":
        found["flash_attn"] = "off"
    return found


def differences(model: Model, parameters: dict[str, Any], log: list[str], refused: bool) -> list[str]:
    """Where the prediction and a log differ; a refusal must be predicted too."""
    try:
        found = predicted_as_logged(model, flags_of(parameters))
    except BadInput as error:
        return [] if refused else [f"loads, but predicted: {error}"]
    if refused:
        return ["refused, but predicted to load"]
    logged = caches_in(log)
    return [
        f"{key}: logged {logged[key]}, predicted {found[key]}" for key in found if logged[key] != found[key]
    ]


def model_in(row: dict[str, Any]) -> Model:
    """The row's model from its metadata; the names of its blocks' tensors say what metadata does not."""
    if "config" in row:
        return read_config(row["config"], "config", row["id"])
    metadata = {
        "general.architecture": row["arch"],
        f"{row['arch']}.vocab_size": row["vocab"],
        **row["metadata"],
    }
    tensors = tuple(Tensor(name, "F32", (1,), 4) for name in row.get("tensors", ()))
    return model_of(TensorList(tensors, ("tiny",), metadata))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["id"])
def test_an_architectures_caches_are_those_that_llama_cpp_allocates(row: dict[str, Any]) -> None:
    model, wrong = model_in(row), []
    for run in row["runs"]:
        found = differences(model, run["flags"], run["log"], run["refused"])
        wrong += [f"{run['flags']}: {text}" for text in found]
    assert wrong == []


def test_the_architectures_cover_every_kind_of_cache() -> None:
    logged = [caches_in(run["log"]) for row in ROWS for run in row["runs"] if not run["refused"]]
    assert len(ROWS) >= 30
    assert sum(1 for one in logged if one["state"] and not one["caches"]) >= 6
    assert sum(1 for one in logged if one["state"] and one["caches"]) >= 20
    assert sum(1 for one in logged if len(one["caches"]) > 1) >= 60
    assert any(run["refused"] for row in ROWS for run in row["runs"])


def llama(**changed: Any) -> Model:
    return model_in(next(row for row in ROWS if row["id"] == "llama") | changed)


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ({"cache_type_k": "q5_k"}, "--cache-type-k"),
        ({"parallel": 0}, "--parallel"),
        ({"parallel": 300}, "--parallel"),
        ({"ctx_size": "many"}, "--ctx-size"),
        ({"cache_type_v": "q8_0", "flash_attn": "off"}, "flash attention"),
        ({"launcher": "nothing"}, "--launcher"),
    ],
)
def test_a_flag_that_llama_cpp_refuses_is_named(flags: dict[str, Any], named: str) -> None:
    with pytest.raises(BadInput, match=named):
        capacity(llama(), Setup("llama.cpp", "", flags=flags), None)


def test_a_version_that_is_no_build_is_an_error_that_names_the_known_ones() -> None:
    with pytest.raises(BadInput, match="b11549"):
        capacity(llama(), Setup("llama.cpp", "2025-01-01"), None)


def test_without_parallel_four_slots_share_one_cache() -> None:
    found = capacity(llama(), Setup("llama.cpp", "", flags={"ctx_size": 4096}), None)
    assert (found.max_running_requests, found.groups[0].streams, found.groups[0].cells) == (4, 1, 4096)
    old = capacity(llama(), Setup("llama.cpp", "b6000", flags={"ctx_size": 4096}), None)
    assert (old.max_running_requests, old.groups[0].streams) == (1, 1)


@pytest.mark.parametrize(
    ("memory", "tokens"), [(8 * 2**30, 4096), (24 * 2**30, 8192), (80 * 2**30, 8192)]
)  # the model was trained for 8,192 tokens
def test_ollama_chooses_a_context_by_memory(memory: int, tokens: int) -> None:
    found = capacity(llama(), Setup("ollama", "", memory_bytes=memory), None)
    assert (found.kv_tokens, found.max_running_requests) == (tokens, 1)


def test_a_context_left_open_shrinks_to_the_pool_as_fit_shrinks_it() -> None:
    whole = capacity(llama(), Setup("llama.cpp", "", flags={}), None)
    assert whole.kv_tokens == 8192
    less = capacity(llama(), Setup("llama.cpp", "", flags={}), int(whole.kv_bytes) * 3 // 4)
    assert (less.kv_tokens, less.fits) == (6144, True)
    least = capacity(llama(), Setup("llama.cpp", "", flags={}), 1000)
    assert (least.kv_tokens, least.fits) == (4096, False)


def test_layers_lie_on_devices_from_the_end_and_the_rest_on_the_host() -> None:
    setup = Setup("llama.cpp", "", flags={"ctx_size": 1024, "n_gpu_layers": 3, "parallel": 1})
    device, host = placement(llama(), setup, [2**34])
    assert (device.layers, host.layers) == (3, 2)  # the output counts as the last layer
    assert device.cache_bytes == host.cache_bytes  # two of four layers each
    assert host.output_bytes == output_bytes(llama(), 1)
    old = placement(llama(), Setup("llama.cpp", "b7000", flags=setup.flags), [2**34])
    assert old[0].cache_bytes == 3 * host.cache_bytes // 2  # the output did not count then


def test_devices_share_layers_by_free_memory_or_by_the_split_given() -> None:
    flags = {"ctx_size": 1024, "parallel": 1}
    one = placement(llama(), Setup("llama.cpp", "", flags=flags), [3 * 2**30, 2 * 2**30])
    other = placement(llama(), Setup("llama.cpp", "", flags={**flags, "tensor_split": "1,4"}), [2**34, 2**34])
    assert [p.layers for p in one] == [3, 2, 0]
    assert [p.layers for p in other] == [1, 4, 0]


def test_no_layer_list_is_read_from_a_machine() -> None:
    assert not [row for row in ROWS for run in row["runs"] for line in run["log"] if str(Path.home()) in line]
