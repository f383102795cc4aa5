"""Files in float32 under a config in 16 bit: an engine loads 16 bit, the files keep their own bytes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvplan.cost.weights import Split, header_bytes, read_bytes
from kvplan.engines.loaded import as_loaded, weights_on_rank
from kvplan.figure import bare
from kvplan.model.locate import with_tensors
from kvplan.model.model import Model
from kvplan.model.read import read_config
from kvplan.model.tensors import Tensor, TensorList

CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 256,
    "max_position_embeddings": 512,
    "torch_dtype": "float16",
}
WIDTH = {"F32": 4, "F16": 2, "U8": 1}


def _tensor(name: str, dtype: str, *shape: int) -> Tensor:
    values = shape[0] * (shape[1] if len(shape) > 1 else 1)
    return Tensor(name, dtype, shape, values * WIDTH[dtype])


def _model(dtype: str, *more: Tensor) -> Model:
    names = {"model.embed_tokens.weight": (256, 64), "lm_head.weight": (256, 64), "model.norm.weight": (64,)}
    layer = "model.layers.0."
    names |= {f"{layer}self_attn.{n}_proj.weight": (64 if n in "qo" else 32, 64) for n in "qkvo"}
    names |= {f"{layer}mlp.{n}_proj.weight": (128, 64) for n in ("gate", "up")}
    names |= {f"{layer}mlp.down_proj.weight": (64, 128)}
    names |= {f"{layer}{n}_layernorm.weight": (64,) for n in ("input", "post_attention")}
    tensors = [_tensor(name, dtype, *shape) for name, shape in names.items()]
    return with_tensors(read_config(CONFIG, "config.json"), TensorList((*tensors, *more), ("a.safetensors",)))


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_float32_files_weigh_what_the_config_dtype_weighs(engine: str) -> None:
    wide, narrow = as_loaded(_model("F32"), engine), as_loaded(_model("F16"), engine)
    assert weights_on_rank(wide, Split(), bare) == weights_on_rank(narrow, Split(), bare)
    assert read_bytes(wide) == read_bytes(narrow)
    assert any("loads the files' float32 weights in float16" in note for note in wide.notes)
    assert narrow.notes == _model("F16").notes


def test_the_file_and_engines_without_the_rule_keep_float32() -> None:
    model = _model("F32")
    assert as_loaded(model, "llama.cpp") == model
    assert header_bytes(model) == 2 * (header_bytes(_model("F16")) or 0)


def test_scales_and_constants_kept_wide_stay() -> None:
    kept = ("model.layers.0.mlp.up_proj.weight_scale_inv", "model.layers.0.mixer.A_log")
    more = (*(_tensor(name, "F32", 64) for name in kept), _tensor("model.layers.0.packed", "U8", 64))
    loaded = as_loaded(_model("F32", *more), "vllm")
    assert loaded.tensors is not None
    assert [t.bytes for t in loaded.tensors.tensors[-3:]] == [256, 256, 64]
    assert as_loaded(replace(loaded, notes=()), "vllm").notes == ()
