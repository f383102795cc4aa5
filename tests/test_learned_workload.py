"""`workload`: what was learned from a Prometheus gives back rate, lengths and hits; what was lost is said."""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fake_prometheus as fp
import fake_server as fake
import kvplan
import synthetic_traffic as synthetic
from kvplan.errors import BadInput, KvplanError, Unreachable
from kvplan.faces.cli import main
from kvplan.observe import history
from kvplan.observe.histogram import Histogram
from kvplan.observe.learned import Curve, fixed_length, learned_lengths, learned_workload, shared_for
from kvplan.observe.prometheus import selector_of
from kvplan.serve.traces import read_trace

DAY, NOW = 86400.0, 1_795_000_000.0
PASSWORD, TOKEN = "hunter2-horse", "tok-abcdefgh12345678"
INFO = {
    "engine": "0", "num_gpu_blocks": "30720", "block_size": "16", "gpu_memory_utilization": "0.9",
    "cache_dtype": "auto", "enable_prefix_caching": "True", "kv_cache_size_tokens": "491520",
    "kv_cache_max_concurrency": "3.75", "effective_attention_block_size": "16",
}  # fmt: skip


def truth_of(t: synthetic.Traffic, seconds: float, **labels: str) -> fp.Truth:
    """A Prometheus that scraped an engine with that traffic until now."""
    start = NOW - seconds
    found = fp.Truth(start, NOW + 1)
    own = {"engine": "0", "instance": "a:8000", "job": "vllm", "model_name": "m", **labels}
    for key, sums in synthetic.cumulative(t).items():
        name, _, inner = key.partition("{")
        more = dict(re.findall(r'(\w+)="([^"]*)"', inner))
        found.add(name, {**own, **more}, _counter(t.ends, sums, start))
    found.add("vllm:num_requests_running", own, lambda _when: 8.0)
    found.add("vllm:cache_config_info", {**INFO, "job": "vllm"}, lambda _when: 1.0)
    return found


def _counter(ends: Any, sums: Any, start: float) -> Any:
    return lambda when: float(sums[np.searchsorted(ends, when - start, side="right")])


@pytest.fixture(autouse=True)
def _now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history.time, "time", lambda: NOW)


@contextmanager
def learning(
    seconds: float = DAY, **more: Any
) -> Iterator[tuple[synthetic.Traffic, fp.Truth, fake.FakeServer]]:
    t = synthetic.traffic(seconds, **more)
    truth = truth_of(t, seconds)
    with fp.prometheus(truth) as server:
        yield t, truth, server


def test_a_day_gives_back_rate_lengths_and_hits(tmp_path: Path) -> None:
    out = tmp_path / "day.jsonl"
    with learning() as (t, _, server):
        answer = kvplan.workload(prometheus=server.url, out=str(out), histograms=str(tmp_path))
        assert len(server.asked) < 60
    assert abs(answer["requests"] - len(t)) <= 1
    assert answer["source"]["step_seconds"] == 300
    rates = np.array([rate for _, rate in answer["rate"]])
    true = np.histogram(t.ends, bins=np.linspace(0, DAY, len(rates) + 1))[0] / 300
    assert np.abs(rates - true).max() < 0.01
    for name, lengths in (("prompt_tokens", t.prompt), ("output_tokens", t.output)):
        assert answer[name]["mean"] == pytest.approx(lengths.mean(), rel=1e-3)
        for share in (50, 90, 99):
            true_length = np.percentile(lengths, share)
            assert answer[name][f"p{share}"] == pytest.approx(true_length, rel=0.05), (name, share)
    hits = t.hits.sum() / t.prompt.sum()
    assert answer["prefix_hit_rate"] == pytest.approx(hits, rel=1e-3)
    assert answer["shared_prefix_tokens"] == pytest.approx(200, rel=0.05)
    assert answer["concurrency"] == {"mean": 8, "max": 8}
    assert answer["measured"]["tpot_seconds"]["mean"] == pytest.approx(t.tpot.mean(), rel=1e-3)
    written = read_trace(out, answer["shared_prefix_tokens"])
    summary = written.summary()
    assert summary.requests == answer["requests"]
    assert summary.requests_per_second == pytest.approx(len(t) / DAY, rel=1e-3)
    assert summary.prompt_tokens["mean"] == pytest.approx(t.prompt.mean(), rel=0.02)
    assert summary.output_tokens["mean"] == pytest.approx(t.output.mean(), rel=0.02)
    assert summary.prefix_hit_share == pytest.approx(hits, rel=0.05)
    again = np.histogram(written.arrival_seconds, bins=np.linspace(0, DAY, 289))[0] / 300
    assert np.corrcoef(again, true)[0, 1] > 0.999


def test_what_is_written_is_simulated_and_the_same_seed_writes_the_same(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("a.jsonl", "b.jsonl", "c.csv", "d.parquet", "other.jsonl")]
    with learning(3600.0, scale=0.2) as (t, _, server):
        for i, file in enumerate(files):
            answer = kvplan.workload(
                prometheus=server.url, since="1h", out=str(file), histograms=str(tmp_path), seed=int(i == 4)
            )
    assert files[0].read_bytes() == files[1].read_bytes() != files[4].read_bytes()
    block = answer["shared_prefix_tokens"]
    for file in files[1:4]:
        assert read_trace(file, block).summary() == read_trace(files[0], block).summary()
    run = kvplan.simulate("llama-3.1-8b", gpu="h100", trace=str(files[0]), prefix_block_tokens=block)
    assert run["completed"] == len(t)
    assert run["prefix_hit_rate"] == pytest.approx(t.hits.sum() / t.prompt.sum(), rel=0.2)
    lengths = {name: f"histogram({tmp_path / f'{name}.csv'})" for name in ("prompt_tokens", "output_tokens")}
    run = kvplan.simulate("llama-3.1-8b", gpu="h100", rate=1.0, requests=200, **lengths)
    assert run["completed"] == 200


def test_the_busiest_part_is_kept_alone(tmp_path: Path) -> None:
    out = tmp_path / "peak.jsonl"
    with learning() as (t, _, server):
        answer = kvplan.workload(prometheus=server.url, busiest="2h", out=str(out))
    assert answer["seconds"] == 7200
    ends = np.histogram(t.ends, bins=np.arange(0, DAY + 1, 300))[0]
    most = max(ends[i : i + 24].sum() for i in range(len(ends) - 23))
    assert answer["requests"] == pytest.approx(most, rel=1e-3)
    assert len(read_trace(out, answer["shared_prefix_tokens"])) == answer["requests"]


def test_several_engines_are_added_up_and_a_selector_leaves_some() -> None:
    one, two = synthetic.traffic(3600.0, seed=1), synthetic.traffic(3600.0, seed=2)
    truth, other = truth_of(one, 3600.0), truth_of(two, 3600.0, instance="b:8000")
    for name, found in other.series.items():
        truth.series[name] += found
    with fp.prometheus(truth) as server:
        both = kvplan.workload(prometheus=server.url, since="1h")
        alone = kvplan.workload(prometheus=server.url, since="1h", selector='{instance="b:8000"}')
    assert abs(both["requests"] - len(one) - len(two)) <= 2
    assert both["source"]["instances"] == 2
    assert both["concurrency"]["mean"] == 16
    assert abs(alone["requests"] - len(two)) <= 1


def test_verify_compares_the_times_of_a_day_and_the_cache() -> None:
    with learning() as (t, truth, server):
        answer = kvplan.verify(
            "llama-3.1-8b-instruct", prometheus=server.url, selector='{model_name="m"}', gpu="h100",
            engine_version="0.32",
        )  # fmt: skip
    rows = {row["name"]: row for row in answer["checks"]}
    assert rows["kv_tokens"]["predicted"] == rows["kv_tokens"]["reported"] == 491520
    assert rows["ttft_seconds"]["reported"] == pytest.approx(t.ttft.mean(), rel=1e-3)
    assert rows["tpot_seconds"]["reported"] == pytest.approx(t.tpot.mean(), rel=1e-3)
    load = answer["observed"]["traffic"]["predicted_for"]
    assert load["concurrency"] == 4  # tokens over steps
    assert load["prompt_tokens"] == round(t.prompt.mean())
    assert not any("model_name" in query for query in truth.queries if "cache_config_info" in query)


def test_a_mean_without_a_histogram_is_taken_and_said() -> None:
    t = synthetic.traffic(3600.0)
    truth = truth_of(t, 3600.0)
    truth.series = {n: f for n, f in truth.series.items() if "request_prompt_tokens" not in n}
    with fp.prometheus(truth) as server:
        answer = kvplan.workload(prometheus=server.url, since="1h")
    assert answer["prompt_tokens"]["mean"] == pytest.approx(t.prompt.mean(), rel=1e-3)
    assert any("no histogram" in note for note in answer["notes"])


def test_llama_server_counts_no_requests_and_is_refused() -> None:
    truth = fp.Truth(NOW - 3600, NOW + 1)
    truth.add("llamacpp:requests_processing", {"job": "x"}, lambda _when: 1.0)
    with fp.prometheus(truth) as server, pytest.raises(BadInput, match="counts no requests"):
        kvplan.workload(prometheus=server.url, since="1h")


def test_several_models_want_a_selector() -> None:
    truth = truth_of(synthetic.traffic(3600.0), 3600.0)
    for name, found in truth_of(synthetic.traffic(3600.0), 3600.0, model_name="n").series.items():
        truth.series[name] += found
    with fp.prometheus(truth) as server, pytest.raises(Unreachable, match=r"2 of them.*--selector"):
        kvplan.workload(prometheus=server.url, since="1h")


ANSWERS: dict[str, Any] = {
    "no series": fake.json_page({"status": "success", "data": []}),
    "an error": fake.status(400, json.dumps({"status": "error", "error": f"bad {TOKEN}"}).encode()),
    "no JSON": b"hello", "a list": fake.json_page([1, 2]),
    "numbers": fake.json_page({"status": "success", "data": 5}),
    "rows of anything": fake.json_page({"status": "success", "data": [1, None, {"__name__": 5}, {"a": {}}]}),
    "a page": fake.html, "refuses": fake.status(401), "slow": fake.drips, "endless": fake.endless,
    "deep": (b'{"status":"success","data":' + b"[" * 100_000), "gone away": fake.hangs_up,
    "elsewhere": fake.redirect("http://127.0.0.2:1/x"), "bomb": fake.gzip_bomb(2**27),
}  # fmt: skip


@pytest.mark.parametrize("verb", ["workload", "verify"])
@pytest.mark.parametrize("name", ANSWERS)
def test_a_prometheus_that_does_harm_is_one_line_and_exit_status_2(
    name: str, verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with fake.serving(any=ANSWERS[name]) as server:
        url = server.url.replace("http://", f"http://me:{PASSWORD}@")
        with pytest.raises(SystemExit) as ended:
            main([verb, "--prometheus", url, "--timeout", "200ms", "--header", f"X-Key: {TOKEN}"])
    said = capsys.readouterr()
    assert ended.value.code == 2
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert said.err.startswith("kvplan: error: --prometheus: ")
    assert PASSWORD not in said.err
    assert TOKEN not in said.err


def test_values_that_are_no_numbers_are_passed_over() -> None:
    def strange(handler: fake.Handler) -> None:
        rows = [
            {"metric": {"le": "x"}, "values": [[NOW, "1"], [NOW, "NaN"], [1], "a", None, [None, None]]},
            {"metric": None, "values": {}}, 7,
        ]  # fmt: skip
        handler.send(200, json.dumps({"status": "success", "data": {"result": rows}}).encode())

    labels = {"__name__": "vllm:num_requests_running", "model_name": "m"}
    with fake.serving(any=strange) as server:
        server.answers["/api/v1/series"] = fake.json_page({"status": "success", "data": [labels]})
        with contextlib.suppress(KvplanError):
            kvplan.workload(prometheus=server.url, since="1h")


def test_credentials_that_a_prometheus_repeats_reach_no_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    truth = truth_of(synthetic.traffic(3600.0), 3600.0, model_name=f"m-{PASSWORD}-{TOKEN}")
    with fp.prometheus(truth) as server:
        url = server.url.replace("http://", f"http://me:{PASSWORD}@") + f"/?token={TOKEN}"
        out = str(tmp_path / "a.jsonl")
        for more in ([], ["--json"], ["--out", out], ["--save", str(tmp_path / "kept.json")]):
            with pytest.raises(SystemExit):
                main(["workload", "--prometheus", url, "--since", "1h", *more])
            said = capsys.readouterr()
            assert PASSWORD not in said.out + said.err
            assert TOKEN not in said.out + said.err
        with pytest.raises(SystemExit):
            main(["verify", "llama-3.1-8b", "--gpu", "h100", "--prometheus", url, "--since", "1h"])
        said = capsys.readouterr()
        assert PASSWORD not in said.out + said.err
    for file in tmp_path.iterdir():
        assert PASSWORD not in file.read_text("utf-8")
        assert TOKEN not in file.read_text("utf-8")


@pytest.mark.parametrize(
    "given",
    ['{job="vllm"}', 'job="vllm"', '{job=~"v.*", model_name!="x",}', "{}", "{ a = 'b' }", '{a="x\\"y}"}', ""],
)
def test_a_selector_is_taken(given: str) -> None:
    assert selector_of(given).startswith("{")


@pytest.mark.parametrize(
    "given",
    ['{job="vllm"} or vector(1)', "{job=}", "{a}", '{a="b"', '{a="b"} {c="d"}', '{a="b\n"}', 5, '{1a="b"}'],
)
def test_what_is_no_selector_is_refused(given: Any) -> None:
    with pytest.raises(BadInput, match="--selector"):
        selector_of(given)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({}, "--prometheus or --trace"),
        ({"prometheus": "http://x", "trace": "y"}, "give one"),
        ({"prometheus": "ftp://x"}, "--prometheus"),
        ({"prometheus": "http://x", "since": "1s"}, "--since"),
        ({"prometheus": "http://x", "since": "soon"}, "--since"),
        ({"prometheus": "http://x", "step": "48h"}, "--step"),
        ({"prometheus": "http://x", "out": "a.txt"}, "--out"),
        ({"prometheus": "http://x", "out": "/no/such/folder/a.csv"}, "--out"),
        ({"prometheus": "http://x", "histograms": "/no/such/folder"}, "--histograms"),
        ({"prometheus": "http://x", "seed": -1}, "--seed"),
        ({"prometheus": "http://x", "engine": "x"}, "engine"),
        ({"trace": "none.csv"}, "--trace"),
        ({"trace": "none.csv", "since": "1h"}, "--since"),
    ],
)
def test_wrong_words_are_refused(wrong: dict[str, Any], why: str) -> None:
    with pytest.raises(KvplanError, match=why):
        kvplan.workload(**wrong)


def test_a_trace_is_told_in_the_same_words(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    rows = "".join(f"{i / 2},{100 + i % 7},{10 + i % 3}\n" for i in range(1000))
    file.write_text(f"arrival_seconds,prompt_tokens,output_tokens\n{rows}")
    answer = kvplan.workload(trace=str(file))
    assert answer["requests"] == 1000
    assert answer["requests_per_second"]["mean"] == pytest.approx(2, rel=0.01)
    assert sum(rate for _, rate in answer["rate"]) / len(answer["rate"]) == pytest.approx(2, rel=0.01)
    assert answer["prompt_tokens"]["mean"] == pytest.approx(103, rel=0.01)


def test_lengths_within_buckets_meet_the_mean_whatever_they_are() -> None:
    rng = np.random.default_rng(1)
    bounds = (*synthetic.PROMPT_BOUNDS, math.inf)
    for draw in (
        lambda: rng.lognormal(5, 1.2, 20_000), lambda: rng.exponential(900, 20_000),
        lambda: np.full(20_000, 512.0), lambda: rng.integers(1, 9, 20_000).astype(float),
        lambda: np.concatenate([np.full(9000, 30.0), rng.normal(4000, 50, 11_000)]),
    ):  # fmt: skip
        values = np.clip(np.rint(draw()), 1, 90_000)
        h = Histogram(bounds, tuple(float((values <= b).sum()) for b in bounds), float(values.sum()))
        found = learned_lengths(h)
        assert found.mean == pytest.approx(values.mean(), rel=2e-3)
        assert found.exact
        assert found.weights.sum() == pytest.approx(1)
        assert found.values.min() >= 1
        shares = [float(found.weights[found.values <= b].sum()) for b in bounds]
        assert shares == pytest.approx([b / h.count for b in h.below], abs=1e-9)


def test_lengths_above_the_last_bucket_are_said_to_be() -> None:
    found = learned_lengths(Histogram((10.0, math.inf), (5, 10), 150.0))
    assert found.above == 0.5
    assert found.values.max() <= 20
    assert fixed_length(3.25).mean == 3.25


def test_a_curve_gives_whole_requests_that_are_never_off_by_one() -> None:
    curve = Curve([0.013, None, 0.5, 0.0, 3.3] * 20, 10)
    counts = curve.counts()
    assert counts.sum() == round(curve.expected)
    assert counts[1] == 0
    sums = np.cumsum([(rate or 0) * 10 for rate in curve.rates])
    assert np.abs(np.cumsum(counts) - sums).max() <= 0.5 + 1e-9
    lengths = fixed_length(100)
    w = learned_workload(curve, lengths, lengths, 7)
    assert len(w) == counts.sum()
    assert (np.diff(w.arrival_seconds) >= 0).all()
    with pytest.raises(BadInput, match="no request"):
        learned_workload(Curve([None, 0.0], 10), lengths, lengths, 7)


def test_a_shared_prefix_gives_the_share_of_hits() -> None:
    lengths = fixed_length(1000)
    assert shared_for(lengths, 0.0) == 0
    assert shared_for(lengths, 0.3) == 300
    assert shared_for(lengths, 1.0) == 1000
