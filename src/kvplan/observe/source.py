"""The lines of a log that matter, out of a stream of any size: in constant memory, whatever is in it.

A log is read in blocks. A block without any of the words looked for is counted and dropped; of the others
every line is tried. NUL bytes are dropped (with them UTF-16 reads as ASCII), a carriage return
divides a line, and a line longer than `LONGEST` is cut.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Protocol

from kvplan.errors import BadInput, shown

BLOCK = 1 << 20
LONGEST = 1 << 18
_COLOURS = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]")
_PACKED = {
    b"\x1f\x8b": "gzip: zcat FILE | kvplan verify --log -",
    b"BZh": "bzip2: bzcat FILE | kvplan verify --log -",
    b"\xfd7zXZ": "xz: xzcat FILE | kvplan verify --log -",
    b"\x28\xb5\x2f\xfd": "zstd: zstdcat FILE | kvplan verify --log -",
    b"PK\x03\x04": "zip: unzip -p FILE | kvplan verify --log -",
}


class Readable(Protocol):
    """Anything that gives bytes or text."""

    def read(self, size: int = ..., /) -> bytes | str:
        """At most `size` of them; none at the end."""
        ...


@dataclass(slots=True)
class Scanner:
    """Reads a stream once; what it counted stands here afterwards."""

    words: Sequence[bytes]
    name: str = "log"
    lines: int = 0
    size: int = 0
    cut: int = 0
    _carry: bytes = b""
    _skipping: bool = False
    _first: bool = field(default=True)

    def scan(self, stream: Readable) -> Iterator[tuple[int, bytes, Sequence[bytes]]]:
        """Number and bytes of every line that holds one of the words, and the words that may be in it."""
        while raw := _read(stream):
            self._begin(raw)
            self.size += len(raw)
            yield from self._block(raw.replace(b"\0", b"") if b"\0" in raw else raw)
        if self._carry:
            yield from self._whole(self._carry + b"\n")
        self._carry = b""

    def _begin(self, raw: bytes) -> None:
        if not self._first:
            return
        self._first = False
        for magic, how in _PACKED.items():
            if raw.startswith(magic):
                raise BadInput(f"--log: {shown(self.name)} is packed with {how}")

    def _block(self, raw: bytes) -> Iterator[tuple[int, bytes, Sequence[bytes]]]:
        """Whole lines of the block; what follows the last line's end is carried on, as far as it may be."""
        end = raw.rfind(b"\n") + 1
        if end == 0:
            self._keep(raw)
            return
        whole, rest = raw[:end], raw[end:]
        if self._skipping:  # the head of a line that was too long: an argument list starts with what matters
            whole, self._skipping = b"\n" + whole[_line_end(whole) :], False
        yield from self._whole(self._carry + whole)
        self._carry = b""
        self._keep(rest)

    def _keep(self, rest: bytes) -> None:
        if self._skipping:
            return
        self._carry += rest[: LONGEST - len(self._carry) + 1]
        if len(self._carry) > LONGEST:
            self._skipping = True
            self.cut += 1
            self._carry = self._carry[:LONGEST]

    def _whole(self, part: bytes) -> Iterator[tuple[int, bytes, Sequence[bytes]]]:
        if b"\x1b" in part:
            part = _COLOURS.sub(b"", part)
        here = [word for word in self.words if word in part]
        if not here:
            self.lines += part.count(b"\n")
            return
        for line in part.split(b"\n")[:-1]:
            self.lines += 1
            if any(word in line for word in here):
                yield from self._pieces(line, here)

    def _pieces(self, line: bytes, here: list[bytes]) -> Iterator[tuple[int, bytes, Sequence[bytes]]]:
        for piece in line.split(b"\r"):
            if len(piece) > LONGEST:
                self.cut += 1
                piece = piece[:LONGEST]
            if any(word in piece for word in here):
                yield self.lines, piece, here


def _read(stream: Readable) -> bytes:
    try:
        block = stream.read(BLOCK)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise BadInput(f"--log: cannot be read to its end: {why}") from None
    return block.encode("utf-8", "replace") if isinstance(block, str) else bytes(block or b"")


def _line_end(raw: bytes) -> int:
    return raw.find(b"\n") + 1


@contextmanager
def opened(log: Any) -> Iterator[tuple[str, Readable]]:
    """The log's name and its bytes: a path, `-` for standard input, or an open file.

    Raises BadInput, in one line, for what cannot be read.
    """
    if hasattr(log, "read"):
        yield str(getattr(log, "name", "log")), getattr(log, "buffer", log)
        return
    if not isinstance(log, (str, os.PathLike)) or not os.fspath(log):
        raise BadInput(f"--log: {shown(log)} is no file; give a path, or - for standard input")
    if os.fspath(log) == "-":
        import sys

        yield "standard input", sys.stdin.buffer
        return
    path = Path(log).expanduser()
    stream = _open(path, os.fspath(log))
    try:
        yield path.name, stream
    finally:
        stream.close()


def _open(path: Path, given: str) -> IO[bytes]:
    try:
        if path.is_dir():
            raise BadInput(f"--log: {shown(given)} is a folder; name the log file")
        return path.open("rb")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise BadInput(f"--log: {shown(given)} cannot be read: {why}") from None
