"""What a step takes, as tables: made once from a clock, then read millions of times.

A step's seconds are the sum of what depends on its tokens, on its rows (sequences that make a token), on the
sequences that decode and their mean context, and on each chunk of a prompt; between the points of a table
they are linear.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from kvplan.serve.replay.tables import Times


@dataclass(frozen=True, slots=True, eq=False)
class StepTimes:
    """Tables of seconds over grids, all float64 arrays; grids rise."""

    token_grid: Any
    token_seconds: Any
    row_grid: Any
    row_seconds: Any
    decode_n_grid: Any
    decode_context_grid: Any
    decode_seconds: Any
    chunk_grid: Any
    end_grid: Any
    prefill_seconds: Any
    prompt_launch_seconds: float = 0.0

    def table(self) -> Times:
        """The same for the compiled functions."""
        return Times(
            token_grid=_floats(self.token_grid),
            token_seconds=_floats(self.token_seconds),
            row_grid=_floats(self.row_grid),
            row_seconds=_floats(self.row_seconds),
            decode_n_grid=_floats(self.decode_n_grid),
            decode_context_grid=_floats(self.decode_context_grid),
            decode_seconds=_floats(self.decode_seconds),
            chunk_grid=_floats(self.chunk_grid),
            end_grid=_floats(self.end_grid),
            prefill_seconds=_floats(self.prefill_seconds),
            prompt_launch_seconds=float(self.prompt_launch_seconds),
        )


def _floats(values: Any) -> Any:
    return np.ascontiguousarray(values, dtype=np.float64)
