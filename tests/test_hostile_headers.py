"""Headers that lie: refused in one line, quickly, and without the memory they ask for."""

import json
import os
import struct
import time
import tracemalloc
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvplan.errors import BadInput, KvplanError
from kvplan.model.gguf import parse_gguf, read_gguf
from kvplan.model.gguf_config import config_of
from kvplan.model.read import read_config
from kvplan.model.safetensors import fetch_header, parse_header, read_safetensors
from kvplan.model.shards import shards_of
from kvplan.model.tensors import part_of

SECONDS = 5.0
BYTES = 64 * 2**20


@contextmanager
def bounded(seconds: float = SECONDS, most: int = BYTES):
    """The body raises BadInput in one line, within the time and the memory."""
    tracemalloc.start()
    begin = time.perf_counter()
    try:
        with pytest.raises(KvplanError) as error:
            yield error
        assert time.perf_counter() - begin < seconds
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()
    assert isinstance(error.value, BadInput)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 500


def refusal(read) -> str:
    """The text of a refusal, empty when all was read; anything else that is raised is a failure."""
    try:
        read()
    except KvplanError as error:
        return str(error)
    return ""


def safetensors(path: Path, raw: bytes, length: int | None = None, data: int = 0) -> Path:
    path.write_bytes((len(raw) if length is None else length).to_bytes(8, "little") + raw + bytes(data))
    return path


def entry(dtype="F32", shape=(2,), offsets=(0, 8), **more) -> dict:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets), **more}


@pytest.mark.parametrize("length", [0, 1, 2**63, 2**64 - 1, 100_000_001, 99_000_000])
def test_a_safetensors_length_that_lies_is_refused(tmp_path, length):
    with bounded():
        read_safetensors(safetensors(tmp_path / "m.safetensors", b"{}", length))


@pytest.mark.parametrize("size", [0, 1, 7, 8])
def test_a_file_too_short_for_a_header_is_refused(tmp_path, size):
    for name in ("m.safetensors", "m.gguf"):
        (tmp_path / name).write_bytes(bytes(size))
    with bounded():
        read_safetensors(tmp_path / "m.safetensors")
    with bounded():
        read_gguf(tmp_path / "m.gguf")


JSON_BOMBS = {
    "nested lists": b'{"a":' + b"[" * 2_000_000 + b"]" * 2_000_000 + b"}",
    "nested objects": b'{"a":' * 500_000 + b"1" + b"}" * 500_000,
    "lists in the metadata": b'{"__metadata__":{"a":' + b"[" * 1_000_000 + b"]" * 1_000_000 + b"}}",
    "a long list": b'{"a":{"dtype":"F32","shape":[' + b"1," * 2_000_000 + b'1],"data_offsets":[0,4]}}',
    "a long number": b'{"a":{"dtype":"F32","shape":[' + b"9" * 2_000_000 + b'],"data_offsets":[0,4]}}',
    "a long name": b'{"' + b"a" * 5_000_000 + b'":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}',
    "a string that does not end": b'{"' + b"a" * 5_000_000,
    "escapes that do not end": b'{"' + b"\\" * 5_000_001,
    "only spaces": b"{" + b" " * 5_000_000,
    "commas": b"{" + b"," * 5_000_000 + b"}",
    "no object": b"[" + b"1," * 1_000_000 + b"1]",
    "no text": b"\xff" * 1_000_000,
}


@pytest.mark.parametrize("name", JSON_BOMBS)
def test_a_json_bomb_is_refused(tmp_path, name):
    with bounded():
        read_safetensors(safetensors(tmp_path / "m.safetensors", JSON_BOMBS[name]))


WRONG = {
    "an unknown dtype": {"a": entry("F33")},
    "a dtype that is no text": {"a": entry(7)},
    "a negative dimension": {"a": entry(shape=(-2,))},
    "a fraction": {"a": entry(shape=(2.0,))},
    "a truth value": {"a": entry(shape=(True, 2))},
    "a huge dimension": {"a": entry(shape=(2**63, 2))},
    "a product beyond every file": {"a": entry(shape=(2**40, 2**40))},
    "forty dimensions": {"a": entry(shape=(1,) * 40)},
    "bytes that are not shape times dtype": {"a": entry(shape=(3,))},
    "offsets that run backwards": {"a": entry(offsets=(8, 0))},
    "negative offsets": {"a": entry(offsets=(-8, 0))},
    "three offsets": {"a": entry(offsets=(0, 4, 8))},
    "a missing key": {"a": {"dtype": "F32", "shape": [2]}},
    "a key too many": {"a": entry(more=1)},
    "no entry": {"a": 1},
    "an entry that is a list": {"a": []},
    "overlapping tensors": {"a": entry(), "b": entry(offsets=(4, 12))},
    "the same bytes twice": {"a": entry(), "b": entry()},
    "a hole": {"a": entry(), "b": entry(offsets=(12, 20))},
    "a hole at the beginning": {"a": entry(offsets=(4, 12))},
    "offsets past the file": {"a": entry(shape=(100,), offsets=(0, 400))},
    "metadata that is no text": {"__metadata__": {"a": 1}, "a": entry()},
    "metadata that is no object": {"__metadata__": "x", "a": entry()},
    "a name with a line break": {"a\nb": entry("F33")},
}


@pytest.mark.parametrize("name", WRONG)
def test_an_entry_that_cannot_be_is_refused(tmp_path, name):
    raw = json.dumps(WRONG[name]).encode()
    with bounded():
        read_safetensors(safetensors(tmp_path / "m.safetensors", raw, data=8))


@pytest.mark.parametrize("more", [-1, 1, 4096])
def test_a_file_longer_or_shorter_than_its_tensors_is_refused(tmp_path, more):
    raw = json.dumps({"a": entry()}).encode()
    with bounded():
        read_safetensors(safetensors(tmp_path / "m.safetensors", raw, data=8 + more))


@pytest.mark.parametrize(
    "raw",
    [
        b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}',
        b'{"a":{"dtype":"F32","dtype":"F16","shape":[2],"data_offsets":[0,8]}}',
        b'{"__metadata__":{},"__metadata__":{},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}',
        b'{"__metadata__":{"x":"1","x":"2"},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}',
        b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},}',
        b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}x',
        b' {"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}',
        b'{"a":{"dtype":"F32","shape":[NaN],"data_offsets":[0,8]}}',
        b'{"__metadata__":{"a":"b",}}',
    ],
)
def test_what_json_allows_twice_or_almost_is_refused(tmp_path, raw):
    with bounded():
        read_safetensors(safetensors(tmp_path / "m.safetensors", raw, data=8))


def test_a_hundred_thousand_tensors_are_read_within_seconds(tmp_path):
    names = [f"model.layers.{i // 1000}.mlp.experts.{i % 1000}.down_proj.weight" for i in range(100_000)]
    raw = json.dumps({n: entry("BF16", (4,), (i * 8, i * 8 + 8)) for i, n in enumerate(names)}).encode()
    begin = time.perf_counter()
    read = parse_header(raw, len(raw) + 8 + 800_000, "m")
    assert read.bytes_by_part() == {"expert": 800_000}
    assert time.perf_counter() - begin < SECONDS


def test_a_name_made_to_be_slow_is_quick():
    begin = time.perf_counter()
    for piece in ("norm", "_norm", "layers.0.", "ln_", "a.", "experts.", "mlp", "q_proj."):
        for i in range(200):
            part_of(piece * (190 // len(piece)) + chr(97 + i % 26) + "x" * (i % 7))
    assert time.perf_counter() - begin < SECONDS


INDEX_BOMBS = {
    "nested": '{"weight_map":' + "[" * 100_000,
    "deep": '{"weight_map":' * 60,
    "lists": '{"weight_map":{"a":[' + "[]," * 1_000_000,
    "no map": '{"metadata":{}}',
    "an empty map": '{"weight_map":{}}',
    "a list": "[]",
    "a number": "7",
    "a thousand files": json.dumps({"weight_map": {f"t{i}": f"f{i}.safetensors" for i in range(10_001)}}),
    "commas": "," * 2_000_000,
}


@pytest.mark.parametrize("name", INDEX_BOMBS)
def test_an_index_that_is_none_is_refused(name):
    with bounded():
        shards_of(INDEX_BOMBS[name], "index")


def test_a_remote_header_that_lies_moves_nothing_more(tmp_path):
    moved = []

    def fetch(url: str, start: int, end: int) -> bytes:
        moved.append(end - start)
        return (2**40).to_bytes(8, "little") + bytes(end - start - 8)

    with bounded():
        fetch_header("u", fetch, "m", 2**41)
    assert sum(moved) <= 16_384


def test_a_remote_file_that_ends_early_is_refused():
    for size in (None, 10**9):
        with bounded():
            fetch_header("u", lambda u, a, b: (10**6).to_bytes(8, "little")[a:b], "m", size)


def test_a_folder_a_pipe_and_a_device_are_no_files(tmp_path):
    os.mkfifo(tmp_path / "pipe.gguf")
    os.mkfifo(tmp_path / "pipe.safetensors")
    for path in (tmp_path / "pipe.gguf", tmp_path, Path("/dev/zero")):
        with bounded():
            read_gguf(path)
    for path in (tmp_path / "pipe.safetensors", Path("/dev/zero")):
        with bounded():
            read_safetensors(path)


def test_an_index_may_name_a_pipe_and_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text('{"weight_map": {"a": "pipe.safetensors"}}')
    with bounded():
        read_safetensors(index)


def text(value: bytes, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(value) if length is None else length) + value


def pair(key: bytes, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def gguf(
    pairs: tuple[bytes, ...] = (), infos: tuple[bytes, ...] = (), counts=None, version=3, data=4096
) -> bytes:
    tensors, entries = counts or (len(infos), len(pairs))
    head = b"GGUF" + struct.pack("<IQQ", version, tensors, entries)
    return head + b"".join(pairs) + b"".join(infos) + bytes(data)


def info(
    name: bytes = b"a", dimensions=(32,), kind: int = 0, offset: int = 0, rank: int | None = None
) -> bytes:
    rank = len(dimensions) if rank is None else rank
    return text(name) + struct.pack(f"<I{len(dimensions)}QIQ", rank, *dimensions, kind, offset)


ARCH = pair(b"general.architecture", 8, text(b"llama"))
LIES = {
    "a billion tensors": gguf(counts=(10**9, 0)),
    "2^63 tensors": gguf(counts=(2**63, 0)),
    "a million tensors in a small file": gguf(counts=(10**6, 0)),
    "a billion metadata entries": gguf(counts=(0, 10**9)),
    "a key of 4 GB": gguf((text(b"", 2**32),), counts=(0, 1)),
    "a string of 4 GB": gguf((pair(b"k", 8, text(b"", 2**32)),)),
    "a string of 2^64 bytes": gguf((pair(b"k", 8, text(b"", 2**64 - 1)),)),
    "a string past the end": gguf((pair(b"k", 8, text(b"", 10**6)),)),
    "an array of 2^60 numbers": gguf((pair(b"k", 9, struct.pack("<IQ", 4, 2**60)),)),
    "an array of 2^24 numbers": gguf((pair(b"k", 9, struct.pack("<IQ", 12, 2**24)),)),
    "an array of 2^24 strings": gguf((pair(b"k", 9, struct.pack("<IQ", 8, 2**24)),)),
    "an array of arrays": gguf((pair(b"k", 9, struct.pack("<IQ", 9, 1) + struct.pack("<IQ", 9, 1) * 100),)),
    "strings that run past the end": gguf(
        (pair(b"k", 9, struct.pack("<IQ", 8, 5000) + struct.pack("<Q", 2**63)),), data=65536
    ),
    "strings that stop short": gguf(
        (pair(b"k", 9, struct.pack("<IQ", 8, 5000) + struct.pack("<Q", 39_990)),), data=40_001
    ),
    "an unknown value type": gguf((pair(b"k", 13, bytes(8)),)),
    "an unknown element type": gguf((pair(b"k", 9, struct.pack("<IQ", 99, 1)),)),
    "a key twice": gguf((ARCH, ARCH)),
    "an empty key": gguf((pair(b"", 4, bytes(4)),)),
    "a key that is no text": gguf((pair(b"\xff\xfe", 4, bytes(4)),)),
    "version 1": gguf(version=1),
    "version 0": gguf(version=0),
    "version 4": gguf(version=4),
    "version 2^32 - 1": gguf(version=2**32 - 1),
    "another magic": b"GGML" + gguf()[4:],
    "five dimensions": gguf((ARCH,), (info(dimensions=(1,) * 5),)),
    "a billion dimensions": gguf((ARCH,), (info(rank=10**9),)),
    "a dimension of 2^63": gguf((ARCH,), (info(dimensions=(2**63, 2)),)),
    "a product beyond every file": gguf((ARCH,), (info(dimensions=(2**40, 2**40, 2**40)),)),
    "more bytes than the file": gguf((ARCH,), (info(dimensions=(10**9,)),)),
    "an unknown tensor type": gguf((ARCH,), (info(kind=99),)),
    "a tensor type of the past": gguf((ARCH,), (info(kind=4),)),
    "rows of broken blocks": gguf((ARCH,), (info(dimensions=(33,), kind=2),)),
    "an offset that is not the next": gguf((ARCH,), (info(offset=64),)),
    "overlapping tensors": gguf((ARCH,), (info(b"a"), info(b"b"))),
    "a tensor twice": gguf((ARCH,), (info(b"a"), info(b"a", offset=128))),
    "a tensor without a name": gguf((ARCH,), (info(b""),)),
    "a tensor's name of 4 GB": gguf((ARCH,), (text(b"", 2**32),)),
    "an alignment of 0": gguf((pair(b"general.alignment", 4, struct.pack("<I", 0)),)),
    "an alignment of 3": gguf((pair(b"general.alignment", 4, struct.pack("<I", 3)),)),
    "an alignment that is text": gguf((pair(b"general.alignment", 8, text(b"32")),)),
}


@pytest.mark.parametrize("name", LIES)
def test_a_gguf_header_that_lies_is_refused(tmp_path, name):
    path = tmp_path / "m.gguf"
    path.write_bytes(LIES[name])
    with bounded():
        read_gguf(path)


def sparse(path: Path, head: bytes) -> Path:
    """A file of a terabyte that takes no room: zeros behind its head."""
    with path.open("wb") as file:
        file.write(head)
        file.truncate(2**40)
    return path


def test_a_sparse_file_of_a_terabyte_is_not_read_through(tmp_path):
    strings = pair(b"k", 9, struct.pack("<IQ", 8, 2**21))  # two million empty strings
    begin = time.perf_counter()
    assert read_gguf(sparse(tmp_path / "a.gguf", gguf((strings,), data=0))).tensors == ()
    assert time.perf_counter() - begin < SECONDS
    for head in (
        gguf((strings, *[pair(b"k%d" % i, 9, strings[13:]) for i in range(9)]), data=0),
        gguf(counts=(10**6, 1)),
    ):
        with bounded():
            read_gguf(sparse(tmp_path / "b.gguf", head))


def test_a_header_longer_than_the_cap_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("kvplan.model.gguf.MAX_HEADER_BYTES", 1000)
    (tmp_path / "m.gguf").write_bytes(gguf((pair(b"k", 9, struct.pack("<IQ", 0, 2000) + bytes(2000)),)))
    with bounded() as error:
        read_gguf(tmp_path / "m.gguf")
    assert "its header is longer than" in str(error.value)


def test_a_split_file_may_not_claim_a_million_shards(tmp_path):
    for number in (b"\xff\xff", b"\x00\x00"):
        path = tmp_path / "m-00001-of-65535.gguf"
        path.write_bytes(gguf((ARCH, pair(b"split.count", 2, number))))
        with bounded():
            read_gguf(path)


GOOD_GGUF = gguf(
    (ARCH, pair(b"llama.block_count", 4, struct.pack("<I", 2))), (info(), info(b"b", (64, 2), 2, 128))
)
GOOD_SAFETENSORS = json.dumps(
    {"__metadata__": {"a": "b"}, "x": entry(), "y": entry(offsets=(8, 16))}
).encode()


def test_the_good_files_are_good():
    assert parse_gguf(GOOD_GGUF, "m").bytes == 200
    assert parse_header(GOOD_SAFETENSORS, None, "m").bytes == 16


@given(at=st.integers(0, 150), byte=st.integers(0, 255), cut=st.integers(0, len(GOOD_GGUF)))
@settings(max_examples=600, deadline=None)
def test_a_gguf_header_with_any_byte_changed_is_read_or_refused_in_one_line(at, byte, cut):
    raw = bytearray(GOOD_GGUF)
    raw[at] = byte
    assert "\n" not in refusal(lambda: parse_gguf(bytes(raw[: max(24, cut)]), "m"))


@given(st.binary(max_size=300))
@example(b"")
@settings(max_examples=400, deadline=None)
def test_any_bytes_behind_the_magic_are_read_or_refused_in_one_line(raw):
    assert "\n" not in refusal(lambda: parse_gguf(b"GGUF\x03\x00\x00\x00" + raw + bytes(24), "m"))


@given(
    at=st.integers(0, len(GOOD_SAFETENSORS) - 1),
    byte=st.integers(0, 255),
    cut=st.integers(2, len(GOOD_SAFETENSORS)),
)
@settings(max_examples=600, deadline=None)
def test_a_safetensors_header_with_any_byte_changed_is_read_or_refused_in_one_line(at, byte, cut):
    raw = bytearray(GOOD_SAFETENSORS)
    raw[at] = byte
    assert "\n" not in refusal(lambda: parse_header(bytes(raw[:cut]), None, "m"))


VALUE = st.one_of(
    st.integers(-(2**63), 2**64),
    st.floats(),
    st.booleans(),
    st.text(max_size=5),
    st.lists(st.integers(0, 9), max_size=9),
)
KEYS = [
    "block_count",
    "embedding_length",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
]
KEYS += [
    "attention.key_length",
    "attention.sliding_window",
    "attention.sliding_window_pattern",
    "expert_count",
]
KEYS += ["ssm.inner_size", "ssm.time_step_rank", "nextn_predict_layers", "rope.dimension_count", "vocab_size"]
ARCHS = [
    "llama",
    "gemma3",
    "deepseek2",
    "jamba",
    "mamba2",
    "nemotron_h",
    "qwen3next",
    "deci",
    "lfm2",
    "new",
    "llama4",
]


@given(arch=st.sampled_from(ARCHS), changes=st.dictionaries(st.sampled_from(KEYS), VALUE, max_size=4))
@settings(max_examples=500, deadline=None)
def test_any_metadata_is_a_model_or_refused_in_one_line(arch, changes):
    base = {"block_count": 4, "embedding_length": 64, "feed_forward_length": 128, "attention.head_count": 4}
    stated = {f"{arch}.{k}": v for k, v in (base | changes).items()} | {"general.architecture": arch}
    good = parse_gguf(GOOD_GGUF, "m")
    assert "\n" not in refusal(
        lambda: read_config(config_of(type(good)(good.tensors, good.files, stated)), "m")
    )
