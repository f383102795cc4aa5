"""Headers of GGUF files, checked against files that the gguf package writes and against its reader."""

import re
import tomllib
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Q
from hypothesis import given, settings
from hypothesis import strategies as st

from kvplan.errors import BadInput, UnknownName
from kvplan.facts import store
from kvplan.model.ggml import find_ggml_type, ggml_types
from kvplan.model.gguf import DEFAULT_ALIGNMENT, read_gguf
from kvplan.model.tensors import Skipped

QUANTIZED = [
    Q.Q4_0,
    Q.Q4_1,
    Q.Q5_0,
    Q.Q5_1,
    Q.Q8_0,
    Q.Q2_K,
    Q.Q3_K,
    Q.Q4_K,
    Q.Q5_K,
    Q.Q6_K,
    Q.IQ2_XXS,
    Q.IQ2_XS,
]
QUANTIZED += [
    Q.IQ3_XXS,
    Q.IQ1_S,
    Q.IQ4_NL,
    Q.IQ3_S,
    Q.IQ2_S,
    Q.IQ4_XS,
    Q.IQ1_M,
    Q.TQ1_0,
    Q.TQ2_0,
    Q.MXFP4,
    Q.NVFP4,
]
QUANTIZED += [Q.Q1_0]


def write(path: Path, tensors=(), arch: str = "llama", fill=None, **options) -> Path:
    """A file by the gguf package: `tensors` are (name, shape, type), outputs first; bytes are zero."""
    writer = gguf.GGUFWriter(path, arch, **options)
    if fill:
        fill(writer)
    for name, shape, kind in tensors:
        if kind in (Q.F32, Q.F16):
            writer.add_tensor(name, np.zeros(shape, np.float32 if kind == Q.F32 else np.float16))
        else:
            block, size = gguf.GGML_QUANT_SIZES[kind]
            raw = np.zeros((*shape[:-1], shape[-1] // block * size), np.uint8)
            writer.add_tensor(name, raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def reference(path: Path) -> list[tuple[str, str, tuple[int, ...], int]]:
    """What the gguf package's reader says of the same file."""
    return [
        (t.name, t.tensor_type.name, tuple(int(d) for d in reversed(t.shape)), int(t.n_bytes))
        for t in gguf.GGUFReader(path).tensors
    ]


def told(path: Path) -> list[tuple[str, str, tuple[int, ...], int]]:
    return [(t.name, t.dtype, t.shape, t.bytes) for t in read_gguf(path).tensors]


@pytest.mark.parametrize("kind", QUANTIZED, ids=lambda k: k.name)
def test_a_quantized_tensor_has_the_bytes_the_gguf_package_says(tmp_path, kind):
    path = write(
        tmp_path / "m.gguf",
        [("blk.0.ffn_up.weight", (6, 512), kind), ("blk.0.ffn_norm.weight", (512,), Q.F32)],
    )
    assert told(path) == reference(path)


@given(
    shapes=st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=4), min_size=1, max_size=8),
    kinds=st.lists(st.sampled_from([Q.F32, Q.F16, *QUANTIZED]), min_size=8, max_size=8),
    alignment=st.sampled_from([8, 32, 64, 4096]),
)
@settings(max_examples=40, deadline=None)
def test_any_file_the_gguf_package_writes_is_read_alike(tmp_path_factory, shapes, kinds, alignment):
    path = tmp_path_factory.mktemp("gguf") / "m.gguf"
    tensors = [
        (f"blk.{i}.attn_q.weight", (*s[:-1], s[-1] * 256), k)
        for i, (s, k) in enumerate(zip(shapes, kinds, strict=False))
    ]
    write(path, tensors, fill=lambda w: w.add_custom_alignment(alignment))
    assert told(path) == reference(path)


def every_value(writer: gguf.GGUFWriter) -> None:
    writer.add_uint8("u8", 200)
    writer.add_int8("i8", -3)
    writer.add_uint16("u16", 60_000)
    writer.add_int16("i16", -30_000)
    writer.add_uint32("u32", 4_000_000_000)
    writer.add_int32("i32", -2_000_000_000)
    writer.add_uint64("u64", 2**63)
    writer.add_int64("i64", -(2**62))
    writer.add_float32("f32", 0.5)
    writer.add_float64("f64", 0.1)
    writer.add_bool("bool", True)
    writer.add_string("text", "größe")
    writer.add_array("numbers", [1, 2, 3])
    writer.add_array("flags", [True, False])
    writer.add_array("words", ["a", "b"])
    writer.add_array("tokenizer.ggml.tokens", [f"t{i}" for i in range(10_000)])
    writer.add_array("tokenizer.ggml.scores", [0.5] * 10_000)
    writer.add_string("tokenizer.chat_template", "x" * 2_000_000)
    writer.add_uint32("llama.block_count", 7)


@pytest.mark.parametrize("order", list(gguf.GGUFEndian), ids=lambda o: o.name)
def test_metadata_of_every_type_is_read_in_both_byte_orders(tmp_path, order):
    read = read_gguf(
        write(tmp_path / "m.gguf", [("token_embd.weight", (4, 8), Q.F32)], fill=every_value, endianess=order)
    )
    assert read.metadata["gguf.byte_order"] == order.name.lower()
    assert {k: read.metadata[k] for k in ("u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64")} == {
        "u8": 200,
        "i8": -3,
        "u16": 60_000,
        "i16": -30_000,
        "u32": 4_000_000_000,
        "i32": -2_000_000_000,
        "u64": 2**63,
        "i64": -(2**62),
    }
    assert (read.metadata["f32"], read.metadata["f64"], read.metadata["bool"]) == (0.5, 0.1, True)
    assert (read.metadata["numbers"], read.metadata["flags"]) == ([1, 2, 3], [True, False])
    assert (read.metadata["words"], read.metadata["text"]) == (["a", "b"], "größe")
    assert read.tensors[0].shape == (4, 8)


def test_a_vocabulary_is_kept_only_as_its_length(tmp_path):
    read = read_gguf(write(tmp_path / "m.gguf", fill=every_value))
    assert read.metadata["tokenizer.ggml.tokens"] == Skipped("string", 10_000)
    assert read.metadata["tokenizer.ggml.scores"] == Skipped("f32", 10_000)
    assert read.metadata["tokenizer.chat_template"] == Skipped("string", 2_000_000)
    assert read.metadata["llama.block_count"] == 7


TENSORS = [(f"blk.{i}.ffn_up.weight", (4, 256), Q.Q4_K) for i in range(6)]


def split(tmp_path: Path) -> list[Path]:
    write(tmp_path / "m.gguf", TENSORS, split_max_tensors=2)
    return sorted(tmp_path.glob("m-*.gguf"))


def test_a_split_file_is_read_whole_from_any_shard(tmp_path):
    shards = split(tmp_path)
    assert [p.name for p in shards] == [f"m-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    for shard in shards:
        read = read_gguf(shard)
        assert [t.name for t in read.tensors] == [name for name, _, _ in TENSORS]
        assert read.files == tuple(p.name for p in shards)
        assert read.metadata["general.architecture"] == "llama"


def test_a_missing_shard_of_a_split_file_is_named(tmp_path):
    shards = split(tmp_path)
    shards[1].unlink()
    with pytest.raises(BadInput, match=r"1 of 3 shards are missing, m-00002-of-00003\.gguf"):
        read_gguf(shards[0])


def test_a_shard_under_another_name_is_refused(tmp_path):
    shards = split(tmp_path)
    shards[2].write_bytes(shards[1].read_bytes())
    with pytest.raises(BadInput, match=r"split\.no"):
        read_gguf(shards[0])
    shards[0].rename(tmp_path / "plain.gguf")
    with pytest.raises(BadInput, match=r"split\.count"):
        read_gguf(tmp_path / "plain.gguf")


def test_a_file_that_is_cut_off_is_refused(tmp_path):
    path = write(tmp_path / "m.gguf", [*TENSORS, ("output_norm.weight", (3,), Q.F32)])
    raw = path.read_bytes()
    path.write_bytes(raw[: -DEFAULT_ALIGNMENT + 12])  # padding behind the last tensor is no data
    assert read_gguf(path).tensors[-1].bytes == 12
    path.write_bytes(raw[: -DEFAULT_ALIGNMENT + 11])
    with pytest.raises(BadInput, match="cut off"):
        read_gguf(path)


def test_the_type_table_agrees_with_the_gguf_package():
    behind = {"Q8_1": (32, 40)}  # the package's table says 40 where ggml-common.h asserts 36
    for kind, found in ((k, ggml_types()[int(k)]) for k in Q if int(k) in ggml_types()):
        sizes = gguf.GGML_QUANT_SIZES[kind]
        assert found.name == kind.name
        assert (found.block, found.bytes) == sizes or behind[kind.name] == sizes
    assert {k.name for k in Q} <= {t.name for t in ggml_types().values()}


def test_every_ggml_type_is_unique_and_says_its_bits():
    types = tomllib.loads((store.ROOT / "ggml_types.toml").read_text())["type"]
    assert len({entry["id"] for entry in types.values()}) == len(types) == len(ggml_types())
    assert find_ggml_type("q4_k", "--quantization").bits == 4.5
    assert find_ggml_type("IQ2_XXS", "x").bits == 2.0625
    with pytest.raises(UnknownName, match=re.escape("did you mean Q4_K")):
        find_ggml_type("Q4_KM", "x")
