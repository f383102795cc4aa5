"""`levers` changes a deployment and nothing else: each row is what `fit` and `latency` say of the change."""

from __future__ import annotations

import inspect
import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest

import kvplan
from kvplan.cost import cache
from kvplan.errors import BadInput
from kvplan.faces.cli import main
from kvplan.facts import store
from kvplan.facts.accelerators import accelerators, find_accelerator
from kvplan.figure import bare
from kvplan.model.locate import load_model
from kvplan.serve.apart import Apart, Side, at_concurrency
from kvplan.verbs.deploy import with_kv_cache_dtype
from kvplan.verbs.described import described
from kvplan.verbs.lever_models import with_kv_heads, with_window
from kvplan.verbs.lever_ranks import next_bigger, next_smaller
from kvplan.verbs.lever_rows import COMPARED
from kvplan.verbs.levers import KINDS
from kvplan.verbs.size import stored_as
from kvplan.verbs.timing import clock_of, policy_of
from test_figure import assert_all_true, numbers_without_a_figure

CONTRACT = (
    "name", "change", "bytes_per_token", "kv_tokens", "max_concurrency", "ttft_seconds", "tpot_seconds",
    "output_tokens_per_second", "cost_per_million_output_tokens", "note",
)  # fmt: skip
GROUPED = ("llama-2-70b", "llama-3.1-8b", "qwen2.5-32b-instruct", "mistral-7b-v0.1", "gemma-3-27b")
DEPLOYED: tuple[dict[str, Any], ...] = (
    {"model": "llama-3.1-70b", "gpu": "h100", "tp": 4, "concurrency": 64},
    {"model": "deepseek-v3", "gpu": "h200", "tp": 8, "concurrency": 32},
    {"model": "deepseek-v3", "gpu": "h200", "tp": 8, "engine": "sglang", "rate": 2.0},
    {"model": "gpt-oss-120b", "gpu": "h100", "batch": 8},
    {"model": "gemma-3-27b", "gpu": "h100", "engine": "tensorrt-llm", "max_seq_len": 16384, "batch": 8},
    {"model": "qwen3-next-80b-a3b", "gpu": "h200", "tp": 2, "concurrency": 16},
    {"model": "llama-3.1-8b", "gpu": "rtx4090", "engine": "llama.cpp", "ctx_size": 16384, "parallel": 4,
     "concurrency": 4},
    {"model": "llama-3.1-8b", "gpu": "h100", "engine": "transformers", "max_length": 8192, "batch": 4},
    {"model": "falcon-7b", "gpu": "a100-80-sxm", "batch": 4, "prompt_tokens": 1024},
)  # fmt: skip
ODD: tuple[dict[str, Any], ...] = (
    {"model": "deepseek-v3.2", "gpu": "b200", "tp": 8, "concurrency": 16},
    {"model": "deepseek-v4-flash", "gpu": "h200", "tp": 4, "batch": 4},
    {"model": "nemotron-h-8b", "gpu": "h100"},
    {"model": "rwkv-4-7b-pile", "gpu": "h100", "max_model_len": 4096},
    {"model": "mamba-2.8b-hf", "gpu": "h100", "max_model_len": 4096},
    {"model": "gpt-oss-20b", "gpu": "mi300x", "engine": "sglang"},
    {"model": "gemma-3-27b", "gpu": "l4", "tp": 4, "rate": 0.2},
    {"model": "llama-3.1-8b", "gpu": "m4-max", "gpu_memory": "64GiB", "engine": "llama.cpp",
     "ctx_size": 8192},
    {"model": "llama-3.1-8b", "gpu": "h100", "engine_version": "0.6.3", "output_tokens": 1},
    {"model": "llama-3.1-8b", "gpu": "h100", "speculative_tokens": 4, "dp": 2, "concurrency": 3},
    {"model": "llama-3.1-8b", "gpu": "h100", "pp": 2, "shared_prefix_tokens": 1024, "prompt_tokens": 2000},
    {"model": "qwen3-30b-a3b", "gpu": "h100", "tp": 2, "dp": 2, "ep": 4, "concurrency": 200},
    {"model": "mixtral-8x7b", "gpu": "a100-80-sxm", "tp": 4, "engine": "tensorrt-llm", "prompt_tokens": 1},
    {"model": "whisper-large-v3", "gpu": "h100", "max_model_len": 448, "prompt_tokens": 8,
     "output_tokens": 64},
)  # fmt: skip


def answered(words: dict[str, Any]) -> Any:
    rest = {name: value for name, value in words.items() if name != "model"}
    return kvplan.levers(words["model"], **rest)


def names(words: dict[str, Any]) -> str:
    return " ".join(str(value) for value in words.values())


@pytest.fixture(scope="module")
def rows() -> dict[str, Any]:
    """Every deployment's answer, made once."""
    return {names(words): answered(words) for words in DEPLOYED}


def close(a: Any, b: Any) -> bool:
    if a is None or b is None or isinstance(a, bool):
        return a is b
    return math.isclose(a, b, rel_tol=1e-9)


def by_hand(words: dict[str, Any], change: dict[str, Any]) -> dict[str, Any] | None:
    """What `fit`, `latency` and the cache's formulas give for the change; None where it has no such words."""
    change = dict(change)
    model: Any = words["model"]
    for name, made in (("kv_heads", with_kv_heads), ("window_tokens", with_window)):
        if name in change:
            model = made(load_model(model), change.pop(name))
    if {"prefill_workers", "kv_offloading_size", "hicache_size", "host_cache_size"} & set(change):
        return None
    asked = {name: value for name, value in words.items() if name != "model"}
    if "engine" in change:  # its settings are at their defaults
        own = ("gpu", "tp", "batch", "concurrency", "rate", "prompt_tokens")
        asked = {name: value for name, value in asked.items() if name in own}
    asked |= change
    fits = set(inspect.signature(kvplan.fit).parameters)
    fits -= {"batch"} if asked.get("engine") != "transformers" else set()  # there it sizes the cache
    flags = {k: v for k, v in asked.items() if k not in inspect.signature(kvplan.latency).parameters}
    fit = kvplan.fit(model, **{k: v for k, v in asked.items() if k in fits or k in flags})
    found = {
        "bytes_per_token": cache.bytes_per_token(*architecture(model, asked), bare, after_windows=False),
        **{name: fit["memory"][name] for name in ("weight_bytes", "kv_pool_bytes")},
        **{name: fit["capacity"][name] for name in ("kv_tokens", "max_concurrency", "fits")},
    }
    if asked.get("dcp", 1) > 1:
        return found
    served = kvplan.latency(model, **asked)["serving"]
    return found | {
        name: served[name] for name in ("ttft_seconds", "tpot_seconds", "output_tokens_per_second")
    }


def architecture(model: Any, asked: dict[str, Any]) -> tuple[Any, Any]:
    known = {k: asked[k] for k in ("kv_cache_dtype",) if k in asked}
    loaded = model if not isinstance(model, str) else load_model(model)
    return loaded, stored_as(loaded, known.get("kv_cache_dtype", "auto"), asked.get("tp", 1))


def figure(row: dict[str, Any], name: str) -> Any:
    return row["memory"][name] if name in ("weight_bytes", "kv_pool_bytes") else row[name]


@pytest.mark.parametrize("words", DEPLOYED, ids=names)
def test_every_lever_gives_what_fit_and_latency_give_with_the_change_by_hand(
    words: dict[str, Any], rows: dict[str, Any]
) -> None:
    answer, checked = rows[names(words)], 0
    for row in [answer["baseline"], *answer["levers"]]:
        if row["effect"] not in ("baseline", "changed"):
            continue
        expected = by_hand(words, row["change"])
        if expected is None:
            continue
        wrong = {name: (figure(row, name), value) for name, value in expected.items()
                 if not close(figure(row, name), value)}  # fmt: skip
        assert wrong == {}, row["name"]
        checked += 1
    assert checked >= 8


@pytest.mark.parametrize("words", DEPLOYED, ids=names)
def test_what_is_said_to_have_no_effect_has_none(words: dict[str, Any], rows: dict[str, Any]) -> None:
    answer = rows[names(words)]
    base = answer["baseline"]
    unchanged = [row for row in answer["levers"] if row["effect"] == "none"]
    assert unchanged
    for row in unchanged:
        assert row["note"].startswith("no effect, because ")
        assert "nothing that it changes" not in row["note"]
        apart = store.toml("levers.toml")[row["kind"]].get("not_judged", ())
        expected = by_hand(words, row["change"]) or {}
        for name, value in expected.items():
            if name not in apart:
                assert close(value, figure(base, name)), (row["name"], name)


def test_the_rows_have_the_contract_keys_and_more(rows: dict[str, Any]) -> None:
    for answer in rows.values():
        for row in [answer["baseline"], *answer["levers"]]:
            assert set(CONTRACT) <= set(row)
            assert set(row) >= {"memory", "effect", "costs_you", "source", "ratios", "accelerators", "fits"}
        json.dumps(answer, allow_nan=False)


def test_llama_2_70b_an_8_bit_cache_exactly_halves_and_shared_heads_are_exactly_an_eighth() -> None:
    answer = kvplan.levers("llama-2-70b", gpu="h100", prompt_tokens=3840, output_tokens=256, batch=64)
    base = answer["baseline"]
    by_name = {row["name"]: row for row in answer["levers"]}
    fp8, mha = by_name["fp8 KV cache"], by_name["64 KV heads (MHA)"]
    assert (base["bytes_per_token"], fp8["bytes_per_token"]) == (327_680, 163_840)
    assert fp8["ratios"]["bytes_per_token"] == 0.5
    assert mha["bytes_per_token"] == 8 * base["bytes_per_token"]
    assert mha["bytes_per_token"] == 16 * fp8["bytes_per_token"]
    held = [row["load_cache_bytes"] for row in (mha, base, fp8)]
    assert held == [640 * 2**30, 80 * 2**30, 40 * 2**30]


@pytest.mark.parametrize("model", GROUPED)
def test_levers_on_the_cache_multiply_and_do_not_substitute(model: str) -> None:
    """Head sharing, precision, context and batch: all together are the product of each alone."""
    loaded = load_model(model)
    heads = max(a.kv_heads for layer in loaded.layers for a in layer.attentions)
    wide, narrow = stored_as(loaded, "auto", 1), stored_as(loaded, "fp8", 1)
    queries = max(a.query_heads for layer in loaded.layers for a in layer.attentions)
    fewer = next(n for n in range(heads // 2, 0, -1) if queries % n == 0)
    shared = with_kv_heads(loaded, fewer)

    def held(model: Any, stored: Any, tokens: int, batch: int) -> int:
        return int(batch * cache.bytes_per_sequence(model, stored, tokens, bare))

    sides = ((loaded, shared), (wide, narrow), (1024, 512), (8, 2))
    whole = held(loaded, wide, 1024, 8)
    alone = [held(*(pair[i == j] for i, pair in enumerate(sides))) / whole for j in range(4)]
    for chosen in itertools.product((0, 1), repeat=4):
        found = held(*(pair[c] for pair, c in zip(sides, chosen, strict=True))) / whole
        expected = math.prod(a for a, c in zip(alone, chosen, strict=True) if c)
        assert found == pytest.approx(expected, rel=1e-12), chosen
    assert alone[0] == pytest.approx(fewer / heads)
    assert alone[1:] == [0.5, 0.5, 0.25]


@pytest.mark.parametrize("model", GROUPED)
def test_a_kv_head_for_every_query_head_is_what_size_calls_mha(model: str) -> None:
    loaded = load_model(model)
    every = with_kv_heads(loaded, None)
    stored = stored_as(loaded, "auto", 1)
    found = cache.bytes_per_token(every, stored, bare, after_windows=False)
    assert found == kvplan.size(model)["kv"]["mha_bytes_per_token"]
    assert with_kv_heads(every, None) is every
    grown = every.parameters - loaded.parameters
    heads = [(a, layer) for layer in loaded.layers for a in layer.attentions]
    more = sum((a.query_heads - a.kv_heads) * (a.key_width + a.value_width) * (loaded.hidden + bias_of(layer))
               for a, layer in heads)  # fmt: skip
    assert grown == more


def bias_of(layer: Any) -> int:
    return int(next(w.bias for w in layer.weights if w.name == "k_proj"))


def test_fewer_heads_and_windows_leave_alone_what_has_neither() -> None:
    latent, windowed = load_model("deepseek-v3"), load_model("mistral-7b-v0.1")
    assert with_kv_heads(latent, 1) is latent
    assert with_window(latent, 4096) is latent
    assert with_window(windowed, 1024) is windowed
    full = load_model("llama-3.1-8b")
    held = cache.bytes_per_sequence(with_window(full, 4096), stored_as(full, "auto", 1), 100_000, bare)
    assert held == 4096 * 131_072


@pytest.mark.parametrize("words", ODD, ids=names)
def test_odd_models_and_loads_get_every_row(words: dict[str, Any]) -> None:
    answer = answered(words)
    base, found = answer["baseline"], answer["levers"]
    assert {row["kind"] for row in found} >= set(KINDS) - {
        "drafts", "undrafted", "prefix", "tp_as_replicas", "tp_as_stages", "max_model_len"
    }  # fmt: skip
    for row in found:
        assert row["effect"] in ("changed", "none", "refused")
        assert len(row["name"]) <= 30, row["name"]
        if row["effect"] == "refused":
            assert row["note"]
            assert row["kv_tokens"] is None
            assert "\n" not in row["note"]
        else:
            assert set(row["ratios"]) == set(COMPARED)
        if row["effect"] == "none":
            assert row["kv_tokens"] == base["kv_tokens"] or row["kind"] == "max_model_len"
    json.dumps(answer, allow_nan=False)


def test_what_helps_what_binds_stands_first_then_what_changes_nothing_then_what_is_refused(
    rows: dict[str, Any],
) -> None:
    places = {"changed": 0, "none": 1, "refused": 2}
    for answer in rows.values():
        found = [places[row["effect"]] for row in answer["levers"]]
        assert found == sorted(found)
        gains = [row["gain"] for row in answer["levers"] if row["effect"] == "changed" and row["gain"]]
        assert answer["binds"]["figure"] != "fits"
        assert gains == sorted(gains, reverse=True)
        assert gains[0] > 1


def test_a_deployment_that_does_not_fit_says_which_levers_make_it_fit() -> None:
    answer = kvplan.levers("llama-3.1-405b", gpu="h100", tp=8, concurrency=32)
    assert answer["binds"]["figure"] == "fits"
    assert answer["baseline"]["fits"] is False
    assert "fp8 weights" in answer["makes_it_fit"]
    assert "fp8 KV cache" not in answer["makes_it_fit"]
    for row in answer["levers"]:
        fits = row["name"] in answer["makes_it_fit"]
        assert fits == bool(row["fits"] and row["output_tokens_per_second"])
    first = answer["levers"][0]
    assert first["name"] == answer["makes_it_fit"][0]
    assert kvplan.fit("llama-3.1-405b", gpu="h100", tp=8, **first["change"])["capacity"]["fits"]


def test_a_context_that_is_too_long_is_answered_with_the_longest_that_fits() -> None:
    answer = kvplan.levers("llama-3.1-8b", gpu="rtx4090")
    shorter = next(row for row in answer["levers"] if row["kind"] == "max_model_len")
    longest = kvplan.fit("llama-3.1-8b", gpu="rtx4090")["capacity"]["estimated_max_model_len"]
    assert shorter["change"] == {"max_model_len": longest}
    assert shorter["name"] in answer["makes_it_fit"]
    assert shorter["memory"] == answer["baseline"]["memory"]


def test_a_shorter_longest_sequence_frees_no_memory_in_vllm(rows: dict[str, Any]) -> None:
    answer = rows[names(DEPLOYED[0])]
    row = next(row for row in answer["levers"] if row["kind"] == "max_model_len")
    assert row["effect"] == "none"
    assert row["memory"] == answer["baseline"]["memory"]
    assert row["kv_tokens"] == answer["baseline"]["kv_tokens"]
    assert row["max_concurrency"] > answer["baseline"]["max_concurrency"]


def test_caches_on_the_host_run_no_more_at_once_and_are_fetched_sooner_than_computed(
    rows: dict[str, Any],
) -> None:
    for words in DEPLOYED[:3]:
        answer = rows[names(words)]
        base = answer["baseline"]
        row = next(row for row in answer["levers"] if row["kind"] == "host_cache")
        host = row["host"]
        assert row["running_at_once"] <= base["running_at_once"]
        assert row["kv_tokens"] == base["kv_tokens"]
        assert host["bytes"] == 2 * base["memory"]["kv_pool_bytes"]
        assert host["tokens"] == host["bytes"] // base["bytes_per_token"]
        assert 0 < host["fetch_seconds"] < host["recompute_seconds"]
        assert row["ttft_seconds"] < base["ttft_seconds"]


def test_fetching_takes_the_prefix_over_the_hosts_link() -> None:
    answer = kvplan.levers(
        "llama-3.1-8b", gpu="h100", concurrency=4, prefix_hit_rate=0.25, host_cache="100GB"
    )
    row = next(row for row in answer["levers"] if row["kind"] == "host_cache")
    assert row["host"]["found_tokens"] == 512
    assert row["host"]["bytes"] == 100e9
    assert row["host"]["fetch_seconds"] == pytest.approx(512 * 131_072 / (16 * 3.938e9))


def test_a_stated_hit_rate_is_that_share_of_the_prompt() -> None:
    words = {"gpu": "h100", "concurrency": 16, "prompt_tokens": 1000}
    answer = kvplan.levers("llama-3.1-8b", prefix_hit_rate=0.3, **words)
    row = next(row for row in answer["levers"] if row["kind"] == "prefix")
    assert row["change"] == {"shared_prefix_tokens": 300}
    assert row["name"] == "30% of each prompt cached"
    by_hand = kvplan.latency("llama-3.1-8b", shared_prefix_tokens=300, **words)["serving"]
    assert row["ttft_seconds"] == by_hand["ttft_seconds"]
    none = kvplan.levers("llama-3.1-8b", prefix_hit_rate=0, **words)
    assert next(row for row in none["levers"] if row["kind"] == "prefix")["effect"] == "none"


def test_prompts_apart_are_the_steady_state_of_both_sides(rows: dict[str, Any]) -> None:
    words = {"gpu": "h100", "tp": 4}
    row = next(r for r in rows[names(DEPLOYED[0])]["levers"] if r["kind"] == "apart")
    d, _ = described("llama-3.1-70b", words, {})
    from kvplan.verbs.asked import asked_of

    asked = asked_of(d, concurrency=64)
    clock, policy = clock_of(d), policy_of(d, asked.held("vllm"))
    side = Side(clock, policy)
    found = at_concurrency(Apart(side, side, clock.accelerator.link_bytes_per_second), asked.load(), 64)
    assert row["ttft_seconds"] == found.ttft_seconds
    assert row["accelerators"] == 8


def test_context_over_ranks_answers_memory_and_leaves_times_open() -> None:
    answer = kvplan.levers("deepseek-v3", gpu="h200", tp=8, concurrency=32)
    row = next(row for row in answer["levers"] if row["kind"] == "dcp")
    assert row["kv_tokens"] == kvplan.fit("deepseek-v3", gpu="h200", tp=8, dcp=8)["capacity"]["kv_tokens"]
    assert row["kv_tokens"] > 7 * answer["baseline"]["kv_tokens"]
    assert row["ttft_seconds"] is row["tpot_seconds"] is row["output_tokens_per_second"] is None
    assert "memory alone" in row["note"]


@pytest.mark.parametrize("engine", ["sglang", "tensorrt-llm"])
def test_groups_that_attend_apart_each_hold_attention_and_embedding(engine: str) -> None:
    words = {"gpu": "h100", "tp": 4, "engine": engine}
    model = load_model("qwen3-30b-a3b")
    together, apart = (
        kvplan.fit("qwen3-30b-a3b", attention_dp=n, **words)["memory"]["weight_bytes"] for n in (1, 4)
    )
    repeated = sum(w.parameters for x in model.layers for w in x.weights if w.part == "attention")
    repeated += sum(w.parameters for w in model.weights if w.part == "embedding")
    assert apart - together == pytest.approx(2 * repeated * 3 / 4, rel=1e-3)


def test_costs_are_the_hour_by_the_tokens_it_brings_and_unknown_stays_unknown() -> None:
    answer = kvplan.levers("llama-3.1-8b", gpu="h100", concurrency=16, price=["h100=2.5", "h200=4"])
    for row in [answer["baseline"], *answer["levers"]]:
        if row["effect"] == "refused" or row["output_tokens_per_second"] is None:
            assert row["cost_per_million_output_tokens"] is None
            continue
        each = 4 if row["change"].get("gpu") == "h200" else 2.5
        if row["change"].get("gpu") not in (None, "h200"):
            continue
        hour = each * row["accelerators"]
        assert row["cost_per_million_output_tokens"] == pytest.approx(
            hour / (row["output_tokens_per_second"] * 3600) * 1e6
        )
    unknown = kvplan.levers(
        "llama-3.1-8b", gpu="m4-max", gpu_memory="64GiB", engine="llama.cpp", ctx_size=8192
    )
    assert unknown["baseline"]["cost_per_million_output_tokens"] is None


def test_places_bind_where_users_wait_and_goals_where_they_are_missed() -> None:
    waiting = kvplan.levers("llama-3.1-8b", gpu="l4", max_model_len=8192, concurrency=200)
    assert waiting["binds"]["figure"] == "output_tokens_per_second"
    assert "sequences run at once" in waiting["binds"]["says"]
    for row in waiting["levers"]:
        if row["effect"] == "changed" and row["output_tokens_per_second"] and row["fits"] is not False:
            each = row["output_tokens_per_second"] / row["accelerators"]
            assert row["gain"] == pytest.approx(each / waiting["baseline"]["output_tokens_per_second"])
    missed = kvplan.levers("llama-3.1-8b", gpu="h100", concurrency=64, tpot="10ms", ttft="10s")
    assert missed["binds"]["figure"] == "goals"
    assert "TPOT takes" in missed["binds"]["says"]
    swamped = kvplan.levers("llama-3.1-8b", gpu="h100", rate=500)
    assert swamped["binds"]["figure"] == "output_tokens_per_second"


@pytest.mark.parametrize(
    ("card", "more", "less"),
    [("h100", "h200", "a100-80-sxm"), ("h200", "b200", "gh200-96"), ("mi300x", "mi325x", None),
     ("rtx4090", "rtx5090", "rtx3090"), ("m4-max", None, None)],
)  # fmt: skip
def test_the_next_accelerator_is_of_the_same_vendor(card: str, more: str | None, less: str | None) -> None:
    mine = find_accelerator(card)
    bigger, smaller = next_bigger(mine), next_smaller(mine)
    assert (bigger.key if bigger else None) == more
    assert less is None or (smaller is not None and smaller.key == less)


def test_a_bigger_accelerator_is_bigger_and_a_smaller_one_smaller() -> None:
    for mine in accelerators():
        bigger, smaller = next_bigger(mine), next_smaller(mine)
        for other in (bigger, smaller):
            assert other is None or (other.vendor == mine.vendor and other.key != mine.key)
        if bigger is not None:
            assert bigger.memory_bytes >= 1.25 * mine.memory_bytes
            assert bigger.bytes_per_second >= mine.bytes_per_second
        if smaller is not None:
            assert smaller.memory_bytes * smaller.bytes_per_second < mine.memory_bytes * mine.bytes_per_second


def test_every_kind_has_words_and_a_source() -> None:
    table = store.toml("levers.toml")
    for kind in KINDS:
        assert table[kind]["name"]
        assert table[kind]["costs"]
        assert table[kind]["source"]


def test_the_short_list_of_a_plan_is_rows_of_levers_that_help() -> None:
    words = {"gpu": "h100", "tp": 4, "concurrency": 64}
    every = {row["name"]: row for row in kvplan.levers("llama-3.1-70b", **words)["levers"]}
    short = kvplan.plan("llama-3.1-70b", **words)["levers"]
    assert {row["name"] for row in short} >= {"fp8 KV cache", "fp8 weights", "prefill and decode apart"}
    for row in short:
        full = every[row["name"]]
        assert row["effect"] == "changed"
        assert {name: full[name] for name in row if name != "gain"} == row


@pytest.mark.parametrize("words", DEPLOYED[:6], ids=names)
def test_the_baseline_explains_itself(words: dict[str, Any], rows: dict[str, Any]) -> None:
    answer = rows[names(words)]
    figures = answer.figures()
    assert sum(assert_all_true(figure) for figure in figures.values()) > 50
    assert numbers_without_a_figure({"baseline": answer["baseline"]}, figures) == set()
    text = answer.explain("cost_per_million_output_tokens")
    assert "usd_per_accelerator_hour" in text


def test_measured_figures_hold_where_the_lever_does_not_change_what_was_measured() -> None:
    words = {"gpu": "h100", "concurrency": 8, "weights_memory": "16GiB", "activation_memory": "2GiB"}
    answer = kvplan.levers("llama-3.1-8b", **words)
    by_name = {row["name"]: row for row in answer["levers"]}
    assert by_name["fp8 KV cache"]["memory"]["weight_bytes"] == 16 * 2**30
    assert by_name["fp8 weights"]["memory"]["weight_bytes"] < 10 * 2**30
    assert by_name["fp8 weights"]["memory"]["activation_bytes"] == 2 * 2**30
    assert by_name["tensor parallelism over 2"]["memory"]["weight_bytes"] < 10 * 2**30
    assert by_name["h200 instead"]["memory"]["weight_bytes"] == 16 * 2**30


def test_a_lever_leaves_the_deployment_that_it_was_given_as_it_was() -> None:
    d, _ = described("llama-3.1-8b", {"gpu": "h100"}, {})
    with_kv_cache_dtype(d, "fp8")
    assert d.stored.format.name == "bfloat16"
    kvplan.levers("llama-3.1-8b", gpu="h100")
    assert load_model("llama-3.1-8b") == d.model


def test_the_report_fits_a_hundred_columns(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["levers", "llama-3.1-70b", "--gpu", "h100", "--tp", "4", "--concurrency", "64"])
    out = capsys.readouterr().out
    told = out.split("rests on")[0]
    assert max(len(line.rstrip()) for line in told.splitlines()) <= 100
    order = ["as it is", "memory of one rank", "no effect", "not to be had here", "what they cost beside"]
    places = [told.index(word) for word in order]
    assert places == sorted(places)
    assert "arXiv 2305.13245" in told.replace("\n    ", " ")


def test_a_report_of_what_does_not_fit_names_what_makes_it_fit(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["levers", "llama-3.1-405b", "--gpu", "h100", "--tp", "8", "--check"])
    assert ended.value.code == 1
    assert "makes it fit: fp8 weights" in capsys.readouterr().out


def test_the_picture_and_the_document_come_from_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "levers.svg"
    with pytest.raises(SystemExit):
        main(["levers", "llama-3.1-8b", "--gpu", "h100", "--price", "h100=2", "--json", "--plot", str(path)])
    document = json.loads(capsys.readouterr().out)
    assert set(document) >= {"baseline", "levers", "binds"}
    drawn = path.read_text("utf-8")
    assert "fp8 KV cache" in drawn
    assert "sequences at once" in drawn


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "--gpu: missing"),
        (("--gpu", "cpu"), "--gpu: times need an accelerator"),
        (("--kv-cache-memory-bytes", "10GiB"), "--gpu: missing; levers are timed"),
        (("--gpu", "h100", "--prefix-hit-rate", "1.5"), "--prefix-hit-rate: 1.5 is not a share"),
        (("--gpu", "h100", "--prefix-hit-rate", "nan"), "--prefix-hit-rate: nan"),
        (("--gpu", "h100", "--host-cache", "lots"), "--host-cache: 'lots' is not a size"),
        (("--gpu", "h100", "--host-cache", "0"), "--host-cache: 0"),
        (("--gpu", "h100", "--price", "2.5"), "--price: '2.5' is not ACCELERATOR=DOLLARS"),
        (("--gpu", "h100", "--price", "nocard=2"), "--price: 'nocard'"),
        (("--gpu", "h100", "--batch", "2", "--rate", "3"), "--rate: --batch is given too"),
        (("--gpu", "h100", "--trace", "x"), "--trace: replays a trace in kvplan simulate"),
        (("--gpu", "h100", "--tp", "16", "--dcp", "2"), "--dcp: 2 ranks would share a context"),
        (("--gpu", "h100", "--plot", "x.gif"), "--plot: "),
    ],
)
def test_bad_words_are_one_line_and_status_2(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["levers", "llama-3.1-8b", *words])
    captured = capsys.readouterr()
    assert ended.value.code == 2
    assert said in captured.err
    assert captured.err.count("\n") == 1


def test_levers_of_a_pasted_command_are_those_of_its_words() -> None:
    words = {"gpu": "h100", "concurrency": 8}
    pasted = kvplan.levers(command="vllm serve llama-3.1-8b --max-num-seqs 64 --kv-cache-dtype fp8", **words)
    given = kvplan.levers("llama-3.1-8b", max_num_seqs=64, kv_cache_dtype="fp8", **words)
    assert pasted["levers"] == given["levers"]
    same = next(row for row in given["levers"] if row["name"] == "fp8 KV cache")
    assert same["note"] == "no effect, because the cache is stored so already"


def test_a_name_that_is_no_text_is_bad_input() -> None:
    with pytest.raises(BadInput, match="--gpu"):
        kvplan.levers("llama-3.1-8b", gpu=3)  # type: ignore[arg-type]


def test_what_does_not_fit_gains_nothing():
    tight = {"gpu": "rtx4090", "max_model_len": 8192, "gpu_memory_utilization": 0.8}
    answer = kvplan.levers("llama-3.1-8b", concurrency=4, prompt_tokens=512, **tight)
    assert answer["baseline"]["fits"] is True
    rows = [row for row in answer["levers"] if row["fits"] is False]
    assert [row["name"] for row in rows] == ["32 KV heads (MHA)"]
    assert rows[0]["tpot_seconds"] is not None
    assert rows[0]["gain"] is None
