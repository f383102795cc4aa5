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

DTYPES = ("bfloat16", "float16", "float32")
ModelLike = str | os.PathLike[str] | dict[str, Any] | Model


def given_model(model: ModelLike, dtype: str = "auto", quantization: str | None = None) -> Model:
    """The model of that name or record, in the dtype and quantisation asked for.

    Raises UnknownName or BadInput when a name is not known or cannot hold weights.
    """
    if not isinstance(model, (str, os.PathLike, dict, Model)):
        raise BadInput(f"MODEL: {shown(model)} is neither a name, a path, a config nor a model")
    loaded = model if isinstance(model, Model) else load_model(model)
    if dtype != "auto":
        found = find_format(dtype, "--dtype", "weights").name
        if found not in DTYPES:
            raise BadInput(f"--dtype: {shown(dtype)} is a quantised format; use --quantization {dtype}")
        loaded = replace(loaded, dtype=found)
    return loaded if quantization is None else _quantized(loaded, quantization)


def _quantized(model: Model, name: str) -> Model:
    if name.lower() == "none":
        return replace(model, quantization=None)
    own = model.quantization or {}
    if own and name.lower() in (str(own.get("quant_method")), f"{own.get('quant_method')}_marlin"):
        return model  # the checkpoint is quantised so already, and its own config says how
    found = schemes.flag(name.lower())
    if found is None:
        names = ["none", *schemes.flag_names()]
        hint = did_you_mean(name, names) or f"known: {', '.join(names)}"
        raise UnknownName(f"--quantization: {shown(name)} is not known for this model; {hint}")
    return replace(model, quantization=found)
