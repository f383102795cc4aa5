"""People type names as they remember them; one of each resolves to one thing."""

from __future__ import annotations

from pathlib import Path

import pytest
from huggingface_hub import constants

from kvplan.errors import BadInput, UnknownName, Unreachable
from kvplan.facts import store
from kvplan.facts.accelerators import accelerators, find_accelerator
from kvplan.facts.catalogue import entries, find_model
from kvplan.model.locate import load_model


@pytest.mark.parametrize("entry", entries(), ids=lambda e: e.id)
def test_every_model_is_found_by_its_id_in_any_case_and_by_its_tail(entry: object) -> None:
    name = entry.id  # type: ignore[attr-defined]
    assert find_model(name) is entry
    assert find_model(name.upper()) is entry
    found = find_model(name.rpartition("/")[2])
    assert found is not None
    assert found.id.rpartition("/")[2].lower() == name.rpartition("/")[2].lower()


SHORT = {
    "llama-3.1-8b": "meta-llama/Meta-Llama-3.1-8B",
    "Llama-3.1-70B": "meta-llama/Meta-Llama-3.1-70B",
    "meta-llama/Llama-3.1-8B": "meta-llama/Meta-Llama-3.1-8B",
    "meta-llama/Meta-Llama-3.1-70B-Instruct": "meta-llama/Meta-Llama-3.1-70B",
    "meta-llama/Llama-2-70b-chat-hf": "meta-llama/Llama-2-70b-hf",
    "gemma 3 27b": "google/gemma-3-27b-it",
    "deepseek-v3": "deepseek-ai/DeepSeek-V3",
    "DeepSeek_R1": "deepseek-ai/DeepSeek-R1",
    "gpt-oss-20b": "openai/gpt-oss-20b",
    "mixtral": "mistralai/Mixtral-8x7B-v0.1",
    "qwen3-next-80b-a3b": "Qwen/Qwen3-Next-80B-A3B-Instruct",
}


@pytest.mark.parametrize(("typed", "meant"), SHORT.items())
def test_base_instruct_and_short_names_resolve_to_one_file(typed: str, meant: str) -> None:
    found = find_model(typed)
    assert found is not None
    assert found.id == meant


def test_a_name_nobody_gave_is_not_found() -> None:
    assert find_model("no-such-model-7b") is None


@pytest.mark.parametrize("key", [a.key for a in accelerators()])
def test_every_accelerator_is_found_by_its_key_and_its_name(key: str) -> None:
    card = find_accelerator(key)
    assert card.key == key
    assert find_accelerator(card.name.replace("(", " ").replace(")", " ")).key == key


CARDS = {
    "h100": "h100-sxm",
    "H100-SXM-80GB": "h100-sxm",
    "NVIDIA H100 80GB HBM3": "h100-sxm",
    "NVIDIA H100 PCIe": "h100-pcie",
    "A100-SXM4-80GB": "a100-80-sxm",
    "a100": "a100-80-sxm",
    "RTX 4090": "rtx4090",
    "NVIDIA GeForce RTX 4090": "rtx4090",
    "L4": "l4",
    "mi300x": "mi300x",
    "m3 max": "m3-max",
}


@pytest.mark.parametrize(("typed", "key"), CARDS.items())
def test_accelerators_are_found_as_people_write_them(typed: str, key: str) -> None:
    assert find_accelerator(typed).key == key


def test_a_name_that_fits_several_accelerators_lists_them() -> None:
    with pytest.raises(BadInput, match="fits a100-40-pcie, a100-80-pcie"):
        find_accelerator("A100 PCIe")


def test_an_unknown_accelerator_suggests_the_nearest() -> None:
    with pytest.raises(UnknownName, match="did you mean"):
        find_accelerator("rtx4900")


def test_disputed_figures_are_assumptions_and_agreed_ones_are_stated() -> None:
    b200, h100 = find_accelerator("b200"), find_accelerator("h100")
    assert b200.source("bandwidth").trust.label == "assumed"
    assert h100.source("bandwidth").trust.label == "stated"


ALIASES = store.toml("aliases.toml")


@pytest.mark.parametrize(("short", "id"), ALIASES["models"].items())
def test_every_model_alias_stands_for_a_built_in_model(short: str, id: str) -> None:
    assert id in {entry.id for entry in entries()}
    found = find_model(short)
    assert found is not None
    assert found.id == id


@pytest.mark.parametrize(("short", "key"), ALIASES["accelerators"].items())
def test_every_accelerator_alias_stands_for_a_built_in_accelerator(short: str, key: str) -> None:
    assert find_accelerator(short).key == key


@pytest.mark.parametrize("short", ALIASES["models"])
def test_an_alias_under_another_owner_is_not_the_built_in_model(short: str) -> None:
    assert find_model(f"evilorg/{short}") is None


def test_an_alias_holds_with_the_owner_of_its_model() -> None:
    found = find_model("meta-llama/Meta-Llama-3-8B")
    assert found is not None
    assert found.id == "meta-llama/Meta-Llama-3-8B-Instruct"


def test_another_owners_model_that_cannot_be_fetched_is_refused_with_the_built_in_ones_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(Unreachable, match="built in under that name is deepseek-ai/DeepSeek-V3"):
        load_model("evilorg/deepseek-v3")
