"""MODEL as a person gives it: a built-in id, a config under any file name, or a folder."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvplan.errors import BadConfig, BadInput, UnknownName, Unreachable, did_you_mean, shown
from kvplan.facts.catalogue import Entry, begin_with, entries, find_model
from kvplan.figure import Source, Trust
from kvplan.model import gguf_model
from kvplan.model.hub import fetch_model, is_repo_id
from kvplan.model.json_kind import json_kind
from kvplan.model.model import Model
from kvplan.model.quantization import packed_bits
from kvplan.model.read import read_config
from kvplan.model.safetensors import read_safetensors
from kvplan.model.tensors import TensorList
from kvplan.units import bytes_text

MAX_CONFIG_BYTES = 32 * 2**20
_LISTED = 6  # built-in names that an error lists
_FILES = (".json", ".gguf", ".safetensors")
Change = tuple[str, Callable[[dict[str, Any]], dict[str, Any]]]  # what it is called, and what it does


def load_model(name: str | os.PathLike[str] | dict[str, Any], change: Change | None = None) -> Model:
    """The model of that name, path, folder, GGUF file, Hub repository, or config given as a dict.

    `change` makes another config of the one found, before it is read.
    Raises UnknownName when nothing is called that, BadConfig or BadInput when it cannot be read,
    Unreachable when the Hub does not answer.
    """
    if isinstance(name, dict):
        return _read(name, "config given", str(name.get("_name_or_path") or "config"), None, change)
    text = os.fspath(name)
    if not text.strip() or "\0" in text:
        raise BadInput("MODEL: empty; give a model id, a config.json, a folder or a .gguf file")
    path = Path(text).expanduser()
    if _exists(path):
        return load_path(path, change)
    entry = find_model(text)
    if entry is not None:
        return load_entry(entry, change)
    if is_repo_id(text) and not text.endswith(_FILES) and not text.startswith("."):
        return _published_or_near(text, change)
    raise _not_found(text)


def _read(
    raw: dict[str, Any], file: str, name: str, sidecar: dict[str, Any] | None, change: Change | None
) -> Model:
    if change is None:
        return read_config(raw, file, name, sidecar)
    called, changed = change
    return read_config(changed(raw), f"{file} with {called}", name, sidecar)


def _published_or_near(text: str, change: Change | None) -> Model:
    """A model of the Hub; where that fails, the error also names a built-in one of the same name."""
    try:
        return load_published(text, change)
    except (UnknownName, Unreachable) as error:
        near = find_model(text.partition("@")[0].rpartition("/")[2])
        if near is None:
            raise
        raise type(error)(f"{error}; built in under that name is {near.id}") from None


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False


def _not_found(text: str) -> UnknownName:
    if text.endswith(_FILES) or text.startswith((".", "/", "~")):
        return UnknownName(f"MODEL: no file or folder {shown(text)}; check the path")
    several = begin_with(text)
    if several:
        more = f" or {len(several) - _LISTED} more" if len(several) > _LISTED else ""
        return UnknownName(
            f"MODEL: {shown(text)} is neither built in nor a file here; "
            f"did you mean {' or '.join(several[:_LISTED])}{more}?"
        )
    known = [e.id for e in entries()] + [e.id.rpartition("/")[2] for e in entries()]
    return UnknownName(
        f"MODEL: {shown(text)} is neither built in nor a file here; "
        f"{did_you_mean(text, known) or 'see kvplan models, or give a config.json'}"
    )


def load_entry(entry: Entry, change: Change | None = None) -> Model:
    """A built-in model."""
    model = _read(entry.config(), entry.file, entry.id, entry.quantization_sidecar(), change)
    return replace(model, confidence=entry.confidence)


def load_published(name: str, change: Change | None = None) -> Model:
    """A model of the Hugging Face Hub: its config and its weights' headers, never the weights."""
    found = fetch_model(name)
    where = f"config.json of {found.id}@{found.revision[:8]}"
    model = _read(found.config, where, found.id, found.sidecar, change)
    return with_tensors(replace(model, notes=(*model.notes, *found.notes)), found.weights)


def load_path(path: Path, change: Change | None = None) -> Model:
    """A config under any file name, a .gguf file, or a folder with a config.json and its weights."""
    if path.suffix.lower() == ".gguf" and not path.is_dir():
        if change is not None:
            raise BadInput(f"{change[0]}: {path.name} is a GGUF file without a config.json; drop it")
        return load_gguf(path)
    if path.suffix.lower() == ".safetensors" and not path.is_dir():
        raise BadInput(f"MODEL: {path.name} has no config; give the folder that holds it and its config.json")
    if not path.is_dir():
        raw = read_json(path)
        name = path.parent.name if path.name == "config.json" else path.stem
        return _read(raw, path.name, str(raw.get("_name_or_path") or name or path.name), None, change)
    file = path / "config.json"
    if not file.is_file():
        if change is not None:
            raise BadInput(f"{change[0]}: no config.json in {shown(str(path))}; give a folder that has it")
        return _without_config(path)
    raw = read_json(file)
    beside = path / "hf_quant_config.json"
    sidecar = read_json(beside) if beside.is_file() else None
    name = str(raw.get("_name_or_path") or path.resolve().name)
    model = _read(raw, file.name, name, sidecar, change)
    holds = any(path.glob("*.safetensors")) or (path / "model.safetensors.index.json").is_file()
    return with_tensors(model, read_safetensors(path) if holds else None)


def _without_config(folder: Path) -> Model:
    found = sorted(path for path in folder.iterdir() if path.suffix.lower() == ".gguf")
    if len(found) == 1 or (found and "-00001-of-" in found[0].name):
        return load_gguf(found[0])
    if found:
        raise BadInput(f"MODEL: {shown(str(folder))} holds {len(found)} .gguf files; name one of them")
    raise BadInput(f"MODEL: no config.json in the folder {shown(str(folder))}; give one that has it")


def load_gguf(path: Path) -> Model:
    """A model from a GGUF file: geometry from its metadata, weights from its tensor infos."""
    model, found = gguf_model.load_gguf(path)
    return with_tensors(replace(model, dtype=model.dtype or "float16"), found)


def with_tensors(model: Model, tensors: TensorList | None) -> Model:
    """The model with what its weight files' headers list; files without any tensor are noted and left out."""
    if tensors is None:
        return model
    if not tensors.tensors:
        files = ", ".join(tensors.files[:2]) or "the weight file"
        note = f"{files} holds no tensors: weights are the formula's, from {model.file}"
        return replace(model, notes=(*model.notes, note))
    values = tensors.parameters_by_part(packed_bits(model.quantization or {}))
    beside = {part: values.get(part, 0) for part in ("vision", "audio", "mtp")}
    source = Source(Trust.MEASURED, f"{', '.join(tensors.files[:2])}: tensors in the header")
    return replace(
        model,
        tensors=tensors,
        tower_parameters=beside["vision"] + beside["audio"],
        mtp_parameters=beside["mtp"],
        other_parameters=sum(beside.values()),
        origins={**model.origins, "towers": source, "mtp": source},
    )


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file, its size checked first."""
    try:
        if not path.is_file():
            raise BadInput(f"MODEL: {shown(str(path))} is not a file; give a config.json or a folder")
        size = path.stat().st_size
        if size > MAX_CONFIG_BYTES:
            most = bytes_text(MAX_CONFIG_BYTES)
            raise BadInput(f"MODEL: {path.name} has {bytes_text(size)}; a config has at most {most}")
        raw = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise BadInput(f"MODEL: cannot read {shown(str(path))}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise BadConfig(f"MODEL: {path.name} is not text in UTF-8; give a config.json") from None
    except RecursionError:
        raise BadConfig(f"MODEL: {path.name} is nested too deep for a config") from None
    except ValueError as error:
        raise BadConfig(f"MODEL: {path.name} is not JSON: {error}; is it complete?") from None
    if not isinstance(raw, dict):
        raise BadConfig(
            f"MODEL: {path.name} holds {json_kind(raw)}, not a config's object; give a config.json"
        )
    return raw
