"""Names that logs give to models and devices, as kvplan knows them."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from kvplan.errors import KvplanError
from kvplan.facts.accelerators import find_accelerator
from kvplan.facts.catalogue import find_model

_CACHED = re.compile(r"models--(?P<owner>[^/\\]+?)--(?P<name>[^/\\]+?)(?:[/\\]|$)")
# What GGUF files are called after their model: a shard's number, then the format of most of its weights.
_GGUF = re.compile(
    r"(?:[-._](?:i?q\d(?:_[a-z0-9]+)*|[bf]?f(?:16|32)|mxfp4|nvfp4|tq\d_\d|ud))*(?:-\d{5}-of-\d{5})?\.gguf$",
    re.IGNORECASE,
)
_NOISE = re.compile(r"\s*\((?:[^()]*)\)\s*$|\bwith Max-Q Design\b|\bGraphics\b", re.IGNORECASE)


def model_name(stated: str) -> str:
    """The model that a name in a log means: in the Hub's cache a folder's repository, else as it stands."""
    found = _CACHED.search(stated)
    return f"{found['owner']}/{found['name']}" if found else stated


def built_in(stated: str) -> str | None:
    """The id of the built-in model that a log's path or name means, or None."""
    name = model_name(stated).replace("\\", "/").rstrip("/")
    file = PurePosixPath(name).name
    for candidate in (name, file, _GGUF.sub("", file), *_parents(name)):
        entry = find_model(candidate) if candidate else None
        if entry is not None:
            return entry.id
    return None


def _parents(name: str) -> list[str]:
    """`owner/name` at a path's end; and the folder above a snapshot's."""
    parts = [part for part in name.split("/") if part]
    return ["/".join(parts[-2:])] if len(parts) >= 2 else []


def gpu_key(stated: str) -> str | None:
    """The accelerator of the catalogue that a log's device name means, or None."""
    plain = stated.replace("_", " ").strip()
    for text in (plain, _NOISE.sub("", plain)):
        try:
            return find_accelerator(text).key if text else None
        except KvplanError:
            continue
    return None
