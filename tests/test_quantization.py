"""Reading a checkpoint's quantisation: once for each config, and one answer for each matrix."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvplan.facts.catalogue import find_model
from kvplan.model import quantization, quantized
from kvplan.model.locate import load_entry
from kvplan.model.model import Model
from kvplan.model.quantization import quantization_of


@pytest.fixture
def glm5() -> Model:
    """A checkpoint that lists hundreds of modules it leaves alone."""
    entry = find_model("zai-org/GLM-5-FP8")
    assert entry is not None
    return load_entry(entry)


def test_a_config_is_read_once_and_another_one_on_its_own(glm5: Model) -> None:
    first = quantization_of(glm5)
    assert quantization_of(replace(glm5, id="same config")) is first
    other = quantization_of(replace(glm5, quantization={"quant_method": "fp8"}))
    assert other is not None
    assert other is not first
    assert not other.uneven
    assert quantization_of(replace(glm5, quantization=None)) is None


def test_listed_modules_are_matched_once_for_each_matrix(
    glm5: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = quantization_of(glm5)
    assert found is not None
    asked = [(w, i) for i, layer in enumerate(glm5.layers) for w in layer.weights]
    before = [found.scheme_for(w, i) for w, i in asked]
    monkeypatch.setattr(quantized, "_fits", lambda *_: pytest.fail("matched again"))
    assert [found.scheme_for(w, i) for w, i in asked] == before
    assert {s.name if s else None for s in before} == {None, "fp8_block"}


def test_no_more_than_a_handful_of_configs_is_remembered(glm5: Model) -> None:
    for _ in range(20):
        quantization_of(replace(glm5, quantization={"quant_method": "fp8"}))
    assert len(quantization._recent) <= quantization._REMEMBERED
