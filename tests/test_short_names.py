"""Short names that people type, each with the built-in model it stands for."""

from __future__ import annotations

import pytest

from kvplan.errors import UnknownName
from kvplan.facts import store
from kvplan.facts.catalogue import entries, find_model
from kvplan.facts.names import same_digits
from kvplan.model.locate import load_model

ALIASES: dict[str, str] = store.toml("aliases.toml")["models"]
TYPED = {
    "Mixtral-8x7B-Instruct-v0.1": None,
    "qwen2.5-7b": "Qwen/Qwen2.5-7B-Instruct",
    "qwen25-7b": "Qwen/Qwen2.5-7B-Instruct",
    "qwen2-57b": "Qwen/Qwen2-57B-A14B",
    "gemma-2-9b": "google/gemma-2-9b-it",
    "gemma2-9b": "google/gemma-2-9b-it",
    "deepseek-r1": "deepseek-ai/DeepSeek-R1",
    "kimi-k2": "moonshotai/Kimi-K2-Instruct",
    "glm-4.5": "zai-org/GLM-4.5",
    "mistral-small": "mistralai/Mistral-Small-24B-Instruct-2501",
    "llama-3.3-70b": "meta-llama/Llama-3.3-70B-Instruct",
    "llama3.3-70b": "meta-llama/Llama-3.3-70B-Instruct",
    "llama-2-7b": "meta-llama/Llama-2-7b-hf",
    "llama2-7b": "meta-llama/Llama-2-7b-hf",
    "phi-4": "microsoft/phi-4",
    "phi-3-mini": "microsoft/Phi-3-mini-4k-instruct",
    "gpt-oss": "openai/gpt-oss-120b",
    "gpt-oss-20b": "openai/gpt-oss-20b",
    "mixtral-8x7b": "mistralai/Mixtral-8x7B-v0.1",
    "Mixtral 8x22B": "mistralai/Mixtral-8x22B-v0.1",
    "llama-4-scout": "meta-llama/Llama-4-Scout-17B-16E-Instruct",
    "llama4-maverick": "meta-llama/Llama-4-Maverick-17B-128E-Instruct",
    "qwen3-next": "Qwen/Qwen3-Next-80B-A3B-Instruct",
    "command-r": "CohereLabs/c4ai-command-r-v01",
    "command_r_plus": "CohereLabs/c4ai-command-r-plus",
}


@pytest.mark.parametrize(("short", "target"), ALIASES.items())
def test_every_alias_names_a_built_in_model_and_resolves_to_it(short: str, target: str) -> None:
    assert target in {entry.id for entry in entries()}
    found = find_model(short)
    assert found is not None
    assert found.id == target


def test_no_alias_takes_the_name_of_another_model() -> None:
    for entry in entries():
        for short, target in ALIASES.items():
            assert short.lower() != entry.id.rpartition("/")[2].lower() or target == entry.id


@pytest.mark.parametrize(("typed", "meant"), TYPED.items())
def test_names_as_people_type_them(typed: str, meant: str | None) -> None:
    found = find_model(typed)
    assert (found.id if found else None) == meant


@pytest.mark.parametrize("name", ["qwen3", "llama", "phi", "gemma", "deepseek", "starcoder2", "devstral"])
def test_a_name_that_fits_several_is_an_error_that_lists_some(name: str) -> None:
    with pytest.raises(UnknownName, match=r"did you mean .+ or "):
        load_model(name)


def test_digits_are_parted_as_the_known_name_parts_them() -> None:
    assert same_digits("qwen25-7b", "Qwen2.5-7B")
    assert same_digits("qwen257b", "Qwen2.5-7B")
    assert not same_digits("qwen2-57b", "Qwen2.5-7B")
    assert not same_digits("llama-27b", "Llama-2-7b")


def test_candidates_are_the_names_that_begin_so() -> None:
    with pytest.raises(UnknownName, match=r"did you mean meta-llama/Llama-4-\S+ or meta-llama/Llama-4-"):
        load_model("llama-4")
    with pytest.raises(UnknownName, match="Maverick-17B-128E-Instruct") as caught:
        load_model("maverick")
    assert "llama-7b" not in str(caught.value)
