"""Weight files as an engine casts them: values that are not quantised take the dtype the model runs in."""

from __future__ import annotations

import functools
import re
from dataclasses import replace

from kvplan.cost.weights import dtype_of
from kvplan.facts import store
from kvplan.model.model import Model
from kvplan.model.tensors import Tensor, TensorList

_WIDE = "F32"  # the only stored float wider than any dtype that `--dtype auto` loads


def with_floats_cast(model: Model, engine: str) -> Model:
    """The model with its files' float32 values as wide as the dtype that the engine loads them in.

    Scales of quantised values and what the engine keeps in float32 stay; so does a GGUF file.
    """
    rule = store.toml("loading.toml")["float32"].get(engine)
    if rule is None or model.tensors is None or model.tensors.is_gguf:
        return model
    cast = _cast(model.tensors, int(dtype_of(model).block_bytes))
    if cast.bytes == model.tensors.bytes:
        return model
    name = dtype_of(model).name
    note = f"{engine} loads the files' float32 weights in {name} ({rule['source_of_cast']})"
    return replace(model, tensors=cast, notes=(*model.notes, note))


def _cast(tensors: TensorList, value_bytes: int) -> TensorList:
    return replace(tensors, tensors=tuple(_narrowed(t, value_bytes) for t in tensors.tensors))


def _narrowed(tensor: Tensor, value_bytes: int) -> Tensor:
    size = tensor.values * value_bytes
    if tensor.dtype != _WIDE or size >= tensor.bytes or any(p.search(tensor.name) for p in _kept()):
        return tensor
    return replace(tensor, bytes=size)


@functools.cache
def _kept() -> tuple[re.Pattern[str], ...]:
    """Names of what stays in float32: constants of quantised values, and what models keep wide."""
    beside = store.toml("tensor_parts.toml")["packing"]["beside"]
    return re.compile(beside), re.compile(store.toml("loading.toml")["kept_float32"]["names"])
