"""Numbers that no engine has, said by servers: left out, or refused in one line, never a traceback."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import fake_server as fake
import kvplan
from kvplan.errors import BadInput, KvplanError
from kvplan.faces.cli import main
from kvplan.observe import history
from kvplan.observe.exposition import number
from kvplan.observe.histogram import Histogram
from kvplan.observe.http import Limits
from kvplan.observe.learned import Curve, fixed_length, learned_lengths, learned_workload
from kvplan.observe.metrics import readings_of
from kvplan.observe.served import observed_of
from kvplan.observe.server import Server, read_server, whole
from kvplan.observe.traffic import traffic_of
from kvplan.verbs.verify_server import asking_of, client_of
from test_verify_server import page_of

NOW = 1_795_000_000.0
DIGITS = "1" + "0" * 400
ABSURD = [
    DIGITS, f"-{DIGITS}", f'"{DIGITS}"', "1" * 5000, "1e400", "-1e400", "NaN", "Infinity", '"inf"', '"nan"',
    "true", '"²"', '"٣"', '"1e300"', "1e300", "5e-324", "0", "-5", "null", "[]", "[1]", "{}", '{"a":1}', '""',
    '"x"', '"1_0"', "[" * 900 + "]" * 900,
]  # fmt: skip


def strict(text: str) -> Any:
    """A document of JSON as the standard has it: no number that is none."""

    def refuse(word: str) -> Any:
        raise AssertionError(word)

    return json.loads(text, parse_constant=refuse)


def one_line(error: KvplanError) -> str:
    assert "\n" not in str(error)
    return str(error)


def asked(server: fake.FakeServer, **more: Any) -> Any:
    """What `verify --url` says, as strict JSON; the line where it refuses."""
    try:
        return strict(json.dumps(kvplan.verify(url=server.url, gpu="h100", **more)))
    except KvplanError as error:
        return one_line(error)


def figures(server: fake.FakeServer) -> Any:
    return observed_of(read_server(client_of(server.url, asking_of({}), "--url")))


def finite(tree: Any) -> bool:
    if isinstance(tree, dict):
        return all(map(finite, tree.values()))
    if isinstance(tree, (list, tuple)):
        return all(map(finite, tree))
    return not isinstance(tree, float) or math.isfinite(tree)


@pytest.mark.parametrize("value", ABSURD, ids=range(len(ABSURD)))
def test_a_length_that_no_model_has_is_left_out(value: str) -> None:
    models = f'{{"data":[{{"id":"m","root":"meta-llama/Llama-3.1-8B-Instruct","max_model_len":{value}}}]}}'
    with fake.serving(metrics=page_of(5), any=models) as server:
        asked(server, max_num_seqs=256)
        assert figures(server).flags.get("max_model_len", 1) < 2**62


SETTINGS = {
    "sglang": (
        '{{"model_path":"meta-llama/Llama-3.1-8B-Instruct","max_total_num_tokens":{0},"tp_size":{0},'
        '"context_length":{0},"page_size":{0},"mem_fraction_static":{0},"version":{0},'
        '"internal_states":[{{"memory_usage":{{"weight":{0},"kvcache":{0}}},'
        '"effective_max_running_requests_per_dp":{0}}}]}}'
    ),
    "llama.cpp": (
        '{{"total_slots":{0},"build_info":{0},"default_generation_settings":{{"n_ctx":{0}}},"model_path":{0},'
        '"data":[{{"id":{0},"root":{0},"meta":{{"n_params":{0},"size":{0}}}}}]}}'
    ),
    "tensorrt-llm": '[{{"kvCacheStats":{{"maxNumBlocks":{0},"tokensPerBlock":{0}}}}}]',
}


@pytest.mark.parametrize("value", ABSURD, ids=range(len(ABSURD)))
@pytest.mark.parametrize("engine", SETTINGS)
def test_settings_that_no_server_has_are_left_out(engine: str, value: str) -> None:
    with fake.serving(any=SETTINGS[engine].format(value)) as server:
        if engine != "tensorrt-llm":
            server.answers["/metrics"] = fake.status(404)
        asked(server, engine=engine, model="meta-llama/Llama-3.1-8B-Instruct")
        try:
            found = figures(server)
        except KvplanError:
            return
        assert all(0 <= said.value < 1e30 for said in found.figures.values())


@pytest.mark.parametrize("build", ["b²-abc", "b" + "9" * 5000, "b٣", "b0", "b", "c12", "b12x", ""])
def test_a_build_that_is_no_number_is_none(build: str) -> None:
    with fake.serving(props=fake.json_page({"build_info": build, "total_slots": 1})) as server:
        assert figures(server).version is None
    with fake.serving(props=fake.json_page({"build_info": "b1234-abc", "total_slots": 1})) as server:
        assert figures(server).version == "b1234"


LABELS = ("²", "٣", DIGITS, "inf", "nan", "1e300", "5e-324", "1e-320", "-1", "0", "", "1_0", "0x10")


@pytest.mark.parametrize("label", LABELS)
def test_settings_in_labels_that_are_no_numbers_are_left_out(label: str) -> None:
    names = (
        "block_size", "num_gpu_blocks", "gpu_memory_utilization", "kv_cache_size_tokens",
        "kv_cache_max_concurrency", "kv_cache_memory_bytes", "effective_attention_block_size",
        "num_gpu_blocks_override", "mamba_cache_mode", "cache_dtype",
    )  # fmt: skip
    fixed = {"kv_cache_size_tokens": "446624", "num_gpu_blocks": "27914", "block_size": "16"}
    models = fake.json_page({"data": [{"id": "m", "root": "meta-llama/Llama-3.1-8B-Instruct"}]})
    for name in names:
        given = {**fixed, name: label}
        text = ",".join(f'{n}="{v}"' for n, v in given.items())
        page = f"vllm:num_requests_running 1\nvllm:cache_config_info{{{text}}} 1\n"
        with fake.serving(metrics=page, any=models) as server:
            if label in ("1e-320", "1e300", "-1"):
                asked(server)
            assert all(math.isfinite(said.value) for said in figures(server).figures.values())


def test_numbers_are_those_that_a_server_may_have() -> None:
    kept = (5, 5.5, "5", "5e3", 0, "-1", "  7 ")
    assert [number(value) for value in kept] == [5, 5.5, 5, 5000, 0, -1, 7]
    none = (True, None, [], {}, "²", "٣", 10**400, "9" * 400, math.inf, math.nan, "inf", "nan", 1e19, b"5")
    assert [number(value) for value in none] == [None] * len(none)
    assert (whole("16"), whole(5.5), whole(True), whole(10**400)) == (16, None, None, None)


TINY = """vllm:time_to_first_token_seconds_sum{model_name="m"} 1e-310
vllm:time_to_first_token_seconds_count{model_name="m"} 1000
vllm:e2e_request_latency_seconds_bucket{model_name="m",le="-0"} 1000
vllm:e2e_request_latency_seconds_sum{model_name="m"} 5e-324
vllm:e2e_request_latency_seconds_count{model_name="m"} 1000
"""


def test_a_time_next_to_nothing_puts_no_infinity_into_the_answer() -> None:
    lines = [line for line in page_of(1000).split("\n") if not ("first_token" in line or "e2e" in line)]
    models = {"data": [{"id": "m", "root": "meta-llama/Llama-3.1-8B-Instruct", "max_model_len": 131072}]}
    with fake.serving(metrics="\n".join(lines) + TINY, any=fake.json_page(models)) as server:
        answer = asked(server, max_num_seqs=256)
    rows = {row["name"]: row for row in answer["checks"]}
    assert rows["ttft_seconds"]["tolerance"] is None
    assert finite(answer)


@pytest.mark.parametrize("count", ["1e-310", "5e-324", "1e18", "+Inf", "0"])
def test_means_over_next_to_nothing_are_none(count: str) -> None:
    page = (
        f'vllm:request_success_total {count}\nvllm:request_prompt_tokens_bucket{{le="+Inf"}} {count}\n'
        f"vllm:request_prompt_tokens_sum 1e18\nvllm:generation_tokens_total 1e18\n"
        f"vllm:iteration_tokens_total_count {count}\nvllm:num_requests_running -5\n"
    )
    traffic = traffic_of(readings_of(page)[0][0], 1e-300)
    assert finite(traffic.document())
    assert traffic.document()["running"] is None


def test_a_histogram_without_buckets_has_a_mean_and_no_quantiles() -> None:
    page = page_of(1000).split("\n")
    without = "\n".join(line for line in page if "first_token_seconds_bucket" not in line)
    without += '\nvllm:time_to_first_token_seconds_count{engine="0",model_name="m"} 1000'
    found = readings_of(without)[0][0].histograms["ttft_seconds"].document()
    assert found == {"count": 1000, "mean": 0.05, "p50": None, "p90": None, "p99": None}


VALUES: dict[str, Any] = {
    "1e300": '"1e300"', "1e308": "1e308", "bare": DIGITS, "text": f'"{DIGITS}"', "1e17": '"1e17"',
    "1e12": '"1e12"', "less": '"-5"', "NaN": '"NaN"', "+Inf": '"+Inf"',
    "bare NaN": "NaN", "bare inf": "Infinity",
    "true": "true", "null": "null", "list": "[1]", "object": "{}", "word": '"abc"', "digit": '"²"',
    "tiny": '"1e-320"',
    "one": '"1"',
}  # fmt: skip
NAMES = (
    "request_success_total", "request_prompt_tokens_bucket", "request_generation_tokens_bucket",
    "num_requests_running", "prefix_cache_hits_total", "prefix_cache_queries_total",
)  # fmt: skip


@contextmanager
def kept(value: str, bounds: tuple[str, ...] = ("10", "1000", "+Inf")) -> Iterator[fake.FakeServer]:
    """A Prometheus that says the same of everything."""
    rows = [{"__name__": f"vllm:{name}", "model_name": "m", "instance": "a"} for name in NAMES]

    def answer(handler: fake.Handler) -> None:
        bucket = "bucket" in handler.path
        times = range(int(NOW) - 3600, int(NOW) + 1, 15)
        values = ",".join(f"[{when},{value}]" for when in times)
        result = ",".join(
            f'{{"metric":{json.dumps({"le": le} if le else {})},"values":[{values}],"value":[{NOW},{value}]}}'
            for le in (bounds if bucket else ("",))
        )
        handler.send(
            200, f'{{"status":"success","data":{{"result":[{result}]}}}}'.encode(), "application/json"
        )

    with fake.serving(any=answer) as server:
        server.answers["/api/v1/series"] = fake.json_page({"status": "success", "data": rows})
        yield server


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_values_that_a_prometheus_cannot_have_counted_are_left_out_or_refused(
    value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history.time, "time", lambda: NOW)
    out = tmp_path / "h.jsonl"
    words: dict[str, Any] = {"gpu": "h100", "since": "1h"}
    with kept(value) as server, warnings.catch_warnings():
        warnings.simplefilter("error")
        for work in (
            lambda: kvplan.workload(
                prometheus=server.url, since="1h", out=str(out), histograms=str(tmp_path)
            ),
            lambda: kvplan.verify("llama-3.1-8b-instruct", prometheus=server.url, **words),
        ):
            try:
                assert finite(strict(json.dumps(work())))
            except KvplanError as error:
                one_line(error)


@pytest.mark.parametrize(
    "bounds", [("+Inf",), ("0",), ("-5", "0.5"), ("1e18", "+Inf"), ("x", "NaN"), ("0", "0")]
)
def test_buckets_that_no_length_has_are_refused_in_one_line(
    bounds: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history.time, "time", lambda: NOW)
    with kept('"1"', bounds) as server, warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            assert finite(strict(json.dumps(kvplan.workload(prometheus=server.url, since="1h"))))
        except KvplanError as error:
            one_line(error)


def test_more_requests_than_can_be_written_are_refused_before_they_are_counted() -> None:
    lengths = fixed_length(10.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for rate in (1e16, 1e300):
            with pytest.raises(BadInput, match="requests ended, more than 5,000,000"):
                learned_workload(Curve([rate, 1.0], 60.0), lengths, lengths, 0)


def test_lengths_of_nothing_are_refused() -> None:
    with pytest.raises(BadInput, match="a length of nothing"):
        learned_lengths(Histogram((0.5, math.inf), (10.0, 10.0), 0.0))


def test_labels_that_are_no_text_are_passed_over() -> None:
    rows = [{"__name__": "vllm:num_requests_running", "model_name": [[5]], "instance": 7}]
    with fake.serving(any=fake.json_page({"status": "success", "data": []})) as server:
        server.answers["/api/v1/series"] = fake.json_page({"status": "success", "data": rows})
        with pytest.raises(BadInput, match="counts no requests"):
            kvplan.workload(prometheus=server.url, since="1h")


def test_a_server_without_models_still_has_an_engine() -> None:
    assert observed_of(Server("http://x", "llama.cpp", settings={"total_slots": 10**400})).figures == {}


@pytest.mark.parametrize("verb", ["verify", "workload"])
def test_a_page_of_a_prometheus_has_the_timeout_and_all_have_six_times_that(
    verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Limits] = []

    def slow(source: Any, *_more: Any) -> Any:
        seen.append(source.client.limits)
        raise BadInput("enough")

    for module in ("kvplan.verbs.verify_prometheus", "kvplan.verbs.workload"):
        monkeypatch.setattr(f"{module}.read_history", slow)
    for given, page in ((None, 10.0), ("2s", 2.0)):
        with pytest.raises(BadInput, match="enough"):
            getattr(kvplan, verb)(prometheus="http://127.0.0.1:9", timeout=given)
        assert (seen[-1].seconds, seen[-1].all_seconds, seen[-1].most_bytes) == (page, 6 * page, 2**24)


def test_a_server_that_was_idle_while_it_was_watched_is_said_to_have_been() -> None:
    models = {"data": [{"id": "m", "root": "meta-llama/Llama-3.1-8B-Instruct", "max_model_len": 131072}]}
    with fake.serving(metrics=page_of(1000), any=fake.json_page(models)) as server:
        answer = asked(server, watch="50ms")
    assert any(
        note.startswith("no request ended in the ") and "for which it was watched" in note
        for note in answer["notes"]
    )
    with fake.serving(metrics=page_of(0), any=fake.json_page(models)) as server:
        assert "no request has ended yet: no times to compare" in asked(server)["notes"]


def test_times_without_buckets_are_shown_without_quantiles(capsys: pytest.CaptureFixture[str]) -> None:
    page = "".join(
        f"{line}\n" for line in page_of(1000).split("\n") if "first_token_seconds_bucket" not in line
    )
    page += 'vllm:time_to_first_token_seconds_count{engine="0",model_name="m"} 1000\n'
    with fake.serving(metrics=page) as server, pytest.raises(SystemExit):
        main(["verify", "llama-3.1-8b-instruct", "--gpu", "h100", "--url", server.url])
    line = next(line for line in capsys.readouterr().out.split("\n") if line.split()[:1] == ["TTFT"])
    assert "50.00 ms" in line
    assert "p50" not in line
