"""Headers of .safetensors files, checked against files that the safetensors library writes."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import save_file

from kvplan.errors import BadInput
from kvplan.model.safetensors import fetch_header, parse_header, read_safetensors
from kvplan.model.shards import shards_of
from kvplan.model.tensors import Tensor, TensorList, part_of

TYPES = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "I64": np.int64,
    "I8": np.int8,
    "U8": np.uint8,
}


def header(entries: dict, size: int = 0) -> bytes:
    raw = json.dumps(entries).encode()
    return len(raw).to_bytes(8, "little") + raw + bytes(size)


def write_shards(folder: Path) -> None:
    save_file(
        {"model.embed_tokens.weight": np.zeros((8, 4), np.float16)},
        folder / "model-00001-of-00002.safetensors",
    )
    save_file({"lm_head.weight": np.zeros((8, 4), np.float32)}, folder / "model-00002-of-00002.safetensors")


def write_index(folder: Path, **weight_map: str) -> Path:
    path = folder / "model.safetensors.index.json"
    weight_map = weight_map or {
        "model.embed_tokens.weight": "model-00001-of-00002.safetensors",
        "lm_head.weight": "model-00002-of-00002.safetensors",
    }
    path.write_text(json.dumps({"metadata": {"total_size": 192}, "weight_map": weight_map}))
    return path


@given(
    shapes=st.lists(st.lists(st.integers(0, 5), max_size=4), min_size=1, max_size=6),
    dtypes=st.lists(st.sampled_from(sorted(TYPES)), min_size=6, max_size=6),
)
def test_any_file_the_library_writes_is_read_with_the_same_names_shapes_and_bytes(
    tmp_path_factory, shapes, dtypes
):
    path = tmp_path_factory.mktemp("st") / "model.safetensors"
    arrays = {
        f"t{i}.weight": np.zeros(s, TYPES[d]) for i, (s, d) in enumerate(zip(shapes, dtypes, strict=False))
    }
    save_file(arrays, path, metadata={"format": "pt"})
    read = read_safetensors(path)
    assert {t.name: t.shape for t in read.tensors} == {n: a.shape for n, a in arrays.items()}
    assert read.bytes == sum(a.nbytes for a in arrays.values())
    assert dict(read.metadata) == {"format": "pt"}
    with safe_open(path, "numpy") as file:
        assert set(file.keys()) == {t.name for t in read.tensors}


def test_every_dtype_has_the_bytes_its_bits_say():
    bits = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "F8_E8M0": 8, "BF16": 16, "BOOL": 8, "U16": 16, "C64": 64}
    for dtype, width in bits.items():
        size = 16 * width // 8
        raw = header({"x": {"dtype": dtype, "shape": [4, 4], "data_offsets": [0, size]}})[8:]
        assert parse_header(raw, len(raw) + 8 + size, "x").tensors == (Tensor("x", dtype, (4, 4), size),)


def test_a_value_of_four_bits_may_not_end_within_a_byte():
    raw = header({"x": {"dtype": "F4", "shape": [3], "data_offsets": [0, 2]}})[8:]
    with pytest.raises(BadInput, match="download it again"):
        parse_header(raw, len(raw) + 10, "x")


def test_a_folder_an_index_and_a_whole_set_of_shards_read_alike(tmp_path):
    write_shards(tmp_path)
    without_index = read_safetensors(tmp_path)
    index = write_index(tmp_path)
    assert read_safetensors(tmp_path).tensors == read_safetensors(index).tensors
    assert set(without_index.tensors) == set(read_safetensors(index).tensors)
    assert read_safetensors(index).bytes == 192
    assert read_safetensors(index).files == (
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    )


def test_a_folder_with_one_file_reads_it_under_any_name(tmp_path):
    save_file({"a": np.zeros(3, np.int8)}, tmp_path / "consolidated.safetensors")
    assert read_safetensors(tmp_path).bytes == 3


def test_model_safetensors_wins_over_other_files_in_its_folder(tmp_path):
    save_file({"a": np.zeros(3, np.int8)}, tmp_path / "consolidated.safetensors")
    save_file({"b": np.zeros(4, np.int8)}, tmp_path / "model.safetensors")
    assert read_safetensors(tmp_path).bytes == 4


@pytest.mark.parametrize("index", [True, False])
def test_a_missing_shard_is_named(tmp_path, index):
    write_shards(tmp_path)
    if index:
        write_index(tmp_path)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    (tmp_path / "other-00001-of-00001.txt").touch()
    if not index:
        (tmp_path / "model-00001-of-00002.safetensors").rename(tmp_path / "model-00001-of-00003.safetensors")
        save_file({"x": np.zeros(1)}, tmp_path / "model-00002-of-00003.safetensors")
    with pytest.raises(BadInput, match=r"model-00002-of-00002|2 of 3 shards"):
        read_safetensors(tmp_path)


def test_files_that_make_no_set_are_not_summed(tmp_path):
    save_file({"a": np.zeros(3)}, tmp_path / "a.safetensors")
    save_file({"a": np.zeros(3)}, tmp_path / "b.safetensors")
    with pytest.raises(BadInput, match="give the file to read"):
        read_safetensors(tmp_path)


def test_an_empty_folder_and_a_missing_path_say_so(tmp_path):
    with pytest.raises(BadInput, match=r"no \.safetensors file"):
        read_safetensors(tmp_path)
    with pytest.raises(BadInput, match="no file or folder"):
        read_safetensors(tmp_path / "nothing.safetensors")


@pytest.mark.parametrize(
    "shard",
    ["../x.safetensors", "/etc/x.safetensors", "a/b.safetensors", "..\\x.safetensors", "x.bin", 3, ""],
)
def test_an_index_cannot_lead_out_of_its_folder(tmp_path, shard):
    write_shards(tmp_path)
    with pytest.raises(BadInput, match="beside it"):
        read_safetensors(write_index(tmp_path, a=shard))


def test_a_tensor_in_two_shards_or_in_none_is_refused(tmp_path):
    write_shards(tmp_path)
    one, two = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    path = write_index(tmp_path, **{"lm_head.weight": two, "lost.weight": one})
    with pytest.raises(BadInput, match=r"lost\.weight"):
        read_safetensors(path)
    save_file({"lm_head.weight": np.zeros(2)}, tmp_path / one)
    for shard in (one, two):
        (tmp_path / shard).rename(tmp_path / shard.replace("model", "m"))
    path.unlink()
    with pytest.raises(BadInput, match="two shards"):
        read_safetensors(tmp_path)


def test_an_index_that_names_a_tensor_twice_is_refused():
    with pytest.raises(BadInput, match="twice"):
        shards_of('{"weight_map": {"a": "x.safetensors", "a": "y.safetensors"}}', "index")


def test_what_an_index_leaves_out_of_a_shard_is_not_counted(tmp_path):
    save_file({"a": np.zeros(4, np.int8), "spare": np.zeros(9, np.int8)}, tmp_path / "m.safetensors")
    assert read_safetensors(write_index(tmp_path, a="m.safetensors")).bytes == 4


@pytest.mark.parametrize("pad", [0, 30_000])
def test_a_remote_header_moves_little_more_than_itself(pad):
    entries = {
        f"layer.{i}.{'x' * 40}": {
            "dtype": "U8",
            "shape": [10**9],
            "data_offsets": [i * 10**9, (i + 1) * 10**9],
        }
        for i in range(100)
    }
    entries["__metadata__"] = {"format": "pt", "log": "y" * pad}
    whole = header(entries)
    moved: list[int] = []

    def fetch(url: str, start: int, end: int) -> bytes:
        moved.append(len(whole[start:end]))
        return whole[start:end]

    read = fetch_header("http://host/m", fetch, "m", len(whole) + 100 * 10**9)
    assert read.bytes == 100 * 10**9
    assert sum(moved) <= max(len(whole), 16_384)
    assert len(moved) <= 2


NAMES = {
    "model.embed_tokens.weight": "embedding",
    "model.layers.3.self_attn.q_proj.weight": "attention",
    "model.layers.3.self_attn.q_norm.weight": "norm",
    "model.layers.3.self_attn.kv_a_proj_with_mqa.weight_scale_inv": "attention",
    "model.layers.3.mlp.gate_proj.weight": "feed_forward",
    "model.layers.3.mlp.gate_proj.qweight": "feed_forward",
    "model.layers.3.mlp.gate.weight": "router",
    "model.layers.3.mlp.gate.e_score_correction_bias": "router",
    "model.layers.3.mlp.experts.17.up_proj.weight": "expert",
    "model.layers.3.mlp.experts.gate_up_proj_blocks": "expert",
    "model.layers.3.mlp.router.weight": "router",
    "model.layers.3.mlp.shared_experts.up_proj.weight": "shared_expert",
    "model.layers.3.mlp.shared_expert_gate.weight": "router",
    "model.layers.3.block_sparse_moe.experts.0.w1.weight": "expert",
    "model.layers.3.block_sparse_moe.gate.weight": "router",
    "model.layers.3.input_layernorm.weight": "norm",
    "model.layers.3.linear_attn.in_proj_qkvz.weight": "state",
    "model.layers.3.linear_attn.A_log": "state",
    "model.layers.3.mamba.in_proj.weight": "state",
    "backbone.layers.3.mixer.A_log": "state",
    "backbone.layers.3.mixer.q_proj.weight": "attention",
    "backbone.layers.3.mixer.up_proj.weight": "feed_forward",
    "backbone.layers.3.mixer.experts.5.up_proj.weight": "expert",
    "model.layers.3.conv.in_proj.weight": "state",
    "model.layers.3.self_attn.indexer.wk.weight": "indexer",
    "model.norm.weight": "norm",
    "lm_head.weight": "head",
    "transformer.wte.weight": "embedding",
    "transformer.wpe.weight": "position",
    "transformer.h.0.attn.c_attn.weight": "attention",
    "transformer.h.0.ln_1.weight": "norm",
    "transformer.h.0.mlp.c_fc.weight": "feed_forward",
    "gpt_neox.embed_in.weight": "embedding",
    "embed_out.weight": "head",
    "transformer.h.0.self_attention.query_key_value.weight": "attention",
    "vision_tower.vision_model.encoder.layers.0.self_attn.q_proj.weight": "vision",
    "model.vision_tower.encoder.layers.0.mlp.fc1.weight": "vision",
    "model.visual.blocks.0.attn.qkv.weight": "vision",
    "multi_modal_projector.linear_1.weight": "vision",
    "model.audio_tower.conformer.0.attention.attn.q_proj.weight": "audio",
    "thinker.audio_tower.layers.0.fc1.weight": "audio",
    "mtp.layers.0.mlp.up_proj.weight": "mtp",
    "model.rotary_emb.inv_freq": "other",
    "token_embd.weight": "embedding",
    "output.weight": "head",
    "output_norm.weight": "norm",
    "rope_freqs.weight": "other",
    "blk.0.attn_q.weight": "attention",
    "blk.0.attn_norm.weight": "norm",
    "blk.0.attn_q_norm.weight": "norm",
    "blk.0.attn_sinks.weight": "attention",
    "blk.0.ffn_up.weight": "feed_forward",
    "blk.0.ffn_up_exps.weight": "expert",
    "blk.0.ffn_gate_up_exps.weight": "expert",
    "blk.0.ffn_up_shexp.weight": "shared_expert",
    "blk.0.ffn_gate_inp.weight": "router",
    "blk.0.exp_probs_b.bias": "router",
    "blk.0.ssm_in.weight": "state",
    "blk.0.ssm_a": "state",
    "blk.0.shortconv.conv.weight": "state",
    "blk.0.time_mix_key.weight": "state",
    "blk.0.channel_mix_key.weight": "feed_forward",
    "blk.0.nextn.eh_proj.weight": "mtp",
    "per_layer_token_embd.weight": "embedding",
    "v.blk.0.attn_q.weight": "vision",
    "mm.0.weight": "vision",
    "a.blk.0.attn_q.weight": "audio",
}


@pytest.mark.parametrize(("name", "part"), NAMES.items())
def test_the_part_of_a_tensor_is_told_by_its_published_name(name, part):
    assert part_of(name) == part


def test_a_layer_with_a_next_token_projection_is_mtp_as_a_whole():
    names = [
        "model.layers.60.mlp.up_proj.weight",
        "model.layers.61.mlp.up_proj.weight",
        "model.layers.61.eh_proj.weight",
    ]
    found = TensorList(tuple(Tensor(n, "F8_E4M3", (2, 5), 10) for n in names))
    assert found.bytes_by_part() == {"mtp": 20, "feed_forward": 10}


def test_sums_by_dtype_and_part_add_up(tmp_path):
    write_shards(tmp_path)
    read = read_safetensors(tmp_path)
    assert read.bytes_by_dtype() == {"F32": 128, "F16": 64}
    assert read.bytes_by_part() == {"head": 128, "embedding": 64}
    assert read.parameters_by_part() == {"head": 32, "embedding": 32}
    assert read.values == 64
