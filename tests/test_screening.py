"""Families are screened as `latency` and `fit` answer by hand, and are rejected for true reasons."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest

import kvplan
from kvplan.advise.families import Family, Space, families
from kvplan.advise.goals import Goals
from kvplan.facts.accelerators import find_accelerator
from kvplan.facts.runs_on import method_of, why_not
from kvplan.serve.load import Load
from kvplan.verbs.given import given_model
from kvplan.verbs.recommend import _nodes
from kvplan.verbs.screening import Candidate, Screened, Setting, Want, built, screened

EIGHT = given_model("llama-3.1-8b")
RATE, PROMPT, OUTPUT = 12.0, 800, 120
GOALS = Goals(1.0, 0.045)


def want(**words: Any) -> Want:
    given = {"mode": "rate", "amount": RATE, "load": Load(PROMPT, OUTPUT), "longest": PROMPT + OUTPUT}
    return Want(**{**given, "goals": GOALS, "most": 16, "flags": {}, "versions": {}, **words})


def of(family: Family, model: Any = EIGHT, **words: Any) -> Screened:
    return screened(model, family, want(**words))


def steady(c: Candidate, **load: Any) -> Any:
    """What `latency` says of one replica of a candidate."""
    f = c.family
    flags = {"max_num_batched_tokens": c.setting.budget} if c.setting.budget else {}
    words = {**load, **flags, "prompt_tokens": PROMPT, "output_tokens": OUTPUT}
    return kvplan.latency(EIGHT, gpu=f.accelerator, tp=f.tp, pp=f.pp, **words)["serving"]


@pytest.mark.parametrize("family", [Family("h100-sxm", "vllm"), Family("l40s", "vllm", tp=2, pp=2)], ids=str)
def test_times_are_those_of_latency_at_a_replicas_share_of_the_rate(family: Family) -> None:
    found = of(family)
    assert found.able
    for c in found.able:
        alone = steady(c, rate=RATE / c.replicas)
        assert c.ttft_seconds == pytest.approx(alone["ttft_seconds"], rel=1e-6)
        assert c.tpot_seconds == pytest.approx(alone["tpot_seconds"], rel=1e-6)
        assert c.output_tokens_per_second == pytest.approx(RATE * OUTPUT)


@pytest.mark.parametrize(
    ("family", "words"),
    [
        (Family("h200", "vllm", dp=8, ep=8), {"dp": 8, "ep": 8}),
        (Family("h200", "vllm", tp=2, dp=4, ep=8), {"tp": 2, "dp": 4, "ep": 8}),
        (Family("h200", "vllm", tp=8, ep=8), {"tp": 8, "ep": 8}),
        (Family("h200", "sglang", tp=8, ep=8, attention_dp=8), {"tp": 8, "ep": 8, "attention_dp": 8}),
        (
            Family("h200", "tensorrt-llm", tp=8, ep=8, attention_dp=8),
            {"tp": 8, "ep": 8, "enable_attention_dp": True},
        ),
        (Family("h100-sxm", "vllm", dp=16, ep=16), {"dp": 16, "ep": 16}),
        (Family("h100-sxm", "sglang", tp=16), {"tp": 16}),
    ],
    ids=lambda x: x.name if isinstance(x, Family) else "",
)
def test_experts_and_attention_are_dealt_as_latency_deals_them(family: Family, words: dict[str, Any]) -> None:
    mixture = given_model("deepseek-v3")
    load: dict[str, Any] = {
        "amount": 2.0,
        "load": Load(1500, 300),
        "longest": 1800,
        "goals": Goals(60.0, 2.0),
    }
    found = of(family, mixture, **load)
    c = next(c for c in found.able if not c.setting.changed)
    assert c.accelerators == family.ranks * c.replicas
    run = kvplan.latency(
        mixture, gpu=family.accelerator, engine=family.engine, rate=2.0 / c.replicas, prompt_tokens=1500,
        output_tokens=300, **words,
    )["serving"]  # fmt: skip
    assert c.ttft_seconds == pytest.approx(run["ttft_seconds"], rel=1e-6)
    assert c.tpot_seconds == pytest.approx(run["tpot_seconds"], rel=1e-6)


def test_users_are_shared_among_replicas() -> None:
    for c in of(Family("l40s", "vllm"), mode="concurrency", amount=48.0).able:
        alone = steady(c, concurrency=48 // c.replicas)
        assert c.e2e_seconds == pytest.approx(alone["e2e_seconds"], rel=0.05)


def test_the_fewest_replicas_are_found_for_each_setting() -> None:
    for c in of(Family("l40s", "vllm")).able:
        assert GOALS.met(c.times())
        fewer = steady(c, rate=RATE / (c.replicas - 1)) if c.replicas > 1 else {"ttft_seconds": None}
        late = fewer["ttft_seconds"] is None
        assert late or not GOALS.met({k: fewer[k] for k in ("ttft_seconds", "tpot_seconds")})


def test_fewer_than_the_least_are_overrun() -> None:
    found = of(Family("l4", "vllm"), goals=Goals(100.0, 1.0), amount=20.0)
    c = found.able[0]
    assert c.least > 1
    assert steady(c, rate=20.0 / (c.least - 1))["ttft_seconds"] is None
    assert steady(c, rate=20.0 / c.least)["ttft_seconds"] is not None


def test_a_curve_falls_with_every_replica_on_it() -> None:
    curve = of(Family("l40s", "vllm"), most=64).curve
    assert len(curve) > 2
    assert [c.replicas for c in curve] == sorted({c.replicas for c in curve})
    assert all(b.e2e_seconds < a.e2e_seconds for a, b in itertools.pairwise(curve))


def test_what_does_not_fit_does_not_fit_in_fit_either() -> None:
    big = given_model("llama-3.1-70b")
    found = of(Family("l40s", "vllm", tp=2), big)
    assert not found.fits
    assert re.fullmatch(r"does not fit: .* a rank are missing", found.reason)
    assert kvplan.fit(big, gpu="l40s", tp=2)["memory"]["headroom_bytes"] < 0
    narrow = of(Family("h100-sxm", "vllm", tp=2), big, longest=60_000)
    assert re.fullmatch(r"does not fit: .* of cache a rank hold no request of 60,000 tokens", narrow.reason)
    assert kvplan.fit(big, gpu="h100", tp=2, max_model_len=60_000)["capacity"]["fits"] is False


def test_a_context_that_does_not_fit_is_shortened_to_one_that_does_and_no_further() -> None:
    """By the least pool that may be left, so that the engine starts; never below the longest request."""
    d = built(EIGHT, Family("rtx4090", "vllm"), want(longest=20_000))
    length = d.setup.flags["max_model_len"]
    assert kvplan.fit(EIGHT, gpu="rtx4090")["capacity"]["fits"] is False
    least = kvplan.fit(EIGHT, gpu="rtx4090")["memory"]["kv_pool_low_bytes"]
    assert kvplan.fit(EIGHT, kv_cache_memory_bytes=least, max_model_len=length)["capacity"]["fits"]
    assert not kvplan.fit(EIGHT, kv_cache_memory_bytes=least, max_model_len=length + 256)["capacity"]["fits"]
    tight = built(EIGHT, Family("rtx4090", "vllm"), want(longest=length + 100))
    assert tight.setup.flags["max_model_len"] == length + 256
    assert "max_model_len" not in built(EIGHT, Family("h100-sxm", "vllm"), want()).setup.flags


def test_what_is_overrun_is_overrun_in_latency() -> None:
    found = of(Family("l4", "vllm"), most=1, amount=40.0)
    assert found.reason == "1 accelerator overrun by the load: requests queue without end"
    alone = kvplan.latency(EIGHT, gpu="l4", rate=40, prompt_tokens=PROMPT, output_tokens=OUTPUT)
    assert alone["serving"]["ttft_seconds"] is None


def test_a_sequence_longer_than_the_model_takes_is_refused() -> None:
    for engine in ("vllm", "sglang", "tensorrt-llm", "llama.cpp"):
        found = of(Family("h200", engine), longest=200_000)
        assert found.reason == "a sequence ends at 131,072 tokens and the longest request has 200,000"


def test_heads_that_do_not_divide_are_refused_as_the_engine_refuses_them() -> None:
    found = of(Family("h100-sxm", "vllm", tp=3))
    assert not found.fits
    assert "3" in found.reason


@pytest.mark.parametrize(
    ("engine", "accelerator", "named", "said"),
    [
        ("tensorrt-llm", "mi300x", "", "tensorrt-llm runs on nvidia, not on MI300X"),
        ("tensorrt-llm", "t4", "", "tensorrt-llm does not run on T4"),
        ("tensorrt-llm", "a100-80-sxm", "fp8", "tensorrt-llm loads no fp8 weights on A100"),
        ("tensorrt-llm", "h100-sxm", "nvfp4", "tensorrt-llm loads no nvfp4 weights on H100"),
        ("tensorrt-llm", "b200", "nvfp4", ""),
        ("vllm", "v100-sxm2-32", "", "vllm does not run on V100"),
        ("vllm", "mi300x", "awq", "vllm loads no awq weights on MI300X"),
        ("vllm", "mi300x", "fp8", ""),
        ("vllm", "mi250x", "fp8", "vllm loads no fp8 weights on MI250X"),
        ("vllm", "a100-80-sxm", "fp8", ""),
        ("vllm", "tpu-v6e", "", ""),
        ("sglang", "rx7900xtx", "", "sglang does not run on"),
        ("sglang", "inf2", "", "sglang runs on"),
        ("vllm", "h100-sxm", "q4_k_m", "q4_k_m is a type of GGUF files, which llama.cpp serves, not vllm"),
        ("llama.cpp", "h100-sxm", "awq", "llama.cpp reads GGUF files; name one of their types"),
        ("llama.cpp", "m3-max", "q4_k_m", ""),
        ("transformers", "inf2", "", ""),
    ],
)
def test_engines_run_on_what_they_run_on(engine: str, accelerator: str, named: str, said: str) -> None:
    found = why_not(engine, find_accelerator(accelerator), method_of(None, named), named)
    assert found.startswith(said) if said else not found


def test_the_checkpoints_own_weights_count_where_none_are_named() -> None:
    assert method_of(given_model("gpt-oss-120b").quantization) == "mxfp4"
    assert method_of(given_model("deepseek-v3").quantization) == "fp8"
    assert method_of({"quant_method": "modelopt", "quant_algo": "NVFP4"}) == "nvfp4"
    assert method_of({"quant_method": "modelopt", "quant_algo": "FP8"}) == "fp8"
    assert method_of(None) == ""


def test_llama_cpp_has_slots_for_the_users_and_a_context_for_each() -> None:
    found = of(Family("rtx4090", "llama.cpp", "q4_k_m"), mode="concurrency", amount=6.0)
    assert [c.setting.slots for c in found.able]
    c = found.able[0]
    assert c.setting.slots * c.replicas >= 4
    flags = built(EIGHT, c.family, want(), c.setting).setup.flags
    assert flags["ctx_size"] == c.setting.slots * 1024
    assert built(EIGHT, c.family, want(flags={"llama.cpp": {"parallel": 3}})).setup.flags["ctx_size"] == 3072


def test_llama_cpp_splits_layers_over_the_cards_of_a_machine() -> None:
    big, words = (
        given_model("llama-3.1-70b"),
        {"mode": "concurrency", "amount": 1.0, "goals": Goals(9.0, 0.2)},
    )
    one, two = (of(Family("rtx3090", "llama.cpp", "q4_k_m", pp=n), big, **words) for n in (1, 2))
    assert one.reason.startswith("does not fit")
    assert two.able


def test_drafts_quicken_what_they_are_asked_of() -> None:
    slow, quick = (of(Family("h100-sxm", "vllm"), load=load, goals=Goals(1.0)) for load in (
        Load(PROMPT, OUTPUT), Load(PROMPT, OUTPUT, drafts=3, acceptance=0.8, draft_layers=1.0),
    ))  # fmt: skip
    assert quick.able[0].tpot_seconds < 0.7 * slow.able[0].tpot_seconds


def test_prefixes_help_only_engines_that_find_them_again() -> None:
    load = Load(PROMPT, OUTPUT, shared=700)
    off = {"vllm": {"enable_prefix_caching": False}}
    found, not_found = (of(Family("l40s", "vllm"), load=load, flags=flags) for flags in ({}, off))
    assert found.able[0].ttft_seconds < 0.6 * not_found.able[0].ttft_seconds


def test_a_setting_that_the_user_gives_is_not_tuned() -> None:
    given = of(Family("h100-sxm", "vllm"), flags={"vllm": {"max_num_batched_tokens": 3000}})
    assert {c.setting for c in given.able} == {Setting()}
    assert built(EIGHT, given.family, want(flags={"vllm": {"max_num_seqs": 7}})).setup.flags == {
        "max_num_seqs": 7
    }


def test_families_divide_models_as_their_engines_do() -> None:
    def found(engine: str, *, experts: bool, most: int = 16) -> set[str]:
        space = Space(["h100-sxm"], [engine], [""], ["auto"], most, {"h100-sxm": 8})
        return {f.name.removeprefix(f"h100-sxm {engine}").strip() for f in families(space, experts=experts)}

    dense = found("vllm", experts=False)
    assert {"", "tp 8", "tp 8 pp 2", "pp 4"} <= dense
    assert not any("ep" in name or "dp" in name or "tp 16" in name for name in dense)
    assert {"tp 8 ep 8", "dp 8 ep 8", "tp 8 dp 2 ep 16", "dp 16 ep 16"} <= found("vllm", experts=True)
    assert {"tp 16", "tp 16 ep 16 attention-dp 16"} <= found("sglang", experts=True)
    assert found("llama.cpp", experts=True) == {"", "pp 2", "pp 4", "pp 8"}
    assert found("vllm", experts=True, most=1) == {""}
    assert found("transformers", experts=True) == {""}


def test_replicas_stay_within_a_node_where_nothing_fast_joins_nodes() -> None:
    space = Space(["h100-sxm", "l40s"], ["vllm"], [""], ["auto"], 32, {"h100-sxm": 8, "l40s": 8}, {"l40s"})
    found = families(space, experts=True)
    assert max(f.ranks for f in found if f.accelerator == "l40s") == 8
    assert max(f.ranks for f in found if f.accelerator == "h100-sxm") == 32


def test_cards_on_pcie_and_nodes_of_one_are_alone() -> None:
    sizes, alone = _nodes()
    assert {"l4", "l40s", "rtx4090", "a100-80-pcie", "h100-nvl", "gh200-96", "t4"} <= alone
    assert not {"h100-sxm", "h200", "b200", "gb200", "mi300x", "a100-80-sxm"} & alone
    assert (sizes["h100-sxm"], sizes["gb200"], sizes["gh200-96"]) == (8, 72, 1)


def test_every_family_has_a_name_of_its_own() -> None:
    engines, formats = ["vllm", "sglang", "tensorrt-llm", "llama.cpp"], ["", "fp8"]
    space = Space(["h100-sxm", "l4"], engines, formats, ["auto", "fp8"], 64, {"h100-sxm": 8, "l4": 8})
    found = families(space, experts=True)
    assert len({f.name for f in found}) == len(set(found)) == len(found)
    assert all(f.ranks <= 64 for f in found)
