"""ServeGen folders: clients of a service, each with its rate over days, its bursts and its lengths.

`chunk-N-trace.csv` has a line a window: start in seconds, requests a second, the coefficient of variation of
the gaps, their law (Gamma or Weibull) with its shape and scale. `chunk-N-dataset.json` has, by window start,
the shares of input and output lengths. See https://github.com/alibaba/ServeGen and arXiv 2505.09999.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvplan.errors import BadInput, shown
from kvplan.serve.arrivals import MOST_REQUESTS
from kvplan.serve.lengths import Lengths, rng_of, weighted
from kvplan.serve.traces_table import read_bytes
from kvplan.serve.workload import Workload, workload_of
from kvplan.units import counted

Longs = NDArray[np.int64]
Floats = NDArray[np.float64]
WINDOW_SECONDS = 600.0  # where a client has one window only
_TOPIC = 21
_NAME = re.compile(r"chunk-(\d+)-trace\.csv")


@dataclass(frozen=True, slots=True)
class Window:
    """A span of a client's time, in seconds: requests a second, and the law of the gaps with its shape."""

    start: float
    seconds: float
    rate: float
    law: str
    shape: float

    def times(self, rng: np.random.Generator, factor: float) -> Floats:
        """Arrivals: as many as were counted, times `factor`, spread by gaps of the measured shape.

        A renewal process begun anew in each window would make more than were counted where gaps are bursty.
        """
        count = math.floor(self.rate * self.seconds * factor + rng.random())
        if self.law == "Gamma":
            gaps = rng.gamma(self.shape, 1.0, count + 1)
        elif self.law == "Weibull":
            gaps = rng.weibull(self.shape, count + 1)
        else:
            gaps = rng.exponential(1.0, count + 1)
        ends = np.cumsum(gaps)
        whole = float(ends[-1])
        return self.start + self.seconds * (ends[:-1] / whole if whole > 0 else rng.random(count))


@dataclass(frozen=True, slots=True)
class Client:
    """One client: its windows, and its lengths as the file has them by window start; none for no file."""

    number: int
    path: str
    windows: tuple[Window, ...]
    lengths: dict[float, dict[str, str]]

    def lengths_at(self, start: float) -> tuple[Lengths, Lengths]:
        """Prompts and outputs of the last window with lengths until then, else of the first."""
        known = [time for time in sorted(self.lengths) if time <= start]
        time = known[-1] if known else min(self.lengths)
        prompt, output = (self._parsed(time, name) for name in ("input_tokens", "output_tokens"))
        return prompt, output

    def _parsed(self, time: float, name: str) -> Lengths:
        where = f"{self.path} at {shown(f'{time:g}')}: {name}"
        try:
            found = ast.literal_eval(self.lengths[time][name])
            return weighted([float(length) for length in found], [float(part) for part in found.values()])
        except (ValueError, SyntaxError, TypeError, AttributeError, RecursionError, MemoryError):
            raise BadInput(f"{where} is no table of lengths and shares; write such as {{512: 0.5}}") from None


def servegen(
    folder: str | Path,
    *,
    seed: int = 0,
    start_seconds: float = 0.0,
    seconds: float = 3600.0,
    rate_factor: float = 1.0,
    requests_per_second: float | None = None,
) -> Workload:
    """Requests of all clients together in that span of their days, at a multiple of their rate or at a rate.

    Time 0 is the span's start. Clients without lengths are left out, and a note says how much of the rate
    they had. Raises BadInput where a file is wrong, with its line, or where nothing arrives in the span.
    """
    if not (start_seconds >= 0 and 0 < seconds < 1e9):
        raise BadInput(
            f"span: {seconds!r} s from {start_seconds!r} s is none; give a start from 0 and a duration"
        )
    clients = read_clients(folder)
    last = start_seconds + seconds
    own = [(c, w) for c in clients if c.lengths for w in _within(c, start_seconds, last)]
    expected = sum(_overlap(w, start_seconds, last) * w.rate for _, w in own)
    if not expected:
        raise BadInput(
            f"{folder}: nothing arrives within {seconds:g} s from {start_seconds:g} s; {_busiest(clients)}"
        )
    factor = _factor(rate_factor, requests_per_second, expected / seconds)
    whole = sum(w.rate * w.seconds for _, w in own) * factor
    if whole > MOST_REQUESTS:
        raise BadInput(f"{folder}: {whole:,.0f} requests are more than {MOST_REQUESTS:,}; shorten the span")
    times, prompts, outputs = _drawn(own, factor, seed)
    kept = np.flatnonzero((times >= start_seconds) & (times < last))
    if not len(kept):
        raise BadInput(f"{folder}: no request was drawn within {seconds:g} s; lengthen the span")
    kept = kept[np.argsort(times[kept], kind="stable")]
    return workload_of(
        times[kept] - start_seconds,
        prompts[kept],
        outputs[kept],
        source=f"{folder} from {start_seconds:g} s for {seconds:g} s, seed {seed}",
        notes=_notes(clients, start_seconds, last, expected),
    )


def _drawn(own: list[tuple[Client, Window]], factor: float, seed: int) -> tuple[Floats, Longs, Longs]:
    """Times and lengths of whole windows, each with random numbers of its own."""
    times, prompts, outputs = [], [], []
    for client, window in own:
        rng = rng_of(seed, _TOPIC, client.number, int(window.start))
        times.append(window.times(rng, factor))
        prompt, output = client.lengths_at(window.start)
        prompts.append(prompt.draw(rng, len(times[-1])))
        outputs.append(output.draw(rng, len(times[-1])))
    return np.concatenate(times), np.concatenate(prompts), np.concatenate(outputs)


def _factor(rate_factor: float, wanted: float | None, rate: float) -> float:
    if not 0 < rate_factor < 1e9:
        raise BadInput(f"rate factor: {shown(rate_factor)} is no factor; give a number above 0")
    if wanted is None:
        return rate_factor
    if not 0 < wanted < 1e9:
        raise BadInput(f"rate: {shown(wanted)} is not requests a second; give a number above 0")
    return wanted / rate


def _within(client: Client, first: float, last: float) -> Iterator[Window]:
    return (w for w in client.windows if w.rate > 0 and _overlap(w, first, last) > 0)


def _overlap(window: Window, first: float, last: float) -> float:
    return max(0.0, min(window.start + window.seconds, last) - max(window.start, first))


def _busiest(clients: tuple[Client, ...]) -> str:
    windows = [window for client in clients if client.lengths for window in client.windows if window.rate > 0]
    if not windows:
        return "none of its clients with lengths has a rate; give another folder"
    return (
        f"its busiest window starts at {max(windows, key=lambda w: w.rate).start:g} s; choose another start"
    )


def _notes(clients: tuple[Client, ...], first: float, last: float, expected: float) -> tuple[str, ...]:
    without = [client for client in clients if not client.lengths]
    if not without:
        return ()
    lost = sum(_overlap(w, first, last) * w.rate for c in without for w in _within(c, first, last))
    return (
        f"{counted(len(without), 'client')} without lengths left out: {lost / (lost + expected):.1%} of the "
        "requests",
    )


def read_clients(folder: str | Path) -> tuple[Client, ...]:
    """The clients of a folder, by number. Raises BadInput where there is none, or with the wrong line."""
    place = Path(folder)
    if not place.is_dir():
        raise BadInput(f"{folder}: it is no folder; give one with chunk-0-trace.csv, chunk-0-dataset.json, …")
    found = [(int(m.group(1)), path) for path in place.iterdir() if (m := _NAME.fullmatch(path.name))]
    if not found:
        raise BadInput(f"{folder}: there is no chunk-0-trace.csv or such in it; give a folder of ServeGen")
    return tuple(_client(number, path) for number, path in sorted(found))


def _client(number: int, path: Path) -> Client:
    beside = path.with_name(f"chunk-{number}-dataset.json")
    lengths = _lengths(beside) if beside.is_file() else {}
    return Client(number, str(beside), _windows(path), lengths)


def _lengths(path: Path) -> dict[float, dict[str, str]]:
    """The tables that are not empty, not yet read: only few of them will be."""
    try:
        found = json.loads(read_bytes(path))
        return {
            float(time): tables
            for time, tables in found.items()
            if all(tables.get(name, "{}").strip() != "{}" for name in ("input_tokens", "output_tokens"))
        }
    except (ValueError, AttributeError, RecursionError) as error:
        raise BadInput(f"{path}: it is no ServeGen dataset ({error}); fetch it again") from None


def _windows(path: Path) -> tuple[Window, ...]:
    rows: list[tuple[float, float, str, float]] = []
    for number, line in enumerate(read_bytes(path).decode("utf-8").splitlines(), 1):
        if line.strip():
            rows.append(_row(line.split(","), f"{path} line {number}", rows[-1][0] if rows else -math.inf))
    starts = [row[0] for row in rows]
    lengths: list[Any] = np.diff(starts).tolist()
    lengths.append(lengths[-1] if lengths else WINDOW_SECONDS)
    return tuple(
        Window(start, seconds, rate, law, shape)
        for (start, rate, law, shape), seconds in zip(rows, lengths, strict=False)
    )


def _row(row: list[str], where: str, before: float) -> tuple[float, float, str, float]:
    try:
        start, rate, _, shape, _ = (float(part) for part in (*row[:3], *row[4:]))
    except ValueError:
        raise BadInput(
            f"{where}: {shown(','.join(row))} is not start, rate, cv, law, shape, scale; correct or remove it"
        ) from None
    law = row[3].strip()
    if law not in ("", "Gamma", "Weibull"):
        raise BadInput(f"{where}: {shown(law)} is no law of gaps that is known; write Gamma or Weibull")
    if not (0 <= rate < 1e9 and before < start < 1e12 and (not law or 0 < shape < 1e9)):
        raise BadInput(
            f"{where}: {shown(','.join(row))}: starts grow, rates are from 0, shapes above 0; correct it"
        )
    return start, rate, law, shape
