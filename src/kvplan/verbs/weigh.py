"""The bytes of a model's weights, from its parameter count and the format they are stored in."""

from __future__ import annotations

from typing import Any

from kvplan.cost.weights import parameter_leaf, weight_bytes
from kvplan.facts.formats import find_format
from kvplan.figure import Leaf, Source, Trust
from kvplan.model.model import Model


def weight_bytes_of(model: Model, leaf: Leaf) -> Any:
    """Bytes of the text decoder's weights in the model's dtype."""
    name = model.dtype or "bfloat16"
    fmt = find_format(name, "dtype", "weights")
    why = f"{model.file} dtype {name}" if model.dtype else f"{model.file} states no dtype: 16 bit"
    trust = Trust.STATED if model.dtype else Trust.ASSUMED
    size = leaf("parameter_bytes", fmt.block_bytes, "B/value", Source(trust, why))
    return weight_bytes(parameter_leaf(model, leaf), size)
