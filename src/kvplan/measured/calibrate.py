"""Shares and overheads under which timed steps are met: a few physical numbers, fitted on some of the points.

Least squares of logarithms (Levenberg and Marquardt), each number held near its start with a small weight, so
that what the points do not say stays as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

FITTED = ("product_compute", "product_memory", "cache_memory", "prompt_compute")
OVERHEADS = {"layer_seconds": 5e-5, "sequence_seconds": 2e-5}
_HOLD = 0.01  # the weight of staying near the start, beside a relative error
_STEPS = 60
_SHORTEST = 1e-9  # of an overhead: what is less is none
Predict = Callable[[Mapping[str, float]], Sequence[float]]


def calibrated(start: Mapping[str, float], predict: Predict, measured: Sequence[float]) -> dict[str, float]:
    """The numbers, by name, with which `predict` meets what was measured best; shares stay at most 1."""
    names = list(start)
    first = np.log([start[name] for name in names])
    top = np.array([0.0 if not name.endswith("_seconds") else np.inf for name in names])
    bottom = np.array(
        [np.log(1e-4) if not name.endswith("_seconds") else np.log(_SHORTEST) for name in names]
    )
    truth = np.log(np.asarray(measured, float))

    def misses(logs: np.ndarray) -> np.ndarray:
        values = dict(zip(names, (float(x) for x in np.exp(logs)), strict=True))
        off = np.log(np.asarray(predict(values), float)) - truth
        return np.concatenate([off, _HOLD * (logs - first)])

    logs, damping = np.clip(first, bottom, top), 1e-2
    off = misses(logs)
    for _ in range(_STEPS):
        slope = np.stack([(misses(logs + 1e-4 * row) - off) / 1e-4 for row in np.eye(len(names))], axis=1)
        square = slope.T @ slope
        step = np.linalg.solve(square + damping * (np.diag(np.diag(square)) + 1e-9), -(slope.T @ off))
        tried = np.clip(logs + np.clip(step, -1, 1), bottom, top)
        new = misses(tried)
        if float(new @ new) < float(off @ off):
            small = float(off @ off - new @ new) < 1e-10
            logs, off, damping = tried, new, max(1e-6, damping / 3)
            if small:
                break
        else:
            damping *= 4
            if damping > 1e8:
                break
    return dict(zip(names, (float(x) for x in np.exp(logs)), strict=True))


def checkerboard(rows: int, columns: int) -> list[list[bool]]:
    """Which cells of a grid are fitted on: every other one; the rest are never seen by the fit."""
    return [[(i + j) % 2 == 0 for j in range(columns)] for i in range(rows)]


def spread(ratios: Sequence[float]) -> dict[str, float | int] | None:
    """The factors, measured over predicted, within which 80 % of points lie; None of fewer than five."""
    if len(ratios) < 5:
        return None
    low, high = np.quantile(np.asarray(ratios, float), [0.1, 0.9])
    return {"low": float(min(1.0, low)), "high": float(max(1.0, high)), "rows": len(ratios)}
