"""Kernels as shipped: physical, found in the stated order, monotone, near the timings they are fitted on."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel_cases import ROWS, clock_of, seconds_of
from kvplan.cost.step import Step
from kvplan.facts import store
from kvplan.facts.accelerators import find_accelerator
from kvplan.facts.kernels import (
    find_kernel,
    find_link,
    fitted_on,
    generation,
    kernel_format,
    link_bytes_per_second,
)
from kvplan.figure import Trust

PAGE = Path(__file__).parents[1] / "docs" / "kernels.md"
FACTS = store.json_file("efficiency/kernels.json")["rows"]
CLASSES = store.toml("efficiency/classes.toml")
KEYS = [row["key"] for row in store.json_file("accelerators.json")["gpus"]]
PRODUCTS = (
    "matmul", "experts", "attention_prefill", "attention_decode", "mla_prefill", "mla_decode", "state_decode",
)  # fmt: skip
LINKS = ("all_reduce", "all_gather", "reduce_scatter")
SHARES = ("compute", "memory", "link", "one_shot")
SECONDS = ("launch_seconds", "depth_seconds", "tile_seconds", "rank_seconds", "ring_seconds")


def name_of(row: dict[str, Any]) -> str:
    return f"{row['accelerator']} {row['operation']} {row['format']}"


def impossible(row: dict[str, Any]) -> list[str]:
    """What of a kernel cannot be: shares of more than all, times of nothing."""
    need = (
        ["launch_seconds", "link"] if row["operation"] in LINKS else ["launch_seconds", "compute", "memory"]
    )
    found = [name for name in need if name not in row]
    found += [name for name in SHARES if name in row and not 0 < row[name] <= 1]
    found += [name for name in SECONDS if name in row and not 0 < row[name] < 1e-3]
    return found + [name for name in ("pad", "moved_bytes", "share") if row.get(name, 1) <= 0]


def test_every_kernel_is_physically_possible() -> None:
    assert len(FACTS) > 200
    assert [(name_of(row), found) for row in FACTS if (found := impossible(row))] == []
    assert {row["operation"] for row in FACTS} == {*PRODUCTS, *LINKS}


def test_every_kernel_says_what_it_was_fitted_on_and_how_well() -> None:
    for row in FACTS:
        assert row["fits"]
        assert len(row["merged"]) == 3
        for engine, (rows, median, most) in row["fits"].items():
            assert re.fullmatch(r"[a-z.-]+ \d[\w.]*", engine)
            assert rows >= 40
            assert 0 < median <= most


def test_there_is_one_kernel_of_an_accelerator_operation_and_format() -> None:
    assert Counter(map(name_of, FACTS)).most_common(1)[0][1] == 1


def test_package_licence_and_form_are_stated() -> None:
    stated = fitted_on()
    assert re.fullmatch(r"aiconfigurator-core [\d.]+ \(Apache-2.0\)", stated["package"])
    assert {"source", "date", "form", "weights", "values", "fits", "merged"} <= set(stated)


def test_an_accelerator_has_one_generation_or_stands_alone() -> None:
    named = [key for keys in CLASSES["generation"].values() for key in keys]
    assert [key for key, count in Counter(named).items() if count > 1] == []
    assert set(named) <= set(KEYS)
    assert {key for key in KEYS if generation(key) == key} == (set(KEYS) - set(named)) | {"gb10"}


@cache
def rows_of(operation: str, form: str) -> dict[str, dict[str, Any]]:
    return {r["accelerator"]: r for r in FACTS if (r["operation"], r["format"]) == (operation, form)}


def test_a_kernel_of_the_accelerator_itself_comes_first_and_is_measured() -> None:
    found, row = find_kernel("matmul", "fp8", "h200"), rows_of("matmul", "fp8")["h200"]
    assert (found.known, found.source.trust) == (0, Trust.MEASURED)
    assert (found.compute, found.memory, found.launch_seconds) == (
        row["compute"], row["memory"], row["launch_seconds"],
    )  # fmt: skip


def test_then_comes_the_median_of_its_generation() -> None:
    found, rows = find_kernel("matmul", "bf16", "h100-pcie"), rows_of("matmul", "bf16")
    assert (found.known, found.source.trust) == (1, Trust.ASSUMED)
    kin = [rows[key] for key in rows if generation(key) == generation("h100-pcie")]
    assert len(kin) == 2
    assert found.memory == statistics.median(row["memory"] for row in kin)


def test_then_the_median_of_all() -> None:
    found, rows = find_kernel("attention_decode", "bf16", "m4-max"), rows_of("attention_decode", "bf16")
    assert (found.known, found.source.trust) == (2, Trust.ASSUMED)
    assert found.memory == statistics.median(row["memory"] for row in rows.values())


def test_a_format_that_was_not_timed_is_read_as_the_next_in_line() -> None:
    assert (
        find_kernel("matmul", "w4a16_mxfp4", "a100-80-sxm").memory
        == (rows_of("matmul", "int4_wo")["a100-80-sxm"]["memory"])
    )
    assert find_kernel("matmul", "w4a16_mxfp4", "a100-80-sxm").known == 1
    assert (
        find_kernel("attention_decode", "nvfp4", "h200").memory
        == (rows_of("attention_decode", "fp8")["h200"]["memory"])
    )
    assert find_kernel("state_decode", "no such", "h200").known == 2  # a product's, for want of any


def test_every_scheme_and_number_format_has_a_kernel() -> None:
    timed = {r["format"] for r in FACTS if r["operation"] in ("matmul", "experts")}
    schemes, formats = store.toml("quantization.toml")["schemes"], store.toml("formats.toml")
    for name in [*schemes, *formats]:
        form = kernel_format(name)
        assert form in timed or set(CLASSES["instead"][form]) & timed
    assert {kernel_format(name) for name in ("float32", "bfloat16", "float16")} == {"bf16"}
    assert set(schemes) <= set(CLASSES["format"])
    for name, near in CLASSES["instead"].items():
        assert name not in near
        assert near[-1] == "bf16"


@given(
    key=st.sampled_from(KEYS), form=st.sampled_from(["bf16", "fp8_tensor", "awq", "mxfp4"]),
    rows=st.integers(1, 20_000), more=st.integers(1, 20_000),
)  # fmt: skip
def test_more_rows_take_longer(key: str, form: str, rows: int, more: int) -> None:
    shape = {"n": 4096, "k": 4096}
    assert seconds_of(key, "matmul", {**shape, "m": rows}, form) < seconds_of(
        key, "matmul", {**shape, "m": rows + more}, form
    )


@given(key=st.sampled_from(KEYS), context=st.integers(1, 200_000), more=st.integers(1, 200_000))
def test_a_longer_cache_takes_longer_to_read(key: str, context: int, more: int) -> None:
    shape = {"batch_size": 8, "num_heads": 32, "num_key_value_heads": 8, "head_dim": 128}
    short = seconds_of(key, "attention_decode", {**shape, "step": context})
    assert short < seconds_of(key, "attention_decode", {**shape, "step": context + more})


@given(key=st.sampled_from(KEYS), ranks=st.sampled_from([2, 4, 8]), size=st.integers(1, 10**9))
def test_a_larger_message_takes_no_less(key: str, ranks: int, size: int) -> None:
    times = [seconds_of(key, "all_reduce", {"num_gpus": ranks, "message_size": n}) for n in (size, 2 * size)]
    assert 0 < times[0] < times[1]


@pytest.mark.parametrize("key", ["rtx4090", "l40s", "rtxpro6000", "arc-b60", "rtx3090"])
def test_a_bus_that_ranks_share_is_slower_the_more_they_are(key: str) -> None:
    assert link_bytes_per_second(find_accelerator(key), 4)[1]
    for kind in ("all_reduce", "all_gather", "reduce_scatter"):
        assert find_link(kind, key, shared=True).share > 0
    size = 2**26
    times = [seconds_of(key, "all_reduce", {"num_gpus": r, "message_size": size}) for r in (2, 4, 8)]
    assert times == sorted(times)
    assert times[2] > times[0] * 1.75  # the wire alone would be 1.75


def test_links_of_ones_own_share_nothing() -> None:
    assert find_link("all_reduce", "h100-sxm").share == 0
    assert find_link("all_reduce", "h100-sxm").known == 0


def test_published_timings_are_met_within_twice_and_half_of_them_within_a_fifth() -> None:
    errors, far = [], []
    for row in ROWS:
        ratio = seconds_of(row.accelerator, row.operation, row.shape) / row.seconds
        errors.append(abs(ratio - 1))
        if not 0.5 < ratio < 2:
            far.append(f"{row.accelerator} {row.operation} {row.shape['num_tokens']} tokens")
    assert len(errors) == 45
    assert statistics.median(errors) < 0.2
    assert far == []


def test_the_page_has_every_fit_and_every_kernel() -> None:
    page = PAGE.read_text("utf-8")
    assert page.count("| **shipped** |") == len(FACTS)
    lines = set()
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) > 3:
            lines |= {(*cells[:3], cell) for cell in cells[3:]}
    for row in FACTS:
        for engine, (rows, _, _) in row["fits"].items():
            assert (row["accelerator"], row["format"], engine, f"{rows:,}") in lines


def test_a_step_without_anything_takes_no_kernel() -> None:
    assert clock_of("h100-sxm").timed(Step()) == []
