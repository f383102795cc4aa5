"""Fit what serving adds to kernel timings: writes src/kvplan/facts/efficiency/serving.json.

    python tools/fit_serving.py

Every quantity is a base times factors: of the engine, of the engine on a generation and on an accelerator,
of a weight format under it. Factors are drawn towards 1 (a Gaussian prior on their logarithm), tightly
where kernels were timed. The fit is Gauss-Newton on log errors, robust (pseudo-Huber), with the product's own
code as the model. Spreads are quantiles of errors on rows whose architecture, or accelerator, was left out.
"""

from __future__ import annotations

import datetime
import json
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterable
from multiprocessing import Pool
from pathlib import Path
from typing import Any

import numpy as np
from serving_rows import DATA, Row, is_timed, predicted, read_rows
from spreads import interval, ratios

from kvplan.facts import efficiency, store
from kvplan.facts.efficiency import over_a_bus
from kvplan.facts.kernels import generation, kernel_format, link_bytes_per_second

OUT = DATA.parents[1] / "src" / "kvplan" / "facts" / "efficiency" / "serving.json"
QUANTITIES = tomllib.loads((Path(__file__).parent / "serving_quantities.toml").read_text("utf-8"))
STEP, FRONT, SET = QUANTITIES["step"], QUANTITIES["front"], QUANTITIES["set"]
SIGMA, NUDGE, TURNS = 0.1, 0.02, 12
Key = tuple[str, str]  # quantity, the level's key in the file
Linear = tuple[np.ndarray, np.ndarray, np.ndarray]  # rows, log predictions, slopes in every parameter


def levels(row: Row) -> dict[str, list[tuple[Key, float]]]:
    """For each quantity that may matter to a row, its parameters with their prior's width."""
    case = row.case
    assert case is not None  # noqa: S101
    clock, engine, accelerator = case.clock, case.clock.engine, case.clock.accelerator.key
    timed = 0 if is_timed(case.engine, accelerator) and not engine.endswith("@0") else 1
    family = generation(accelerator)
    shared = link_bytes_per_second(clock.accelerator, max(2, clock.ops.ranks.tp))[1]
    names = {
        "all": "all",
        "engine": engine,
        "generation": f"{engine} {family}",
        "accelerator": f"{engine} {family} {accelerator}",
        "format": f"{engine} as {_narrow(row)}",
        "version": f"{engine} {clock.version}" if clock.version else "",
        "bus": "shared bus" if shared else "",
        "host": over_a_bus(engine, accelerator) if shared else "",
    }
    found = {}
    for quantity, entry in {**STEP, **FRONT}.items():
        if not _matters(quantity, row):
            continue
        stored = quantity.removesuffix(" narrow")
        found[quantity] = [
            ((stored, names[level]), width[timed]) for level, width in entry["levels"].items() if names[level]
        ]
    return found


def _narrow(row: Row) -> str:
    """The weight format that most of a row's bytes are in, other than 16 bit."""
    assert row.case is not None  # noqa: S101
    ops, sizes = row.case.clock.ops, defaultdict(float)
    for m in ops.matmuls:
        sizes[kernel_format(m.format)] += m.layers * m.weight_bytes
    for e in ops.experts:
        sizes[kernel_format(e.format)] += e.layers * e.weight_bytes * e.experts / e.ep
    sizes.pop("bf16", None)
    return max(sizes, key=lambda name: sizes[name]) if sizes else ""


def _matters(quantity: str, row: Row) -> bool:
    assert row.case is not None  # noqa: S101
    case, ops = row.case, row.case.clock.ops
    if quantity in FRONT:
        if not row.raw["metric"].startswith("ttft") or case.mode not in ("concurrency", "rate"):
            return False
        return quantity not in ("burst_share", "admit_seconds", "slot_share") or case.mode == "concurrency"
    if row.raw["metric"].startswith("ttft") and case.mode in ("concurrency", "rate"):
        return False  # queues tell nothing of steps
    if quantity.endswith("narrow") or quantity == "quantising":
        return bool(_narrow(row))
    if quantity.startswith("experts"):
        return bool(ops.experts)
    if quantity in ("link", "collective_start"):
        return bool(ops.exchanges)
    return True


def install(factors: dict[Key, float]) -> None:
    """Put parameters in force: logarithms of factors by quantity and key."""
    efficiency._table = lambda: table_of(factors)  # type: ignore[assignment]
    for cached in (efficiency.fitted, efficiency.is_measured, efficiency.fit_source, efficiency.spread):
        cached.cache_clear()


def table_of(factors: dict[Key, float]) -> dict[str, Any]:
    """The quantities of the file."""
    found = {
        name: {key: entry[key] for key in ("base", "unit", "meaning") if key in entry} | {"factors": {}}
        for name, entry in {**STEP, **FRONT, **SET}.items()
        if not name.endswith(" narrow")
    }
    for (quantity, key), value in sorted(factors.items()):
        if key == "all":
            found[quantity]["base"] = float(f"{found[quantity]['base'] * np.exp(value):.4g}")
            continue
        found[quantity]["factors"][key] = float(f"{np.exp(value):.4g}")
    return {"quantities": found, "measured": [], "spreads": {}, "fitted_on": {"rows": 0, "date": ""}}


def _work(job: tuple[dict[Key, float], list[int], bool]) -> list[tuple[int, float, dict[str, float]]]:
    """(row, log of its prediction, its slope in each quantity) under some parameters."""
    factors, chosen, slopes = job
    install(factors)
    found = []
    for i in chosen:
        row = ROWS[i]
        base = predicted(row)
        if base is None or not base > 0:
            continue
        log, by = float(np.log(base)), {}
        for quantity in levels(row) if slopes else ():
            moved = predicted(row, {quantity: float(np.exp(NUDGE))})
            by[quantity] = 0.0 if moved is None else (float(np.log(moved)) - log) / NUDGE
        found.append((i, log, by))
    return found


ROWS: list[Row] = []


def run(pool: Any, factors: dict[Key, float], chosen: Iterable[int], *, slopes: bool) -> list[Any]:
    """The same over processes."""
    rows = list(chosen)
    jobs = [(factors, rows[i::16], slopes) for i in range(16)]
    return [item for part in pool.map(_work, jobs) for item in part]


class Problem:
    """Rows, parameters and slopes as arrays."""

    def __init__(self) -> None:
        self.index: dict[Key, int] = {}
        self.width: list[float] = []
        self.of: dict[int, dict[str, list[int]]] = {}
        for i, row in enumerate(ROWS):
            if row.case is None:
                continue
            self.of[i] = {}
            for quantity, keys in levels(row).items():
                self.of[i][quantity] = [self._at(key, width) for key, width in keys]
        self.measured = np.log([row.raw["value_si"] for row in ROWS])
        self.weight = np.array([row.weight for row in ROWS])

    def _at(self, key: Key, width: float) -> int:
        if key not in self.index:
            self.index[key] = len(self.width)
            self.width.append(width)
        return self.index[key]

    def factors(self, x: np.ndarray) -> dict[Key, float]:
        """Logarithms by key."""
        return {key: float(x[i]) for key, i in self.index.items()}

    def linear(self, found: list[Any]) -> Linear:
        """(rows, log predictions, slopes in every parameter)."""
        rows = np.array([i for i, _, _ in found], dtype=int)
        logs = np.array([log for _, log, _ in found], dtype=float)
        slopes = np.zeros((len(found), len(self.width)))
        for n, (i, _, by) in enumerate(found):
            for quantity, slope in by.items():
                slopes[n, self.of[i][quantity]] += slope
        return rows, logs, slopes

    def cost(self, x: np.ndarray, linear: Linear, keep: Callable[[Row], bool]) -> float:
        """What the fit makes small: robust squares of errors, and of factors that leave 1."""
        rows, logs, _ = linear
        kept = np.array([keep(ROWS[i]) for i in rows])
        scaled = (logs - self.measured[rows]) / SIGMA
        robust = 2 * (np.sqrt(1 + scaled**2) - 1)
        return float(np.sum(self.weight[rows] * kept * robust) + np.sum((x / np.array(self.width)) ** 2))

    def solve(self, at: np.ndarray, linear: Linear, keep: Callable[[Row], bool]) -> np.ndarray:
        """The parameters that fit best around `at`, on the rows kept."""
        rows, logs, slopes = linear
        kept = np.array([keep(ROWS[i]) for i in rows])
        weight = self.weight[rows] * kept
        inverse = 1 / np.array(self.width) ** 2
        x = at.copy()
        for _ in range(12):
            error = logs + slopes @ (x - at) - self.measured[rows]
            robust = weight / np.sqrt(1 + (error / SIGMA) ** 2) / SIGMA**2
            a = (slopes * robust[:, None]).T @ slopes + np.diag(inverse)
            step = np.linalg.solve(a, -(slopes.T @ (robust * error) + inverse * x))
            x = x + np.clip(step, -0.5, 0.5)
            if np.abs(step).max() < 1e-4:
                break
        return x


def in_force(problem: Problem) -> np.ndarray:
    """The parameters of the file as it is: a start near the end.

    Links over a bus start at most as timed: where the file has all of it, no way is seen to be better.
    """
    x = np.zeros(len(problem.width))
    if not OUT.exists():
        return x
    stored = json.loads(OUT.read_text("utf-8"))["quantities"]
    for (quantity, key), i in problem.index.items():
        entry = stored.get(quantity, {"base": 0, "factors": {}})
        base = {**STEP, **FRONT}[quantity]["base"]
        x[i] = np.log(
            entry["base"] / base if key == "all" and entry["base"] else entry["factors"].get(key, 1.0)
        )
        if key.endswith("shared bus"):
            x[i] = min(x[i], 0.0)
    return x


def settle(
    pool: Any,
    problem: Problem,
    x: np.ndarray,
    timed: tuple[np.ndarray, Linear],
    keep: Callable[[Row], bool],
    engines: set[str] | None = None,
    gain: float = 0.002,
) -> np.ndarray:
    """The parameters that fit the rows kept best; of `engines` alone, where others have no say in it.

    Turns go on as long as each gains that share of what the fit makes small.

    Engines whose kernels were timed hardly leave 1: their rows are taken as linear around `timed`. The
    others, cheap to compute, are linearised anew at every turn; a turn that overshoots is taken half back.
    """
    quick = [i for i in problem.of if not _is_timed(ROWS[i]) and (not engines or _engine(ROWS[i]) in engines)]
    at, (rows, logs, slopes) = timed
    best: tuple[float, np.ndarray] | None = None
    for _ in range(TURNS):
        found = problem.linear(run(pool, problem.factors(x), quick, slopes=True))
        moved = rows, logs + slopes @ (x - at), slopes
        both = tuple(np.concatenate(pair) for pair in zip(moved, found, strict=True))
        cost = problem.cost(x, both, keep)
        if best is not None and cost > best[0]:
            if cost < best[0] * (1 + gain):
                break
            x = (x + best[1]) / 2
            continue
        done = best is not None and best[0] - cost < gain * cost
        best = cost, x
        if done:
            break
        x = x + np.clip(problem.solve(x, both, keep) - x, -0.5, 0.5)
    assert best is not None  # noqa: S101
    return best[1]


def fit(pool: Any, problem: Problem) -> tuple[np.ndarray, tuple[np.ndarray, Linear]]:
    """The parameters of all rows, and the rows of timed engines as linear around them."""
    x, slow = in_force(problem), [i for i in problem.of if _is_timed(ROWS[i])]
    for turn in range(3):
        linear = problem.linear(run(pool, problem.factors(x), slow, slopes=True))
        new = settle(pool, problem, x, (x, linear), bool, gain=0.0001)
        error = np.abs(np.expm1(linear[1] - problem.measured[linear[0]]))
        moved = np.abs(new - x).max()
        print(
            f"turn {turn}: timed engines' median error {np.median(error):.4f}, moved {moved:.3f}", flush=True
        )
        at, x = x, new
    return x, (at, linear)


def _engine(row: Row) -> str:
    assert row.case is not None  # noqa: S101
    return row.case.clock.engine


def _is_timed(row: Row) -> bool:
    assert row.case is not None  # noqa: S101
    return is_timed(row.case.clock.engine, row.case.clock.accelerator.key)


def cross_validated(
    pool: Any, problem: Problem, x: np.ndarray, timed: tuple[np.ndarray, Linear], by: Callable[[Row], str]
) -> dict[int, float]:
    """Each row's log error under parameters fitted without any row of its fold."""
    folds: dict[str, list[int]] = defaultdict(list)
    for i in problem.of:
        folds[by(ROWS[i])].append(i)
    found = {}
    for name, held in sorted(folds.items()):
        engines = {_engine(ROWS[i]) for i in held}
        fresh = np.array(
            [0.0 if key.split()[0] in engines else x[i] for (_, key), i in problem.index.items()]
        )
        fold = settle(pool, problem, fresh, timed, lambda row, name=name: by(row) != name, engines)
        for i, log, _ in run(pool, problem.factors(fold), held, slopes=False):
            found[i] = log - problem.measured[i]
        print(f"without {name}: {np.median(np.abs([found[i] for i in held if i in found])):.3f}", flush=True)
    return found


def spreads(by_architecture: dict[int, float], by_generation: dict[int, float]) -> dict[str, Any]:
    """80 % intervals as factors of the estimate, by kind of figure and by how well a deployment is known."""
    found: dict[str, Any] = {}
    for tier, errors in (("measured", by_architecture), ("elsewhere", by_generation)):
        named = {ROWS[i].raw["id"]: error for i, error in errors.items()}
        kinds: dict[str, list[Row]] = defaultdict(list)
        for i in errors:
            kinds[ROWS[i].figure].append(ROWS[i])
        for kind, rows in sorted(kinds.items()):
            found.setdefault(kind, {})[tier] = interval(ratios(rows, named))
    return found


def main() -> None:
    """Fit, cross-validate and write."""
    ROWS.extend(read_rows())
    problem = Problem()
    with Pool(2) as pool:
        x, timed = fit(pool, problem)
        architecture = cross_validated(pool, problem, x, timed, lambda row: row.raw["arch"])
        accelerator = cross_validated(pool, problem, x, timed, lambda row: generation(row.raw["gpu_key"]))
    kept = {key: value for key, value in problem.factors(x).items() if abs(value) >= 0.005}
    table = table_of(kept)
    used = [ROWS[i] for i in problem.of if ROWS[i].weight]
    table["measured"] = sorted({f"{row.case.clock.engine} {row.raw['gpu_key']}" for row in used if row.case})
    table["spreads"] = spreads(architecture, accelerator)
    table["fitted_on"] = {
        "rows": len(used), "date": datetime.date.today().isoformat(),
        "source": "tests/data/measured.jsonl but for rows kept out by measured.toml; tools/fit_serving.py",
    }  # fmt: skip
    OUT.write_text(json.dumps(table, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    errors = {
        name: {ROWS[i].raw["id"]: round(error, 4) for i, error in sorted(found.items())}
        for name, found in (("architecture", architecture), ("generation", accelerator))
    }
    lines = [f' "{name}": {json.dumps(values)}' for name, values in errors.items()]
    (DATA / "cross_validated.json").write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    store.toml("efficiency/classes.toml")
    main()
