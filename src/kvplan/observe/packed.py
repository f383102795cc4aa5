"""Bodies as they are sent, plain or packed with gzip, unpacked piece by piece."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any, Protocol

_PIECE = 1 << 16
_AT_ONCE = 1 << 13
_MEMBER = b"\x1f\x8b"
_MOST_MEMBERS = 1 << 14  # of a packed body: each costs time, however little it holds


class Unpacker(Protocol):
    """What gives a body back in pieces that are never large; `over` once no more of it is wanted."""

    @property
    def over(self) -> bool:
        """Whether what follows belongs to no body."""

    def pieces(self, raw: bytes) -> Iterator[bytes]:
        """What these bytes unpack to."""

    def end(self) -> None:
        """Nothing follows. Raises zlib.error where more was to come."""


class Plain:
    """A body that is sent as it is."""

    over = False

    def pieces(self, raw: bytes) -> Iterator[bytes]:
        """The same."""
        yield raw

    def end(self) -> None:
        """Wherever the connection ended it, which is checked elsewhere."""


class Gzip:
    """A body of one member or several, one after another (RFC 1952); what follows the last is passed over."""

    def __init__(self) -> None:
        self.over = False
        self._members = 0
        self._held = b""  # the first byte after a member, of which two are needed
        self._next()

    def pieces(self, raw: bytes) -> Iterator[bytes]:
        """What these bytes unpack to."""
        for at in range(0, len(raw), _AT_ONCE):  # the end of each member copies what is behind it
            yield from self._pieces(raw[at : at + _AT_ONCE])

    def _pieces(self, raw: bytes) -> Iterator[bytes]:
        while raw and not self.over:
            if self._inflate.eof:
                raw, self._held = self._held + raw, b""
                if raw == _MEMBER[:1]:
                    self._held = raw
                    return
                if not raw.startswith(_MEMBER):
                    self.over = True
                    return
                self._next()
            yield from self._unpacked(raw)
            raw = self._inflate.unused_data

    def _unpacked(self, raw: bytes) -> Iterator[bytes]:
        """What this member has of these bytes."""
        part = b""
        while not self._inflate.eof and (
            raw or len(part) == _PIECE
        ):  # of a whole piece more may be held back
            part = self._inflate.decompress(raw, _PIECE)
            yield part
            raw = self._inflate.unconsumed_tail

    def _next(self) -> None:
        self._members += 1
        if self._members > _MOST_MEMBERS:
            raise zlib.error("the body is in too many parts")
        self._inflate: Any = zlib.decompressobj(16 + zlib.MAX_WBITS)

    def end(self) -> None:
        """Nothing follows. Raises zlib.error where a member has not ended."""
        if not self._inflate.eof and not self.over:
            raise zlib.error("the body ends early")


def unpacker(encoding: str) -> Unpacker | None:
    """What unpacks a body of that encoding; None for those that were not asked for."""
    named = [part.strip().lower() for part in encoding.split(",") if part.strip()]
    if not named or named == ["identity"]:
        return Plain()
    return Gzip() if named in (["gzip"], ["x-gzip"]) else None
