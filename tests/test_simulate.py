"""`simulate` answers in the contract's words, draws by its seed, and turns bad words away in a line."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

import kvplan
from kvplan.errors import BadInput, KvplanError
from kvplan.faces.cli import main
from test_figure import assert_all_true

HERE = Path(__file__).parent
TRACES = HERE / "data" / "traces"
KINDS = ("ttft_seconds", "tpot_seconds", "e2e_seconds", "queue_seconds")
EIGHT: dict[str, Any] = {"model": "llama-3.1-8b", "gpu": "h100"}


def simulate(**words: Any) -> Any:
    return kvplan.simulate(**{**EIGHT, "requests": 60, "prompt_tokens": 400, "output_tokens": 40, **words})


def test_the_document_has_the_contracts_keys_and_nothing_infinite() -> None:
    answer = simulate(rate=5)
    wanted = {
        "requests", "completed", "rejected", "duration_seconds", "steps", "preemptions", "prefix_hit_rate",
        "kv_peak_fraction", "output_tokens_per_second", "goodput_requests_per_second", *KINDS,
    }  # fmt: skip
    assert wanted <= set(answer)
    assert json.loads(json.dumps(answer, allow_nan=False)) == answer
    for kind in KINDS:
        assert set(answer[kind]) == {"mean", "p50", "p90", "p99"}
        assert answer[kind]["p50"] <= answer[kind]["p90"] <= answer[kind]["p99"]
    assert answer["completed"] == answer["requests"] == 60
    assert answer["goodput_requests_per_second"] is None


def test_the_same_seed_gives_the_same_bytes_and_another_gives_others() -> None:
    first, again, other = (json.dumps(simulate(rate=5, seed=seed)) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_every_number_of_a_run_reads_back_to_itself() -> None:
    for figure in simulate(rate=5).figures().values():
        assert_all_true(figure)


@pytest.mark.parametrize(
    "words",
    [
        {"concurrency": 16, "think": "1s"},
        {"batch": 40},
        {"rate": 3, "arrivals": "gamma(4)"},
        {"rate": 3, "arrivals": "constant"},
        {"rate": 1, "arrivals": "ramp(20, 10)"},
        {"rate": 2, "requests": None, "duration": "20s"},
        {"rate": 2, "turns": "uniform(1, 5)", "think": "2s", "system_tokens": 300},
        {"rate": 4, "shared_prefix_tokens": 256},
        {"rate": 4, "prompt_tokens": "lognormal(500, 300)", "output_tokens": "uniform(1, 80)"},
        {"rate": 4, "speculative_tokens": 3, "acceptance": 0.7},
        {"rate": 4, "dp": 2, "routing": "least-loaded"},
        {"rate": 4, "dp": 2, "prefill_replicas": 1},
        {"rate": 4, "tp": 2, "pp": 2},
        {"rate": 4, "engine": "sglang"},
        {"rate": 4, "engine": "tensorrt-llm"},
        {"rate": 1, "engine": "llama.cpp", "ctx_size": 8192, "parallel": 4, "gpu": "rtx4090"},
        {"rate": 4, "model": "gemma-3-27b"},
        {"rate": 4, "model": "qwen3-next-80b-a3b", "gpu": "h200", "tp": 2},
        {"rate": 4, "model": "deepseek-v3", "gpu": "h200", "tp": 8},
    ],
    ids=str,
)
def test_every_kind_of_load_and_deployment_is_answered(words: dict[str, Any]) -> None:
    answer = simulate(**words)
    assert answer["completed"] == answer["requests"] > 0
    assert answer["ttft_seconds"]["mean"] > 0
    assert 0 < answer["kv_peak_fraction"] <= 1


def test_requests_that_cannot_be_held_are_rejected_and_nothing_is_answered() -> None:
    answer = simulate(rate=5, prompt_tokens=9000, max_model_len=8192)
    assert (answer["completed"], answer["rejected"]) == (0, 60)
    assert answer["ttft_seconds"] == dict.fromkeys(("mean", "p50", "p90", "p99"))
    assert any("rejected" in note for note in answer["notes"])


def test_prefixes_that_are_shared_are_found_and_shorten_first_tokens() -> None:
    words = {"rate": 5, "prompt_tokens": 4000}
    alone, shared = simulate(**words), simulate(**words, shared_prefix_tokens=3600)
    off = simulate(**words, shared_prefix_tokens=3600, enable_prefix_caching=False)
    assert shared["prefix_hit_rate"] > 0.8
    assert alone["prefix_hit_rate"] == off["prefix_hit_rate"] == 0
    assert shared["ttft_seconds"]["mean"] < 0.7 * alone["ttft_seconds"]["mean"]


def test_a_lightly_loaded_run_agrees_with_latency() -> None:
    run = simulate(rate=0.05, prompt_tokens=2000, output_tokens=200, requests=40)
    steady = kvplan.latency(**EIGHT, prompt_tokens=2000, output_tokens=200, batch=1)
    assert run["tpot_seconds"]["mean"] == pytest.approx(steady["serving"]["tpot_seconds"], rel=0.03)
    alone = steady["prefill"]["seconds"]
    assert alone < run["ttft_seconds"]["mean"] < alone + 0.06


def test_a_closed_loop_agrees_with_latency_about_throughput() -> None:
    words = {"prompt_tokens": 1000, "output_tokens": 200, "concurrency": 64}
    run = simulate(**words, requests=1280)
    steady = kvplan.latency(**EIGHT, **words)["serving"]
    assert run["output_tokens_per_second"] == pytest.approx(steady["output_tokens_per_second"], rel=0.12)
    assert run["tpot_seconds"]["mean"] == pytest.approx(steady["tpot_seconds"], rel=0.12)


def test_more_replicas_never_make_requests_slower() -> None:
    one, two = (simulate(rate=60, requests=600, dp=n, routing="least-loaded") for n in (1, 2))
    assert two["e2e_seconds"]["mean"] <= one["e2e_seconds"]["mean"]
    assert two["deployment"]["accelerators"] == 2


def test_means_lie_between_those_of_quicker_and_slower_steps() -> None:
    answer = simulate(rate=20, requests=300)
    assert answer["between"]["step_times"][0] < 1 < answer["between"]["step_times"][1]
    for kind in ("ttft_seconds", "tpot_seconds", "e2e_seconds"):
        low, high = answer["between"][kind]
        assert low <= answer[kind]["mean"] <= high


def test_goals_are_met_or_missed_and_count_goodput() -> None:
    loose = simulate(rate=5, ttft_p99="10s", tpot_p99="1s", e2e_p99=100.0)
    tight = simulate(rate=5, ttft_p99="1ms")
    assert loose["goals"]["met"]
    assert loose["goodput_requests_per_second"] == pytest.approx(60 / loose["duration_seconds"])
    assert not tight["goals"]["met"]
    assert tight["goodput_requests_per_second"] == 0


@pytest.mark.parametrize("ending", [".csv", ".jsonl", ".parquet"])
def test_a_row_a_request_is_written_and_can_be_replayed(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"requests{ending}"
    first = simulate(rate=5, requests_out=str(path))
    again = kvplan.simulate(**EIGHT, trace=str(path))
    assert again["requests"] == 60
    assert again["e2e_seconds"]["mean"] == pytest.approx(first["e2e_seconds"]["mean"], rel=1e-6)
    if ending == ".csv":
        rows = list(csv.DictReader(path.read_text("utf-8").splitlines()))
        assert len(rows) == 60
        assert {"ttft_seconds", "preemptions", "prefix_hit_tokens", "replica"} <= set(rows[0])
    assert list(tmp_path.iterdir()) == [path]


def test_a_run_calibrated_on_a_slower_one_is_as_slow(tmp_path: Path) -> None:
    path = tmp_path / "run.parquet"
    slow = {**EIGHT, "gpu": "l40s", "max_model_len": 8192}
    load = {"rate": 2, "requests": 80, "prompt_tokens": "uniform(100, 900)", "output_tokens": 60}
    measured = kvplan.simulate(**slow, **load, requests_out=str(path))
    wide = kvplan.simulate(**EIGHT, **load)
    found = kvplan.simulate(**EIGHT, **load, calibrate_from=str(path))
    assert wide["tpot_seconds"]["mean"] < 0.6 * measured["tpot_seconds"]["mean"]
    assert found["tpot_seconds"]["mean"] == pytest.approx(measured["tpot_seconds"]["mean"], rel=0.05)
    assert any("step times are those of run.parquet" in note for note in found["notes"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({}, "--rate: missing"),
        ({"rate": 0}, "--rate: 0 is not requests a second"),
        ({"rate": -1}, "--rate: -1 is not"),
        ({"rate": 1, "batch": 3}, "--batch is given too|--rate: --batch"),
        ({"rate": 1, "arrivals": "often"}, "--arrivals: 'often' is not known"),
        ({"rate": 1, "arrivals": "gamma"}, "--arrivals: 'gamma' takes other numbers"),
        ({"batch": 3, "arrivals": "poisson"}, "--arrivals: is for --rate"),
        ({"rate": 1, "think": "1s"}, "--think: is for --concurrency"),
        ({"rate": 1, "duration": "10s"}, "--duration: --requests is given too"),
        ({"rate": 1, "system_tokens": 5}, "--system-tokens"),
        ({"rate": 1, "prompt_tokens": "long"}, "--prompt-tokens"),
        ({"rate": 1, "prompt_tokens": 0}, "--prompt-tokens"),
        ({"rate": 1, "routing": "best"}, "--routing: 'best' is not known"),
        ({"rate": 1, "prefill_replicas": 0}, "--prefill-replicas"),
        ({"rate": 1, "ttft_p99": "soon"}, "--ttft-p99"),
        ({"rate": 1, "seed": -1}, "--seed"),
        ({"rate": 1, "requests_out": "rows.txt"}, "--requests-out: 'rows.txt' has none of the endings"),
        ({"rate": 1, "requests_out": "nowhere/rows.csv"}, "--requests-out"),
        ({"rate": 1, "rate_scale": 2, "trace": "x.csv"}, "prompt-tokens|--trace"),
        ({"trace": "nothing.csv", "prompt_tokens": None, "output_tokens": None}, "--trace: .*nothing.csv"),
        ({"rate": 1, "model": "llama-3.1-70b"}, "no room for a cache"),
        ({"rate": 1, "calibrate_from": "nothing.jsonl"}, "nothing.jsonl"),
        ({"rate": 1, "prefix_block_tokens": 512}, "--prefix-block-tokens: is for --trace"),
    ],
    ids=str,
)
def test_bad_words_are_one_line_that_names_them(words: dict[str, Any], said: str) -> None:
    with pytest.raises(KvplanError, match=said) as caught:
        simulate(**words)
    assert "\n" not in str(caught.value)


def test_a_bad_row_of_a_trace_is_named_by_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("arrival_seconds,prompt_tokens,output_tokens\n0,10,10\n1,ten,10\n", "utf-8")
    with pytest.raises(SystemExit) as ended:
        main(["simulate", "llama-3.1-8b", "--gpu", "h100", "--trace", str(path)])
    said = capsys.readouterr()
    assert ended.value.code == 2
    assert said.out == ""
    assert "line 3" in said.err
    assert said.err.count("\n") == 1


def run_cli(words: list[str]) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["simulate", "llama-3.1-8b", "--gpu", "h100", "--requests", "50", *words])
    return int(ended.value.code or 0)


def test_the_report_begins_with_what_users_see(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["--rate", "5"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("meta-llama/Meta-Llama-3.1-8B on 1 × h100-sxm")
    assert any(line.split()[:1] == ["TTFT"] for line in lines[:6])
    assert any("running" in line for line in lines)


def test_another_run_stands_beside_this_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["--rate", "5", "--json"]) == 0
    other = tmp_path / "other.json"
    other.write_text(capsys.readouterr().out, "utf-8")
    assert run_cli(["--rate", "10", "--against", str(other)]) == 0
    assert "the other" in capsys.readouterr().out
    other.write_text("[]", "utf-8")
    assert run_cli(["--rate", "10", "--against", str(other)]) == 2


def test_check_turns_a_missed_goal_into_exit_status_1() -> None:
    assert run_cli(["--rate", "5", "--ttft-p99", "10s", "--check"]) == 0
    assert run_cli(["--rate", "5", "--ttft-p99", "1ms", "--check"]) == 1
    assert run_cli(["--rate", "5", "--prompt-tokens", "200000", "--check"]) == 1


def test_a_run_is_drawn_over_time(tmp_path: Path) -> None:
    picture = tmp_path / "run.svg"
    assert run_cli(["--rate", "5", "--plot", str(picture)]) == 0
    text = picture.read_text("utf-8")
    assert all(word in text for word in ("running requests", "waiting requests", "share of the cache"))


def test_published_traces_are_read_as_they_are() -> None:
    for path in sorted(TRACES.iterdir()):
        if path.suffix in (".csv", ".jsonl") and "vidur" not in path.name.lower():
            try:
                answer = kvplan.simulate("llama-3.1-8b", gpu="h100", tp=4, trace=str(path), requests=100)
            except BadInput as error:
                pytest.fail(f"{path.name}: {error}")
            assert answer["requests"] <= 100


def test_requests_that_are_rejected_meet_no_goal(tmp_path: Path) -> None:
    rows = tmp_path / "long.csv"
    lengths = [9_000_000] * 9 + [100]
    lines = [f"{i},{n},10" for i, n in enumerate(lengths)]
    rows.write_text("arrival_seconds,prompt_tokens,output_tokens\n" + "\n".join(lines), "utf-8")
    answer = kvplan.simulate("llama-3.1-8b", gpu="h100", trace=str(rows), ttft_p99=10)
    assert answer["rejected"] == 9
    assert answer["goals"]["met"] is False


def test_an_engine_that_would_not_start_is_no_answer_to_check() -> None:
    answer = kvplan.simulate("llama-3.1-8b", gpu="rtx4090", batch=2)
    assert answer["deployment"]["starts"] is False
    assert any("would not start" in note for note in answer["notes"])
    with pytest.raises(SystemExit) as ended:
        main(["simulate", "llama-3.1-8b", "--gpu", "rtx4090", "--batch", "2", "--check"])
    assert ended.value.code == 1
    shorter = kvplan.simulate("llama-3.1-8b", gpu="rtx4090", batch=2, max_model_len=8192)
    assert shorter["deployment"]["starts"] is True


def test_what_lies_with_the_host_is_said_not_to_be_timed() -> None:
    words: dict[str, Any] = {"gpu": "rtx4090", "engine": "llama.cpp", "ctx_size": 8192, "batch": 1}
    for verb in (kvplan.simulate, kvplan.latency):
        assert any("--n-gpu-layers" in n for n in verb("llama-3.1-8b", **words, n_gpu_layers=5)["notes"])
        assert not any("--n-gpu-layers" in n for n in verb("llama-3.1-8b", **words)["notes"])


def test_a_run_that_no_step_times_meet_is_no_calibration() -> None:
    path = str(Path(__file__).parent / "data" / "runs" / "rtx4090-llama-3.1-8b.requests.jsonl")
    with pytest.raises(BadInput, match="no step times make this deployment meet"):
        kvplan.simulate("llama-3.1-8b", gpu="h100", trace=path, calibrate_from=path)


def test_another_run_stands_beside_this_one_in_the_document_too(tmp_path: Path, capsys: Any) -> None:
    kept = tmp_path / "calm.json"
    kept.write_text(json.dumps(kvplan.simulate("llama-3.1-8b", gpu="h100", rate=2, requests=20)), "utf-8")
    with pytest.raises(SystemExit) as ended:
        main(["simulate", "llama-3.1-8b", "--gpu", "h100", "--batch", "4", "--json", "--against", str(kept)])
    assert ended.value.code == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["against"]}
    assert rows["TTFT, mean"]["a"] == json.loads(kept.read_text("utf-8"))["ttft_seconds"]["mean"]


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ({"engine": "llama.cpp", "ctx_size": 4096, "prefill_replicas": 1, "batch": 2}, "--prefill-replicas"),
    ],
)
def test_words_that_contradict_one_another_are_refused(words: dict[str, Any], what: str) -> None:
    with pytest.raises(BadInput, match=what):
        kvplan.simulate("llama-3.1-8b", gpu="h100", **words)
