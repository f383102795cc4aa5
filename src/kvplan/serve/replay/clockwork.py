"""Seconds of steps: one of any kind, or many decode steps in a row in closed form."""

from __future__ import annotations

from typing import Any

from kvplan.serve.replay.compiled import compiled
from kvplan.serve.replay.tables import Times


@compiled
def left_of(grid: Any, x: float) -> int:
    """The grid interval that x lies in, or the nearest one."""
    low, high = 0, len(grid) - 1
    while high - low > 1:
        middle = (low + high) // 2
        if grid[middle] <= x:
            low = middle
        else:
            high = middle
    return low


@compiled
def along(grid: Any, values: Any, x: float) -> float:
    """Between grid points linearly, beyond them as between the last two."""
    if len(grid) == 1:
        return float(values[0])
    i = left_of(grid, x)
    return float(values[i] + (values[i + 1] - values[i]) * ((x - grid[i]) / (grid[i + 1] - grid[i])))


@compiled
def across(rows: Any, columns: Any, values: Any, x: float, y: float) -> float:
    """The same in two directions."""
    if len(rows) == 1:
        return along(columns, values[0], y)
    i = left_of(rows, x)
    low, high = along(columns, values[i], y), along(columns, values[i + 1], y)
    return float(low + (high - low) * ((x - rows[i]) / (rows[i + 1] - rows[i])))


@compiled
def base_seconds(t: Times, tokens: int, rows: int) -> float:
    """What a step takes beside attention."""
    return along(t.token_grid, t.token_seconds, float(tokens)) + along(t.row_grid, t.row_seconds, float(rows))


@compiled
def decode_seconds(t: Times, slots: int, context: float) -> float:
    """Attention of so many sequences of that mean context."""
    return across(t.decode_n_grid, t.decode_context_grid, t.decode_seconds, float(slots), context)


@compiled
def prefill_seconds(t: Times, tokens: int, end: int) -> float:
    """Attention of a chunk that ends at that token of its prompt."""
    return across(t.chunk_grid, t.end_grid, t.prefill_seconds, float(tokens), float(end))


@compiled
def many_steps(
    t: Times, base: float, slots: int, context: float, growth: float, steps: int, room: float
) -> tuple[int, float, float]:
    """(steps, seconds, seconds of the last) of decode steps until `room` seconds are over, at most `steps`.

    `growth`: what a step adds to the mean context. Within a column of the table a step's time is linear in
    the context, so that any number of steps has a closed form; the step in which `room` ends is the last.
    """
    done, spent, last = 0, 0.0, 0.0
    grid = t.decode_context_grid
    while done < steps and spent < room:
        here = context + done * growth
        first = base + decode_seconds(t, slots, here)
        many = steps - done
        if len(grid) > 1 and growth > 0:
            i = left_of(grid, here)
            if i + 2 < len(grid):
                within = int((grid[i + 1] - here) / growth) + 1
                while within > 1 and here + (within - 1) * growth > grid[i + 1]:
                    within -= 1
                many = min(many, max(1, within))
        slope = 0.0
        if many > 1:
            slope = (base + decode_seconds(t, slots, here + (many - 1) * growth) - first) / (many - 1)
        if spent + many * first + slope * (many * (many - 1) / 2) >= room:
            low = 1
            while low < many:  # the fewest that fill the room
                middle = (low + many) // 2
                if spent + middle * first + slope * (middle * (middle - 1) / 2) >= room:
                    many = middle
                else:
                    low = middle + 1
        spent += many * first + slope * (many * (many - 1) / 2)
        last = first + slope * (many - 1)
        done += many
    return done, spent, last
