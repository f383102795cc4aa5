"""Servers that are slow, wrong, hostile or gone: bounded in time and memory, one line, no credentials."""

from __future__ import annotations

import gzip
import random
import resource
import socket
import time
import zlib
from collections.abc import Callable
from typing import Any

import pytest

import fake_server as fake
import kvplan
from kvplan.errors import BadInput, KvplanError, Unreachable
from kvplan.observe.address import Secrets, address_of, headers_of, said
from kvplan.observe.http import Client, Limits, run
from kvplan.observe.packed import Gzip

LIMITS = Limits(seconds=0.6, all_seconds=3.0, most_bytes=1 << 20)
SLACK = 5.0  # of a loaded machine, in seconds
PASSWORD = "hunter2-horse"  # noqa: S105 - a secret to look for
TOKEN = "tok-abcdefgh12345678"  # noqa: S105


def client(url: str, limits: Limits = LIMITS, headers: dict[str, str] | None = None) -> Client:
    return Client(address_of(url, "--url"), headers or {}, limits)


def refused(url: str, path: str = "/metrics", limits: Limits = LIMITS) -> str:
    """The one line of a request that fails, which it does in time and in little memory."""
    before, begun = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    with pytest.raises(Unreachable) as failed:
        client(url, limits).get(path)
    assert time.monotonic() - begun < limits.seconds + SLACK
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024  # KiB
    line = str(failed.value)
    assert "\n" not in line
    assert line.startswith("--url: ")
    assert len(line) < 400
    return line


@pytest.mark.parametrize("answer", [fake.drips, fake.drips_headers, fake.silent])
def test_a_slow_server_is_given_up_when_the_time_is_over(answer: fake.Answer) -> None:
    with fake.serving(metrics=answer) as server:
        assert "within 600.00 ms" in refused(server.url)


@pytest.mark.parametrize("answer", [fake.endless, fake.ten_gigabytes])
def test_a_body_without_end_is_cut_off(answer: fake.Answer) -> None:
    with fake.serving(metrics=answer) as server:
        line = refused(server.url, limits=Limits(seconds=5.0, all_seconds=9.0, most_bytes=1 << 20))
        assert "sends more than 1 MiB" in line


def test_a_small_body_that_unpacks_to_a_gigabyte_is_cut_off() -> None:
    with fake.serving(metrics=fake.gzip_bomb()) as server:
        line = refused(server.url, limits=Limits(seconds=5.0, all_seconds=9.0, most_bytes=1 << 20))
        assert "sends more than 1 MiB" in line


def test_a_packed_page_is_unpacked() -> None:
    with fake.serving(metrics=fake.packed(b"vllm:num_requests_running 1\n" * 1000)) as server:
        assert client(server.url).get("/metrics").text.count("\n") == 1000


@pytest.mark.parametrize(
    "answer",
    [fake.status(200, b"\x00\x01", Content_Encoding="gzip"), fake.status(200, b"x", Content_Encoding="br")],
)
def test_a_body_packed_otherwise_is_refused(answer: fake.Answer) -> None:
    with fake.serving(metrics=answer) as server:
        assert "is it a proxy's?" in refused(server.url)


def test_redirects_end() -> None:
    with fake.serving(metrics=fake.redirect("/metrics")) as server:
        assert "redirects more than 3 times" in refused(server.url)
        assert len(server.asked) == 4


def test_a_redirect_on_the_same_host_is_followed() -> None:
    with fake.serving(metrics=fake.redirect("/other"), other="vllm:num_requests_running 1\n") as server:
        assert client(server.url).get("/metrics").ok


def test_a_redirect_to_another_host_is_not_followed_and_tells_it_nothing() -> None:
    with (
        fake.serving(any=b"") as other,
        fake.serving(metrics=fake.redirect(f"{other.url}/x?token=1")) as server,
    ):
        line = refused(server.url.replace("http://", f"http://me:{PASSWORD}@"))
        assert "redirects to another place" in line
        assert other.url.removeprefix("http://") in line
        assert PASSWORD not in line
        assert other.asked == []


def test_bytes_that_are_no_text_are_replaced() -> None:
    with fake.serving(metrics=b"\xff\xfe\x00 vllm:num_requests_running 1.0\n\xc3\x28") as server:
        page = client(server.url).get("/metrics")
        assert page.ok
        assert "�" in page.text


def test_a_connection_that_closes_is_said_to() -> None:
    with fake.serving(metrics=fake.hangs_up, other=fake.breaks_off) as server:
        assert "breaks off" in refused(server.url)
        assert "breaks off" in refused(server.url, "/other")


def test_a_server_that_is_gone_is_said_to_be() -> None:
    assert "cannot be reached" in refused(fake.gone())
    assert "cannot be reached" in refused("http://host.invalid:8000")


def test_tls_where_there_is_none_and_none_where_there_is() -> None:
    with fake.serving(metrics=b"") as server:
        assert "does not speak TLS" in refused(server.url.replace("http:", "https:"))
    alert = b"\x15\x03\x01\x00\x02\x02\x46"  # what a TLS server answers to plain HTTP
    with fake.raw(lambda s: (s.recv(100), s.sendall(alert), s.close())[-1]) as place:
        assert "speaks no HTTP" in refused(f"http://{place}")


@pytest.mark.parametrize(
    "answer",
    [
        lambda s: s.sendall(b"SSH-2.0-OpenSSH_9.2\r\n"),
        lambda s: s.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n"),
        lambda s: s.sendall(b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 200_000),
        lambda s: s.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nZZZ\r\n"),
        lambda s: s.sendall(b"\x00" * 100_000),
        lambda s: s.sendall(b"HTTP/1.1 999 \xff\xff\r\n\r\n"),
    ],
)
def test_what_is_no_http_is_refused(answer: Callable[[socket.socket], Any]) -> None:
    lines: list[str] = []
    with fake.raw(lambda s: (s.recv(4096), answer(s), s.close())[-1]) as place:
        try:
            client(f"http://{place}").get("/metrics")
        except Unreachable as error:
            lines.append(str(error))
    assert all("\n" not in line for line in lines)


def test_all_requests_together_end() -> None:
    limits = Limits(seconds=0.3, all_seconds=0.5, most_bytes=1 << 20)
    with fake.serving(any=fake.silent) as server:
        one, begun = client(server.url, limits), time.monotonic()
        for _ in range(4):
            with pytest.raises(Unreachable):
                one.get("/metrics")
        assert time.monotonic() - begun < limits.all_seconds + SLACK


def test_credentials_of_an_address_are_sent_and_never_said() -> None:
    with fake.serving(any=b"ok") as server:
        host = server.url.removeprefix("http://")
        one = client(f"http://me:{PASSWORD}@{host}/?token={TOKEN}")
        page = one.get("/metrics")
        _, path, headers, _ = server.asked[0]
        assert headers["authorization"].startswith("Basic ")
        assert f"token={TOKEN}" in path
        assert page.url == f"http://{host}/metrics"
        assert repr(one).count(PASSWORD) == repr(one).count(TOKEN) == 0


@pytest.mark.parametrize(
    "answer",
    [
        fake.silent,
        fake.endless,
        fake.hangs_up,
        fake.redirect("/metrics"),
        fake.status(200, b"\x00", Content_Encoding="gzip"),
    ],
)
def test_errors_hold_no_credentials(answer: fake.Answer) -> None:
    with fake.serving(any=answer) as server:
        url = server.url.replace("http://", f"http://me:{PASSWORD}@") + f"/?token={TOKEN}"
        with pytest.raises(Unreachable) as failed:
            client(url, headers={"Authorization": f"Bearer {TOKEN}"}).get("/metrics")
        assert PASSWORD not in str(failed.value)
        assert TOKEN not in str(failed.value)


def test_what_a_server_repeats_is_masked() -> None:
    address = address_of(f"http://me:{PASSWORD}@host/?token={TOKEN}", "--url")
    secrets = Secrets.of(address, {"X-Key": "some-other-key"})
    document = {"a": [f"x{PASSWORD}y", {"b": TOKEN}], "c": "some-other-key", "d": 1}
    assert secrets.out_of(document) == {"a": ["x***y", {"b": "***"}], "c": "***", "d": 1}


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (f"http://me:{PASSWORD}@host:1/a?token={TOKEN}&x=1#f", "http://host:1/a?token=***&x=***"),
        (f"https://{PASSWORD}@host/", "https://host/"),
        (f"http://me:{PASSWORD}@[::1]:80/", "http://[::1]:80/"),
        (f"http://me:{PASSWORD}@host:port/?token={TOKEN}", "http://host:port/?token=***"),
    ],
)
def test_an_address_is_said_without_credentials(given: str, shown: str) -> None:
    assert said(given) == shown


@pytest.mark.parametrize(
    "given",
    [f"ftp://me:{PASSWORD}@host", f"http://me:{PASSWORD}@host:notaport/?token={TOKEN}", f"http://me:{PASSWORD}@",
     f"http://me:{PASSWORD}@ho st/", "", "http://", f"//me:{PASSWORD}@[::1", 5, None, "http://host/\r\nX: y"],
)  # fmt: skip
def test_what_is_no_address_is_refused_without_credentials(given: Any) -> None:
    with pytest.raises(BadInput) as failed:
        address_of(given, "--url")
    assert str(failed.value).startswith("--url: ")
    assert PASSWORD not in str(failed.value)
    assert TOKEN not in str(failed.value)


@pytest.mark.parametrize(
    ("given", "base"),
    [
        ("host:8000", "http://host:8000"),
        ("http://host:8000/metrics", "http://host:8000"),
        ("http://host/llm/v1/models/", "http://host/llm"),
        ("https://host/llm/", "https://host/llm"),
        ("http://host/prometheus/metrics?a=b", "http://host"),
        ("http://[::1]:9/", "http://[::1]:9"),
    ],
)
def test_the_pages_of_an_engine_are_cut_off_its_address(given: str, base: str) -> None:
    assert address_of(given, "--url").base == base


def test_headers_are_read_from_a_file_and_never_repeated(tmp_path: Any) -> None:
    file = tmp_path / "headers"
    file.write_text(f"# mine\nAuthorization: Bearer {TOKEN}\n")
    assert headers_of([f"@{file}", "X-A: b"], "--header") == {"Authorization": f"Bearer {TOKEN}", "X-A": "b"}
    for wrong in (TOKEN, f"a b: {TOKEN}", f"A: {TOKEN}\r\nB: c", f"@{tmp_path}/none"):
        with pytest.raises(BadInput) as failed:
            headers_of(wrong, "--header")
        assert TOKEN not in str(failed.value)


def test_a_server_is_asked_from_inside_a_running_loop_too() -> None:
    with fake.serving(metrics=b"ok") as server:

        async def inside() -> str:
            return client(server.url).get("/metrics").text

        assert run(inside) == "ok"


def test_what_is_missing_is_said_with_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib

    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(KvplanError, match=r"pip install 'kvplan\[observe\]'"):
        client("http://127.0.0.1:1").get("/")


@pytest.mark.parametrize("secret", ["SEC/RET", "SEC#RET", "SEC?RET", "SEC@RET", "SEC:RET"])
def test_a_password_with_marks_of_an_address_is_never_shown(secret: str) -> None:
    shown = said(f"http://user:{secret}@127.0.0.1:18377/ok")
    assert "SEC" not in shown
    assert "user" not in shown
    address = f"http://user:{secret}@127.0.0.1:9/ok"
    for words in ({"url": address}, {"prometheus": address}):
        with pytest.raises(KvplanError) as caught:
            kvplan.verify("llama-3.1-8b", gpu="h100", **words)
        assert "SEC" not in str(caught.value)
        assert "RET" not in str(caught.value)


def test_a_body_of_several_packed_members_is_read_to_its_end() -> None:
    lines = [f"vllm:num_requests_running {i}\n".encode() * 100 for i in range(5)]
    body = b"".join(gzip.compress(line) for line in lines)

    def in_pieces(size: int) -> fake.Answer:
        def answer(handler: fake.Handler) -> None:
            handler.begin(Content_Encoding="gzip")
            for at in range(0, len(body), size):
                handler.wfile.write(body[at : at + size])
                handler.wfile.flush()

        return answer

    for size in (len(body), 1, 7):
        with fake.serving(metrics=in_pieces(size)) as server:
            assert client(server.url).get("/metrics").text.encode() == b"".join(lines)


@pytest.mark.parametrize("size", [1, 2, 5, 1 << 20])
def test_members_cut_anywhere_are_one_body(size: int) -> None:
    members = [b"a" * 100_000, b"", random.Random(1).randbytes(5000), b"end"]  # noqa: S311
    packed = b"".join(map(gzip.compress, members))
    for tail, over in ((b"", False), (b"\x1f", False), (b"\0" * 9, True), (b"\x1fx", True)):
        unpack, got, body = Gzip(), b"", packed + tail
        for at in range(0, len(body), size):
            parts = list(unpack.pieces(body[at : at + size]))
            assert all(len(part) <= 1 << 16 for part in parts)
            got += b"".join(parts)
        unpack.end()
        assert got == b"".join(members)
        assert unpack.over is over


def test_a_packed_body_that_ends_early_is_refused() -> None:
    packed = gzip.compress(b"vllm:num_requests_running 1\n" * 1000)
    for body in (packed[:-1], packed + packed[:20], packed * 20_000):
        with pytest.raises(zlib.error):
            read(Gzip(), body)


def read(unpack: Gzip, body: bytes) -> None:
    for _ in unpack.pieces(body):
        pass
    unpack.end()


@pytest.mark.parametrize("trailer", [b"\0" * 65536, gzip.compress(b"") * 3000, b"\0\0\0\xff\xff" * 13_000])
def test_what_follows_a_packed_page_without_end_takes_no_time_and_no_memory(trailer: bytes) -> None:
    page = zlib.compressobj(9, zlib.DEFLATED, 31)
    head = page.compress(b"vllm:num_requests_running 1\n")
    blocks = trailer.startswith(b"\0\0\0\xff")
    head += page.flush(zlib.Z_FULL_FLUSH if blocks else zlib.Z_FINISH)

    def answer(handler: fake.Handler) -> None:
        handler.begin(Content_Encoding="gzip")
        handler.wfile.write(head)
        while not handler.server.stopped.is_set():
            handler.wfile.write(trailer)

    limits = Limits(seconds=20.0, all_seconds=20.0, most_bytes=1 << 20)
    with fake.serving(metrics=answer) as server:
        begun = time.monotonic()
        if trailer[:1] == b"\0" and not blocks:
            assert client(server.url, limits).get("/metrics").text == "vllm:num_requests_running 1\n"
        else:
            line = refused(server.url, limits=limits)
            assert "sends more than 1 MiB" in line or "cannot be unpacked" in line
        assert time.monotonic() - begun < SLACK
