"""Write docs/replayed.md: measured runs of an engine beside the same requests simulated.

    python tools/replayed.py [--check]

The runs are those of tests/data/runs. Pictures of their course are drawn to docs/replayed/. `--check` fails
where the page is stale; it draws nothing.
"""

from __future__ import annotations

import argparse
import csv
import json
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import kvplan
from kvplan.faces import picture, run_picture
from kvplan.serve.runs import measured_run
from kvplan.serve.traces import read_trace
from kvplan.serve.traces_table import read_table

ROOT = Path(__file__).parents[1]
DATA = ROOT / "tests" / "data"
PAGE = ROOT / "docs" / "replayed.md"
PICTURES = ROOT / "docs" / "replayed"
PLAIN, CALIBRATED = "as it stands", "calibrated"
KINDS = {
    "ttft_seconds": "TTFT",
    "tpot_seconds": "TPOT",
    "e2e_seconds": "end to end",
    "queue_seconds": "queued",
}
DURATION = ("duration_seconds", "")
SHOWN = (
    *((kind, stat) for kind in list(KINDS)[:3] for stat in ("mean", "p50", "p99")),
    *(("queue_seconds", stat) for stat in ("mean", "p99")),
    DURATION,
)
# What must hold of whom: the largest error.
TARGETS = {
    PLAIN: {
        ("tpot_seconds", "mean"): 0.10,
        ("e2e_seconds", "mean"): 0.10,
        ("ttft_seconds", "mean"): 0.20,
        ("ttft_seconds", "p99"): 0.20,
    },
    CALIBRATED: {
        ("tpot_seconds", "mean"): 0.03,
        ("e2e_seconds", "mean"): 0.03,
        ("ttft_seconds", "mean"): 0.08,
    },
}
# A curve's name here: the recorder's column, its unit, how it is called.
CURVES = {
    "running": ("running", 1.0, "running requests"),
    "waiting": ("waiting", 1.0, "waiting requests"),
    "kv_fraction": ("kv_cache_pct", 0.01, "share of the cache"),
}
Line = dict[str, list[float]]


@dataclass(frozen=True)
class Way:
    """How a run is simulated: what is stated beside its launch, and whether step times are its own."""

    name: str
    stated: bool
    calibrated: bool

    @property
    def targets(self) -> dict[tuple[str, str], float]:
        """The largest error of each figure."""
        return TARGETS[CALIBRATED if self.calibrated else PLAIN]


@dataclass(frozen=True, eq=False)
class Run:
    """A measured run, as tests/data/runs/runs.toml describes it."""

    raw: dict[str, Any]

    @property
    def name(self) -> str:
        """The beginning of its files' names."""
        return str(self.raw["name"])

    @property
    def trace(self) -> str:
        """The file of its requests."""
        return str(DATA / "runs" / self.raw["trace"])

    @property
    def has_requests(self) -> bool:
        """Whether what each request saw is known, not just its mean and percentiles."""
        return "rows" not in self.raw

    def ways(self) -> Iterator[Way]:
        """As it stands and with what is stated, each calibrated too where the run's requests are known."""
        for calibrated in (False, True) if self.has_requests else (False,):
            yield Way(CALIBRATED if calibrated else PLAIN, False, calibrated)
            if "stated" in self.raw:
                name = self.raw["stated"]["name"]
                yield Way(f"{CALIBRATED}, {name}" if calibrated else name, True, calibrated)


def runs() -> list[Run]:
    """All of them."""
    text = (DATA / "runs" / "runs.toml").read_text("utf-8")
    return [Run(raw) for raw in tomllib.loads(text)["run"]]


@cache
def simulated(run: Run, way: Way) -> Any:
    """The answer of `kvplan simulate`."""
    stated = run.raw["stated"]["words"] if way.stated else {}
    calibrate_from = run.trace if way.calibrated else None
    return kvplan.simulate(**run.raw["words"], **stated, trace=run.trace, calibrate_from=calibrate_from)


@cache
def measured(run: Run) -> dict[tuple[str, str], float]:
    """Seconds by (kind, statistic)."""
    return _of_requests(run) if run.has_requests else _of_rows(run)


def _of_requests(run: Run) -> dict[tuple[str, str], float]:
    _, seen = measured_run(run.trace)
    rows = read_table(run.trace).frame
    moments = {name: rows[name].to_numpy() for name in ("queued_ts", "scheduled_ts", "last_token_ts")}
    values = {
        "ttft_seconds": seen.ttft_seconds,
        "tpot_seconds": seen.tpot_seconds,
        "e2e_seconds": seen.e2e_seconds,
        "queue_seconds": moments["scheduled_ts"] - moments["queued_ts"],
    }
    found = {DURATION: float(moments["last_token_ts"].max() - moments["queued_ts"].min())}
    for kind, each in values.items():
        found[kind, "mean"] = float(np.nanmean(each))
        found |= {(kind, f"p{p}"): float(np.nanpercentile(each, p)) for p in (50, 99)}
    return found


def _of_rows(run: Run) -> dict[tuple[str, str], float]:
    found: dict[tuple[str, str], float] = {}
    for raw in map(json.loads, (DATA / "measured.jsonl").read_text("utf-8").splitlines()):
        if any(raw.get(name) != value for name, value in run.raw["rows"].items()):
            continue
        kind, _, stat = raw["metric"].partition("_")
        stat = {"median": "p50"}.get(stat, stat)
        if raw["metric"] == "output_throughput":
            made = int(read_trace(run.trace).output_tokens.sum())
            found[DURATION] = made / raw["value_si"]
        elif (f"{kind}_seconds", stat) in SHOWN:
            found[f"{kind}_seconds", stat] = float(raw["value_si"])
    return found


def told(answer: Any, key: tuple[str, str]) -> float:
    """The answer's figure of the same name."""
    return float(answer[key[0]] if key == DURATION else answer[key[0]][key[1]])


def error(run: Run, way: Way, key: tuple[str, str]) -> float:
    """How far the simulated figure is off, as a share of the measured one."""
    return told(simulated(run, way), key) / measured(run)[key] - 1


def curves(run: Run, way: Way) -> tuple[Line, Line]:
    """(measured, simulated) running and waiting requests and cache use, at the recorder's seconds.

    Every second has what the last step before it left; the cache is empty of numbers where none was recorded.
    """
    with (DATA / "runs" / run.raw["curves"]).open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    at = np.array([float(row["t"]) for row in rows]) - run.raw["recorded_before_seconds"]
    line = simulated(run, way)["timeline"]
    place = np.searchsorted(line["seconds"], at, side="right") - 1
    before: Line = {"seconds": at.round(3).tolist()}
    after: Line = {"seconds": at.round(3).tolist()}
    for key, (column, unit, _) in CURVES.items():
        values = np.array([float(row[column]) * unit for row in rows])
        before[key] = values.tolist() if values.any() else [None] * len(rows)  # type: ignore[list-item]
        after[key] = np.where(at > line["seconds"][-1], 0.0, np.array(line[key])[place]).tolist()
    return before, after


def apart(run: Run, way: Way) -> dict[str, float]:
    """The mean absolute difference of each curve that was measured: requests, or share of the cache."""
    before, after = curves(run, way)
    return {
        key: float(np.abs(np.array(before[key]) - np.array(after[key])).mean())
        for key in CURVES
        if before[key][0] is not None
    }


def percent(value: float) -> str:
    """A signed error, as +1.2%; never -0.0%."""
    return f"{round(value, 3) + 0.0:+.1%}"


def amount(kind: str, seconds: float) -> str:
    """Seconds, or milliseconds of a token."""
    return f"{seconds * 1e3:.1f} ms" if kind == "tpot_seconds" else f"{seconds:.2f} s"


def targets(ways: list[tuple[Run, Way]], name: str) -> list[str]:
    """Errors of the figures that have a target, and whether all are met."""
    goals = TARGETS[name]
    heads = [f"{KINDS[kind]} {stat}, within {goal:.0%}" for (kind, stat), goal in goals.items()]
    lines = [f"| run | | {' | '.join(heads)} | |", f"|---|---|{'---:|' * len(goals)}---|"]
    for run, way in ways:
        errors = {key: error(run, way, key) for key in goals if key in measured(run)}
        missed = [key for key, value in errors.items() if abs(value) > goals[key]]
        cells = [f"**{percent(v)}**" if key in missed else percent(v) for key, v in errors.items()]
        verdict = "missed" if missed else "met"
        lines.append(f"| {run.raw['title']} | {way.name} | {' | '.join(cells)} | {verdict} |")
    return lines


def figures(run: Run) -> list[str]:
    """Every figure of a run, measured and simulated in every way."""
    ways = list(run.ways())
    lines = [f"| | measured | {' | '.join(way.name for way in ways)} |", f"|---|---:|{'---:|' * len(ways)}"]
    for key in SHOWN:
        known = measured(run).get(key)
        cells = ["–" if known is None else amount(key[0], known)]
        for way in ways:
            off = "" if known is None else f", {percent(error(run, way, key))}"
            cells.append(amount(key[0], told(simulated(run, way), key)) + off)
        name = "duration" if key == DURATION else f"{KINDS[key[0]]} {key[1]}"
        lines.append(f"| {name} | {' | '.join(cells)} |")
    answers = [simulated(run, way) for way in ways]
    preempted = " | ".join(f"{answer['preemptions']:,}" for answer in answers)
    tokens = " | ".join(f"{answer['settings']['kv_tokens']:,}" for answer in answers)
    known = f"{run.raw['kv_tokens']:,}" if "kv_tokens" in run.raw else "–"
    return [*lines, f"| preemptions | – | {preempted} |", f"| tokens of cache | {known} | {tokens} |"]


def drawn(run: Run) -> list[Way]:
    """The ways whose course is drawn."""
    return [way for way in run.ways() if "curves" in run.raw and not (way.stated and way.calibrated)]


def course(run: Run) -> list[str]:
    """How far the curves are apart, and their pictures."""
    ways = list(run.ways())
    differences = [apart(run, way) for way in ways]
    before, _ = curves(run, ways[0])
    heads = " | ".join(f"off, {way.name}" for way in ways)
    lines = [f"| mean over the run | measured | {heads} |", f"|---|---:|{'---:|' * len(ways)}"]
    for key in differences[0]:
        form = "{:.1%}" if key == "kv_fraction" else "{:.1f}"
        values = (np.mean(before[key]), *(each[key] for each in differences))
        lines.append(f"| {CURVES[key][2]} | {' | '.join(form.format(value) for value in values)} |")
    for way in drawn(run):
        lines += ["", f"![{run.raw['title']}, {way.name}](replayed/{picture_name(run, way)})"]
    return lines


def picture_name(run: Run, way: Way) -> str:
    """The file of a picture."""
    return f"{run.name}-{way.name.replace(', ', '-').replace(' ', '-')}.svg"


def draw() -> None:
    """Every picture, anew."""
    PICTURES.mkdir(exist_ok=True)
    for old in PICTURES.glob("*.svg"):
        old.unlink()
    for run in runs():
        for way in drawn(run):
            line, (before, _) = simulated(run, way)["timeline"], curves(run, way)
            charts = run_picture.over_time(line, f"{run.raw['title']}, {way.name}", before)
            picture.save(picture.page(charts), PICTURES / picture_name(run, way))


HEAD = """# Measured runs, simulated

Generated by `make replayed` (tools/replayed.py) from runs of vLLM 0.19.0 that others measured and published
(tests/data/runs). Each is an overload, 300 requests at ten a second: most of every time to first token is
queueing, in which an error of the steps' times adds up.

- `as it stands`: the launch and the requests are known, nothing else.
- `calibrated`: step times are taken from the run itself (`--calibrate-from`): three factors for 300 requests.
- `stated`: one input more, named below the run's figures.

`as it stands` is no held-out figure: the time of a token and the tokens a second of these runs, mean and
median, are among the measurements that the shipped parameters are fitted on (rows lss-… of
tests/data/measured.jsonl). Times to first token and to the end, 99th percentiles and curves are not.
docs/accuracy.md is cross-validated. A run calibrated on itself says how faithful the scheduling is once steps
take what they take, not how well their times are predicted.

TTFT and end to end count from when the engine queued a request; simulated ones have the front end's
milliseconds in them. A request is queued until it is first admitted. – is what nobody recorded: preemptions,
and the cache in use of the run on two cards."""


def page() -> str:
    """The whole page."""
    listed = runs()
    lines = [*HEAD.splitlines(), "", "## Targets", "", "What is missed is bold."]
    for name in TARGETS:
        ways = [(run, way) for run in listed for way in run.ways() if way.targets is TARGETS[name]]
        lines += ["", *targets(ways, name)]
    lines += ["", "What each request on one RTX PRO 6000 saw is not at hand, so nothing is calibrated on it."]
    for run in listed:
        lines += ["", f"## {run.raw['title']}", "", *figures(run)]
        if "stated" in run.raw:
            lines += ["", stated_text(run.raw["stated"])]
        if "curves" in run.raw:
            lines += ["", *course(run)]
    return "\n".join(lines) + "\n"


def stated_text(stated: dict[str, Any]) -> str:
    """What is stated, where it was read, and why it matters."""
    options = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in stated["words"].items())
    return f"{stated['name'].capitalize()}: `{options}` ({stated['source']}). {stated['why']}"


def main() -> None:
    """Write the page and its pictures, or say that it is stale."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    text = page()
    if parser.parse_args().check:
        if not PAGE.exists() or PAGE.read_text("utf-8") != text:
            raise SystemExit("docs/replayed.md is stale: make replayed")
        return
    PAGE.write_text(text, encoding="utf-8")
    draw()
    print(text)


if __name__ == "__main__":
    main()
