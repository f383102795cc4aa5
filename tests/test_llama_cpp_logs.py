"""The caches that llama.cpp and its fork logged are predicted to the printed 0.01 MiB."""

from __future__ import annotations

from typing import Any

import pytest

from conftest import lines
from kvplan.engines.engine import CacheGroup, Capacity, Setup
from kvplan.engines.llama_cpp import capacity
from kvplan.model.gguf_model import model_of
from kvplan.model.locate import load_model
from kvplan.model.model import Model
from kvplan.model.tensors import TensorList

ROWS = lines("llama_cpp_logs.jsonl")
MIB, ROUNDING = 2**20, 0.00501

# Records of the collection that cannot be predicted, each with its own reason.
UNPREDICTED = {
    "lc-002": "neither a config nor the geometry of Gemma 4 12B",
    "lc-015": "its context was inferred from the bytes that would be compared",
    "lc-017": "neither a config nor the geometry of Falcon-H1-1.5B",
    "lc-021": "neither context nor slots",
    "lc-032": "neither a config nor the geometry of Gemma 4 12B",
    "lc-035": "the geometry is the collector's inference; nothing was printed",
    "lc-041": "Ollama's estimate in 0.1 GiB, no log of a cache",
    "lc-043": "Ollama's estimate, no context",
    "lc-044": "Ollama's estimate in 0.1 GiB, no log of a cache",
    "lc-046": "neither model, context nor slots",
    "lc-047": "neither context nor slots",
    "lc-048": "neither context nor slots",
    "lc-053": "no log of a cache",
    "lc-054": "no log of a cache",
    "lc-055": "no log of a cache",
    "lc-057": "no log of a cache",
    "lc-059": "no log of a cache: an allocation in 0.1 GiB",
}

# Rows that are compared and do not agree, each with its own reason.
MISSES: dict[str, str] = {}


def model_in(row: dict[str, Any]) -> Model:
    """The model of a row: a built-in config, or the geometry that the log printed."""
    if "model" in row:
        return load_model(row["model"])
    return model_of(TensorList((), ("printed geometry",), row["gguf"]))


def predicted(row: dict[str, Any]) -> Capacity:
    return capacity(model_in(row), Setup("llama.cpp", row.get("build", ""), flags=row["flags"]), None)


def differences(row: dict[str, Any], found: Capacity) -> list[str]:
    """What a row reports and the prediction has otherwise."""
    reported, wrong = row["reported"], []
    for key, size in (
        ("kv_mib", found.kv_bytes),
        ("k_mib", found.k_bytes),
        ("v_mib", found.v_bytes),
        ("state_mib", found.state_bytes),
    ):
        if key in reported and (size is None or abs(size / MIB - reported[key]) > ROUNDING):
            wrong.append(f"{key}: logged {reported[key]}, predicted {size and size / MIB}")
    if reported.get("n_ctx_seq") not in (None, found.settings["n_ctx_seq"][0]):
        wrong.append(f"n_ctx_seq: logged {reported['n_ctx_seq']}, predicted {found.settings['n_ctx_seq'][0]}")
    groups = {group.kind: group for group in found.groups}
    for name, logged in reported.get("groups", {}).items():
        wrong += [f"{name} {text}" for text in group_differences(logged, groups[name])]
    return wrong


def group_differences(logged: dict[str, Any], group: CacheGroup) -> list[str]:
    size = ((group.k_bytes or 0) + (group.v_bytes or 0)) / MIB
    wrong = [
        f"{key}: logged {logged[key]}, predicted {getattr(group, key)}"
        for key in ("layers", "streams", "cells")
        if key in logged
        and logged[key] != getattr(group, key)
        and not (key == "cells" and "any_ubatch" in logged)
    ]
    if "any_ubatch" in logged:
        size = size / (group.cells or 1) * logged["cells"]
    if "mib" in logged and abs(size - logged["mib"]) > ROUNDING:
        wrong.append(f"bytes: logged {logged['mib']}, predicted {size}")
    return wrong


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["id"])
def test_a_cache_is_as_large_as_its_log_says(row: dict[str, Any]) -> None:
    wrong = differences(row, predicted(row))
    assert (wrong == []) == (row["id"] not in MISSES), wrong


def test_at_least_95_of_100_of_the_mainline_records_agree() -> None:
    mainline = [row for row in ROWS if "fork" not in row["engine"]]
    assert len(mainline) >= 30
    assert len([row for row in mainline if row["id"] in MISSES]) <= 0.05 * len(mainline)


def test_every_row_names_its_source_and_why_its_build_is_assumed() -> None:
    assert all(row["source"] for row in ROWS)
    assert all(row["build_why"] for row in ROWS if "build" in row)


def test_a_cache_of_unknown_ubatch_is_of_cells_that_some_ubatch_makes() -> None:
    unknown = [
        row for row in ROWS if any("any_ubatch" in g for g in row["reported"].get("groups", {}).values())
    ]
    assert len(unknown) == 3
    for row in unknown:
        made = {
            group.cells
            for n_ubatch in (64, 128, 256, 512, 1024, 2048)
            for group in predicted({**row, "flags": {**row["flags"], "ubatch_size": n_ubatch}}).groups
            if group.kind == "swa"
        }
        assert row["reported"]["groups"]["swa"]["cells"] in made


def test_records_left_out_are_left_out_for_a_reason() -> None:
    kept = {row["id"] for row in ROWS}
    assert all(UNPREDICTED.values())
    assert not [name for name in UNPREDICTED if name in kept]
