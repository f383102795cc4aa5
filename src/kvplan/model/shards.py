"""Weights in several files: what an index says, which files make a set, and the whole of them."""

from __future__ import annotations

import functools
import json
import re
from typing import Any

from kvplan.errors import BadInput, shown
from kvplan.model.tensors import Tensor, TensorList
from kvplan.units import count_text

INDEX = "model.safetensors.index.json"
MAX_TENSORS = 1_000_000
MAX_SHARDS = 10_000

_SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.safetensors")
_PLAIN = re.compile(r"[^/\\:\x00-\x1f]{1,255}")


def complete_shards(files: list[str], where: str) -> list[str]:
    """The shards `NAME-00001-of-0000N.safetensors` among files, all N of one set; else BadInput."""
    found = [(m.group(1), int(m.group(3)), name) for name in files if (m := _SHARD.fullmatch(name))]
    sets = {(stem, of) for stem, of, _ in found}
    if len(sets) != 1:
        raise BadInput(
            f"weights: {len(files)} .safetensors files and no {INDEX} in {shown(where)}; "
            f"give the file to read"
        )
    ((stem, of),) = sets
    if len(found) != of:
        raise BadInput(
            f"weights: {len(found)} of {of} shards {shown(stem)} in {shown(where)}; download the rest"
        )
    return [name for _, _, name in found]


def shards_of(text: str, file: str) -> dict[str, frozenset[str]]:
    """The shards an index names, in order, each with the tensors it must hold.

    A shard is a plain file name beside the index: a name that leads elsewhere is refused.
    """
    if text.count("{") > 64 or text.count("[") > 64 or text.count(",") > MAX_TENSORS:
        raise BadInput(f"weights: {file} is no safetensors index; it should be a flat map of tensor to file")
    try:
        index = json.loads(text, object_pairs_hook=functools.partial(no_duplicates, file))
    except RecursionError:
        raise BadInput(f"weights: {file} is nested too deep for an index") from None
    except ValueError as error:
        raise BadInput(f"weights: {file} is not JSON: {error}; is it complete?") from None
    listed = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(listed, dict) or not listed:
        raise BadInput(f"weights: no weight_map in {file}; give a model.safetensors.index.json")
    shards: dict[str, list[str]] = {}
    for tensor, shard in listed.items():
        shards.setdefault(_shard_name(tensor, shard, file), []).append(tensor)
    if len(shards) > MAX_SHARDS:
        raise BadInput(f"weights: {file} names {len(shards)} files; at most {MAX_SHARDS} are read")
    return {shard: frozenset(shards[shard]) for shard in sorted(shards)}


def no_duplicates(file: str, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object's pairs as a dict; BadInput when a key stands twice (json's own rule is the last)."""
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise BadInput(f"weights: {shown(twice)} stands twice in {file}; correct the file")
    return found


def _shard_name(tensor: str, shard: object, file: str) -> str:
    if not isinstance(shard, str) or not _PLAIN.fullmatch(shard) or not shard.endswith(".safetensors"):
        raise BadInput(
            f"weights: {file} puts {shown(tensor)} into {shown(shard)}; "
            f"expected the name of a .safetensors file beside it"
        )
    return shard


def join(shards: list[tuple[TensorList, frozenset[str] | None]], where: str) -> TensorList:
    """Shards as one list. With the names an index expects of a shard, only those count and all must be there.

    Raises BadInput when a tensor is in two shards or in none.
    """
    tensors: dict[str, Tensor] = {}
    for shard, expected in shards:
        found = 0
        for tensor in shard.tensors:
            if expected is not None and tensor.name not in expected:
                continue
            if tensor.name in tensors:
                raise BadInput(f"weights: {shown(tensor.name)} is in two shards of {where}; keep one of them")
            tensors[tensor.name] = tensor
            found += 1
        if expected is not None and found != len(expected):
            lost = sorted(expected.difference(tensors))[0]
            raise BadInput(f"weights: {where} puts {shown(lost)} into {shard.files[0]}, which lacks it")
        if len(tensors) > MAX_TENSORS:
            raise BadInput(f"weights: {where} has more than {count_text(MAX_TENSORS)} tensors")
    files = tuple(name for shard, _ in shards for name in shard.files)
    return TensorList(tuple(tensors.values()), files, shards[0][0].metadata if shards else {})
