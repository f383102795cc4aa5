"""A GGUF file as a `Model` whose figures name the metadata keys that they were read from."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from kvplan.figure import Source
from kvplan.model.gguf import read_gguf
from kvplan.model.gguf_config import Metadata, config_of, spellings_of
from kvplan.model.model import Layer, Model, Origins
from kvplan.model.read import read_config
from kvplan.model.tensors import TensorList


def load_gguf(path: Path) -> tuple[Model, TensorList]:
    """The model of a GGUF file (any shard of a split one) and its tensors.

    Raises BadInput or BadConfig naming the file and what is wrong with it.
    """
    found = read_gguf(path)
    return model_of(found), found


def model_of(found: TensorList) -> Model:
    """The model that a GGUF file's metadata and tensors describe."""
    file = found.files[0] if found.files else "the file"
    metadata = Metadata(found.metadata, file)
    name = found.metadata.get("general.name")
    model = read_config(config_of(found), file, name if isinstance(name, str) and name else file)
    return _named(model, file, spellings_of(metadata))


def _named(model: Model, file: str, spellings: Mapping[str, str]) -> Model:
    """The same model; sources name GGUF keys. A layer that stands many times stays one object."""
    key = re.compile(rf"(?<=^{re.escape(file)} )(?:\w+, )*\w+\b")

    def renamed(match: re.Match[str]) -> str:
        return ", ".join(spellings.get(word, word) for word in match.group().split(", "))

    def origins(old: Origins) -> dict[str, Source]:
        return {k: replace(s, where=key.sub(renamed, s.where)) for k, s in old.items()}

    def layer(old: Layer) -> Layer:
        attentions = tuple(replace(a, origins=origins(a.origins)) for a in old.attentions)
        return replace(
            old,
            attentions=attentions,
            states=tuple(replace(s, origins=origins(s.origins)) for s in old.states),
        )

    made = {id(old): layer(old) for _, old in model.grouped()}
    return replace(model, layers=tuple(made[id(old)] for old in model.layers), origins=origins(model.origins))
