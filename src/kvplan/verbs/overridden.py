"""The model with keys of its config replaced, as --hf-overrides and its like do before an engine reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kvplan.cost.weights import parameters
from kvplan.errors import BadInput
from kvplan.figure import bare
from kvplan.model.identify import text_part
from kvplan.model.locate import load_model
from kvplan.model.model import Model
from kvplan.model.read import read_config
from kvplan.verbs.given import ModelLike

# Flags that hold keys of a config, and those that are one key (vLLM 0.10.2 engine/arg_utils.py rope_scaling).
_TABLES = ("hf_overrides", "json_model_override_args")
_KEYS = ("rope_scaling", "rope_theta")


def overridden(model: ModelLike, flags: Mapping[str, Any], engine: str) -> ModelLike:
    """The model as it is named, or as read with the keys that these flags replace.

    Raises BadInput where there is no config whose keys could be replaced.
    """
    if engine not in ("vllm", "sglang"):
        return model
    given = {name: dict(flags[name]) for name in _TABLES if flags.get(name)}
    given |= {name: {name: flags[name]} for name in _KEYS if flags.get(name)}
    if not given:
        return model
    named = " ".join(f"--{name.replace('_', '-')}" for name in given)
    if not isinstance(model, Model):
        return _read(model, {k: v for table in given.values() for k, v in table.items()}, named)
    raise BadInput(f"{named}: needs a config to change, not a Model; give the model's name or its config")


def _read(model: Any, table: Mapping[str, Any], named: str) -> Model:
    raws: list[dict[str, Any]] = []

    def change(raw: dict[str, Any]) -> dict[str, Any]:
        raws.append(raw)
        for key, value in table.items():
            inside = isinstance(value, Mapping) and str(key).endswith("_config")
            if inside and key not in raw and key != "quantization_config":
                raise BadInput(f"{named}: the config has no {key} to change; give its keys by themselves")
        return merged(raw, table)

    found = load_model(model, change=(named, change))
    raw = raws[-1]
    nested = text_part(raw, found.file)[1]
    notes = [f"{named}: the config is read with {', '.join(_keys(table))} replaced"]
    outer = [key for key in table if nested and not isinstance(raw.get(key), dict)]
    if outer:
        notes.append(
            f"{named}: {', '.join(outer)} is set beside the decoder's own keys; nest it in {nested[:-1]}"
        )
    if found.tensors is not None and parameters(found, bare) != parameters(
        read_config(raw, found.file), bare
    ):
        found = replace(found, tensors=None)
        notes.append(f"{named}: weights by the formula; the weight files hold the config's own sizes")
    return replace(found, notes=(*found.notes, *notes))


def _keys(table: Mapping[str, Any], path: str = "") -> list[str]:
    found = []
    for key, value in table.items():
        inner = isinstance(value, Mapping) and str(key).endswith("_config")
        found += _keys(value, f"{path}{key}.") if inner else [f"{path}{key}"]
    return found


def merged(raw: dict[str, Any], table: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a config with keys replaced; a config inside is merged, any other object replaced.

    vLLM 0.32.0 config/model.py _apply_dict_overrides.
    """
    found = dict(raw)
    for key, value in table.items():
        old = found.get(key)
        inner = isinstance(old, dict) and isinstance(value, Mapping) and key != "quantization_config"
        if inner and str(key).endswith(("_config", "_cfg")):
            found[key] = merged(old or {}, value)
        else:
            found[key] = value
    if "rope_scaling" in table and "rope_parameters" not in table:
        found.pop("rope_parameters", None)
    return found
