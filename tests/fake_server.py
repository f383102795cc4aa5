"""Servers on this machine that answer as engines do, and some that do harm: slow, endless, wrong, gone."""

from __future__ import annotations

import gzip
import http.server
import json
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Answer = Callable[["Handler"], None]


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FakeServer

    def do_GET(self) -> None:
        self.answer(b"")

    def do_POST(self) -> None:
        self.answer(self.rfile.read(int(self.headers.get("Content-Length", 0))))

    def answer(self, sent: bytes) -> None:
        path = self.path.partition("?")[0]
        self.sent = sent
        with self.server.lock:
            self.server.asked.append((self.command, self.path, dict(self.headers), sent))
        answer = self.server.answers.get(path, self.server.answers.get("*"))
        try:
            if answer is None:
                self.send(404, b"no such page")
            elif callable(answer):
                answer(self)
            else:
                self.send(200, answer if isinstance(answer, bytes) else answer.encode())
        except OSError:
            self.close_connection = True

    def send(self, code: int, body: bytes, kind: str = "text/plain; version=0.0.4", **headers: str) -> None:
        self.send_response(code)
        for key, value in {"Content-Type": kind, "Content-Length": str(len(body)), **headers}.items():
            self.send_header(key.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def begin(self, **headers: str) -> None:
        """Headers of a body that ends when the connection does."""
        self.send_response(200)
        for key, value in {"Content-Type": "text/plain", "Connection": "close", **headers}.items():
            self.send_header(key.replace("_", "-"), value)
        self.end_headers()
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        pass


class FakeServer(http.server.ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # a handler that drips is not waited for
    request_queue_size = 256

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: dict[str, bytes | str | Answer] = {}
        self.asked: list[tuple[str, str, dict[str, str], bytes]] = []
        self.lock = threading.Lock()
        self.stopped = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: object, client_address: object) -> None:
        pass


@contextmanager
def serving(**answers: bytes | str | Answer) -> Iterator[FakeServer]:
    """A server; `metrics=` answers /metrics, `any=` everything else."""
    server = FakeServer()
    server.answers = {"*" if name == "any" else f"/{name}": answer for name, answer in answers.items()}
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.stopped.set()
        server.shutdown()
        server.server_close()
        thread.join()


def json_page(document: Any) -> Answer:
    return lambda handler: handler.send(200, json.dumps(document).encode(), "application/json")


def status(code: int, body: bytes = b"no", **headers: str) -> Answer:
    return lambda handler: handler.send(code, body, **headers)


def redirect(where: str) -> Answer:
    return status(302, b"", Location=where)


def html(handler: Handler) -> None:
    handler.send(200, b"<!DOCTYPE html><html><body>Log in</body></html>", "text/html")


def drips(handler: Handler) -> None:
    """A byte now and then, for as long as anyone listens."""
    handler.begin()
    while not handler.server.stopped.wait(0.05):
        handler.wfile.write(b"#")
        handler.wfile.flush()


def drips_headers(handler: Handler) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
    handler.close_connection = True
    while not handler.server.stopped.wait(0.05):
        handler.wfile.write(b"a")
        handler.wfile.flush()


def silent(handler: Handler) -> None:
    handler.server.stopped.wait(60)
    handler.close_connection = True


def endless(handler: Handler) -> None:
    """Lines as fast as they are taken."""
    handler.begin()
    block = b"vllm:num_requests_running 1.0\n" * 2048
    while not handler.server.stopped.is_set():
        handler.wfile.write(block)


def ten_gigabytes(handler: Handler) -> None:
    """A body that says to be of 10 GB, and is."""
    handler.send_response(200)
    handler.send_header("Content-Type", "text/plain")
    handler.send_header("Content-Length", str(10 * 10**9))
    handler.end_headers()
    handler.close_connection = True
    block = bytes(1 << 20)
    for _ in range(10_000):
        if handler.server.stopped.is_set():
            return
        handler.wfile.write(block)


def gzip_bomb(size: int = 2**30) -> Answer:
    """That many zeros, packed into a thousandth."""
    import zlib

    packer = zlib.compressobj(9, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    piece = bytes(1 << 20)
    packed = b"".join(packer.compress(piece) for _ in range(size >> 20)) + packer.flush()
    return lambda handler: handler.send(200, packed, Content_Encoding="gzip")


def packed(body: bytes) -> Answer:
    return lambda handler: handler.send(200, gzip.compress(body), Content_Encoding="gzip")


def hangs_up(handler: Handler) -> None:
    handler.close_connection = True
    handler.connection.shutdown(socket.SHUT_RDWR)


def breaks_off(handler: Handler) -> None:
    """Half of the body that was promised."""
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b"vllm:num_requests_running 1.0\n")
    handler.close_connection = True


def echo(handler: Handler) -> None:
    """Everything that was sent, as an error and as names: a server that repeats credentials."""
    said = f"{handler.path} {dict(handler.headers)}".replace('"', "'")
    lines = f'vllm:num_requests_running{{model_name="{said}"}} 1.0\n'
    handler.send(200, lines.encode())


@contextmanager
def raw(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """A server below HTTP: what it does with each connection."""

    class One(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            try:
                answer(self.request)
            except OSError:
                return

    class Many(socketserver.ThreadingTCPServer):
        daemon_threads = True
        block_on_close = False
        allow_reuse_address = True

        def handle_error(self, request: object, client_address: object) -> None:
            pass

    server = Many(("127.0.0.1", 0), One)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def gone() -> str:
    """A port at which nobody listens."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{one.getsockname()[1]}"


def wait_until(done: Callable[[], bool], seconds: float = 5.0) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if done():
            return True
        time.sleep(0.01)
    return done()
