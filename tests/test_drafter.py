"""Drafters: read and checked as vLLM does, their caches in every block and their weights in the budget."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvplan
from kvplan.errors import KvplanError
from kvplan.facts.drafters import known_methods
from kvplan.model.locate import load_model
from kvplan.verbs.drafted import drafter_of

LLAMA, SMALL, BIG = "llama-3.1-8b", "meta-llama/Llama-3.2-1B", "meta-llama/Llama-3.1-70B-Instruct"
V3 = "deepseek-ai/DeepSeek-V3"
HEAD = "yuhuili/EAGLE-LLaMA3-Instruct-8B"
GIB = 2**30


@pytest.fixture(autouse=True)
def _no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")


def drafted(model: str = LLAMA, config: Any = None, **more: Any) -> Any:
    asked = {"engine_version": "0.32", "kv_cache_memory_bytes": "20GiB", **more}
    return kvplan.fit(model, speculative_config=config, **asked)


def weights(model: str, config: Any = None, **more: Any) -> int:
    return int(drafted(model, config, **more)["memory"]["weight_bytes"])


def test_a_draft_model_brings_caches_of_its_own_shape() -> None:
    answer = drafted(config={"model": SMALL, "num_speculative_tokens": 5, "method": "draft_model"})
    capacity = answer["capacity"]
    assert (capacity["bytes_per_block"], capacity["num_blocks"]) == (2_621_440, 8192)
    assert sum(g["layers"] for g in capacity["groups"]) == 48


def test_the_settings_keep_what_was_given_and_are_json() -> None:
    config = {"model": SMALL, "num_speculative_tokens": 5}
    settings = drafted(config=config)["engine"]["settings"]
    assert json.loads(json.dumps(settings))["speculative_config"] == config


@pytest.mark.parametrize("config", [{"model": SMALL}, {"model": SMALL, "method": None}])
def test_without_a_method_the_model_drafts(config: dict[str, Any]) -> None:
    asked = {**config, "num_speculative_tokens": "5"}
    assert drafted(config=asked)["capacity"]["bytes_per_block"] == 2_621_440


@pytest.mark.parametrize("config", [{"model": "[ngram]"}, {"model": "ngram"}, {"method": "ngram"}])
def test_ngram_keeps_nothing(config: dict[str, Any]) -> None:
    found = drafted(config={**config, "num_speculative_tokens": 4})
    plain = drafted()
    assert found["capacity"]["bytes_per_block"] == plain["capacity"]["bytes_per_block"]
    assert found["memory"]["weight_bytes"] == plain["memory"]["weight_bytes"]


@pytest.mark.parametrize("config", [{"method": "eagle"}, {"method": "draft_model"}, {}, {"method": "eagle3"}])
def test_a_head_of_unknown_config_is_one_layer_and_a_projection(config: dict[str, Any]) -> None:
    answer = drafted(config={**config, "model": HEAD, "num_speculative_tokens": 3})
    if config.get("method") == "eagle3":
        size = 218_112_000 * 2 + 3 * 4096**2 * 2 + 32_000 * 4096 * 2
    else:
        size = 218_112_000 * 2 + 2 * 4096**2 * 2
    assert answer["capacity"]["bytes_per_block"] == 33 * 65536
    assert answer["memory"]["weight_bytes"] - weights(LLAMA) == size
    assert any(HEAD in note and "one layer" in note for note in answer["notes"])


REFUSED = [
    ({"method": "bogus", "num_speculative_tokens": 1}, "method", "'bogus'"),
    ({"method": 3, "num_speculative_tokens": 1}, "method", "known: "),
    ({"method": "eagel", "num_speculative_tokens": 1}, "method", "did you mean eagle"),
    ({"model": "nope/none", "num_speculative_tokens": 3, "method": "draft_model"}, "model", "nope/none"),
    ({"model": "./no-such", "num_speculative_tokens": 3, "method": "eagle"}, "model", "./no-such"),
    ({"model": ["x"], "num_speculative_tokens": 3}, "model", "['x']"),
    ({"num_speculative_tokens": 3}, "model", "missing"),
    ({"num_speculative_tokens": 3, "method": "eagle3"}, "model", "missing"),
    ({"model": SMALL}, "num_speculative_tokens", "missing"),
    ({"method": "mtp", "num_speculative_tokens": 1}, "method", "predict ahead"),
    ({"method": "mtp", "model": SMALL, "num_speculative_tokens": 1}, "method", "Llama-3.2-1B"),
    ({"method": "dspark", "num_speculative_tokens": 1}, "method", "predict ahead"),
    ({"model": SMALL, "num_speculative_tokens": 3, "draft_tensor_parallel_size": 2}, "parallel_size", "2"),
    ({"model": SMALL, "num_speculative_tokens": 3, "quantization": "wat"}, "quantization", "wat"),
    *[
        ({"method": method, "model": SMALL, "num_speculative_tokens": value}, "num_speculative_tokens", "")
        for method in ("draft_model", "ngram")
        for value in ("x", [1], {}, -3, 0, 1.5, None, True, 10**400, float("inf"), float("nan"))
    ],
]


@pytest.mark.parametrize(("config", "field", "says"), REFUSED)
def test_what_vllm_would_not_start_is_one_line(config: dict[str, Any], field: str, says: str) -> None:
    with pytest.raises(KvplanError) as error:
        drafted(config=config)
    text = str(error.value)
    assert text.startswith("--speculative-config")
    assert field in text
    assert says in text
    assert len(text) < 500


@pytest.mark.parametrize(
    ("model", "found"), [("deepseek-ai/DeepSeek-V3", 1), ("Qwen/Qwen3-Next-80B-A3B-Instruct", 1)]
)
@pytest.mark.parametrize("method", ["mtp", "deepseek_mtp", "qwen3_next_mtp"])
def test_mtp_under_any_of_its_names(model: str, found: int, method: str) -> None:
    config = {"method": method, "num_speculative_tokens": 1}
    setting = drafter_of({"speculative_config": config}, "vllm", load_model(model), 8).setting
    assert setting is not None
    assert setting["method"] == "mtp"
    assert setting["num_speculative_tokens"] == found


def test_mtp_takes_its_tokens_from_the_config() -> None:
    config = {"method": "mtp", "num_speculative_tokens": None}
    setting = drafter_of({"speculative_config": config}, "vllm", load_model(V3), 8).setting
    assert setting is not None
    assert setting["num_speculative_tokens"] == 1


def test_layers_that_predict_ahead_weigh() -> None:
    own = {"gpu": "h200", "tp": 8, "kv_cache_memory_bytes": None}
    more = weights(V3, {"method": "mtp", "num_speculative_tokens": 1}, **own) - weights(V3, **own)
    assert 11.5e9 / 8 < more < 11.5e9 / 8 * 1.1  # 11.5 billion values in fp8
    named = weights(V3, {"method": "mtp", "model": V3, "num_speculative_tokens": 1}, **own)
    assert named - weights(V3, **own) == more


def test_a_draft_model_weighs_on_every_rank() -> None:
    config = {"model": LLAMA, "num_speculative_tokens": 5}
    own = {"gpu": "h200", "tp": 4, "kv_cache_memory_bytes": None}
    more = weights(BIG, config, **own) - weights(BIG, **own)
    assert more == weights(LLAMA, tp=4)
    whole = weights(BIG, {**config, "draft_tensor_parallel_size": 1}, **own) - weights(BIG, **own)
    assert whole == weights(LLAMA)


def test_the_drafter_is_a_figure_with_its_sources() -> None:
    text = drafted(config={"model": HEAD, "method": "eagle", "num_speculative_tokens": 3}).explain()
    assert "drafter_bytes" in text
    assert "as the target's layer" in text


def test_weights_that_were_measured_stand_for_all_of_it() -> None:
    config = {"model": SMALL, "num_speculative_tokens": 5}
    assert weights(LLAMA, config, weights_memory="17GiB") == 17 * GIB


def test_a_drafter_is_on_the_last_stage() -> None:
    config = {"model": SMALL, "num_speculative_tokens": 5}
    assert weights(LLAMA, config, pp=2) > weights(LLAMA, pp=2) + 2 * GIB


def test_states_that_are_only_kept_weigh_nothing() -> None:
    answer = drafted(config={"method": "extract_hidden_states", "num_speculative_tokens": 1})
    assert answer["memory"]["weight_bytes"] == weights(LLAMA)
    assert any("extract_hidden_states" in note for note in answer["notes"])


def test_an_mtp_layer_left_in_16_bit_weighs_so() -> None:
    """A start-up log of vLLM 0.20 loads 4.7 GiB for this model's."""
    config = {"method": "mtp", "num_speculative_tokens": 1}
    own = {"gpu": "b200", "kv_cache_memory_bytes": None}
    more = weights("Qwen/Qwen3.5-122B-A10B", config, **own) - weights("Qwen/Qwen3.5-122B-A10B", **own)
    assert round(more / GIB, 1) == 4.7


def test_a_draft_of_another_vocabulary_is_said() -> None:
    answer = drafted(config={"model": "Qwen/Qwen3-0.6B", "num_speculative_tokens": 5})
    assert any("another vocabulary" in note for note in answer["notes"])


@pytest.mark.parametrize(("version", "more"), [("0.5.23", True), ("0.5.10", False)])
def test_sglang_drafts_weigh_where_no_room_is_set_aside(version: str, more: bool) -> None:
    command = f"python -m sglang.launch_server --model-path {LLAMA} "
    flags = f"--speculative-algorithm STANDALONE --speculative-draft-model-path {SMALL}"
    asked = {"gpu": "h100", "engine_version": version}
    plain = kvplan.fit(command=command, **asked)["memory"]["weight_bytes"]
    found = kvplan.fit(command=command + flags, **asked)["memory"]["weight_bytes"]
    assert (found > plain + 2 * GIB) is more
    assert (found == plain) is not more


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=4,
)
FIELDS = [
    "method", "model", "num_speculative_tokens", "draft_tensor_parallel_size", "layers", "max_model_len",
    "prefill_lookahead_tokens", "prompt_lookup_min", "prompt_lookup_max", "quantization",
    "use_heterogeneous_vocab", "suffix_decoding_max_tree_depth", "unknown",
]  # fmt: skip


@given(st.sampled_from(FIELDS), json_values, st.sampled_from(known_methods()), st.sampled_from([V3, LLAMA]))
def test_any_value_in_any_field_is_an_answer_or_one_line(
    field: str, value: Any, method: str, model: str
) -> None:
    config = {"method": method, "model": SMALL, "num_speculative_tokens": 2, field: value}
    try:
        said = str(drafted(model, config, tp=8)["capacity"]["bytes_per_block"])
    except KvplanError as error:
        said = str(error)
    assert said.isdigit() or (said.startswith("--speculative-config") and "\n" not in said)
