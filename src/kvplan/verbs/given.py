"""The model a verb works on: loaded, then changed as `--dtype` and `--quantization` say."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from kvplan.errors import BadInput, UnknownName, did_you_mean, shown
from kvplan.facts import schemes
from kvplan.facts.formats import find_format
from kvplan.model.locate import load_model
from kvplan.model.model import Model
from kvplan.model.quantization import quantization_notes, quantization_of
from kvplan.units import bytes_text

DTYPES = ("bfloat16", "float16", "float32")
_FLOATS = {"F32": 4, "F16": 2, "BF16": 2}  # what safetensors and GGUF call them
ModelLike = str | os.PathLike[str] | dict[str, Any] | Model


def given_model(model: ModelLike, dtype: str | None = "auto", quantization: str | None = None) -> Model:
    """The model of that name or record, in the dtype and quantisation asked for.

    Raises UnknownName or BadInput when a name is not known or cannot hold weights.
    """
    if not isinstance(model, (str, os.PathLike, dict, Model)):
        raise BadInput(f"MODEL: {shown(model)} is neither a name, a path, a config nor a model")
    for field, name in (("--dtype", dtype), ("--quantization", quantization)):
        if name is not None and not isinstance(name, str):
            raise BadInput(f"{field}: {shown(name)} is not a name")
    loaded = model if isinstance(model, Model) else load_model(model)
    changed = loaded if dtype in (None, "auto") else _in_dtype(loaded, str(dtype))
    if quantization is not None:
        changed = _quantized(changed, quantization)
    new = [note for note in quantization_notes(changed) if note not in changed.notes]
    return replace(changed, notes=(*changed.notes, *new)) if new else changed


def _in_dtype(model: Model, dtype: str) -> Model:
    found = find_format(dtype, "--dtype", "weights")
    if found.name not in DTYPES:
        known = schemes.flag(dtype.lower()) is not None
        advice = f"use --quantization {dtype}" if known else f"use one of {', '.join(DTYPES)}"
        raise BadInput(f"--dtype: {shown(dtype)} is a quantised format; {advice}")
    changed = replace(model, dtype=found.name)
    if model.tensors is None:
        return changed
    floats = {name: size for name, size in model.tensors.bytes_by_dtype().items() if name in _FLOATS}
    if _mixes_types(model):
        note = f"--dtype {dtype}: {model.file} keeps its own types; only what is computed changes"
        return replace(changed, notes=(*changed.notes, note))
    if not floats or _FLOATS[max(floats, key=lambda name: floats[name])] == found.block_bytes:
        return changed  # as wide as the files' own
    return _without_files(changed, f"--dtype {dtype}")


def _mixes_types(model: Model) -> bool:
    """Whether it is a GGUF file with matrices in ggml's quantised types."""
    found = model.tensors
    return found is not None and found.is_gguf and not set(found.bytes_by_dtype()) <= set(_FLOATS)


def _without_files(model: Model, flag: str) -> Model:
    """The model whose weights are counted by the formula, since the files hold them otherwise."""
    if model.tensors is None:
        return model
    note = (
        f"{flag}: weights by the formula; the files hold {bytes_text(model.tensors.bytes)} stored otherwise"
    )
    return replace(model, tensors=None, notes=(*model.notes, note))


def _quantized(model: Model, name: str) -> Model:
    asked = name.strip().lower()
    flag = f"--quantization {asked}"
    if asked == "none":
        plain = not model.quantization and not _mixes_types(model)
        return model if plain else _without_files(replace(model, quantization=None), flag)
    own = (model.quantization or {}).get("quant_method")
    if own and schemes.method_name(asked) == schemes.method_name(str(own)):
        return model  # the checkpoint is quantised so already, and its own config says how
    found = schemes.flag(asked)
    if found is None:
        names = ["none", *schemes.flag_names()]
        hint = did_you_mean(name, names) or f"known: {', '.join(names)}"
        raise UnknownName(f"--quantization: {shown(name)} is not known for this model; {hint}")
    changed = replace(model, quantization=found)
    if own and _default_of(changed) == _default_of(model):
        return model  # so already, under another name
    return _without_files(changed, flag)


def _default_of(model: Model) -> schemes.Scheme | None:
    q = quantization_of(model)
    return q.default if q and not q.unknown else None
