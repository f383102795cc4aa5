"""What stands beside the text decoder: towers against transformers, totals against what is published."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import lines
from kvplan.errors import BadConfig
from kvplan.facts import store
from kvplan.facts.catalogue import find_model
from kvplan.figure import Trust
from kvplan.model.beside import Beside, beside_parameters
from kvplan.model.locate import load_entry
from kvplan.model.model import Model
from kvplan.model.read import read_config

ORACLE = lines("towers.jsonl")[1:]
PUBLISHED = [r for r in lines("models.jsonl") if r["total_params_published"]]
TIED = "the checkpoint stores the tied head again"
MASKS = "the checkpoint stores its causal masks"
# What a published total holds beside the parameters, by id: the reason and how many values.
STORED: dict[str, tuple[str, int]] = {
    "google/gemma-4-26B-A4B": (TIED, 262_144 * 2816),
    "openai-community/gpt2": (MASKS, 12 * 1024**2),
    "openai-community/gpt2-medium": (MASKS, 24 * 1024**2),
    "Qwen/Qwen1.5-0.5B": (TIED, 151_936 * 1024),
    "Qwen/Qwen3-0.6B": (TIED, 151_936 * 1024),
    "Qwen/Qwen3-1.7B": (TIED, 151_936 * 2048),
    "tiiuae/falcon-40b": (TIED, 65_024 * 8192),
    "zai-org/GLM-4.5": ("this one of its family stores embedding and head again", 2 * 151_552 * 5120),
}
# Rows that do not agree, and why.
REASONS = {
    "google/gemma-4-E4B-it": "the audio tower is null in the file, and shared layers' keys are stored too",
}
# Quantised checkpoints that store one element per value, so that their totals count parameters.
UNPACKED = {
    "deepseek-ai/DeepSeek-R1",
    "deepseek-ai/DeepSeek-V3",
    "deepseek-ai/DeepSeek-V3.1",
    "deepseek-ai/DeepSeek-V3.2",
    "deepseek-ai/DeepSeek-V3.2-Exp",
    "deepseek-ai/DeepSeek-V4-Flash",
    "deepseek-ai/DeepSeek-V4-Pro",
    "MiniMaxAI/MiniMax-M2.7",
    "moonshotai/Kimi-K2.5",
    "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-FP8",
    "openbmb/MiniCPM-V-4.6-AWQ",
    "Qwen/Qwen3.5-122B-A10B-FP8",
    "stepfun-ai/Step-3.7-Flash-FP8",
    "zai-org/GLM-5-FP8",
    "zai-org/GLM-5.2-FP8",
}


def read(row: dict[str, Any]) -> tuple[dict[str, Any], Model]:
    """A row's config and the decoder in it."""
    if "config" in row:
        return row["config"], read_config(row["config"], "config.json")
    entry = find_model(row["id"])
    assert entry is not None, row["id"]
    return entry.config(), load_entry(entry)


def beside(row: dict[str, Any]) -> Beside:
    """What a row's model has beside its decoder."""
    return beside_parameters(*read(row))


def name_of(row: dict[str, Any]) -> str:
    return str(row.get("id") or row["config"]["model_type"])


def comparable(row: dict[str, Any]) -> bool:
    """Whether a published total counts parameters, of a file that was seen."""
    if row["confidence"] == "reconstructed":
        return False
    return "quantised" not in (row["total_params_note"] or "") or row["id"] in UNPACKED


COMPARED = [row for row in PUBLISHED if comparable(row)]


@pytest.mark.parametrize("row", ORACLE, ids=name_of)
def test_the_towers_are_those_that_transformers_builds(row: dict[str, Any]) -> None:
    assert beside(row).towers == row["towers"], json.dumps(row.get("config"))


@pytest.mark.parametrize("row", [r for r in ORACLE if r["mtp"]], ids=name_of)
def test_the_layers_that_predict_ahead_are_those_that_transformers_builds(row: dict[str, Any]) -> None:
    assert beside(row).mtp == row["mtp"]


@pytest.mark.parametrize("row", [r for r in COMPARED if r["id"] not in REASONS], ids=name_of)
def test_decoder_towers_and_layers_ahead_make_the_published_total(row: dict[str, Any]) -> None:
    _, model = read(row)
    found = beside(row)
    assert found.parameters is not None
    total = model.parameters + found.parameters + found.copies + STORED.get(row["id"], ("", 0))[1]
    assert total == pytest.approx(row["total_params_published"], rel=0.01)


def test_most_published_totals_come_out_to_a_ten_thousandth() -> None:
    close = 0
    for row in COMPARED:
        _, model = read(row)
        found = beside(row)
        total = model.parameters + (found.parameters or 0) + found.copies + STORED.get(row["id"], ("", 0))[1]
        close += abs(total / row["total_params_published"] - 1) < 1e-4
    assert close >= 0.95 * len(COMPARED)


def test_every_reason_still_holds() -> None:
    rows = {row["id"]: row for row in COMPARED}
    assert set(REASONS) | set(STORED) <= set(rows)
    for id in REASONS:
        total = read(rows[id])[1].parameters + (beside(rows[id]).parameters or 0)
        assert abs(total / rows[id]["total_params_published"] - 1) > 0.01, f"{id} agrees: drop its reason"


def test_nothing_of_the_catalogue_is_unknown() -> None:
    for row in lines("models.jsonl"):
        assert beside(row).parameters is not None, row["id"]


def test_a_text_model_has_nothing_beside_it(llama8b: dict[str, Any]) -> None:
    found = beside_parameters(llama8b, read_config(llama8b, "config.json"))
    assert (found.towers, found.mtp, found.copies) == (0, 0, 0)


def test_a_tower_of_a_kind_that_is_not_known_is_unknown_and_not_nothing(llama8b: dict[str, Any]) -> None:
    raw = {**llama8b, "vision_config": {"model_type": "novel_vit", "hidden_size": 64}}
    found = beside_parameters(raw, read_config(raw, "config.json"))
    assert found.towers is None
    assert found.parameters is None
    assert "vision_config" in found.origins["towers"].where


def test_layers_ahead_of_a_family_that_is_not_known_are_unknown(llama8b: dict[str, Any]) -> None:
    raw = {**llama8b, "num_nextn_predict_layers": 2}
    assert beside_parameters(raw, read_config(raw, "config.json")).mtp is None


def test_no_layers_ahead_are_none_and_stated_zero_beats_a_default() -> None:
    raw, _ = read({"id": "Qwen/Qwen3-Next-80B-A3B-Instruct"})
    without = {**raw, "num_nextn_predict_layers": 0}
    assert beside_parameters(raw, read_config(raw, "config.json")).mtp
    assert beside_parameters(without, read_config(without, "config.json")).mtp == 0


def test_each_count_says_where_it_was_read() -> None:
    found = beside({"id": "Qwen/Qwen3.5-9B"})
    assert "vision_config.depth" in found.origins["towers"].where
    assert found.origins["mtp"].where.endswith("text_config.mtp_num_hidden_layers")
    assert found.origins["mtp"].trust is Trust.STATED


def test_a_tower_that_the_file_leaves_out_rests_on_the_class_defaults() -> None:
    found = beside({"id": "MiniMaxAI/MiniMax-M3"})
    assert found.towers
    assert found.origins["towers"].trust is Trust.ENGINE_RULE


def test_the_deepseek_layer_ahead_stores_embedding_and_head_again() -> None:
    found = beside({"id": "deepseek-ai/DeepSeek-V3"})
    assert found.mtp == 11_610_067_968
    assert found.copies == 2 * 129_280 * 7168


def test_parts_that_answer_in_sound_are_named_and_not_counted() -> None:
    found = beside({"id": "Qwen/Qwen2.5-Omni-7B-AWQ"})
    assert found.left_out == ("talker_config", "token2wav_config")


def test_a_width_no_tower_can_have_is_one_line_that_names_it() -> None:
    raw, _ = read({"id": "google/gemma-3-4b-it"})
    raw["vision_config"]["hidden_size"] = -1
    with pytest.raises(BadConfig, match="hidden_size: -1") as error:
        beside_parameters(raw, read_config(raw, "config.json"))
    assert "\n" not in str(error.value)


def test_every_family_and_kind_says_its_source_and_names_what_exists() -> None:
    table = store.toml("towers.toml")
    for name, kind in table["kinds"].items():
        assert kind.get("source") or kind["like"] in table["kinds"], name
        assert kind.get("like", name) in table["kinds"]
    for name, steps in table["families"].items():
        if isinstance(steps, dict):
            assert steps["like"] in table["families"], name
            continue
        for step in steps:
            kinds = [step["kind"]] if "kind" in step else step.get("among", ())
            assert set(kinds) <= set(table["kinds"]), name
            assert kinds or step["source"], name


ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 2**70),
    st.floats(),
    st.text(max_size=3),
    st.just([]),
    st.just({}),
    st.lists(st.integers(0, 9), max_size=3),
)
FUZZED = [
    "google/gemma-3-4b-it",
    "google/gemma-3n-E4B-it",
    "meta-llama/Llama-3.2-11B-Vision-Instruct",
    "meta-llama/Llama-4-Scout-17B-16E-Instruct",
    "microsoft/Phi-3.5-vision-instruct",
    "moonshotai/Kimi-K2.5",
    "Qwen/Qwen2.5-Omni-7B-AWQ",
    "Qwen/Qwen3-VL-2B-Instruct",
    "Qwen/Qwen3.5-35B-A3B",
    "OpenGVLab/InternVL2-2B",
]


def keys_within(table: dict[str, Any], path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Every key of a nested config."""
    found = []
    for key, value in table.items():
        found.append((*path, key))
        if isinstance(value, dict):
            found += keys_within(value, (*path, key))
    return found


@settings(max_examples=200)
@given(data=st.data())
def test_an_odd_config_is_a_count_none_or_one_line(data: st.DataObject) -> None:
    raw, model = read({"id": data.draw(st.sampled_from(FUZZED))})
    raw = copy.deepcopy(raw)
    for _ in range(data.draw(st.integers(1, 3))):
        *way, key = data.draw(st.sampled_from(keys_within(raw)))
        here = raw
        for name in way:
            here = here[name]
        here[key] = data.draw(ODD)
    try:
        found = beside_parameters(raw, model)
    except BadConfig:  # its text is one line, always
        return
    assert found.towers is None or found.towers >= 0
    assert found.mtp is None or found.mtp >= 0
