"""What quantisation configs say of the bytes of weights, with files and without."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from safetensors.numpy import save_file

import kvplan
from kvplan.cost.weights import Split
from kvplan.engines.loaded import weights_on_rank
from kvplan.figure import bare
from kvplan.verbs.deploy import deployment
from kvplan.verbs.given import given_model
from test_model_files import TINY, folder, tensors, write_gguf

LAYERS = 32
MATRICES = [
    (4096, 4096),
    (1024, 4096),
    (1024, 4096),
    (4096, 4096),
    (14336, 4096),
    (14336, 4096),
    (4096, 14336),
]
VALUES = LAYERS * sum(o * i for o, i in MATRICES)
REST = 2 * (2 * 128256 * 4096 + 65 * 4096)  # embedding, head and norms in 16 bit


def weight_bytes(config: dict[str, Any], **quantization: Any) -> int:
    """`size`'s figure for a config with that quantization_config."""
    return int(kvplan.size({**config, "quantization_config": quantization})["model"]["weight_bytes"])


def notes(config: dict[str, Any], **quantization: Any) -> str:
    """`size`'s notes, together."""
    return " ".join(kvplan.size({**config, "quantization_config": quantization})["notes"])


def by_hand(bits: int, per_group: float, group: int, per_input: int = 0) -> int:
    """Bytes of the Llama's weights: values, groups along each row (-1: one a row), words an input."""
    groups = sum(o * (1 if group < 0 else i // group) for o, i in MATRICES)
    scales = groups * per_group + sum(i for _, i in MATRICES) * per_input
    return REST + VALUES * bits // 8 + round(LAYERS * scales)


@pytest.mark.parametrize("asked", [{"quantization": "awq"}, {"dtype": "float32"}, {"quantization": "fp8"}])
def test_what_is_asked_for_beats_the_bytes_of_files_stored_otherwise(
    tmp_path: Path, asked: dict[str, str]
) -> None:
    held = folder(tmp_path, TINY)
    answer = kvplan.size(tmp_path, **asked)
    assert answer["model"]["weight_bytes"] == kvplan.size(TINY, **asked)["model"]["weight_bytes"] != held
    assert "weights by the formula; the files hold" in " ".join(answer["notes"])
    plan = kvplan.plan(tmp_path, gpu="h100", **asked)
    assert plan["size"]["model"]["weight_bytes"] == answer["model"]["weight_bytes"]


@pytest.mark.parametrize("asked", [{"dtype": "bfloat16"}, {"dtype": "float16"}, {"quantization": "none"}])
def test_what_the_files_are_already_changes_nothing(tmp_path: Path, asked: dict[str, str]) -> None:
    held = folder(tmp_path, TINY)
    assert kvplan.size(tmp_path, **asked)["model"]["weight_bytes"] == held


@pytest.mark.parametrize("method", ["hqq", "torchao", "quark", "aqlm"])
def test_files_say_the_bytes_of_a_scheme_that_is_not_known(tmp_path: Path, method: str) -> None:
    held = folder(tmp_path, {**TINY, "quantization_config": {"quant_method": method}})
    answer = kvplan.size(tmp_path)
    assert answer["model"]["weight_bytes"] == held
    assert answer["weights"]["formula_bytes"] is None
    assert f"weights stored as '{method}' are not known to the formula" in answer["notes"]
    assert kvplan.plan(tmp_path, gpu="h100")["fit"]["memory"]["weight_bytes"] >= held


def test_without_files_a_scheme_that_is_not_known_leaves_the_weights_unknown(llama8b: dict[str, Any]) -> None:
    config = {**llama8b, "quantization_config": {"quant_method": "quark"}}
    answer = kvplan.size(config)
    assert answer["model"]["weight_bytes"] is None
    assert answer["kv"]["bytes_per_token"] == 131072
    for verb in (kvplan.fit, kvplan.plan):
        with pytest.raises(
            kvplan.KvplanError, match=r"stored as 'quark' .* give kvplan fit --weights-memory"
        ) as raised:
            verb(config, gpu="h100")
        assert "\n" not in str(raised.value)
    memory = kvplan.fit(config, gpu="h100", weights_memory="8GiB")["memory"]
    assert memory["weight_bytes"] == 8 * 2**30


def test_weights_that_are_not_known_do_not_hide_what_a_given_pool_holds(llama8b: dict[str, Any]) -> None:
    config = {**llama8b, "quantization_config": {"quant_method": "quark"}}
    answer = kvplan.fit(config, kv_cache_memory_bytes="1GiB")
    assert answer["memory"]["weight_bytes"] is None
    assert answer["capacity"]["kv_tokens"] == 2**30 // 131072
    with pytest.raises(kvplan.KvplanError, match=r"give the \.gguf file"):
        kvplan.fit(config, engine="llama.cpp", gpu="h100")


@pytest.mark.parametrize("name", ["AWQ", "gptq", "gptq_marlin", "marlin", "intel/auto-round", "auto_round"])
def test_other_names_of_a_method_are_the_method(llama8b: dict[str, Any], name: str) -> None:
    kind = "awq" if name == "AWQ" else "gptq"
    found = weight_bytes(llama8b, quant_method=name, bits=4, group_size=128)
    assert found == weight_bytes(llama8b, quant_method=kind, bits=4, group_size=128)


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("group", [32, 128, -1])
def test_gptq_follows_its_bits_and_its_group(llama8b: dict[str, Any], bits: int, group: int) -> None:
    found = weight_bytes(llama8b, quant_method="gptq", bits=bits, group_size=group)
    assert found == by_hand(bits, 2 + bits / 8, group, per_input=4)


def test_awqs_older_key_of_the_group_counts(llama8b: dict[str, Any]) -> None:
    found = weight_bytes(llama8b, quant_method="awq", w_bit=4, q_group_size=64)
    assert found == by_hand(4, 2.5, 64)


@pytest.mark.parametrize(
    ("weights", "per_group", "group"),
    [
        ({"num_bits": 4, "strategy": "channel"}, 2, -1),
        ({"num_bits": 4, "strategy": "group", "group_size": 128}, 2, 128),
        ({"num_bits": 4, "strategy": "group", "group_size": 128, "symmetric": False}, 2.5, 128),
        ({"num_bits": 8, "strategy": "group", "group_size": 128}, 2, 128),
        ({"num_bits": 8, "strategy": "channel"}, 4, -1),
    ],
)
def test_compressed_integers_follow_strategy_group_and_symmetry(
    llama8b: dict[str, Any], weights: dict[str, Any], per_group: float, group: int
) -> None:
    groups = {"g": {"targets": ["Linear"], "weights": {"type": "int", **weights}}}
    found = weight_bytes(llama8b, quant_method="compressed-tensors", config_groups=groups)
    assert found == by_hand(weights["num_bits"], per_group, group)


def test_the_block_of_an_fp8_checkpoint_is_the_stated_one(llama8b: dict[str, Any]) -> None:
    found = weight_bytes(llama8b, quant_method="fp8", weight_block_size=[64, 32])
    assert found == REST + VALUES + 4 * LAYERS * sum(o // 64 * (i // 32) for o, i in MATRICES)


MLP = sum(o * i for o, i in MATRICES[4:])
KEPT = [
    ("bitsandbytes", "llm_int8_skip_modules", ["model.layers.3.mlp"], 1),
    ("bitsandbytes", "llm_int8_skip_modules", ["mlp"], 32),
    ("fp8", "ignored_layers", ["model.layers.3.mlp"], 1),
    ("awq", "modules_to_not_convert", ["layers.3.ml"], 1),
    ("awq", "modules_to_not_convert", ["mlp"], 32),
    ("gptq", "dynamic", {r"-:model\.layers\.(3|4)\.mlp\..*": {}}, 2),
    (
        "auto-round",
        "extra_config",
        {f"model.layers.3.mlp.{p}_proj": {"bits": 16} for p in ("up", "gate", "down")},
        1,
    ),
]


def test_float32_beside_quantised_matrices_is_loaded_in_16_bit_too(llama8b: dict[str, Any]) -> None:
    d = deployment({**llama8b, "torch_dtype": "float32"}, gpu="h100", quantization="fp8", flags={})
    assert kvplan.size(d.model)["model"]["weight_bytes"] == weight_bytes(llama8b, quant_method="fp8")


def test_more_names_than_a_config_has_are_not_all_followed(llama8b: dict[str, Any]) -> None:
    listed = [f"re:x{n}.*" for n in range(5000)]
    began = time.perf_counter()
    assert "2,048 of 5,000 patterns" in notes(llama8b, quant_method="fp8", ignored_layers=listed)
    assert time.perf_counter() - began < 20


@pytest.mark.parametrize(("method", "key", "listed", "layers"), KEPT)
def test_modules_a_config_leaves_in_16_bit_are_counted_so(
    llama8b: dict[str, Any], method: str, key: str, listed: Any, layers: int
) -> None:
    usual = weight_bytes(llama8b, quant_method=method)
    more = weight_bytes(llama8b, quant_method=method, **{key: listed}) - usual
    plain = 2 * MLP * layers
    assert 0.4 * plain < more < plain
    assert more % layers == 0


def test_gptq_modules_may_have_bits_of_their_own(llama8b: dict[str, Any]) -> None:
    usual = weight_bytes(llama8b, quant_method="gptq", bits=4)
    wider = weight_bytes(llama8b, quant_method="gptq", bits=4, dynamic={r"+:.*\.mlp\..*": {"bits": 8}})
    assert wider - usual == round(LAYERS * MLP * (0.5 + 0.5 / 128))


def test_a_wicked_pattern_is_answered_at_once_and_a_broken_one_is_noted(llama8b: dict[str, Any]) -> None:
    groups = {"g": {"targets": ["re:(.*)*(.*)*(.*)*zzz"], "weights": {"num_bits": 8, "type": "float"}}}
    began = time.perf_counter()
    said = notes(
        llama8b, quant_method="compressed-tensors", config_groups=groups, ignore=["re:(", "re:(?!a).*"]
    )
    assert time.perf_counter() - began < 5
    assert "pattern 're:(' is not followed: it ends too early" in said
    assert "pattern 're:(?!a).*' is not followed: it looks around or back" in said


@pytest.mark.parametrize("config", [{"quant_method": "mxfp4"}, {"quant_method": "compressed-tensors"}])
def test_a_quantisation_that_touches_nothing_is_said(llama8b: dict[str, Any], config: dict[str, str]) -> None:
    assert "touches no matrix of this model" in notes(llama8b, **config)
    assert weight_bytes(llama8b, **config) == REST + 2 * VALUES


def test_the_flag_mxfp4_on_a_dense_model_says_that_it_does_nothing(llama8b: dict[str, Any]) -> None:
    assert "it stores experts only" in " ".join(kvplan.size(llama8b, quantization="mxfp4")["notes"])


def test_a_key_that_is_not_followed_is_named(llama8b: dict[str, Any]) -> None:
    said = notes(llama8b, quant_method="gptq", bits=4, modules_in_block_to_quantize=[["self_attn.q_proj"]])
    assert "modules_in_block_to_quantize of config given is not applied" in said


@pytest.mark.parametrize(("engine", "width"), [("vllm", 2), ("sglang", 2), ("transformers", 4)])
def test_float32_is_loaded_as_the_engine_loads_it(tmp_path: Path, engine: str, width: int) -> None:
    config = {**TINY, "torch_dtype": "float32"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = {name: array.astype(np.float32) for name, array in tensors(config).items()}
    save_file(found, tmp_path / "model.safetensors")
    values = sum(array.size for array in found.values())
    assert kvplan.size(tmp_path)["model"]["weight_bytes"] == 4 * values
    loaded = deployment(tmp_path, gpu="h100", engine=engine, flags={})
    assert kvplan.size(loaded.model)["model"]["weight_bytes"] == width * values
    asked = deployment(tmp_path, gpu="h100", engine=engine, dtype="float32", flags={})
    assert kvplan.size(asked.model)["model"]["weight_bytes"] == 4 * values


@pytest.mark.parametrize(("engine", "per_group"), [("vllm", 4), ("sglang", 1.015625)])
def test_vllm_unpacks_doubly_quantised_constants(
    llama8b: dict[str, Any], engine: str, per_group: float
) -> None:
    asked = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_use_double_quant": True}
    d = deployment({**llama8b, "quantization_config": asked}, gpu="h100", engine=engine, flags={})
    assert kvplan.size(d.model)["model"]["weight_bytes"] == by_hand(4, per_group, 64)


def test_a_tied_head_that_the_file_stores_again_is_not_loaded(tmp_path: Path) -> None:
    config = {**TINY, "tie_word_embeddings": True}
    held = folder(tmp_path, config)
    assert kvplan.size(tmp_path)["model"]["weight_bytes"] == held
    loaded = weights_on_rank(given_model(tmp_path), Split(), bare)
    assert loaded == weights_on_rank(given_model(config), Split(), bare)


def test_packed_layers_that_predict_ahead_count_their_parameters(tmp_path: Path) -> None:
    config = {**TINY, "quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 32}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    mtp = {
        "mtp.layers.0.mlp.up_proj.qweight": np.zeros((8, 128), np.int32),
        "mtp.layers.0.mlp.up_proj.scales": np.zeros((2, 128), np.float16),
        "mtp.layers.0.mlp.up_proj.qzeros": np.zeros((2, 16), np.int32),
        "mtp.layers.0.mlp.up_proj.g_idx": np.zeros((64,), np.int32),
        "mtp.norm.weight": np.zeros((64,), np.float16),
    }
    save_file({**tensors(TINY), **mtp}, tmp_path / "model.safetensors")
    assert kvplan.size(tmp_path)["model"]["other_parameters"] == 64 * 128 + 64


def test_a_file_without_tensors_is_noted(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    save_file({}, tmp_path / "model.safetensors")
    answer = kvplan.size(tmp_path)
    assert answer["model"]["weight_bytes"] == kvplan.size(TINY)["model"]["weight_bytes"]
    assert "model.safetensors holds no tensors" in answer["notes"][0]


def test_a_gguf_file_keeps_its_types_unless_another_quantisation_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "A.GGUF"
    held = write_gguf(path, gguf.GGMLQuantizationType.Q8_0)
    assert kvplan.size(tmp_path)["model"]["weight_bytes"] == held
    asked = kvplan.size(path, dtype="float32")
    assert asked["model"]["weight_bytes"] == held
    assert "keeps its own types" in asked["notes"][0]
    plain = kvplan.size(path, quantization="none")["model"]
    assert plain["weight_bytes"] == 2 * plain["parameters"]
    narrow = kvplan.size(path, quantization="q4_0")["model"]["weight_bytes"]
    assert narrow < 0.7 * held
    assert kvplan.plan(path, gpu="h100", quantization="q4_0")["size"]["model"]["weight_bytes"] == narrow


def test_a_gguf_file_of_floats_takes_the_dtype_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path, gguf.GGMLQuantizationType.F16)
    found = kvplan.size(path, dtype="float32")["model"]
    assert found["weight_bytes"] == 4 * found["parameters"]


def test_a_gguf_file_without_tensors_is_noted(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "bare.gguf", "llama")
    for add, value in {
        "block_count": 2,
        "context_length": 64,
        "embedding_length": 64,
        "vocab_size": 8,
    }.items():
        getattr(writer, f"add_{add}")(value)
    writer.add_feed_forward_length(128)
    writer.add_head_count(4)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    answer = kvplan.size(tmp_path / "bare.gguf")
    assert answer["model"]["weight_bytes"] > 0
    assert "bare.gguf holds no tensors" in answer["notes"][0]


def test_a_folder_may_be_called_like_a_file(tmp_path: Path) -> None:
    named = tmp_path / "x.gguf"
    named.mkdir()
    held = folder(named, TINY)
    assert kvplan.size(named)["model"]["weight_bytes"] == held


def test_names_of_quantisations_are_offered_once() -> None:
    with pytest.raises(kvplan.KvplanError) as raised:
        kvplan.size(TINY, quantization="zzzzzzzzzzzz")
    listed = str(raised.value).partition("known: ")[2].split(", ")
    assert len(listed) == len(set(listed)) > 10
