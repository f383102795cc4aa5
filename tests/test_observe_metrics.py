"""Metrics pages: every engine's names, old and new, several engines at once, and pages that mean no good."""

from __future__ import annotations

import math
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvplan.facts import store
from kvplan.observe.histogram import Histogram, added, histogram_of
from kvplan.observe.metrics import ENGINES, FACTS, Reading, readings_of
from kvplan.observe.traffic import traffic_of
from served_pages import PAGES, text_of

STORED = sorted(path.stem for path in (PAGES / "vllm").glob("*.metrics"))


def one(text: str) -> Reading:
    found, _ = readings_of(text)
    assert len(found) == 1
    return found[0]


def test_every_engine_has_its_names_in_the_facts() -> None:
    table = store.toml(FACTS)
    for engine in ENGINES:
        assert table[engine]["prefixes"]
        assert table[engine]["source"]
        assert table[engine]["gauges"]["running"]


def test_a_page_of_vllm_gives_its_counts_and_histograms() -> None:
    r = one(text_of((PAGES / "vllm" / "vllm_llama_pressure.metrics").read_text("utf-8")))
    assert (r.engine, r.model, r.replicas) == ("vllm", "m", 1)
    assert r.counters["preemptions"] == 6
    assert r.histograms["prompt_tokens"].mean == 600
    assert r.histograms["output_tokens"].mean == 300
    assert r.histograms["ttft_seconds"].count == 16
    assert r.infos["cache"][0]["num_gpu_blocks"] == "40"  # a text, as all labels are
    traffic = traffic_of(r)
    assert traffic.requests == 16
    assert traffic.batch == pytest.approx(4800 / 902)


@pytest.mark.parametrize("name", STORED)
def test_every_stored_page_is_read_without_a_line_left_out(name: str) -> None:
    found, read = readings_of(text_of((PAGES / "vllm" / f"{name}.metrics").read_text("utf-8")))
    assert [r.engine for r in found] == ["vllm"]
    assert read.refused == 0
    assert not read.cut


def test_names_of_vllms_first_engine_are_read_too() -> None:
    r = one(
        'vllm:gpu_cache_usage_perc{model_name="m"} 0.87\n'
        'vllm:num_requests_running{model_name="m"} 5.0\n'
        'vllm:num_requests_waiting{model_name="m"} 2.0\n'
        'vllm:gpu_prefix_cache_hit_rate{model_name="m"} 0.45\n'
        'vllm:num_preemptions_total{model_name="m"} 10.0\n'
        'vllm:time_per_output_token_seconds_bucket{le="0.05",model_name="m"} 20\n'
        'vllm:time_per_output_token_seconds_bucket{le="+Inf",model_name="m"} 20\n'
        'vllm:time_per_output_token_seconds_sum{model_name="m"} 0.5\n'
        'vllm:cache_config_info{block_size="16",num_gpu_blocks="2048",cache_dtype="auto"} 1.0\n'
    )
    assert r.gauges == {"usage": 0.87, "running": 5, "waiting": 2, "prefix_hit_rate": 0.45}
    assert r.prefix_hit_rate == 0.45
    assert traffic_of(r).mean("tpot_seconds") == 0.025
    assert r.infos["cache"][0]["block_size"] == "16"


def test_the_newest_name_wins_where_a_page_has_both() -> None:
    r = one("vllm:gpu_cache_usage_perc 0.1\nvllm:kv_cache_usage_perc 0.2\n")
    assert r.gauges["usage"] == 0.2


def test_engines_of_one_server_are_added_up_and_the_fullest_counts() -> None:
    lines = [
        f'vllm:num_requests_running{{engine="{i}",model_name="m"}} {i + 1}\n'
        f'vllm:kv_cache_usage_perc{{engine="{i}",model_name="m"}} 0.{i + 1}\n'
        f'vllm:request_success_total{{engine="{i}",model_name="m",finished_reason="stop"}} 10\n'
        f'vllm:request_success_total{{engine="{i}",model_name="m",finished_reason="length"}} 1\n'
        f'vllm:request_prompt_tokens_bucket{{engine="{i}",model_name="m",le="10.0"}} 4\n'
        f'vllm:request_prompt_tokens_bucket{{engine="{i}",model_name="m",le="+Inf"}} 11\n'
        f'vllm:request_prompt_tokens_sum{{engine="{i}",model_name="m"}} 110\n'
        for i in range(4)
    ]
    r = one("".join(lines))
    assert r.replicas == 4
    assert r.gauges == {"running": 10, "usage": 0.4}
    assert r.counters["requests"] == 44
    assert (r.histograms["prompt_tokens"].count, r.histograms["prompt_tokens"].mean) == (44, 10)


def test_ranks_of_sglang_that_repeat_one_another_count_once_and_priorities_are_no_others() -> None:
    lines = [
        f'sglang:num_running_reqs{{model_name="m",tp_rank="{t}",dp_rank="{d}",priority="{p}"}} 3\n'
        for t in range(2)
        for d in range(2)
        for p in ("", "1")
    ]
    lines += [f'sglang:max_total_num_tokens{{model_name="m",tp_rank="{t}"}} 5000\n' for t in range(2)]
    lines += ['sglang:prompt_tokens_total{model_name="m",is_streaming="true"} 300\n']
    lines += ['sglang:prompt_tokens_total{model_name="m",is_streaming="false"} 100\n']
    lines += ['sglang:cached_tokens_total{model_name="m",cache_source="device"} 100\n']
    r = one("".join(lines))
    assert r.gauges == {"running": 6, "kv_tokens": 5000}
    assert r.counters["prompt_tokens"] == 400
    assert r.prefix_hit_rate == 0.25


def test_tensorrt_llm_and_llama_server_are_read() -> None:
    r = one(
        'trtllm_kv_cache_max_blocks{model_name="x"} 100\n'
        'trtllm_kv_cache_tokens_per_block{model_name="x"} 32\n'
    )
    assert (r.engine, r.gauges) == ("tensorrt-llm", {"num_blocks": 100, "block_tokens": 32})
    page = (PAGES / "llama_cpp" / "tiny_llama_par2.metrics").read_text("utf-8")
    r = one(page)
    assert r.engine == "llama.cpp"
    assert traffic_of(r).requests is None  # it counts none
    assert r.counters["output_tokens"] > 0


def test_several_models_on_a_page_are_readings_of_their_own() -> None:
    found, _ = readings_of(
        'vllm:num_requests_running{model_name="a"} 1\nvllm:num_requests_running{model_name="b"} 2\n'
        'vllm:cache_config_info{num_gpu_blocks="7"} 1\n'
    )
    assert {r.model: r.gauges["running"] for r in found} == {"a": 1, "b": 2}
    assert all(r.infos["cache"][0]["num_gpu_blocks"] == "7" for r in found)


def test_what_was_counted_between_two_readings_and_after_a_restart() -> None:
    def page(n: int) -> Reading:
        return one(
            f'vllm:request_success_total {n}\nvllm:request_prompt_tokens_bucket{{le="10"}} {n}\n'
            f'vllm:request_prompt_tokens_bucket{{le="+Inf"}} {n}\nvllm:request_prompt_tokens_sum {5 * n}\n'
        )

    since = page(30).since(page(10))
    assert since.counters["requests"] == 20
    assert (since.histograms["prompt_tokens"].count, since.histograms["prompt_tokens"].mean) == (20, 5)
    assert page(4).since(page(10)).counters["requests"] == 4


HOSTILE = [
    'vllm:num_requests_running{a="',
    "vllm:num_requests_running{} }{ 1",
    "vllm:num_requests_running",
    "vllm:num_requests_running 1e999",
    "vllm:num_requests_running NaN",
    "vllm:num_requests_running -Inf",
    'vllm:num_requests_running{x="\\\\\\\\\\"} 1',
    "vllm:num_requests_running" + "{" * 5000,
    "vllm:num_requests_running{" + ",".join(f'l{i}="v"' for i in range(100_000)) + "} 1",
    'vllm:request_prompt_tokens_bucket{le="nonsense"} 5',
    'vllm:request_prompt_tokens_bucket{le="1.0"} -5',
    'vllm:request_prompt_tokens_bucket{le="NaN"} 5',
    "vllm:request_prompt_tokens_sum NaN",
    "vllm:request_prompt_tokens_count -3",
    "# TYPE vllm:num_requests_running histogram",
    "# HELP " + "x" * 100_000,
    "vllm:nothing_that_is_known 5",
    "vllm:num_requests_running\x00 5",
    'vllm:num_requests_running{é="\u2028"} 5',
    '__name__{__name__="vllm:num_requests_running"} 5',
    "a" * 1_000_000,
]


@pytest.mark.parametrize("line", HOSTILE, ids=range(len(HOSTILE)))
def test_a_line_that_is_no_metric_takes_no_other_with_it(line: str) -> None:
    begun = time.monotonic()
    r = one(f"{line}\nvllm:kv_cache_usage_perc 0.5\n{line}\n")
    assert time.monotonic() - begun < 2
    assert r.gauges["usage"] == 0.5
    assert all(math.isfinite(value) for value in r.gauges.values())
    for h in r.histograms.values():
        assert all(b >= a for a, b in zip(h.below, h.below[1:], strict=False))


def test_a_page_of_a_million_series_is_cut_off_in_time() -> None:
    text = "".join(f'vllm:num_requests_running{{a="{i}"}} 1\n' for i in range(300_000))
    begun = time.monotonic()
    found, read = readings_of(text)
    assert time.monotonic() - begun < 25
    assert read.cut
    assert len(read.found) <= 100_000
    assert found[0].gauges["running"] == len(read.found)


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=200))
def test_any_text_is_read_without_an_error(text: str) -> None:
    readings_of(f"vllm:num_requests_running{text}\n{text}")


def test_quantiles_are_those_of_prometheus() -> None:
    h = Histogram((10.0, 20.0, 50.0, math.inf), (10, 30, 40, 40), 700)
    assert (h.quantile(0.5), h.quantile(0.25), h.quantile(0.9)) == (15, 10, 38)
    assert h.mean == 17.5
    assert h.bucket_of(0.9) == (20, 50)
    assert Histogram((10.0, math.inf), (10, 20)).quantile(0.99) == 10  # no more is known
    assert Histogram((10.0, math.inf), (10, 20)).above == 0.5
    assert Histogram((1.0, math.inf), (0, 0)).quantile(0.5) is None


def test_histograms_that_contradict_themselves_are_put_right_or_left_out() -> None:
    assert histogram_of({}) is None
    assert histogram_of({math.nan: 3}) is None
    falling = histogram_of({1.0: 10, 2.0: 5, math.inf: 7}, -5.0)
    assert falling is not None
    assert falling.below == (10, 10, 10)
    assert falling.sum is None
    assert added([]) is None
    whole = added([Histogram((1.0, math.inf), (1, 2), 3), Histogram((1.0, math.inf), (1, 1), 1)])
    assert whole == Histogram((1.0, math.inf), (2, 3), 4)
