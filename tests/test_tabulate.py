"""Tables of step times say what the clock says, at and between their points."""

from __future__ import annotations

from typing import Any

import pytest

from kvplan.cost.estimate import Clock
from kvplan.cost.step import Step
from kvplan.serve.load import Load
from kvplan.serve.step_times import StepTimes
from kvplan.serve.tabulate import tabulated
from kvplan.verbs.described import described
from kvplan.verbs.timing import clock_of
from plain_simulator import across, along

MODELS = {"llama-3.1-8b": 1, "gemma-3-27b": 2, "deepseek-v3": 8, "gpt-oss-120b": 2, "qwen3-next-80b-a3b": 2}
STEPS = (
    Step(decoding=1, context=500),
    Step(decoding=37, context=1234),
    Step(decoding=200, context=3000),
    Step(prompts=1, chunk=777, depth=0, finishing=1),
    Step(prompts=1, chunk=2048, depth=4096, finishing=0),
    Step(decoding=50, context=900, prompts=1, chunk=500, depth=1000, finishing=1),
)


def clock(model: str) -> Clock:
    d, _ = described(model, {"gpu": "h200", "tp": MODELS[model]}, {})
    return clock_of(d)


def seconds(t: StepTimes, step: Step) -> float:
    """A step from the tables, as the simulator sums it."""
    found = along(t.token_grid, t.token_seconds, float(step.tokens))
    found += along(t.row_grid, t.row_seconds, float(step.sequences))
    if step.decoding:
        grids = t.decode_n_grid, t.decode_context_grid, t.decode_seconds
        found += across(*grids, float(step.decoding), float(step.context))
    if step.prompts:
        chunk, end = float(step.chunk), float(step.depth + step.chunk)
        found += across(t.chunk_grid, t.end_grid, t.prefill_seconds, chunk, end) + t.prompt_launch_seconds
    return float(found)


@pytest.mark.parametrize("step", STEPS, ids=str)
@pytest.mark.parametrize("model", MODELS)
def test_a_step_from_the_tables_is_the_clocks(model: str, step: Step) -> None:
    c = clock(model)
    tables = tabulated(c, 8192, 512, 32768)
    assert seconds(tables, step) == pytest.approx(float(c.seconds(step)), rel=0.03)


def test_more_of_anything_never_takes_less() -> None:
    tables = tabulated(clock("llama-3.1-8b"), 8192, 512, 32768)

    def rises(values: Any) -> bool:
        return bool((values[1:] >= values[:-1] * (1 - 1e-9)).all())

    assert rises(tables.token_seconds)
    assert rises(tables.row_seconds)
    assert rises(tables.decode_seconds)
    assert rises(tables.decode_seconds.T)
    assert rises(tables.prefill_seconds.T)


def test_drafting_and_verifying_make_a_decode_step_longer() -> None:
    c = clock("llama-3.1-8b")
    plain = tabulated(c, 8192, 64, 8192)
    drafted = tabulated(c, 8192, 64, 8192, Load(0, 1, drafts=3, acceptance=0.7, draft_layers=1))
    assert (drafted.decode_seconds[:, 0] > plain.decode_seconds[:, 0]).all()


def test_stages_divide_a_prompt_and_not_a_decode_step() -> None:
    c = clock("llama-3.1-8b")
    one, two = (tabulated(c, 4096 * n, 64, 8192, stages=n) for n in (1, 2))
    assert seconds(two, Step(prompts=1, chunk=4096, depth=0, finishing=1)) < 0.65 * seconds(
        one, Step(prompts=1, chunk=4096, depth=0, finishing=1)
    )
    alone = Step(decoding=1, context=1000)
    assert seconds(two, alone) == pytest.approx(seconds(one, alone), rel=0.1)
