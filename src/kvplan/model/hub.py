"""A model as published on the Hugging Face Hub: its config and its weights' headers, never the weights."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from kvplan.errors import BadConfig, BadInput, shown
from kvplan.model.hub_client import Repository
from kvplan.model.json_kind import json_kind
from kvplan.model.safetensors import FIRST_FETCH, fetch_header, read_file
from kvplan.model.shards import INDEX, join, shards_of
from kvplan.model.tensors import TensorList

CONNECTIONS = 8
SINGLE = "model.safetensors"
# huggingface_hub utils/_validators.py validate_repo_id
_ID = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_]|[.-](?![.-]))*/[A-Za-z0-9_](?:[A-Za-z0-9_]|[.-](?![.-]))*")
_REVISION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./-]{0,254}")


@dataclass(frozen=True, slots=True)
class Published:
    """What a repository says of its model.

    `revision` is the commit read; `sidecar` the hf_quant_config.json; `weights` the tensors that the
    safetensors headers list, None where the repository (or offline the cache) has none; `moved` the
    bytes that were moved; `notes` what a reader should know, such as that the cache stood in.
    """

    id: str
    revision: str
    config: dict[str, Any]
    sidecar: dict[str, Any] | None
    weights: TensorList | None
    moved: int
    notes: tuple[str, ...] = ()


def is_repo_id(text: str) -> bool:
    """Whether that could be the id of a repository: `owner/name`, with `@revision` or without."""
    id, at, revision = text.partition("@")
    good = len(id) <= 96 and _ID.fullmatch(id) and not id.endswith((".git", ".", "-"))
    return bool(good and (not at or (_REVISION.fullmatch(revision) and ".." not in revision)))


def fetch_model(name: str, weights: bool = True) -> Published:
    """The model of a repository `owner/name` or `owner/name@revision`; without `weights` the config alone.

    Raises UnknownName for a repository that is not visible, BadInput for one that is gated or has no
    config, Unreachable when the Hub does not answer.
    """
    if not is_repo_id(name):
        raise BadInput(f"MODEL: {shown(name)} is no repository id; write owner/name")
    id, _, revision = name.partition("@")
    repository = Repository(id, revision or "main")
    config = _object(repository, "config.json")
    if config is None:
        raise BadInput(f"MODEL: {id} has no config.json; give a config, a folder or a .gguf file")
    sidecar = _object(repository, "hf_quant_config.json")
    tensors = _weights(repository) if weights else None
    return Published(
        id, repository.revision, config, sidecar, tensors, repository.moved, tuple(repository.notes)
    )


def _object(repository: Repository, file: str) -> dict[str, Any] | None:
    """A JSON object of the repository, or None when it has no such file."""
    raw = _small(repository, file)
    if raw is None:
        return None
    where = f"{file} of {repository.id}"
    try:
        found = json.loads(raw)
    except RecursionError:
        raise BadConfig(f"MODEL: {where} is nested too deep for a config") from None
    except ValueError as error:
        raise BadConfig(f"MODEL: {where} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise BadConfig(f"MODEL: {where} holds {json_kind(found)}, not a config's object; give a config.json")
    return found


def _small(repository: Repository, file: str) -> bytes | None:
    """A file; offline, one that the cache lacks is taken not to exist, but for config.json."""
    if repository.offline and file != "config.json" and repository.cached(file) is None:
        return None
    return repository.small(file)


def _weights(repository: Repository) -> TensorList | None:
    """The tensors of all shards, or of the only file; None when there are none, or offline not all."""
    index = _small(repository, INDEX)
    if index is None:
        unknown = repository.offline and repository.cached(SINGLE) is None
        return None if unknown else _header(repository, SINGLE)
    where = f"{INDEX} of {repository.id}"
    try:
        shards = shards_of(index.decode("utf-8"), where)
    except UnicodeDecodeError:
        raise BadInput(f"weights: {where} is not text in UTF-8") from None
    if repository.offline and any(repository.cached(shard) is None for shard in shards):
        return None
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        try:
            headers = list(pool.map(lambda shard: _header(repository, shard), shards))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    found: list[tuple[TensorList, frozenset[str] | None]] = []
    for (shard, names), header in zip(shards.items(), headers, strict=True):
        if header is None:
            raise BadInput(f"weights: {where} names {shard}, which the repository lacks")
        found.append((header, names))
    return join(found, where)


def _header(repository: Repository, file: str) -> TensorList | None:
    """The header of one file, from the cache when it is there as a whole, else by range requests."""
    path = repository.cached(file)
    if path is not None:
        return read_file(path)
    first = repository.part(file, 0, FIRST_FETCH)
    if first is None:
        return None

    def fetch(name: str, start: int, end: int) -> bytes:
        if end <= len(first[0]):
            return first[0][start:end]
        found = repository.part(name, start, end)
        return found[0] if found else b""

    return fetch_header(file, fetch, file, first[1])
