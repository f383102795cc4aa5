"""A stand-in for the Hugging Face Hub on this machine: serves files by name, counts what it sends."""

import http.server
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

COMMIT = "0123456789abcdef0123456789abcdef01234567"
Answer = Callable[["Handler"], None]


class Giant:
    """A file whose first bytes are given and whose rest is zeros, too large to exist."""

    def __init__(self, head: bytes, size: int) -> None:
        self.head = head
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, at: slice) -> bytes:
        start, stop, _ = at.indices(self.size)
        return (self.head[start:stop] + bytes(stop - start))[: stop - start]


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: "Hub"

    def do_GET(self) -> None:
        self.server.asked.append((self.path, dict(self.headers)))
        match = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", self.path)
        file = match.group(3) if match else ""
        answer = self.server.answers.get(file) or self.server.answers.get("*")
        if answer:
            return answer(self)
        content = self.server.files.get(file)
        if content is None:
            return self.send(404, b"", {"X-Error-Code": "EntryNotFound"})
        return self.serve(content)

    def serve(self, content: "bytes | Giant") -> None:
        stated = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if not stated:
            return self.send(200, content[0 : len(content)])
        start, stop = int(stated.group(1)), min(int(stated.group(2)) + 1, len(content))
        return self.send(
            206, content[start:stop], {"Content-Range": f"bytes {start}-{stop - 1}/{len(content)}"}
        )

    def send(self, code: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(code)
        for key, value in {
            "X-Repo-Commit": COMMIT,
            "Content-Length": str(len(body)),
            **(headers or {}),
        }.items():
            self.send_header(key, value)
        self.end_headers()
        self.write(body)

    def write(self, body: bytes) -> None:
        try:
            for at in range(0, len(body), 65536):
                self.wfile.write(body[at : at + 65536])
                self.server.sent += len(body[at : at + 65536])
        except OSError:
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        pass


class Hub(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes | Giant] = {}
        self.answers: dict[str, Answer] = {}
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.sent = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: object, client_address: object) -> None:
        pass


@contextmanager
def hub() -> Iterator[Hub]:
    server = Hub()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def refuse(code: int, **headers: str) -> Answer:
    return lambda handler: handler.send(code, b"no", {k.replace("_", "-"): v for k, v in headers.items()})


def redirect(url: str, body: int = 0) -> Answer:
    return pour(302, body, Location=url)


def ignore_range(size: int) -> Answer:
    """200 and the whole file, whatever was asked."""
    return pour(200, size)


def pour(code: int, size: int, **headers: str) -> Answer:
    """That many zeros, until the other side hangs up."""

    def answer(handler: Handler) -> None:
        handler.send_response(code)
        for key, value in headers.items():
            handler.send_header(key, value)
        handler.send_header("Content-Length", str(size))
        handler.end_headers()
        for _ in range(size // 65536):
            handler.write(bytes(65536))
            if handler.close_connection:
                return

    return answer


def stall(seconds: float) -> Answer:
    def answer(handler: Handler) -> None:
        time.sleep(seconds)
        handler.close_connection = True

    return answer
