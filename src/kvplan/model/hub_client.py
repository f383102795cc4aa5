"""Files of a Hugging Face repository: small ones whole, of large ones the bytes asked for.

Token, cache, endpoint, proxy and offline mode are huggingface_hub's (HF_TOKEN, HF_HOME, HF_ENDPOINT,
HF_HUB_OFFLINE). Nothing is written into its cache. Only the files named are asked for: headers are built
here, since huggingface_hub's own ask /api/agent-harnesses first. What a request may move, how often it may
be redirected and how long its body may take is bounded; every failure is one line that says what to do.
"""

from __future__ import annotations

import importlib
import re
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

from kvplan.errors import BadInput, KvplanError, UnknownName, Unreachable, shown
from kvplan.model.hub_token import Token, find_token
from kvplan.units import bytes_text

MAX_SMALL_BYTES = 128 * 2**20  # a config or an index, decoded
MAX_MOVED_BYTES = 512 * 2**20  # of one model, all requests together
MAX_SECONDS = 120.0  # of one request
MAX_REDIRECTS = 8
_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")


class Repository:
    """One repository at one revision, and how many bytes its files have cost so far."""

    def __init__(self, id: str, revision: str = "main") -> None:
        self.hub = _hub()
        self.id = id
        self.revision = revision
        self.moved = 0
        self.notes: list[str] = []
        self.token: Token | None = None
        self.offline = bool(self.hub.constants.HF_HUB_OFFLINE)  # or cut off: the cache answered instead
        self._lock = threading.Lock()

    @property
    def endpoint(self) -> str:
        """Where the Hub is: HF_ENDPOINT, else https://huggingface.co."""
        return str(self.hub.constants.ENDPOINT).rstrip("/")

    def cached(self, file: str) -> Path | None:
        """The file in huggingface_hub's cache, or None."""
        found = self.hub.try_to_load_from_cache(self.id, file, revision=self.revision)
        return Path(found) if isinstance(found, str) else None

    def small(self, file: str) -> bytes | None:
        """A file as a whole, or None when the repository has none of that name.

        Where the Hub does not answer the cache does, with a note; Unreachable when it cannot.
        """
        try:
            return self._get(file, {}, 0, MAX_SMALL_BYTES)[0]
        except Unreachable as error:
            path = self.cached(file)
            if path is None:
                raise
            if not self.offline:
                reason = str(error).removeprefix("MODEL: ").partition("; ")[0]
                self.notes.append(
                    f"{self.id} is read from huggingface_hub's cache, of {_day(path)}: {reason}"
                )
            self.offline = True
            if path.stat().st_size > MAX_SMALL_BYTES:
                raise BadInput(f"MODEL: {file} of {self.id} in the cache is too large; remove it") from None
            return path.read_bytes()

    def part(self, file: str, start: int, end: int) -> tuple[bytes, int] | None:
        """The bytes from `start` up to but not including `end`, and the whole file's size in bytes.

        None when the repository has no such file. A server that would send the whole file is refused.
        """
        headers = {"Range": f"bytes={start}-{end - 1}", "Accept-Encoding": "identity"}
        raw, size = self._get(file, headers, start, end - start)
        return None if raw is None else (raw, size)

    def _get(self, file: str, headers: dict[str, str], start: int, most: int) -> tuple[bytes | None, int]:
        if self.offline:
            raise Unreachable(
                f"MODEL: HF_HUB_OFFLINE is set and {file} of {self.id} is not in the cache; "
                f"unset it, or give a config.json"
            )
        url = f"{self.endpoint}/{self.id}/resolve/{quote(self.revision, safe='')}/{quote(file)}"
        headers = {**self._headers(), **headers}
        try:
            with closing(self._answer(url, headers)) as answer:
                if answer.status_code >= 400:
                    self._refuse(answer, file)
                    return None, 0
                size = self._check_range(answer, file, start, most) if "Range" in headers else 0
                raw = self._body(answer, file, most)
                self.revision = answer.headers.get("X-Repo-Commit") or self.revision
                return raw, size
        except KvplanError:
            raise
        except Exception as error:  # noqa: BLE001 - huggingface_hub 1 raises httpx's errors, 2 httpx2's
            raise self._no_answer(error) from None

    def _headers(self) -> dict[str, str]:
        """Who asks: kvplan, and the user's token where there is one."""
        self.token = find_token(self.hub.constants)
        agent = {"user-agent": f"kvplan; hf_hub/{self.hub.__version__}"}
        return {**agent, "authorization": f"Bearer {self.token.text}"} if self.token else agent

    def _answer(self, url: str, headers: dict[str, str]) -> Any:
        """The open answer behind all redirects, none of whose bodies is read."""
        client = self.hub.utils.get_session()
        limit = self.hub.constants.HF_HUB_DOWNLOAD_TIMEOUT
        request = client.build_request("GET", url, headers=headers, timeout=limit)
        for _ in range(MAX_REDIRECTS + 1):
            answer = client.send(request, stream=True, follow_redirects=False)
            if answer.next_request is None:
                return answer
            answer.close()
            request = answer.next_request
        raise Unreachable(
            f"MODEL: {self.endpoint} redirects more than {MAX_REDIRECTS} times; "
            f"check HF_ENDPOINT, or give a config.json"
        )

    def _check_range(self, answer: Any, file: str, start: int, most: int) -> int:
        """The file's size from Content-Range; a server that sends anything but the range is refused."""
        stated = _RANGE.fullmatch(answer.headers.get("Content-Range", ""))
        whole = answer.status_code != 206 or stated is None or int(stated.group(1)) != start
        if (
            stated is None
            or whole
            or int(stated.group(2)) >= start + most
            or "Content-Encoding" in answer.headers
        ):
            raise Unreachable(
                f"MODEL: {self.endpoint} ignores Range requests and would send all of {file}; "
                f"use another HF_ENDPOINT, or give a config.json"
            )
        return int(stated.group(3))

    def _body(self, answer: Any, file: str, most: int) -> bytes:
        """At most that many bytes, within the time limit; one byte more is an error."""
        chunks, length, begun = [], 0, time.monotonic()
        for chunk in answer.iter_bytes():
            length += len(chunk)
            if length > most:
                raise BadInput(f"MODEL: {file} of {self.id} has more than {bytes_text(most)}; is it damaged?")
            if time.monotonic() - begun > MAX_SECONDS:
                raise Unreachable(
                    f"MODEL: {file} of {self.id} took over {MAX_SECONDS:.0f} s; try again later"
                )
            chunks.append(chunk)
        with self._lock:
            self.moved += int(answer.num_bytes_downloaded)
            if self.moved > MAX_MOVED_BYTES:
                raise BadInput(
                    f"MODEL: the headers of {self.id} take more than {bytes_text(MAX_MOVED_BYTES)}"
                )
        return b"".join(chunks)

    def _refuse(self, answer: Any, file: str) -> None:
        """Raise for every refusal but that of a file which the repository lacks."""
        code, why = answer.status_code, answer.headers.get("X-Error-Code", "")
        page = f"{self.endpoint}/{self.id}"
        if why == "EntryNotFound" or (code == 404 and why == ""):
            return
        if code == 401 and self.token:
            raise BadInput(
                f"MODEL: {self.endpoint} refuses the token in {self.token.where} for {self.id} (401); "
                f"{self.token.remedy}"
            )
        if why == "GatedRepo" or code == 403:
            raise BadInput(
                f"MODEL: {self.id} is gated ({code}); accept its terms at {page} and set HF_TOKEN to a token "
                f"that may read it"
            )
        if why == "RepoNotFound" or code == 401:
            raise UnknownName(
                f"MODEL: no repository {shown(self.id)} is visible at {self.endpoint} ({code}); "
                f"check the name, or set HF_TOKEN if it is private"
            )
        if why == "RevisionNotFound":
            raise UnknownName(f"MODEL: {self.id} has no revision {shown(self.revision)}; see {page}/commits")
        if code == 429:
            after = str(answer.headers.get("Retry-After", ""))[:20]
            wait = f"in {after} s" if after.isdigit() else "in some minutes"
            raise Unreachable(
                f"MODEL: {self.endpoint} is asked too often (429); try again {wait}, or set HF_TOKEN"
            )
        raise Unreachable(
            f"MODEL: {self.endpoint} answers {code} for {file}; try again later, or give a config.json"
        )

    def _no_answer(self, error: Exception) -> Unreachable:
        """One line for whatever the transport raised."""
        name = type(error).__name__
        reason = "timed out" if "Timeout" in name else str(error).strip() or name
        return Unreachable(
            f"MODEL: {self.endpoint} is not reachable ({shown(reason, 100)}); "
            f"check the network and HF_ENDPOINT, or give a config.json"
        )


def _day(path: Path) -> str:
    """When a file was put into the cache."""
    return time.strftime("%d %b %Y", time.localtime(path.stat().st_mtime))


def _hub() -> Any:
    """huggingface_hub, or one line that says how to install it."""
    try:
        for name in ("constants", "utils"):
            importlib.import_module(f"huggingface_hub.{name}")
        return importlib.import_module("huggingface_hub")
    except ImportError:
        raise BadInput(
            "MODEL: reading a Hugging Face repository needs huggingface_hub; pip install kvplan[hub]"
        ) from None
