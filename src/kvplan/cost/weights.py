"""Parameters and the bytes they take."""

from __future__ import annotations

from typing import Any

from kvplan.figure import Leaf, Number, Source, Trust, formula
from kvplan.model.model import Model


@formula("B")
def weight_bytes(parameters: Number, parameter_bytes: Number) -> Number:
    """Every parameter in one format; quantised layouts and padding come with the files themselves."""
    return parameters * parameter_bytes


@formula("B", "even split: replicated layers and padding not counted")
def weight_bytes_on_rank(weight_bytes: Number, ranks: Number) -> Number:
    """One rank's share of the weights."""
    return weight_bytes // ranks


def parameter_leaf(model: Model, leaf: Leaf) -> Any:
    """The parameter count as an input: counted from the config's shapes."""
    where = f"{model.file}: sum over the shapes of every matrix of {model.model_type}"
    return leaf("parameters", model.parameters, "value", Source(Trust.STATED, where))
