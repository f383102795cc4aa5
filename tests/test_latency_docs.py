"""docs/latency.md cannot lie: the numbers below its command are those that the command answers."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import kvplan

PAGE = (Path(__file__).parents[1] / "docs" / "latency.md").read_text(encoding="utf-8")


def test_the_numbers_below_the_command_are_its_own() -> None:
    block = re.search(r"```console\n\$ kvplan latency ([^\n]*)\n(.*?)```", PAGE, re.DOTALL)
    assert block is not None
    model, *words = shlex.split(block.group(1))
    given = {name.removeprefix("--"): value for name, value in zip(words[::2], words[1::2], strict=True)}
    answer = kvplan.latency(model, gpu=given["gpu"], concurrency=int(given["concurrency"]))
    said = dict(line.split(": ") for line in block.group(2).strip().splitlines())
    assert said == {
        "bound of prefill": answer["prefill"]["bound"],
        "bound of decode": answer["decode"]["bound"],
        "ridge point": f"{answer['ridge_point']:.0f}",
        "runs at once": str(answer["batches"]["capacity_batch"]),
    }


def test_every_option_that_the_page_names_is_one() -> None:
    from kvplan.faces.latency_command import latency
    from kvplan.facts.flags import flags

    known = {f"--{name.replace('_', '-')}" for name in latency.__annotations__} | {
        flag.option for flag in flags().values()
    }
    named = set(re.findall(r"--[a-z][a-z-]+", PAGE))
    assert named <= known
