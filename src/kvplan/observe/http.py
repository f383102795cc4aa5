"""Asking servers that may be slow, wrong or hostile: bounded in time, bytes and redirects.

A request ends when its seconds are over, whatever drips in until then. A body is read in pieces, unpacked in
pieces, and cut off at its limit. A redirect is followed only on the host that was given, a few times, and
never from TLS to plain HTTP. What is said of a server holds no credential (kvplan.observe.address).
"""

from __future__ import annotations

import asyncio
import base64
import importlib
import json
import ssl
import time
import zlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar
from urllib.parse import urljoin

from kvplan.errors import BadInput, KvplanError, Unreachable, shown
from kvplan.observe.address import Address, Secrets, origin_of, said, with_query
from kvplan.observe.packed import unpacker
from kvplan.units import bytes_text, seconds_text

T = TypeVar("T")
_MOVED = (301, 302, 303, 307, 308)


@dataclass(frozen=True, slots=True)
class Limits:
    """What one request may take: seconds until its last byte, bytes unpacked, redirects; and all of them."""

    seconds: float = 10.0
    all_seconds: float = 60.0
    most_bytes: int = 16 * 2**20
    redirects: int = 3


@dataclass(frozen=True, slots=True)
class Page:
    """An answer: its status, what kind it says to be, its text with what is no UTF-8 replaced."""

    url: str
    status: int
    kind: str
    text: str

    @property
    def ok(self) -> bool:
        """Whether it is what was asked for."""
        return 200 <= self.status < 300

    @property
    def is_html(self) -> bool:
        """Whether it is a page for people: a login, a proxy's error."""
        head = self.text[:512].lstrip().lower()
        return "html" in self.kind or head.startswith(("<!doctype", "<html"))

    def json(self) -> Any:
        """What it holds as JSON; None where it holds none."""
        try:
            return json.loads(self.text)
        except (ValueError, RecursionError):
            return None


@dataclass(slots=True)
class Client:
    """Asks one server. `flag` is the option that named it, for what is said of it."""

    address: Address
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    limits: Limits = field(default_factory=Limits)
    flag: str = "--url"
    _begun: float = field(default_factory=time.monotonic)
    _tls: ssl.SSLContext | None = None

    @property
    def secrets(self) -> Secrets:
        """What no text may hold."""
        return Secrets.of(self.address, self.headers)

    def get(self, path: str, query: Iterable[tuple[str, str]] = (), most_bytes: int | None = None) -> Page:
        """A page of the server, whatever its status. Raises Unreachable, in one line."""
        return run(lambda: self._get(path, tuple(query), most_bytes or self.limits.most_bytes))

    async def _get(self, path: str, query: tuple[tuple[str, str], ...], most_bytes: int) -> Page:
        url = self.address.page(path)
        async with self.session() as session, self.bounded(url, self._seconds_left(url)):
            return await self.fetch(session, url, query, most_bytes)

    def _seconds_left(self, url: str) -> float:
        left = self.limits.all_seconds - (time.monotonic() - self._begun)
        if left <= 0:
            raise self.unreachable(
                url, f"took over {seconds_text(self.limits.all_seconds)} in all", "try again, or --timeout"
            )
        return min(self.limits.seconds, left)

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Any]:
        """A client of httpx that follows nothing by itself and waits for no longer than it is let."""
        library = httpx()
        if self._tls is None:
            self._tls = library.create_ssl_context()
        limits = library.Limits(max_connections=1024)
        async with library.AsyncClient(
            verify=self._tls, timeout=None, follow_redirects=False, limits=limits
        ) as session:
            yield session

    @asynccontextmanager
    async def bounded(self, url: str, seconds: float) -> AsyncIterator[None]:
        """Whatever goes wrong inside, or takes longer, is one line."""
        try:
            async with asyncio.timeout(seconds):
                yield
        except KvplanError:
            raise
        except TimeoutError:
            what = f"did not answer in full within {seconds_text(seconds)}"
            raise self.unreachable(url, what, "is it overloaded? --timeout gives it longer") from None
        except Exception as error:  # noqa: BLE001 - httpx, httpcore, h11, ssl and sockets raise their own
            raise self._failed(url, error) from None

    async def fetch(
        self, session: Any, url: str, query: tuple[tuple[str, str], ...], most_bytes: int
    ) -> Page:
        """A page as a whole, its redirects followed."""
        async with self.opened(session, "GET", url, query) as answer:
            body = bytearray()
            async for part in self.pieces(answer, url, most_bytes):
                body += part
            kind = str(answer.headers.get("content-type", ""))[:200].lower()
            return Page(said(url), int(answer.status_code), kind, body.decode("utf-8", "replace"))

    @asynccontextmanager
    async def opened(
        self, session: Any, method: str, url: str, query: Iterable[tuple[str, str]] = (), content: Any = None
    ) -> AsyncIterator[Any]:
        """An answer whose body is still to be read, behind the redirects that are allowed."""
        here = with_query(url, (*self.address.query, *query))
        for _ in range(self.limits.redirects + 1):
            request = session.build_request(method, here, headers=self._sent(), json=content)
            answer = await session.send(request, stream=True)
            try:
                where = answer.headers.get("location")
                if answer.status_code not in _MOVED or not where:
                    yield answer
                    return
            finally:
                await answer.aclose()
            here = self._next(url, here, str(where))
            if method != "GET":
                raise self.unreachable(url, f"redirects to {said(here)}", "give the address that answers")
        raise self.unreachable(
            url, f"redirects more than {self.limits.redirects} times", "give the address that answers"
        )

    def _next(self, url: str, here: str, where: str) -> str:
        there = urljoin(here, where)
        old, new = origin_of(here), origin_of(there)
        upgraded = old[:2] == ("http", new[1]) and new[0] == "https"
        if new != old and not upgraded:
            place = shown(self.secrets.masked(said(there)), 120)
            what = f"redirects to another place, {place}, which is not followed"
            raise self.unreachable(url, what, "give that address if it is yours")
        return there

    def _sent(self) -> dict[str, str]:
        sent = {"accept": "*/*", "accept-encoding": "gzip", "user-agent": "kvplan"}
        if self.address.user:
            word = base64.b64encode(":".join(self.address.user).encode()).decode()
            sent["authorization"] = f"Basic {word}"
        return sent | {name.lower(): value for name, value in self.headers.items()}

    async def pieces(self, answer: Any, url: str, most_bytes: int) -> AsyncIterator[bytes]:
        """The body piece by piece, unpacked as it comes, up to the limit; one byte more is an error."""
        unpack = unpacker(str(answer.headers.get("content-encoding", "")))
        if unpack is None:
            raise self.unreachable(url, "answers in an encoding that was not asked for", "is it a proxy's?")
        received = length = 0
        async for raw in answer.aiter_raw():  # as it comes: a size would be waited for
            received += len(raw)
            for part in unpack.pieces(raw):
                length += len(part)
                if length > most_bytes:
                    break
                yield part
            if max(received, length) > most_bytes:
                most = bytes_text(most_bytes)
                raise self.unreachable(url, f"sends more than {most}", "is it the engine's own port?")
            if unpack.over:
                return
        unpack.end()

    def unreachable(self, url: str, what: str, advice: str) -> Unreachable:
        """One line of what went wrong, without credentials."""
        return Unreachable(self.secrets.masked(f"{self.flag}: {said(url)} {what}; {advice}"))

    def _failed(self, url: str, error: Exception) -> Unreachable:
        text = self.secrets.masked(" ".join(str(error).split())) or type(error).__name__
        if "WRONG_VERSION_NUMBER" in text or "UNEXPECTED_MESSAGE" in text:
            return self.unreachable(url, "does not speak TLS", "write http:// in place of https://")
        if "CERTIFICATE" in text.upper():
            return self.unreachable(
                url, f"has a certificate that is not trusted ({shown(text, 100)})", "set SSL_CERT_FILE"
            )
        if isinstance(error, zlib.error):
            return self.unreachable(url, "sends a body that cannot be unpacked", "is it a proxy's?")
        if type(error).__name__ in ("RemoteProtocolError", "ReadError", "LocalProtocolError"):
            return self.unreachable(
                url,
                f"breaks off, or speaks no HTTP ({shown(text, 100)})",
                "check the port, and http or https",
            )
        return self.unreachable(url, f"cannot be reached ({shown(text, 100)})", "check host and port")

    def with_limits(self, **changed: Any) -> Client:
        """The same server, asked with other limits, its time begun anew."""
        return Client(self.address, self.headers, replace(self.limits, **changed), self.flag, _tls=self._tls)


def run(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """The result of a coroutine; where an event loop is running, from a thread of its own."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work())
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: asyncio.run(work())).result()


def httpx() -> Any:
    """The library that asks. Raises BadInput that says how to install it."""
    try:
        return importlib.import_module("httpx")
    except ImportError:
        raise BadInput(
            "--url: asking a server needs httpx, not installed; pip install 'kvplan[observe]'"
        ) from None
