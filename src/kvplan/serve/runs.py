"""Measured runs: a row a request, with when it was sent, when its first and when its last token came."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvplan.errors import BadInput
from kvplan.serve.calibrated import Observed
from kvplan.serve.traces import read_trace
from kvplan.serve.traces_table import Table, read_table
from kvplan.serve.workload import Workload

# Names of the same moment: vLLM's per-request statistics, and simulate's own --requests-out.
_SENT = ("queued_ts", "arrival_seconds")
_FIRST = ("first_token_ts", "first_token_seconds")
_LAST = ("last_token_ts", "finish_seconds")


def measured_run(path: str) -> tuple[Workload, Observed]:
    """The requests of a run, in the order they were sent, and what each of them saw.

    Raises BadInput where a moment is missing or a token came before its request.
    """
    workload = read_trace(path)
    rows = read_table(path)
    sent, first, last = (_moments(path, rows, names) for names in (_SENT, _FIRST, _LAST))
    order = np.argsort(sent, kind="stable")
    sent, first, last = sent[order], first[order], last[order]
    if np.nanmin(first - sent) < 0 or np.nanmin(last - first) < 0:
        raise BadInput(f"--calibrate-from: {path}: a token comes before its request; its clocks differ")
    further = np.maximum(1, workload.output_tokens - 1)
    token = np.where(workload.output_tokens > 1, (last - first) / further, np.nan)
    return workload, Observed(first - sent, token, last - sent)


def _moments(path: str, rows: Table, names: tuple[str, ...]) -> Any:
    for name in names:
        if name in rows.frame.columns:
            return np.asarray(rows.frame[name].cast(float, strict=False).to_numpy(), dtype=np.float64)
    wanted = " or ".join(names)
    raise BadInput(f"--calibrate-from: {path} has no column {wanted}; give a run's requests, a row each")
