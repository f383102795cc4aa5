"""How engines give turns, by version and by setting, as their own sources say."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from kvplan.errors import BadInput, UnknownName
from kvplan.facts import store
from kvplan.facts.engine_versions import ENGINES, versions_of
from kvplan.facts.scheduling import FACTS, Scheduling, scheduling_of


def policy(engine: str, version: str, **flags: Any) -> Scheduling:
    return scheduling_of(engine, version, flags)


@pytest.mark.parametrize("engine", ENGINES)
def test_every_known_version_has_a_whole_policy_and_a_source_for_each_figure(engine: str) -> None:
    for version in versions_of(engine):
        found = policy(engine, version)
        assert found.order in ("decode-first", "prefill-first", "static")
        assert found.admit in ("step", "prompt", "whole", "ratio")
        assert found.victim in ("last", "least-made")
        assert found.lead in (0, 1)
        ratio = {"ratio_start", "ratio_least", "ratio_steps", "clip_tokens"}
        named = (
            {f.name for f in fields(Scheduling)} - {"sources"} - (ratio if found.admit != "ratio" else set())
        )
        assert all(found.source(name) for name in named), (version, found)


@pytest.mark.parametrize(
    ("version", "order", "chunked", "admit", "lead"),
    [
        ("0.7.3", "prefill-first", False, "prompt", 0),
        ("0.8.0", "decode-first", True, "step", 0),
        ("0.13.0", "decode-first", True, "step", 0),
        ("0.14.0", "decode-first", True, "step", 1),
        ("0.18.1", "decode-first", True, "step", 1),
        ("0.19.0", "decode-first", True, "prompt", 1),
        ("0.33.0", "decode-first", True, "prompt", 1),
    ],
)
def test_vllm_changed_how_it_schedules(
    version: str, order: str, chunked: bool, admit: str, lead: int
) -> None:
    found = policy("vllm", version)
    assert (found.order, found.chunked, found.admit, found.lead) == (order, chunked, admit, lead)
    assert found.victim == "last"


def test_vllm_schedules_ahead_or_not_as_it_is_told() -> None:
    assert policy("vllm", "0.13.0", async_scheduling=True).lead == 1
    assert policy("vllm", "0.33.0", async_scheduling=False).lead == 0
    assert policy("vllm", "0.33.0", no_async_scheduling=True).lead == 0
    assert "--async-scheduling" in policy("vllm", "0.33.0", no_async_scheduling=True).source("lead")


def test_vllm_does_not_schedule_ahead_with_stages_in_its_first_such_versions() -> None:
    leads = [scheduling_of("vllm", v, {}, stages=2).lead for v in ("0.14.1", "0.15.0", "0.33.0")]
    assert leads == [0, 1, 1]


@pytest.mark.parametrize(
    ("drafter", "leads"), [("eagle3", [1, 1]), ("ngram", [0, 0]), ("draft_model", [0, 1]), (None, [1, 1])]
)
def test_vllm_schedules_ahead_with_some_drafters(drafter: str | None, leads: list[int]) -> None:
    found = [scheduling_of("vllm", v, {}, drafter=drafter).lead for v in ("0.27.1", "0.28.0")]
    assert found == leads


def test_vllm_without_chunks_or_reserves_is_told_so() -> None:
    assert not policy("vllm", "0.33.0", enable_chunked_prefill=False).chunked
    assert policy("vllm", "0.33.0", scheduler_reserve_full_isl=False).admit == "step"
    assert policy("vllm", "0.18.0", scheduler_reserve_full_isl=True).admit == "step"  # not yet there


@pytest.mark.parametrize(
    ("engine", "flags"),
    [("vllm", {"scheduling_policy": "priority"}), ("sglang", {"schedule_policy": "lpm"})],
)
def test_another_order_of_the_queue_is_refused(engine: str, flags: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match=r"not simulated; use fcfs"):
        policy(engine, versions_of(engine)[-1], **flags)
    assert policy(engine, versions_of(engine)[-1], **dict.fromkeys(flags, "fcfs"))


def test_sglang_sets_aside_a_share_of_what_may_come() -> None:
    found = policy("sglang", "0.5.23")
    assert (found.order, found.chunked, found.admit) == ("prefill-first", True, "ratio")
    assert (found.victim, found.lead) == ("least-made", 1)
    assert (found.ratio_start, found.ratio_steps, found.clip_tokens) == (0.7, 600, 4096)
    assert found.ratio_least == pytest.approx(0.098)


@pytest.mark.parametrize(
    ("given", "start", "least"), [(0.5, 0.35, 0.049), (1.3, 0.91, 0.1274), (2, 1.0, 0.14)]
)
def test_sglang_is_as_conservative_as_it_is_told_and_never_expects_more_than_all(
    given: float, start: float, least: float
) -> None:
    found = policy("sglang", "0.5.23", schedule_conservativeness=given)
    assert found.ratio_start == pytest.approx(start)
    assert found.ratio_least == pytest.approx(least)


@pytest.mark.parametrize("given", ["much", True, -1, float("nan")])
def test_a_conservativeness_that_is_no_factor_is_refused(given: object) -> None:
    with pytest.raises(BadInput, match=r"--schedule-conservativeness: .* is no factor"):
        policy("sglang", "0.5.23", schedule_conservativeness=given)


def test_sglang_overlaps_unless_it_is_told_or_has_stages_or_an_older_drafter() -> None:
    assert policy("sglang", "0.5.23", disable_overlap_schedule=True).lead == 0
    assert scheduling_of("sglang", "0.5.23", {}, stages=2).lead == 0
    versions = ("0.5.10", "0.5.12", "0.5.23")
    found = [scheduling_of("sglang", v, {}, drafter="EAGLE") for v in versions]
    assert [(f.lead, f.victim) for f in found] == [(0, "last"), (1, "last"), (1, "least-made")]


def test_sglang_splits_prompts_unless_its_chunk_is_minus_one() -> None:
    assert policy("sglang", "0.5.23", chunked_prefill_size=4096).chunked
    assert not policy("sglang", "0.5.23", chunked_prefill_size=-1).chunked
    assert policy("sglang", "0.5.23", enable_mixed_chunk=True).order == "decode-first"


def test_tensorrt_llm_sets_the_whole_aside_or_evicts() -> None:
    plain = policy("tensorrt-llm", "1.3.0")
    assert (plain.order, plain.chunked, plain.admit, plain.lead) == ("decode-first", False, "whole", 1)
    greedy = policy("tensorrt-llm", "1.3.0", capacity_scheduler_policy="MAX_UTILIZATION")
    assert (greedy.admit, greedy.victim) == ("step", "last")
    assert policy("tensorrt-llm", "1.3.0", capacity_scheduler_policy="static_batch").order == "static"
    assert policy("tensorrt-llm", "1.3.0", enable_chunked_prefill=True).chunked
    assert policy("tensorrt-llm", "1.3.0", disable_overlap_scheduler=True).lead == 0
    with pytest.raises(BadInput, match=r"--capacity-scheduler-policy: 'best': it is guaranteed_no_evict"):
        policy("tensorrt-llm", "1.3.0", capacity_scheduler_policy="best")


def test_llama_cpp_holds_slots_and_transformers_a_batch() -> None:
    slots, batch = policy("llama.cpp", "b10809"), policy("transformers", "5.24.0")
    assert (slots.order, slots.chunked, slots.admit, slots.lead) == ("decode-first", True, "whole", 0)
    assert (batch.order, batch.admit, batch.lead) == ("static", "whole", 0)


def test_an_engine_or_a_version_that_is_not_known_is_said_so() -> None:
    with pytest.raises(UnknownName, match="is not known"):
        policy("other", "1.0")
    with pytest.raises(UnknownName, match=r"older than 0\.6\.0"):
        policy("vllm", "0.5.0")


def test_every_entry_names_its_source() -> None:
    for table in store.toml(FACTS).values():
        for kind in ("change", "unless", "flag"):
            assert all(entry["source"] for entry in table.get(kind, []))
