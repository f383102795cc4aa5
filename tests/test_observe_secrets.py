"""Secrets that a user gives: never said, wherever a server repeats them, however they are quoted."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path

import pytest

import fake_server as fake
import kvplan
from kvplan.errors import BadInput, Unreachable
from kvplan.faces.cli import main
from kvplan.observe.address import Secrets, address_of, headers_of, said

TOKEN = "tok-abcdefgh12345678"  # noqa: S105 - a secret to look for


@pytest.mark.parametrize(
    "given",
    [
        "http://bob:p@zz/w?rd#1@127.0.0.1:18711/ok", "http://bob:p/zz@host", "bob:p#zz@host", "http://bob:p?zz@host:1",
        "http://host/?token=ab@zz", "pa://zz/w@host", "http://bob:x://zz@host",
    ],
)  # fmt: skip
def test_an_address_whose_password_ends_the_host_is_refused_and_nothing_of_it_is_said(given: str) -> None:
    with pytest.raises(BadInput) as failed:
        address_of(given, "--url")
    line = str(failed.value)
    assert "%2F" in line
    assert not any(part in line for part in ("bob", "zz", "w?rd", "pa:", "token", "18711", "host/"))
    assert "zz" not in said(given)
    coded = address_of("http://bob:p%40zz%2Fw%3Frd%231@127.0.0.1:18711/ok", "--url")
    assert coded.user == ("bob", "p@zz/w?rd#1")
    assert coded.base == "http://127.0.0.1:18711/ok"


def test_every_value_of_a_query_is_masked_wherever_it_is_repeated() -> None:
    address = address_of("http://host/?x=hushhush&tenant=a%20b%2Fcd&n=5", "--url")
    secrets = Secrets.of(address, {})
    for text in ("hushhush", "a b/cd", "a%20b%2Fcd", "a+b%2Fcd", "'a b/cd'"):
        assert secrets.masked(f"<{text}>") in ("<***>", "<'***'>")
    assert secrets.masked("5 of 5") == "5 of 5"  # too short to be looked for in any text
    assert said("http://host/?x=hushhush&n=5") == "http://host/?x=***&n=***"


def test_each_part_of_a_cookie_and_what_basic_hides_is_masked() -> None:
    headers = {
        "Cookie": 'session=first-part; theme="second-part"; a=b',
        "Authorization": "Basic " + base64.b64encode(b"alice:quite-secret").decode(),
    }
    secrets = Secrets.of(address_of("http://host", "--url"), headers)
    every = [*headers.values(), "first-part", "second-part", "alice", "quite-secret", "alice:quite-secret"]
    for text in every:
        assert secrets.masked(f"is {text}.") == "is ***."


def test_a_secret_is_masked_as_python_and_json_quote_it() -> None:
    word = "it's\\a\"secret"
    secrets = Secrets.of(address_of("http://host", "--url"), {"X-Key": word})
    for text in (repr(word), json.dumps(word), repr(word + '"')):
        assert "secret" not in secrets.masked(text)


def test_a_secret_is_masked_before_a_long_text_is_cut() -> None:
    page = "".join(
        f'vllm:num_requests_running{{model_name="{"x" * n}{TOKEN}"}} 1\n' for n in (40, 45, 50, 55)
    )
    with fake.serving(metrics=page) as server, pytest.raises(Unreachable) as failed:
        kvplan.verify("llama-3.1-8b", gpu="h100", url=server.url, header=f"X-Key: {TOKEN}")
    assert "tok-" not in str(failed.value)


@pytest.mark.parametrize("verb", ["verify", "workload"])
def test_secrets_of_a_query_and_a_cookie_reach_no_output_and_no_file(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("query-secret", "cookie-secret", "sh")
    echoed = f"{words[0]} {words[1]}"
    rows = [{"__name__": "vllm:num_requests_running", "model_name": echoed}]
    with fake.serving(any=fake.json_page({"status": "success", "data": rows})) as server:
        server.answers["/metrics"] = f'vllm:num_requests_running{{model_name="{echoed}"}} 1\n'
        url = f"{server.url}/?x={words[0]}&y={words[2]}"
        flag = "--url" if verb == "verify" else "--prometheus"
        model = ["llama-3.1-8b", "--gpu", "h100"] if verb == "verify" else []
        for more in ([], ["--json"], ["--save", str(tmp_path / "kept.json")]):
            with pytest.raises(SystemExit):
                main([verb, *model, flag, url, "--header", f"Cookie: a={words[1]}", *more])
            out = capsys.readouterr()
            for word in (words[0], words[1], f"y={words[2]}"):
                assert word not in out.out + out.err
    for file in tmp_path.iterdir():
        assert not any(word in file.read_text("utf-8") for word in (words[0], words[1], f"y={words[2]}"))


def test_headers_are_read_from_a_file_of_a_bounded_size_alone(tmp_path: Path) -> None:
    (tmp_path / "long").write_text("A: b\n" * 20_000)
    os.mkfifo(tmp_path / "fifo")
    for path in ("/dev/zero", tmp_path / "long", tmp_path / "fifo", tmp_path, "\0"):
        with pytest.raises(BadInput, match="--header: ") as failed:
            headers_of(f"@{path}", "--header")
        assert "\n" not in str(failed.value)
