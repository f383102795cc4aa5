"""Reading the headers of GGUF files: metadata and tensor infos, never a tensor.

The format: ggml docs/gguf.md; what llama.cpp's own reader (ggml/src/gguf.cpp at 0c1e57098) refuses is
refused here. A header is read through a memory map, one value at a time, so that a length that lies
costs nothing: it is checked against the bytes that are left before anything is read or kept.
"""

from __future__ import annotations

import mmap
import re
import struct
from pathlib import Path
from typing import NoReturn

from kvplan.errors import BadInput, shown
from kvplan.model.ggml import tensor_bytes
from kvplan.model.tensors import Skipped, Tensor, TensorList
from kvplan.units import bytes_text, count_text

MAX_HEADER_BYTES = 512 * 2**20
MAX_METADATA = 65_536  # key-value pairs; published files have some 50
MAX_TENSORS = 1_000_000
MAX_ARRAY = 16_777_216  # elements; vocabularies have some 300,000
MAX_STRINGS = 4_194_304  # elements of all string arrays of a file together
MAX_STRING = 64 * 2**20  # bytes
MAX_NAME = 1024  # bytes of a key or a tensor's name
MAX_SHARDS = 1000
KEPT_STRING = 2**20  # longer texts are read past
KEPT_ARRAY = 4096  # longer arrays (vocabulary, merges, scores) are read past: their length is kept
KEPT_ALTOGETHER = 2**23  # bytes of text and elements of arrays; a file with more loses the last ones
DEFAULT_ALIGNMENT = 32

_MAGIC = b"GGUF"
# ggml/include/gguf.h enum gguf_type: struct codes; 8 is a string, 9 an array
_CODES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_NAMES = {0: "u8", 1: "i8", 2: "u16", 3: "i16", 4: "u32", 5: "i32", 6: "f32", 7: "bool"}
_NAMES |= {8: "string", 9: "array", 10: "u64", 11: "i64", 12: "f64"}
_STRING, _ARRAY = 8, 9
_SHARD = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")


def read_gguf(path: Path) -> TensorList:
    """The tensors and metadata of a GGUF file, with all shards of a split one.

    Arrays longer than 4,096 and texts longer than 1 MiB are kept as their length (`Skipped`).
    Raises BadInput naming the file and what is wrong with it.
    """
    try:
        first = read_one(path)
        shards = _whole(first.metadata.get("split.count", 1), 1, 2**16, "split.count", path.name)
        return first if shards == 1 else _read_split(path, shards)
    except OSError as error:
        raise BadInput(f"weights: cannot read {shown(str(path))}: {error.strerror or error}") from None


def read_one(path: Path) -> TensorList:
    """The tensors and metadata of one file, its shards not looked for."""
    if not path.is_file():
        raise BadInput(f"weights: no file {shown(str(path))}; check the path")
    size = path.stat().st_size
    if size < 24:
        raise BadInput(f"weights: {path.name} has {size} bytes; a GGUF file has more: download it again")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return parse_gguf(data, path.name)


def _read_split(path: Path, shards: int) -> TensorList:
    """All shards `NAME-00001-of-0000N.gguf` (llama.cpp's gguf-split), each numbered and counted."""
    match = _SHARD.fullmatch(path.name)
    if match is None or int(match.group(3)) != shards or shards > MAX_SHARDS:
        raise BadInput(
            f"weights: split.count of {path.name} is {shards}, but its name does not say "
            f"-00001-of-{shards:05d}.gguf; give the shards the names they were published under"
        )
    paths = [path.with_name(f"{match.group(1)}-{i + 1:05d}-of-{shards:05d}.gguf") for i in range(shards)]
    missing = [p.name for p in paths if not p.is_file()]
    if missing:
        raise BadInput(
            f"weights: {len(missing)} of {shards} shards are missing, {missing[0]} first; download the rest"
        )
    return join([read_one(p) for p in paths])


def join(shards: list[TensorList]) -> TensorList:
    """The shards of a split file as one list; metadata is the first one's."""
    names: set[str] = set()
    for number, shard in enumerate(shards):
        file = shard.files[0]
        stated = shard.metadata.get("split.no")
        if stated != number:
            raise BadInput(
                f"split.no: {shown(stated)} in {file}; its name says {number}; rename it as published"
            )
        for tensor in shard.tensors:
            if tensor.name in names:
                raise BadInput(
                    f"weights: {shown(tensor.name)} in {file} is in another shard too; keep one of them"
                )
            names.add(tensor.name)
    total = shards[0].metadata.get("split.tensors.count", len(names))
    if total != len(names):
        raise BadInput(
            f"split.tensors.count: {shown(total)} in {shards[0].files[0]}, but the shards hold {len(names)} "
            f"tensors; download them again"
        )
    tensors = tuple(t for shard in shards for t in shard.tensors)
    return TensorList(tensors, tuple(shard.files[0] for shard in shards), shards[0].metadata)


def parse_gguf(data: bytes | mmap.mmap, file: str, size: int | None = None) -> TensorList:
    """The tensors and metadata of a GGUF file's bytes; `size` when `data` is only its beginning."""
    size = len(data) if size is None else size
    cursor = _Cursor(data, file)
    if data[:4] != _MAGIC:
        raise BadInput(f"weights: {file} does not begin with GGUF; is it a .gguf file?")
    cursor.at = 4
    version = cursor.version()
    tensor_count, pairs = cursor.number("Q"), cursor.number("Q")
    _check_counts(tensor_count, pairs, size, file)
    metadata = {"gguf.version": version, "gguf.byte_order": cursor.order_name} | cursor.metadata(pairs)
    infos = [_info(cursor) for _ in range(tensor_count)]
    _check_offsets(infos, cursor.at, _alignment(metadata, file), size, file)
    return TensorList(tuple(tensor for tensor, _ in infos), (file,), metadata)


def _check_counts(tensors: int, pairs: int, size: int, file: str) -> None:
    """Counts within the caps, and no more than the file could hold at its smallest."""
    for count, most, least_bytes, what in (
        (tensors, MAX_TENSORS, 24, "tensors"),
        (pairs, MAX_METADATA, 13, "metadata entries"),
    ):
        if count > most or count * least_bytes > size:
            raise BadInput(
                f"weights: {file} says it has {count_text(count)} {what} in {bytes_text(size)}; "
                f"is it damaged?"
            )


def _alignment(metadata: dict[str, object], file: str) -> int:
    stated = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    value = _whole(stated, 1, 2**30, "general.alignment", file)
    if value & (value - 1):
        raise BadInput(f"general.alignment: {value} in {file} is no power of 2; is it damaged?")
    return value


def _whole(value: object, least: int, most: int, key: str, file: str) -> int:
    if type(value) is not int or not least <= value <= most:
        raise BadInput(f"{key}: {shown(value)} in {file}; expected a whole number from {least} to {most:,}")
    return value


def _info(cursor: _Cursor) -> tuple[Tensor, int]:
    """One tensor info: name, up to 4 dimensions, type, offset in bytes from the data's beginning."""
    name = cursor.name("a tensor's name")
    rank = cursor.number("I")
    if rank > 4:
        cursor.wrong(f"{shown(name)} has {count_text(rank)} dimensions, at most 4 are read")
    dimensions = tuple(cursor.number("Q") for _ in range(rank))
    if any(d >= 2**48 for d in dimensions):
        cursor.wrong(f"{shown(name)} has the shape {shown(dimensions)}")
    found, stored = tensor_bytes(cursor.number("I"), dimensions, name, cursor.file)
    if stored >= 2**62:
        cursor.wrong(f"{shown(name)} has the shape {shown(dimensions)}")
    return Tensor(name, found.name, dimensions[::-1], stored), cursor.number("Q")


def _check_offsets(infos: list[tuple[Tensor, int]], end: int, alignment: int, size: int, file: str) -> None:
    """Tensors lie one behind the other, each padded to the alignment, and end within the file."""
    names = {tensor.name for tensor, _ in infos}
    if len(names) != len(infos):
        seen: set[str] = set()
        twice = next(t.name for t, _ in infos if t.name in seen or seen.add(t.name))  # type: ignore[func-returns-value]
        raise BadInput(f"weights: {shown(twice)} stands twice in {file}; is it damaged?")
    expected, last = 0, 0
    for tensor, offset in infos:
        if offset != expected:
            raise BadInput(
                f"weights: offset of {shown(tensor.name)} in {file} is {count_text(offset)}, "
                f"the tensors before it end at {count_text(expected)}; is it damaged?"
            )
        last = offset + tensor.bytes
        expected = -(-last // alignment) * alignment
    data = -(-end // alignment) * alignment if infos else end
    if data + last > size:
        raise BadInput(
            f"weights: {file} has {count_text(size)} B, its tensors end at {count_text(data + last)} B; "
            f"it is cut off: download it again"
        )


class _Cursor:
    """A place in a header, with the byte order; every read checks what is left first."""

    def __init__(self, data: bytes | mmap.mmap, file: str) -> None:
        self.data = data
        self.file = file
        self.at = 0
        self.limit = min(len(data), MAX_HEADER_BYTES)
        self.order = "<"
        self.strings = 0
        self.kept = 0

    @property
    def order_name(self) -> str:
        """`little` or `big`."""
        return "little" if self.order == "<" else "big"

    def version(self) -> int:
        """The format's version; a big-endian file shows it in the upper half of the word."""
        version = self.number("I")
        if version & 0xFFFF == 0 and version:
            self.order, self.at = ">", 4
            version = self.number("I")
        if version == 1:
            raise BadInput(
                f"weights: {self.file} is GGUF version 1, which llama.cpp no longer reads; "
                f"convert the model anew"
            )
        if version not in (2, 3):
            raise BadInput(
                f"weights: {self.file} is GGUF version {count_text(version)}; versions 2 and 3 are read"
            )
        return version

    def wrong(self, fault: str) -> NoReturn:
        """Refuse the file for what stands at this place."""
        raise BadInput(f"weights: {self.file} before byte {count_text(self.at)}: {fault}; is it damaged?")

    def skip(self, count: int) -> int:
        """Step over that many bytes; the place before them."""
        at = self.at
        if count > self.limit - at:
            if self.limit < len(self.data):
                self.wrong(f"its header is longer than {bytes_text(MAX_HEADER_BYTES)}")
            self.wrong(f"{count_text(count)} B are announced, {count_text(self.limit - at)} B are left")
        self.at = at + count
        return at

    def number(self, code: str) -> int:
        """One number of that struct code."""
        found: int = struct.unpack_from(self.order + code, self.data, self.skip(struct.calcsize("=" + code)))[
            0
        ]
        return found

    def text(self, most: int, what: str) -> bytes:
        """A string: its length in bytes, then the bytes."""
        length = self.number("Q")
        if length > most:
            self.wrong(f"{what} has {count_text(length)} B, at most {count_text(most)} are read")
        at = self.skip(length)
        return self.data[at : at + length]

    def name(self, what: str) -> str:
        """A key or a tensor's name: UTF-8, not empty."""
        raw = self.text(MAX_NAME, what)
        try:
            found = raw.decode("utf-8")
        except UnicodeDecodeError:
            self.wrong(f"{what} is not text in UTF-8")
        return found or self.wrong(f"{what} is empty")

    def metadata(self, pairs: int) -> dict[str, object]:
        """All key-value pairs; a key twice is refused, as llama.cpp does."""
        found: dict[str, object] = {}
        for _ in range(pairs):
            key = self.name("a metadata key")
            if key in found:
                self.wrong(f"{shown(key)} stands twice in the metadata")
            found[key] = self.value(self.number("I"), key)
        return found

    def value(self, type_id: int, key: str) -> object:
        """One value of a metadata entry."""
        if type_id == _ARRAY:
            return self.array(key)
        if type_id == _STRING:
            raw = self.text(MAX_STRING, shown(key))
            kept = self.keeps(len(raw), KEPT_STRING)
            return raw.decode("utf-8", "replace") if kept else Skipped("string", len(raw))
        return self.number(self.code(type_id, key))

    def code(self, type_id: int, key: str) -> str:
        """The struct code of a number's type."""
        return _CODES.get(type_id) or self.wrong(
            f"{shown(key)} has the value type {type_id}, which is unknown"
        )

    def keeps(self, amount: int, most: int) -> bool:
        """Whether that much is worth keeping, alone and with all that is kept already."""
        if amount > most or self.kept + amount > KEPT_ALTOGETHER:
            return False
        self.kept += amount
        return True

    def array(self, key: str) -> object:
        """An array of numbers or strings; a long one is read past and its length kept."""
        type_id, length = self.number("I"), self.number("Q")
        if type_id == _ARRAY:
            self.wrong(f"{shown(key)} is an array of arrays, which llama.cpp does not read")
        if length > MAX_ARRAY:
            self.wrong(
                f"{shown(key)} has {count_text(length)} elements, at most {count_text(MAX_ARRAY)} are read"
            )
        if type_id == _STRING:
            return self.string_array(length, key)
        code = self.code(type_id, key)
        at = self.skip(length * struct.calcsize("=" + code))
        if not self.keeps(length, KEPT_ARRAY):
            return Skipped(_NAMES[type_id], length)
        return list(struct.unpack_from(f"{self.order}{length}{code}", self.data, at))

    def string_array(self, length: int, key: str) -> object:
        """An array of strings; their lengths must be walked, so all arrays together are capped."""
        self.strings += length
        if length * 8 > self.limit - self.at or self.strings > MAX_STRINGS:
            self.wrong(f"{shown(key)} has {count_text(length)} strings, more than can be there")
        if length <= KEPT_ARRAY:
            kept = [self.text(MAX_STRING, shown(key)) for _ in range(length)]
            if self.keeps(sum(map(len, kept)) + length, KEPT_STRING):
                return [raw.decode("utf-8", "replace") for raw in kept]
            return Skipped("string", length)
        unpack, data, limit = struct.Struct(self.order + "Q").unpack_from, self.data, self.limit
        at = self.at
        for _ in range(length):
            if at + 8 > limit:
                at = limit + 1
                break
            at += 8 + unpack(data, at)[0]
        if at > limit:
            self.wrong(f"the strings of {shown(key)} end behind the file's end")
        self.at = at
        return Skipped("string", length)
