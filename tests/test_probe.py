"""`verify --url --probe`: a short load, told of before, within its limits, to the URL given alone."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import pytest

import fake_server as fake
import kvplan
from kvplan.errors import BadInput, Unreachable
from kvplan.faces.cli import main
from test_verify_server import page_of

PASSWORD = "hunter2-horse"  # noqa: S105 - a secret to look for
TTFT, TPOT = 0.05, 0.01


class Engine:
    """Streams completions: the first token after TTFT, the others each TPOT; counts what runs at once."""

    def __init__(self, chat: bool = False, strict: bool = False, usage: bool = True) -> None:
        self.chat, self.strict, self.usage = chat, strict, usage
        self.lock, self.running, self.most = threading.Lock(), 0, 0
        self.bodies: list[dict[str, Any]] = []
        self.begun: list[float] = []

    def __call__(self, handler: fake.Handler) -> None:
        body = json.loads(handler.sent)
        if self.chat != ("messages" in body):
            return handler.send(404, b"{}")
        if self.strict and "ignore_eos" in body:
            return handler.send(400, b"{}")
        with self.lock:
            self.bodies.append(body)
            self.begun.append(time.monotonic())
            self.running += 1
            self.most = max(self.most, self.running)
        try:
            self.stream(handler, body)
        finally:
            with self.lock:
                self.running -= 1
        return None

    def stream(self, handler: fake.Handler, body: dict[str, Any]) -> None:
        handler.begin(Content_Type="text/event-stream")
        text = body["messages"][0]["content"] if self.chat else body["prompt"]
        time.sleep(TTFT)
        for i in range(body["max_tokens"]):
            if i:
                time.sleep(TPOT)
            part: dict[str, Any] = {"delta": {"content": "a"}} if self.chat else {"text": "a"}
            self.say(handler, {"choices": [part]})
        if self.usage:
            prompt = 2 * len(text.split())  # a tokenizer that halves words
            self.say(
                handler,
                {"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": body["max_tokens"]}},
            )
        handler.wfile.write(b"data: [DONE]\n\n")

    @staticmethod
    def say(handler: fake.Handler, event: dict[str, Any]) -> None:
        handler.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        handler.wfile.flush()


def probed(
    engine: Any, told: list[str] | None = None, path: str = "/v1/completions", **more: Any
) -> tuple[Any, Any]:
    models = {"data": [{"id": "served", "root": "meta-llama/Llama-3.1-8B-Instruct", "max_model_len": 131072}]}
    with fake.serving(metrics=page_of(0), version=fake.json_page({"version": "0.32.0"})) as server:
        server.answers |= {"/v1/models": fake.json_page(models), path: engine}
        words: dict[str, Any] = {
            "probe": True, "probe_concurrency": "1,4", "prompt_tokens": 100, "output_tokens": 8,
            "probe_rate": 500.0, **more,
        }  # fmt: skip
        report = told.append if told is not None else None
        answer = kvplan.verify(url=server.url, gpu="h100", max_num_seqs=256, report=report, **words)
        return answer, server.asked


def test_times_are_measured_and_stand_beside_the_prediction() -> None:
    engine, told = Engine(), []
    answer, asked = probed(engine, told)
    assert len(told) == 1
    assert told[0].startswith("--probe sends up to 17 requests of about 100 random words")
    assert "http://127.0.0.1" in told[0]
    levels = answer["observed"]["probe"]["levels"]
    assert [level["concurrency"] for level in levels] == [1, 4]
    for level in levels:
        assert TTFT <= level["ttft_seconds"]["mean"] < TTFT + 1.0  # of a loaded machine
        assert 0.8 * TPOT < level["tpot_seconds"]["mean"] < 8 * TPOT
        assert level["output_tokens"] == 8
        assert level["prompt_tokens"] == pytest.approx(100, rel=0.05)
    rows = {row["name"]: row for row in answer["checks"]}
    same = kvplan.latency(
        "llama-3.1-8b-instruct", gpu="h100", engine_version="0.32.0", prompt_tokens=100, output_tokens=8,
        concurrency=4, max_num_seqs=256, gpu_memory_utilization=0.9,
    )["serving"]  # fmt: skip
    assert rows["tpot_seconds at 4"]["predicted"] == pytest.approx(same["tpot_seconds"])
    assert rows["ttft_seconds at 1"]["reported"] == pytest.approx(levels[0]["ttft_seconds"]["mean"], rel=1e-3)
    assert 2 <= engine.most <= 4
    assert {path for method, path, _, _ in asked if method == "POST"} == {"/v1/completions"}
    assert all(body["model"] == "served" and body["max_tokens"] == 8 for body in engine.bodies)
    starts = [body["prompt"].split()[:6] for body in engine.bodies]
    assert len({tuple(start) for start in starts}) == len(starts)  # no prefix of one is another's


def test_limits_of_number_rate_and_time_are_kept() -> None:
    engine = Engine()
    answer, _ = probed(engine, probe_requests=6, probe_concurrency="1,4")
    assert len(engine.bodies) == answer["observed"]["probe"]["requests"] == 5
    assert "--probe-requests 6 are too few for 4 at once" in answer["notes"]
    with pytest.raises(BadInput, match="--probe-requests: 5 are too few for 4, 8 at once; give at least 6"):
        probed(Engine(), probe_requests=5, probe_concurrency="4,8")
    engine = Engine()
    probed(engine, probe_rate=10.0, probe_requests=6)
    assert max(engine.begun) - min(engine.begun) > 0.4  # six at ten a second
    engine, begun = Engine(), time.monotonic()
    answer, _ = probed(engine, probe_seconds=0.6, output_tokens=20, probe_concurrency="1,4,8")
    assert time.monotonic() - begun < 8
    assert any("time was over" in note for note in answer["notes"])


@pytest.mark.parametrize(
    ("engine", "path"),
    [(Engine(chat=True), "/v1/chat/completions"), (Engine(strict=True), "/v1/completions")],
    ids=["chat alone", "no extras"],
)
def test_servers_that_know_less_are_asked_otherwise(engine: Engine, path: str) -> None:
    answer, asked = probed(engine, path=path)
    assert answer["observed"]["probe"]["path"] == path
    assert answer["observed"]["probe"]["levels"][1]["requests"] > 0
    assert sum(method == "POST" for method, _, _, _ in asked) <= 17 + 3


def test_without_counts_of_tokens_pieces_are_counted_and_said() -> None:
    answer, _ = probed(Engine(usage=False))
    assert answer["observed"]["probe"]["levels"][0]["output_tokens"] == 8
    assert any("counts no tokens" in note for note in answer["notes"])


def endless_stream(handler: fake.Handler) -> None:
    handler.begin(Content_Type="text/event-stream")
    while not handler.server.stopped.is_set():
        handler.wfile.write(b'data: {"choices":[{"text":"a"}]}\n\n' * 500)


def endless_line(handler: fake.Handler) -> None:
    handler.begin(Content_Type="text/event-stream")
    while not handler.server.stopped.is_set():
        handler.wfile.write(b"x" * 65536)


HARM: dict[str, Any] = {
    "nothing": fake.status(200, b""), "page": fake.html, "error": fake.status(500), "busy": fake.status(429),
    "hangs up": fake.hangs_up, "line": endless_line, "elsewhere": fake.redirect("http://127.0.0.2:1/"),
    "redirect": fake.redirect("/v1/completions"),
    "gibberish": fake.status(200, b"data: {{{\n\ndata: 5\n\n" * 50),
    "bytes": fake.status(200, b"\xff\xfe" * 500), "drips": fake.drips,
}  # fmt: skip


@pytest.mark.parametrize("name", HARM)
def test_a_server_that_answers_no_completion_is_one_line(name: str) -> None:
    begun = time.monotonic()
    with pytest.raises(Unreachable, match=r"--url: .*answers no completion"):
        probed(HARM[name], probe_seconds=1.0)
    assert time.monotonic() - begun < 10


def test_a_stream_without_end_is_cut_off() -> None:
    begun = time.monotonic()
    answer, _ = probed(endless_stream, probe_seconds=2.0, probe_requests=5)
    assert time.monotonic() - begun < 12
    assert answer["observed"]["probe"]["requests"] <= 5


def test_the_command_says_what_it_sends_before_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    models = {"data": [{"id": PASSWORD, "root": "meta-llama/Llama-3.1-8B-Instruct", "max_model_len": 4096}]}
    with fake.serving(metrics=page_of(0)) as server:
        server.answers |= {"/v1/models": fake.json_page(models), "/v1/completions": Engine()}
        url = server.url.replace("http://", f"http://me:{PASSWORD}@")
        with pytest.raises(SystemExit) as ended:
            main(
                [
                    "verify",
                    "--url",
                    url,
                    "--gpu",
                    "h100",
                    "--probe",
                    "--probe-requests",
                    "5",
                    "--output-tokens",
                    "4",
                ]
            )
    said = capsys.readouterr()
    assert ended.value.code == 0
    assert said.err.startswith("kvplan: --probe sends up to 5 requests")
    assert PASSWORD not in said.out + said.err
    assert "probed at 1" in said.out


def test_without_probe_nothing_is_posted() -> None:
    with fake.serving(metrics=page_of(10)) as server:
        kvplan.verify("llama-3.1-8b-instruct", url=server.url, gpu="h100")
        assert {method for method, _, _, _ in server.asked} == {"GET"}


class Picky:
    """Answers on chat alone, and knows no ignore_eos."""

    def __init__(self) -> None:
        self.engine, self.posts = Engine(chat=True, strict=True), 0

    def __call__(self, handler: fake.Handler) -> None:
        if handler.command == "POST":
            self.posts += 1
            return handler.send(400, b"{}") if "chat" not in handler.path else self.engine(handler)
        return handler.send(404, b"")


@pytest.mark.parametrize("most", [10, 17])
def test_tries_that_find_out_what_the_server_takes_are_counted(most: int) -> None:
    picky, told = Picky(), []
    answer, asked = probed(picky, told, path="*", probe_requests=most)
    posts = sum(method == "POST" for method, *_ in asked)
    assert posts == answer["observed"]["probe"]["requests"] <= most
    announced = int(told[0].removeprefix("--probe sends up to ").partition(" ")[0])
    assert posts <= announced <= most
    assert "/v1/completions, or where that is refused http://" in told[0]
    assert "/v1/chat/completions, and nowhere else" in told[0]
    assert "4 requests went to finding out what the server takes" in answer["notes"]
    if most == 10:
        assert any("for 4 at once" in note for note in answer["notes"])


@pytest.mark.parametrize("most", [3, 5])
def test_requests_that_all_go_to_finding_out_are_said_to_be_too_few(most: int) -> None:
    picky = Picky()
    with pytest.raises(BadInput, match=rf"--probe-requests: {most} are too few: {min(4, most)} went to"):
        probed(picky, path="*", probe_requests=most, probe_concurrency="1")
    assert picky.posts == min(4, most)


def test_what_the_time_cuts_has_not_failed() -> None:
    begun = time.monotonic()
    answer, _ = probed(Engine(), probe_rate=2, probe_requests=8, probe_seconds="3s", probe_concurrency="2")
    assert time.monotonic() - begun < 8
    assert not any("failed" in note for note in answer["notes"])
    assert "the probe's time was over before all was sent" in answer["notes"]
    assert all(level["failed"] == 0 for level in answer["observed"]["probe"]["levels"])


def test_a_rate_that_leaves_no_time_for_another_request_is_not_waited_for() -> None:
    begun = time.monotonic()
    with pytest.raises(Unreachable, match=r"no completion that is measured within 1\.00 s; --probe-seconds"):
        probed(Engine(), probe_rate=0.001, probe_seconds=1.0)
    assert time.monotonic() - begun < 8


@pytest.mark.parametrize(("prompt", "made"), [(-5, 2**39), (2**39, 8), (10**400, 10**400), (True, 1000)])
def test_counts_of_tokens_that_cannot_be_are_not_believed(prompt: int, made: int) -> None:
    class Lying(Engine):
        def say(self, handler: fake.Handler, event: dict[str, Any]) -> None:  # type: ignore[override]
            if "usage" in event:
                event = {**event, "usage": {"prompt_tokens": prompt, "completion_tokens": made}}
            Engine.say(handler, event)

    answer, _ = probed(Lying(), probe_requests=6, probe_concurrency="1")
    level = answer["observed"]["probe"]["levels"][0]
    assert level["output_tokens"] == 8
    assert level["prompt_tokens"] == 0
    assert any("counts no tokens" in note for note in answer["notes"])
    if 8 < made < 2**62:
        assert any(f"counts {made:,} tokens of a request for 8: not believed" in n for n in answer["notes"])
