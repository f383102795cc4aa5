"""What joins ranks may be stated: machines with the same cards differ in it."""

from __future__ import annotations

import json
from typing import Any

import pytest

import kvplan
from kvplan.errors import BadInput
from kvplan.faces.cli import main

CARDS = {"model": "Qwen/Qwen3-32B", "gpu": "rtxpro6000", "tp": 2, "batch": 8, "prompt_tokens": 2048}


def times(**words: Any) -> tuple[float, float]:
    answer = kvplan.latency(**{**CARDS, **words})
    return answer["prefill"]["seconds"], answer["decode"]["step_seconds"]


def test_a_slower_link_makes_prompts_and_steps_slower():
    found = [times(link=rate) for rate in ("40GB/s", "20GB/s", "10GB/s", "1GB/s")]
    assert found == sorted(found)
    assert len(set(found)) == len(found)


def test_an_all_reduce_takes_what_passes_over_the_stated_link():
    """Two ranks pass a message once: 64 layers of two, 2,048 tokens of 5,120 numbers, 2 bytes each."""
    slow, fast = times(link="10GB/s", batch=1)[0], times(link="20GB/s", batch=1)[0]
    assert slow - fast == pytest.approx(128 * 2048 * 5120 * 2 * (1 / 10e9 - 1 / 20e9), rel=0.001)


def test_one_rank_has_no_link():
    assert times(link="1GB/s", tp=1) == times(tp=1)


def test_beyond_a_node_its_network_decides():
    assert times(link="1GB/s", tp=16, gpu="h100") == times(tp=16, gpu="h100")


def test_a_stated_link_is_named_where_it_is_used():
    answer = kvplan.latency(**CARDS, link="16GB/s")
    assert "--link" in answer.explain("prefill")
    assert "--link" not in kvplan.latency(**CARDS).explain("prefill")


def test_plan_and_simulate_take_it_as_well():
    load = {"gpu": "rtxpro6000", "tp": 2}
    assert kvplan.plan("Qwen/Qwen3-32B", **load, link="4GB/s") != kvplan.plan("Qwen/Qwen3-32B", **load)
    slow, fast = (
        kvplan.simulate("Qwen/Qwen3-32B", **load, batch=4, requests=4, link=rate)["duration_seconds"]
        for rate in ("4GB/s", "40GB/s")
    )
    assert slow > fast


@pytest.mark.parametrize("rate", ["0", "-1GB/s", "fast", "0B/s", 0])
def test_a_rate_that_is_none_is_refused(rate: Any):
    with pytest.raises(BadInput, match="--link"):
        times(link=rate)


def test_the_command_takes_it(capsys: pytest.CaptureFixture[str]):
    words = ["latency", "Qwen/Qwen3-32B", "--gpu", "rtxpro6000", "--tp", "2", "--batch", "8", "--json"]
    found = []
    for link in ("1e9", "1 GB/s"):
        with pytest.raises(SystemExit, match="0"):
            main([*words, "--link", link])
        found.append(json.loads(capsys.readouterr().out)["decode"]["step_seconds"])
    assert found[0] == found[1]
    with pytest.raises(SystemExit, match="2"):
        main([*words, "--link", "1GB/h"])
    assert "--link: '1GB/h' is not a rate" in capsys.readouterr().err
