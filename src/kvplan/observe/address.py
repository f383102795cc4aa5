"""Addresses as a user gives them: checked, their credentials kept apart, and said without any of them."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, parse_qsl, quote, quote_plus, unquote, urlencode, urlsplit, urlunsplit

from kvplan.errors import BadInput, shown
from kvplan.observe.secrets import MASK, redacted

_LEAST = 4  # letters of a secret that is looked for where it may be echoed: fewer stand in any text
_MOST_HEADERS = 1 << 16  # bytes of a file of them
_PAGES = (
    "/metrics", "/prometheus/metrics", "/v1", "/v1/models", "/v1/completions", "/v1/chat/completions",
    "/api/v1", "/api/v1/query", "/api/v1/query_range", "/graph", "/query",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server is: `base` without credentials and query, and beside it what must never be said.

    `user` is (name, password); `query` is sent with every request.
    """

    base: str
    user: tuple[str, str] | None = field(default=None, repr=False)
    query: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @property
    def origin(self) -> tuple[str, str, int]:
        """Scheme, host and port."""
        return origin_of(self.base)

    def page(self, path: str) -> str:
        """The address of a page of that server, as it may be said."""
        return f"{self.base}{path}"

    def secrets(self) -> tuple[str, ...]:
        """What must be masked wherever it is echoed: user, password, and every value of the query."""
        values = [value for _, value in self.query]
        return tuple(part for part in (*(self.user or ()), *values) if part)


def address_of(given: Any, field: str) -> Address:
    """The server at an address, its well-known pages cut off. Raises BadInput that says no credential."""
    text = given.strip() if isinstance(given, str) else ""
    text = text if "://" in text or not text else f"http://{text}"
    if _ambiguous(text):
        raise BadInput(
            f"{field}: the address has an @ after '/', '?' or '#'; in a name, a password or a value write "
            "these as %2F, %3F, %23 and @ as %40"
        )
    parts = _split(text)
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
        raise BadInput(f"{field}: {shown(said(text))} is no address; write one such as http://host:8000")
    user = None
    if parts.username is not None:
        user = (unquote(parts.username), unquote(parts.password or ""))
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    place = f"{host}:{parts.port}" if parts.port else host
    path = _without_page(quote(unquote(parts.path), safe="/:@-._~!$&'()*+,;="))
    base = urlunsplit((parts.scheme, place, path, "", ""))
    return Address(base, user, tuple(parse_qsl(parts.query, keep_blank_values=True)))


def _ambiguous(url: str) -> bool:
    """Whether what ends a host stands before the last @: of a password, or is the @ of a path or a query?"""
    return any(mark in _behind_scheme(url).rpartition("@")[0] for mark in "/?#")


def _behind_scheme(url: str) -> str:
    return url.partition("://")[2] if "://" in url else url


def _split(text: str) -> SplitResult | None:
    """Its parts, or None where it is no URL; a port that is no number makes it none."""
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError:
        return None
    bad = any(ord(c) <= 32 or ord(c) == 127 for c in text)
    return None if bad or len(text) > 8192 else parts


def _without_page(path: str) -> str:
    plain = path.rstrip("/")
    for page in sorted(_PAGES, key=len, reverse=True):
        if plain.endswith(page):
            return plain[: -len(page)].rstrip("/")
    return plain


def said(url: str) -> str:
    """An address as it may be shown: no user, no password, no value of a query, no fragment.

    Where a password may hold what ends a host elsewhere (`/`, `?`, `#`), nothing of it is shown.
    """
    rest = _behind_scheme(url)
    if "@" in url:
        scheme = next((one for one in ("http://", "https://") if url.lower().startswith(one)), "")
        url = f"{scheme}{MASK if _ambiguous(url) else rest.rpartition('@')[2]}"
    try:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
        names = [name for name, _ in parse_qsl(parts.query, keep_blank_values=True)]
    except ValueError:
        return redacted(re.sub(r"[?#].*", "", url.rpartition("@")[2]))
    query = "&".join(f"{quote(name)}={MASK}" for name in names)
    plain = redacted(urlunsplit((parts.scheme, host, parts.path, "", "")))
    return f"{plain}?{query}" if query else plain


def origin_of(url: str) -> tuple[str, str, int]:
    """Scheme, host and port of an address."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return parts.scheme, (parts.hostname or "").lower(), port


def with_query(url: str, query: Iterable[tuple[str, str]]) -> str:
    """The address with more query."""
    pairs = list(query)
    if not pairs:
        return url
    return f"{url}{'&' if '?' in url else '?'}{urlencode(pairs)}"


def headers_of(given: Any, field: str) -> dict[str, str]:
    """Headers as `Name: value`, one or several; `@FILE` reads them. Raises BadInput that says none."""
    if given is None or given == "" or given == ():
        return {}
    lines = [given] if isinstance(given, str) else list(given)
    found: dict[str, str] = {}
    for line in lines:
        for text in _lines(str(line), field):
            name, colon, value = text.partition(":")
            if not colon or not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}", name.strip()):
                raise BadInput(f"{field}: one is no 'Name: value'; write such as 'Authorization: Bearer …'")
            value = value.strip()
            if len(value) > 16384 or not value.isprintable() or not value.isascii():
                raise BadInput(f"{field}: the value of {name.strip()} is not plain text; correct it")
            found[name.strip()] = value
    return found


def _lines(text: str, field: str) -> list[str]:
    if not text.startswith("@"):
        return [text]
    from pathlib import Path

    path = Path(text[1:])
    try:
        if path.exists() and not path.is_file():
            raise BadInput(f"{field}: {shown(text[1:])} is no file; give one with a header on each line")
        with path.open("rb") as file:
            read = file.read(_MOST_HEADERS + 1)
        content = read.decode("utf-8")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise BadInput(f"{field}: {shown(text[1:])} cannot be read: {why}") from None
    if len(read) > _MOST_HEADERS:
        raise BadInput(f"{field}: {shown(text[1:])} has more than {_MOST_HEADERS:,} bytes; headers are short")
    return [line for line in content.splitlines() if line.strip() and not line.startswith("#")]


def _of_header(value: str) -> set[str]:
    """A header's secrets: all of it, what follows its first word, and the values of its parts."""
    found = {value, *value.split(None, 1)[1:]}
    for part in re.split(r"[;,]", value):  # of a Cookie, or of parameters
        name, equals, inner = part.strip().partition("=")
        found |= {inner.strip(), inner.strip().strip('"')} if equals and name else set()
    scheme, _, word = value.partition(" ")
    if scheme.lower() == "basic":
        try:
            plain = base64.b64decode(word, validate=True).decode()
        except ValueError:
            return found
        found |= {plain, *plain.split(":", 1)}
    return found


def _forms(word: str) -> set[str]:
    """A secret as it stands, as addresses have it, and as Python and JSON quote it."""
    return {
        word,
        quote(word, safe=""),
        quote(word),
        quote_plus(word),
        repr(word)[1:-1],
        json.dumps(word)[1:-1],
    }


@dataclass(frozen=True, slots=True)
class Secrets:
    """What must be said nowhere: masked in every text that a server may have echoed it in."""

    words: tuple[str, ...] = field(default=(), repr=False)

    @classmethod
    def of(cls, address: Address, headers: Mapping[str, str]) -> Secrets:
        """Those of an address and of headers, as they stand, as they are sent and as they may be quoted."""
        found = set(address.secrets())
        for value in headers.values():
            found |= _of_header(value)
        if address.user:
            found.add(base64.b64encode(":".join(address.user).encode()).decode())
        kept = [word for word in found if len(word) >= _LEAST]
        every = {form for word in kept for form in _forms(word)}
        return cls(tuple(sorted(every, key=len, reverse=True)))

    def masked(self, text: str) -> str:
        """The text without them."""
        for word in self.words:
            text = text.replace(word, MASK)
        return redacted(text)

    def out_of(self, tree: Any) -> Any:
        """A document without them, names of its fields apart."""
        if isinstance(tree, dict):
            return {key: self.out_of(value) for key, value in tree.items()}
        if isinstance(tree, (list, tuple)):
            return [self.out_of(value) for value in tree]
        return self.masked(tree) if isinstance(tree, str) else tree
