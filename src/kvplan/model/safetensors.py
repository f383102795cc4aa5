"""Reading the headers of .safetensors files: names, dtypes, shapes and offsets, never a tensor.

The format (huggingface/safetensors README, "Format"): 8 bytes, little-endian, say how long the header
is; the header is one JSON object, `{"NAME": {"dtype", "shape", "data_offsets"}, ..., "__metadata__"}`;
the rest of the file is the tensors' bytes without holes. What the library refuses is refused here.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterator
from math import prod
from pathlib import Path
from typing import Any, NoReturn

from kvplan.errors import BadInput, did_you_mean, shown
from kvplan.facts import store
from kvplan.model.shards import INDEX, MAX_TENSORS, complete_shards, join, no_duplicates, shards_of
from kvplan.model.tensors import Tensor, TensorList
from kvplan.units import bytes_text, count_text

Fetch = Callable[[str, int, int], bytes]

MAX_HEADER_BYTES = 100_000_000  # safetensors/src/tensor.rs MAX_HEADER_SIZE
MAX_NAME = 1024  # characters
MAX_RANK = 32
MAX_DIMENSION = 2**48
MAX_INDEX_BYTES = 128 * 2**20
KEPT_METADATA = 65_536  # longer strings are training logs of no use here
FIRST_FETCH = 16_384  # bytes; one request reads most small headers whole

_SPACE = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()
_ENTRY = re.compile(r"\{[^{}]{0,4096}\}")


def read_safetensors(path: Path) -> TensorList:
    """The tensors of a .safetensors file, of an index with its shards, or of a folder that holds either.

    Raises BadInput naming the file and what is wrong with it.
    """
    try:
        if path.is_dir():
            return _read_folder(path)
        if not path.is_file():
            raise BadInput(f"weights: no file or folder {shown(str(path))}; check the path")
        if path.name.endswith(".json"):
            return read_index(path)
        return read_file(path)
    except OSError as error:
        raise BadInput(f"weights: cannot read {shown(str(path))}: {error.strerror or error}") from None


def read_file(path: Path) -> TensorList:
    """The tensors of one .safetensors file, its header checked against the file's size."""
    if not path.is_file():  # a pipe would be waited for
        raise BadInput(f"weights: {shown(str(path))} is not a file; give a .safetensors file")
    with path.open("rb") as file:
        size = path.stat().st_size
        length = header_length(file.read(8), size, path.name)
        raw = file.read(length)
    return parse_header(raw, size, path.name)


def read_index(path: Path) -> TensorList:
    """The tensors that a `*.safetensors.index.json` names, read from the shards beside it."""
    shards = shards_of(_index_text(path), path.name)
    present = {child.name for child in path.parent.iterdir()}
    missing = [shard for shard in shards if shard not in present]
    if missing:
        raise BadInput(
            f"weights: {path.name} names {len(shards)} shards and {len(missing)} of them are missing, "
            f"{missing[0]} first; download the rest"
        )
    return join([(read_file(path.parent / shard), names) for shard, names in shards.items()], path.name)


def _index_text(path: Path) -> str:
    size = path.stat().st_size
    if size > MAX_INDEX_BYTES:
        raise BadInput(
            f"weights: {path.name} has {bytes_text(size)}; an index has at most {bytes_text(MAX_INDEX_BYTES)}"
        )
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise BadInput(f"weights: {path.name} is not text in UTF-8; download it again") from None


def _read_folder(folder: Path) -> TensorList:
    """A folder: its index, else model.safetensors, else its only file, else a whole set of shards."""
    names = sorted(
        p.name for p in folder.iterdir() if p.name.endswith((".safetensors", ".safetensors.index.json"))
    )
    indices = [name for name in names if name.endswith(".json")]
    if INDEX in indices or len(indices) == 1:
        return read_index(folder / (INDEX if INDEX in indices else indices[0]))
    files = [name for name in names if not name.endswith(".json")]
    if "model.safetensors" in files or len(files) == 1:
        return read_file(folder / ("model.safetensors" if "model.safetensors" in files else files[0]))
    if not files:
        raise BadInput(
            f"weights: no .safetensors file in the folder {shown(str(folder))}; give one that has it"
        )
    shards = complete_shards(files, str(folder))
    return join([(read_file(folder / shard), None) for shard in shards], folder.name)


def fetch_header(url: str, fetch: Fetch, file: str, size: int | None = None) -> TensorList:
    """The tensors of a remote file: its header alone is moved, in one or two range requests.

    `fetch(url, start, end)` returns the bytes from start up to but not including end, fewer at the end of
    the file. `size` is the whole file's, in bytes, where known; without it only the header is checked.
    """
    first = fetch(url, 0, FIRST_FETCH if size is None else min(FIRST_FETCH, max(size, 1)))
    length = header_length(first[:8], size, file)
    raw = first[8 : 8 + length]
    if len(raw) < length:
        raw += fetch(url, 8 + len(raw), 8 + length)
    return parse_header(raw[:length], size, file, length)


def header_length(first: bytes, size: int | None, file: str) -> int:
    """The header's length in bytes from a file's first 8, checked against the cap and the file's size."""
    if len(first) < 8:
        raise BadInput(
            f"weights: {file} has {len(first)} bytes; a .safetensors file has more: download it again"
        )
    length = int.from_bytes(first, "little")
    if length > MAX_HEADER_BYTES:
        raise BadInput(
            f"weights: {file} says its header has {count_text(length)} B, above the format's "
            f"{count_text(MAX_HEADER_BYTES)} B; is it a .safetensors file?"
        )
    if size is not None and length + 8 > size:
        raise BadInput(
            f"weights: {file} says its header has {count_text(length)} B, but the file has "
            f"{count_text(size)} B; download it again"
        )
    if length < 2:
        raise BadInput(f"weights: {file} says its header has {length} B; is it a .safetensors file?")
    return length


def parse_header(raw: bytes, size: int | None, file: str, length: int | None = None) -> TensorList:
    """The tensors of a header's JSON. `size` is the whole file's in bytes, or None when not known.

    Raises BadInput naming the tensor and what is wrong: bytes that are not shape × dtype, ranges that
    overlap or leave holes, a file longer or shorter than its tensors.
    """
    length = len(raw) if length is None else length
    if len(raw) < length:
        raise BadInput(f"weights: {file} ends within its header; download it again")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise BadInput(
            f"weights: the header of {file} is not text in UTF-8; is it a .safetensors file?"
        ) from None
    tensors: dict[str, Tensor] = {}
    ranges: list[tuple[int, int, str]] = []
    metadata: dict[str, object] | None = None
    for name, entry in _entries(text, file):
        if name in tensors or (name == "__metadata__" and metadata is not None):
            raise BadInput(f"weights: {shown(name)} stands twice in the header of {file}")
        if name == "__metadata__":
            metadata = {key: value for key, value in entry.items() if len(value) <= KEPT_METADATA}
            continue
        if len(tensors) >= MAX_TENSORS:
            raise BadInput(f"weights: {file} has more than {count_text(MAX_TENSORS)} tensors")
        tensors[name], span = _tensor(name, entry, file)
        ranges.append((*span, name))
    _check_ranges(ranges, None if size is None else size - length - 8, file)
    return TensorList(tuple(tensors.values()), (file,), metadata or {})


def _entries(text: str, file: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each name and its flat object, one at a time, so that memory stays that of one tensor."""
    at = _expect(text, 0, "{", file)
    if text[at : at + 1] == "}":
        return _expect_end(text, at + 1, file)
    while True:
        name, at = _string(text, at, file)
        at = _expect(text, _spaces(text, at), ":", file)
        if name == "__metadata__":
            entry, at = _strings(text, at, file)
        else:
            match = _ENTRY.match(text, at)
            if not match or len(name) > MAX_NAME:
                _not_a_tensor(name, file)
            entry = _load(match.group(), file, at)
            at = match.end()
        yield name, entry
        at = _spaces(text, at)
        if text[at : at + 1] == "}":
            return _expect_end(text, at + 1, file)
        at = _expect(text, at, ",", file)


def _strings(text: str, at: int, file: str) -> tuple[dict[str, str], int]:
    """`__metadata__`: a flat object of strings."""
    found: dict[str, str] = {}
    at = _expect(text, at, "{", file)
    while text[at : at + 1] != "}":
        if found:
            at = _expect(text, at, ",", file)
        name, at = _string(text, at, file)
        at = _expect(text, _spaces(text, at), ":", file)
        if text[at : at + 1] != '"':
            raise BadInput(
                f"weights: __metadata__ of {file} holds something other than text under {shown(name)}"
            )
        if name in found or len(found) >= 100_000:
            raise BadInput(f"weights: __metadata__ of {file} has {shown(name)} twice, or too many entries")
        found[name], at = _string(text, at, file)
        at = _spaces(text, at)
    return found, at + 1


def _string(text: str, at: int, file: str) -> tuple[str, int]:
    """A JSON string that begins here, and the position after it."""
    if text[at : at + 1] != '"':
        _not_json(file, at)
    try:
        return _DECODER.raw_decode(text, at)
    except ValueError:
        _not_json(file, at)


def _load(fragment: str, file: str, at: int) -> Any:
    try:
        return json.loads(fragment, object_pairs_hook=functools.partial(no_duplicates, file))
    except (ValueError, RecursionError):
        _not_json(file, at)


def _spaces(text: str, at: int) -> int:
    """The position after any spaces."""
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _expect(text: str, at: int, mark: str, file: str) -> int:
    """The position after a mark and the spaces behind it."""
    if text[at : at + 1] != mark:
        _not_json(file, at)
    return _spaces(text, at + 1)


def _expect_end(text: str, at: int, file: str) -> None:
    if text[at:].strip(" "):
        _not_json(file, at)


def _not_json(file: str, at: int) -> NoReturn:
    raise BadInput(f"weights: the header of {file} is not JSON from byte {at} on; download it again")


def _not_a_tensor(name: str, file: str) -> NoReturn:
    raise BadInput(
        f"weights: {shown(name)} in the header of {file} is no tensor; expected dtype, shape and data_offsets"
    )


def _tensor(name: str, entry: dict[str, Any], file: str) -> tuple[Tensor, tuple[int, int]]:
    """One entry checked: dtype known, shape and offsets whole numbers, bytes as many as both say."""
    if set(entry) != {"dtype", "shape", "data_offsets"}:
        _not_a_tensor(name, file)
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    bits = _bits().get(dtype) if isinstance(dtype, str) else None
    if bits is None:
        raise BadInput(
            f"weights: dtype {shown(dtype)} of {shown(name)} in {file} is not known; "
            f"{did_you_mean(str(dtype)[:32], _bits()) or 'known are ' + ', '.join(_bits())}"
        )
    if not _whole(shape, MAX_RANK, MAX_DIMENSION):
        raise BadInput(f"weights: shape {shown(shape)} of {shown(name)} in {file}; expected whole numbers")
    if not _whole(offsets, 2, 2**62) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise BadInput(
            f"weights: data_offsets {shown(offsets)} of {shown(name)} in {file}; expected [from, to]"
        )
    size, rest = divmod(prod(shape) * bits, 8)
    if rest or size != offsets[1] - offsets[0]:
        raise BadInput(
            f"weights: {shown(name)} in {file}: shape {shown(shape)} of {dtype} is {count_text(size)} B, "
            f"data_offsets hold {count_text(offsets[1] - offsets[0])} B; download it again"
        )
    return Tensor(name, dtype, tuple(shape), size), (offsets[0], offsets[1])


def _whole(values: object, longest: int, most: int) -> bool:
    return (
        isinstance(values, list)
        and len(values) <= longest
        and all(type(v) is int and 0 <= v <= most for v in values)
    )


def _check_ranges(ranges: list[tuple[int, int, str]], room: int | None, file: str) -> None:
    """The tensors lie one behind the other from the first byte to the file's last."""
    end = 0
    for start, stop, name in sorted(ranges):
        if start != end:
            fault = "overlaps the tensor before it" if start < end else "leaves a hole before it"
            raise BadInput(f"weights: {shown(name)} in {file} {fault}; download it again")
        end = stop
    if room is not None and end != room:
        raise BadInput(
            f"weights: the tensors of {file} take {count_text(end)} B behind its header, the file has "
            f"{count_text(room)} B there; download it again"
        )


@functools.cache
def _bits() -> dict[str, int]:
    found: dict[str, int] = store.toml("safetensors_types.toml")["bits"]
    return found
