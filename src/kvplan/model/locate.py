"""MODEL as a person gives it: a built-in id, a config under any file name, or a folder."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvplan.errors import BadConfig, BadInput, UnknownName, did_you_mean, shown
from kvplan.facts.catalogue import Entry, entries, find_model
from kvplan.model.model import Model
from kvplan.model.read import read_config
from kvplan.units import bytes_text

MAX_CONFIG_BYTES = 32 * 2**20


def load_model(name: str | os.PathLike[str] | dict[str, Any]) -> Model:
    """The model of that name, path, folder, or config given as a dict.

    Raises UnknownName when nothing is called that, BadConfig or BadInput when it cannot be read.
    """
    if isinstance(name, dict):
        return read_config(name, "config given", str(name.get("_name_or_path") or "config"))
    text = os.fspath(name)
    if not text.strip() or "\0" in text:
        raise BadInput("MODEL: empty; give a model id, a config.json or a folder")
    path = Path(text).expanduser()
    if _exists(path):
        return load_path(path)
    entry = find_model(text)
    if entry is not None:
        return load_entry(entry)
    raise _not_found(text)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False


def _not_found(text: str) -> UnknownName:
    if text.endswith((".json", ".gguf", ".safetensors")) or text.startswith((".", "/", "~")):
        return UnknownName(f"MODEL: no file or folder {shown(text)}; check the path")
    known = [e.id for e in entries()] + [e.id.rpartition("/")[2] for e in entries()]
    return UnknownName(
        f"MODEL: {shown(text)} is neither built in nor a file here; "
        f"{did_you_mean(text, known) or 'see kvplan models, or give a config.json'}"
    )


def load_entry(entry: Entry) -> Model:
    """A built-in model."""
    model = read_config(entry.config(), entry.file, entry.id, entry.quantization_sidecar())
    return replace(model, confidence=entry.confidence)


def load_path(path: Path) -> Model:
    """A config file under any name, or a folder with a config.json."""
    sidecar = None
    if path.is_dir():
        folder, path = path, path / "config.json"
        if not path.is_file():
            raise BadInput(f"MODEL: no config.json in the folder {shown(str(folder))}; give one that has it")
        beside = folder / "hf_quant_config.json"
        sidecar = read_json(beside) if beside.is_file() else None
    raw = read_json(path)
    name = path.parent.name if path.name == "config.json" else path.stem
    return read_config(raw, path.name, str(raw.get("_name_or_path") or name or path.name), sidecar)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file, its size checked first."""
    try:
        if not path.is_file():
            raise BadInput(f"MODEL: {shown(str(path))} is not a file; give a config.json or a folder")
        size = path.stat().st_size
        if size > MAX_CONFIG_BYTES:
            raise BadInput(
                f"MODEL: {path.name} has {bytes_text(size)}; a config has at most {bytes_text(MAX_CONFIG_BYTES)}"
            )
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
        raise BadConfig(f"MODEL: {path.name} holds a {type(raw).__name__}, not a config's object")
    return raw
