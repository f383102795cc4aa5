"""MODEL may be a folder of safetensors, a GGUF file or a repository of the Hub: the files' bytes win."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from safetensors.numpy import save_file

import hub_server
import kvplan

TINY: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 256,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
}


def tensors(config: dict[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
    """The weights of a tiny Llama, as a checkpoint names them."""
    h, i, v = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    kv = h // config["num_attention_heads"] * config["num_key_value_heads"]
    shapes = {"model.embed_tokens.weight": (v, h), "lm_head.weight": (v, h), "model.norm.weight": (h,)}
    for n in range(config["num_hidden_layers"]):
        layer = f"model.layers.{n}"
        shapes |= {f"{layer}.self_attn.{p}_proj.weight": (kv if p in "kv" else h, h) for p in "qkvo"}
        shapes |= {f"{layer}.mlp.{p}_proj.weight": (i, h) for p in ("gate", "up")}
        shapes |= {f"{layer}.mlp.down_proj.weight": (h, i)}
        shapes |= {f"{layer}.{p}_layernorm.weight": (h,) for p in ("input", "post_attention")}
    return {name: np.zeros(shape, dtype=np.float16) for name, shape in shapes.items()}


def folder(path: Path, config: dict[str, Any], shards: int = 1) -> int:
    """Write a checkpoint folder; returns the bytes of its tensors."""
    (path / "config.json").write_text(json.dumps(config))
    found = tensors(config)
    if shards == 1:
        save_file(found, path / "model.safetensors")
    else:
        index = {}
        for n in range(shards):
            name = f"model-{n + 1:05d}-of-{shards:05d}.safetensors"
            part = {k: a for i, (k, a) in enumerate(found.items()) if i % shards == n}
            save_file(part, path / name)
            index |= dict.fromkeys(part, name)
        (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    return sum(a.nbytes for a in found.values())


@pytest.mark.parametrize("shards", [1, 3])
def test_a_folders_own_bytes_are_the_weights_and_agree_with_the_formula(tmp_path: Path, shards: int) -> None:
    held = folder(tmp_path, TINY, shards)
    answer = kvplan.size(tmp_path)
    assert answer["model"]["weight_bytes"] == answer["weights"]["header_bytes"] == held
    assert answer["weights"]["formula_bytes"] == held
    assert answer["weights"]["by_dtype"] == {"F16": held}
    assert answer["model"]["parameters"] == held // 2
    assert answer["model"]["other_parameters"] == 0
    assert len(answer["weights"]["files"]) == shards
    assert answer["notes"] == []


def test_the_explanation_says_the_bytes_were_read_from_the_header(tmp_path: Path) -> None:
    folder(tmp_path, TINY)
    assert "[measured: model.safetensors: tensors in the header]" in kvplan.size(tmp_path).explain(
        "weight_bytes"
    )


def test_a_difference_over_one_percent_is_named(tmp_path: Path) -> None:
    folder(tmp_path, TINY)
    (tmp_path / "config.json").write_text(json.dumps({**TINY, "intermediate_size": 160}))
    answer = kvplan.size(tmp_path)
    assert "the formula is +" in answer["notes"][0]
    assert answer["model"]["weight_bytes"] == answer["weights"]["header_bytes"]


def test_a_missing_shard_is_one_line(tmp_path: Path) -> None:
    folder(tmp_path, TINY, 3)
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(kvplan.KvplanError, match="model-00002-of-00003"):
        kvplan.size(tmp_path)


def test_a_lone_safetensors_file_asks_for_its_folder(tmp_path: Path) -> None:
    folder(tmp_path, TINY)
    with pytest.raises(kvplan.KvplanError, match="give the folder"):
        kvplan.size(tmp_path / "model.safetensors")


def test_towers_and_mtp_layers_in_the_files_are_other_parameters(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    found = tensors(TINY)
    beside = {
        "vision_tower.encoder.layers.0.self_attn.q_proj.weight": np.zeros((8, 8), np.float16),
        "model.layers.2.eh_proj.weight": np.zeros((4, 4), np.float16),
    }
    save_file({**found, **beside}, tmp_path / "model.safetensors")
    answer = kvplan.size(tmp_path)
    assert answer["model"]["other_parameters"] == 64 + 16
    assert answer["model"]["weight_bytes"] == sum(a.nbytes for a in found.values())


def write_gguf(path: Path, quantised: gguf.GGMLQuantizationType) -> int:
    """Write a tiny GGUF Llama; returns the bytes of its tensors."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_block_count(2)
    writer.add_context_length(512)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(128)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_vocab_size(256)
    shapes = {"token_embd": (256, 64), "output": (256, 64), "output_norm": (64,)}
    for n in range(2):
        kv = {"attn_q": (64, 64), "attn_k": (32, 64), "attn_v": (32, 64), "attn_output": (64, 64)}
        ff = {"ffn_gate": (128, 64), "ffn_up": (128, 64), "ffn_down": (64, 128)}
        norms = {"attn_norm": (64,), "ffn_norm": (64,)}
        shapes |= {f"blk.{n}.{name}": shape for name, shape in {**kv, **ff, **norms}.items()}
    held = 0
    for name, shape in shapes.items():
        values = np.zeros(shape, dtype=np.float32)
        plain = len(shape) == 1
        stored = values if plain else gguf.quants.quantize(values, quantised)
        writer.add_tensor(f"{name}.weight", stored, raw_dtype=None if plain else quantised)
        held += stored.nbytes
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return held


@pytest.mark.parametrize("name", ["Q8_0", "Q4_0", "Q5_1", "F16"])
def test_a_gguf_file_gives_geometry_mix_and_exact_bytes(tmp_path: Path, name: str) -> None:
    path = tmp_path / "tiny.gguf"
    held = write_gguf(path, gguf.GGMLQuantizationType[name])
    answer = kvplan.size(path, tokens=100)
    assert answer["model"]["weight_bytes"] == held
    assert answer["kv"]["bytes_per_token"] == 2 * 2 * (16 + 16) * 2
    assert answer["model"]["layers"] == 2
    assert set(answer["weights"]["by_dtype"]) == {name, "F32"}
    assert answer["weights"]["formula_bytes"] is None
    plan = kvplan.plan(path, gpu="rtx4090")
    assert plan["fit"]["capacity"]["fits"]
    assert str(path) in plan["launch"]


def test_a_folder_with_one_gguf_file_is_that_file(tmp_path: Path) -> None:
    held = write_gguf(tmp_path / "tiny.gguf", gguf.GGMLQuantizationType.Q8_0)
    assert kvplan.size(tmp_path)["model"]["weight_bytes"] == held
    (tmp_path / "tiny.gguf").rename(tmp_path / "a.gguf")
    write_gguf(tmp_path / "b.gguf", gguf.GGMLQuantizationType.Q8_0)
    with pytest.raises(kvplan.KvplanError, match=r"holds 2 \.gguf files; name one"):
        kvplan.size(tmp_path)


def on_the_hub(url: str, home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command line against a stand-in of the Hub, in a process of its own."""
    environment = {**os.environ, "HF_ENDPOINT": url, "HF_HOME": str(home), "NO_PROXY": "127.0.0.1"}
    environment.pop("HF_HUB_OFFLINE", None)
    command = [sys.executable, "-m", "kvplan", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def test_a_repository_of_the_hub_is_sized_from_its_headers(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    held = folder(tmp_path / "made", TINY)
    with hub_server.hub() as server:
        server.files.update({path.name: path.read_bytes() for path in (tmp_path / "made").iterdir()})
        ran = on_the_hub(server.url, tmp_path / "home", "size", "someone/tiny-llama", "--json")
    answer = json.loads(ran.stdout)
    assert answer["model"]["id"] == "someone/tiny-llama"
    assert answer["model"]["weight_bytes"] == held
    assert answer["weights"]["files"] == ["model.safetensors"]


def test_a_hub_that_nobody_can_reach_is_one_line(tmp_path: Path) -> None:
    ran = on_the_hub("http://127.0.0.1:9", tmp_path, "size", "someone/tiny-llama")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.count("\n") == 1
