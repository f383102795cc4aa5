"""Step times taken from a run that was measured: three factors under which the simulation meets it.

What a step of few tokens takes, what each cached token adds to it, and what a prompt's further tokens add
are scaled, each by one factor, until time to first token, per token and to the end are those of the run
(Nelder and Mead 1965).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kvplan.errors import BadInput
from kvplan.serve.step_times import StepTimes

_TRIES = 160


@dataclass(frozen=True, slots=True, eq=False)
class Observed:
    """Seconds of each request of a run, in the workload's order: to the first token, a token, the last."""

    ttft_seconds: Any
    tpot_seconds: Any
    e2e_seconds: Any


@dataclass(frozen=True, slots=True)
class Factors:
    """How much slower than the tables a run is: its steps, their cached tokens, its prompts."""

    step: float = 1.0
    context: float = 1.0
    prompt: float = 1.0


def scaled(times: StepTimes, factors: Factors, sequences: int) -> StepTimes:
    """The tables under these factors; up to `sequences` tokens a step is one of decoding."""
    base = np.interp(np.minimum(times.token_grid, sequences), times.token_grid, times.token_seconds)
    return replace(
        times,
        token_seconds=factors.step * base + factors.prompt * (times.token_seconds - base),
        row_seconds=factors.step * times.row_seconds,
        decode_seconds=factors.context * times.decode_seconds,
        prefill_seconds=factors.prompt * times.prefill_seconds,
        prompt_launch_seconds=factors.prompt * times.prompt_launch_seconds,
    )


def calibrate(run: Callable[[Factors], Observed], measured: Observed) -> Factors:
    """The factors under which `run` meets what was measured best.

    Raises BadInput where scipy is not installed or nothing was measured.
    """
    try:
        optimize: Any = importlib.import_module("scipy.optimize")
    except ImportError:
        raise BadInput("--calibrate-from: needs scipy; pip install 'kvplan[simulate]'") from None
    if not np.isfinite(measured.e2e_seconds).any():
        raise BadInput(
            "--calibrate-from: no request of the run was answered; give a run with first and last tokens"
        )

    def miss(logs: Any) -> float:
        factors = Factors(*(float(f) for f in np.exp(np.clip(logs, -3, 3))))
        return distance(run(factors), measured) + 1e-4 * float(np.square(logs).sum())

    start = [np.zeros(3), *(0.15 * row for row in np.eye(3))]
    found = optimize.minimize(
        miss, np.zeros(3), method="Nelder-Mead",
        options={"maxfev": _TRIES, "initial_simplex": np.array(start), "xatol": 1e-3, "fatol": 1e-7},
    )  # fmt: skip
    return Factors(*(float(f) for f in np.exp(np.clip(found.x, -3, 3))))


def misses(found: Observed, measured: Observed) -> dict[str, float]:
    """By how much the means of a run differ from those measured; nothing where no request is in both."""
    left = {}
    for kind in ("ttft", "tpot", "e2e"):
        a, b = getattr(found, f"{kind}_seconds"), getattr(measured, f"{kind}_seconds")
        known = np.isfinite(a) & np.isfinite(b)
        if known.any():
            left[kind] = float(a[known].mean() / b[known].mean()) - 1
    return left


# Under load most of the time to the first token is queueing, in which an error of step times is several times
# as large: it counts less.
_WEIGHTS = {"tpot_seconds": 7.0, "e2e_seconds": 7.0, "ttft_seconds": 1.0}


def distance(found: Observed, measured: Observed) -> float:
    """How far two runs of the same requests are apart: squares of relative errors of means and of spreads."""
    total = 0.0
    for kind, weight in _WEIGHTS.items():
        a, b = getattr(found, kind), getattr(measured, kind)
        known = np.isfinite(a) & np.isfinite(b)
        if not known.any():
            continue
        scale = float(b[known].mean())
        mean = float(a[known].mean()) / scale - 1
        spread = float(np.abs(np.sort(a[known]) - np.sort(b[known])).mean()) / scale
        total += weight * (mean * mean + 0.06 * spread * spread)
    return total
