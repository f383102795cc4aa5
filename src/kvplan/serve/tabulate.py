"""A clock's steps as tables: one evaluation of arrays, then no formula is run again.

What depends on a step's tokens, its rows, its decoding sequences and its prompts' chunks is summed, as
`Clock.seconds` sums it; of recurrent layers the state moves with the rows and the arithmetic with the tokens.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvplan.cost.estimate import Clock
from kvplan.cost.step import Step, items_of
from kvplan.serve.draft import draft_seconds, one_layer_seconds
from kvplan.serve.load import Load
from kvplan.serve.step_times import StepTimes

_FINE = 1.3  # neighbouring points of a grid differ by this factor at most


def tabulated(
    clock: Clock, budget: int, sequences: int, longest: int, load: Load | None = None, stages: int = 1
) -> StepTimes:
    """The tables of a deployment's clock, for steps of up to `budget` tokens and `sequences` sequences.

    `longest` sequences in tokens; `load` says what is drafted. Over `stages` that work on batches of their
    own a step is a round: everything in shares of 1/`stages`, one after another as far as one stage goes.
    """
    positions = 1 if load is None else int(load.drafts) + 1
    tokens = _grid(1, max(2, budget, sequences * positions)) / stages
    rows = np.concatenate([[0.0], _grid(1, max(2, sequences * positions)) / stages])
    counts, contexts = _grid(1, max(2, sequences)), _contexts(clock, longest)
    chunks, ends = _grid(1, max(2, budget)), _contexts(clock, longest)
    decode, launch = np.zeros((len(counts), len(contexts))), 0.0
    step = Step((counts / stages)[:, None], contexts[None, :], positions)
    decode = decode + _seconds(clock, step, "decode")
    if load is not None and load.drafts:
        decode = decode + _drafting(clock, load, Step(step.decoding, step.context))
    prefill, launch = _prefill(clock, chunks, ends)
    return StepTimes(
        token_grid=tokens * stages,
        token_seconds=_token_seconds(clock, tokens),
        row_grid=rows * stages,
        row_seconds=_row_seconds(clock, rows, positions),
        decode_n_grid=counts,
        decode_context_grid=contexts,
        decode_seconds=decode,
        chunk_grid=chunks,
        end_grid=ends,
        prefill_seconds=prefill / stages,
        prompt_launch_seconds=launch,
    )


def _grid(first: float, last: float) -> Any:
    """Whole numbers from first to last: each, then in steps of a factor."""
    count = int(np.ceil(np.log(last / first) / np.log(_FINE))) + 1
    return np.unique(np.round(np.geomspace(first, last, max(2, count)))).astype(np.float64)


def _contexts(clock: Clock, longest: int) -> Any:
    """Contexts from one token to the longest sequence, with the ends of windows among them."""
    windows = {int(w) for a in clock.ops.attends if (w := getattr(a.attention, "window", None))}
    points = [w for window in windows for w in (window, window + 1) if 1 < w < longest]
    return np.unique(np.concatenate([_grid(1, max(2, longest)), np.array(points, dtype=np.float64)]))


def _seconds(clock: Clock, step: Step, part: str) -> Any:
    """Seconds of the operations of a step that belong to one part, all layers."""
    rows = [m.rows_of == "sequences" for m in clock.ops.matmuls]
    found: Any = 0.0
    for i, item in enumerate(items_of(clock.ops, step)):
        of_rows = i < len(rows) and rows[i]
        if part == _part(item.kind, of_rows):
            found = found + item.layers * clock.item_seconds(item)
    return found


def _drafting(clock: Clock, load: Load, step: Step) -> Any:
    """Seconds that such steps draft for (serve/draft.py), over arrays."""
    if not load.draft_layers:
        return 0.0
    parts = {i.name: i.layers * clock.item_seconds(i) for i in items_of(clock.ops, step)}
    head = parts.pop("head", 0.0)
    one = one_layer_seconds(sum(parts.values()), clock.ops.layers, clock.layer_seconds)
    return draft_seconds(load.drafts, load.draft_layers, one, head)


def _part(kind: str, of_rows: bool) -> str:
    if of_rows:
        return "rows"
    if kind == "state_decode":
        return "state"
    return "decode" if kind.endswith("_decode") else "prefill" if kind.endswith("_prefill") else "tokens"


def _token_seconds(clock: Clock, tokens: Any) -> Any:
    """What depends on a step's tokens alone, and what a step takes whatever is in it."""
    step = Step(prompts=1, chunk=tokens, depth=0, finishing=0)
    fixed = clock.ops.layers * clock.layer_seconds + clock.step_seconds
    return _seconds(clock, step, "tokens") + _seconds(clock, step, "state") + fixed + 0 * tokens


def _row_seconds(clock: Clock, rows: Any, positions: int) -> Any:
    """What depends on the sequences that make a token: the head, states, what the engine takes for each."""
    sequences = rows / positions
    decoding = Step(decoding=sequences, context=0, positions=positions)
    head = _seconds(clock, decoding, "rows") + 0 * rows
    state = _seconds(clock, decoding, "state") - _seconds(
        clock, Step(prompts=1, chunk=np.maximum(1e-9, rows), depth=0), "state"
    )
    return head + np.where(rows > 0, state, 0.0) + sequences * clock.sequence_seconds


def _prefill(clock: Clock, chunks: Any, ends: Any) -> tuple[Any, float]:
    """(seconds of attention of a chunk beside the start of its kernels, seconds of that start).

    A chunk cannot be longer than where it ends; there the table goes on in a line, so that what lies between
    two points of it is right up to the diagonal.
    """
    chunk, end = np.meshgrid(chunks, ends, indexing="ij")
    launch = float(_launches(clock))

    def at(depth: Any) -> Any:
        return _seconds(clock, Step(prompts=1, chunk=chunk, depth=depth), "prefill") - launch

    depth = end - chunk
    near = chunk / 2
    slope = (at(near) - at(0 * chunk)) / near
    found = np.where(depth >= 0, at(np.maximum(0, depth)), at(0 * chunk) + slope * depth)
    return found, launch


def _launches(clock: Clock) -> Any:
    """Seconds of starting the attention of a step's prompts: once, however many there are."""
    found = 0.0
    for item in items_of(clock.ops, Step(prompts=1, chunk=1, depth=0)):
        if item.kind.endswith("_prefill"):
            found += item.layers * clock.constants(item).kernel.launch_seconds
    return found
