"""`workload`: what requests are like, learned from a Prometheus or read from a trace, to be simulated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvplan.errors import BadInput, KvplanError, shown
from kvplan.facts.engine_versions import find_engine
from kvplan.figure import Leaf
from kvplan.observe.address import Secrets
from kvplan.observe.history import History, read_history
from kvplan.observe.learned import Curve, LearnedLengths, fixed_length, learned_lengths, learned_workload
from kvplan.observe.learned import shared_for as shared_prefix_for
from kvplan.observe.prometheus import Prometheus, selector_of
from kvplan.observe.traffic import traffic_of
from kvplan.serve.traces import BLOCK_TOKENS, read_trace
from kvplan.serve.traces_out import check_target, write_histogram, write_trace
from kvplan.serve.workload import Workload
from kvplan.units import parse_seconds
from kvplan.verbs.answer import Answer
from kvplan.verbs.check import whole
from kvplan.verbs.verify_server import Asking, asking_of, client_of

DAY = 86400.0
_MOST_SINCE = 400 * DAY
_BUCKETS = 96  # of a trace's curve
_LOST = (
    "which prompt goes with which output: lengths are drawn apart from one another",
    "sessions, and which prompts share what: hits are given back by one prefix that all prompts share",
    "when requests came within a step: they are spread at random; counts are of requests that ended",
)


@dataclass(frozen=True, slots=True)
class Learned:
    """A history with what was made of it."""

    history: History
    curve: Curve
    prompt: LearnedLengths
    output: LearnedLengths
    shared_tokens: int
    notes: tuple[str, ...]


def workload(
    *,
    prometheus: str | None = None,
    trace: str | None = None,
    selector: str | None = None,
    since: str | float | None = None,
    step: str | float | None = None,
    engine: str | None = None,
    header: str | list[str] | None = None,
    timeout: str | float | None = None,
    busiest: str | float | None = None,
    out: str | None = None,
    histograms: str | None = None,
    seed: int = 0,
    prefix_block_tokens: int | None = None,
) -> Answer:
    """Rates over time, lengths, prefix hits and concurrency, and what is lost when they are drawn again.

    `prometheus` is asked for the last `since` (a day) of the series that `selector` leaves, in steps of
    `step`; `busiest` keeps only the part of so long with the most requests. `out` is a trace to write, drawn
    by `seed`; `histograms` a folder for lengths as `histogram(FILE)` reads them. `trace` is a file to read
    instead. Raises BadInput, or Unreachable for a server that does not answer.
    """
    if (prometheus is None) == (trace is None):
        raise BadInput("--prometheus or --trace: give one of them, to learn from")
    if trace is not None:
        given = {
            "selector": selector, "since": since, "step": step, "engine": engine, "header": header,
            "timeout": timeout, "busiest": busiest, "out": out, "histograms": histograms,
        }  # fmt: skip
        _refuse(given)
        block = whole("--prefix-block-tokens", prefix_block_tokens or BLOCK_TOKENS, 1, 2**20)
        return _answer(_of_trace(trace, block))
    if out is not None:
        check_target(out, "--out")
    folder = _folder(histograms)
    asking = asking_of({"header": header, "timeout": timeout})
    source, secrets = source_of(prometheus, asking, selector)
    whole("--seed", seed, 0, 2**63 - 1)
    try:
        history = read_history(source, *span_of(since, step), find_engine(engine) if engine else None)
        learned = learned_of(history, _seconds("busiest", busiest))
    except KvplanError as error:
        raise type(error)(secrets.masked(str(error))) from None
    document = secrets.out_of(_document(learned, source.client.address.base))
    written = _written(learned, out, folder, seed)
    return _answer({**document, "written": written, "commands": _commands(learned, written)})


def _answer(document: Mapping[str, Any]) -> Answer:
    def compute(_leaf: Leaf) -> dict[str, Any]:
        return dict(document)

    return Answer(compute)


def _refuse(given: Mapping[str, Any]) -> None:
    found = next((name for name, value in given.items() if value not in (None, "")), None)
    if found is not None:
        raise BadInput(f"--{found}: is for --prometheus; a trace is read as it is")


def source_of(url: Any, asking: Asking, selector: Any) -> tuple[Prometheus, Secrets]:
    """Who asks the Prometheus at that address, and what must never be said of it."""
    client = client_of(url, asking, "--prometheus")
    return Prometheus(client, selector_of(selector)), client.secrets


def span_of(since: Any, step: Any) -> tuple[float, int | None]:
    """Seconds to look back, and of a step where one is given."""
    back = _seconds("since", since) or DAY
    every = _seconds("step", step)
    if not 10 <= back <= _MOST_SINCE:
        raise BadInput(f"--since: {shown(since)} is outside 10s to 400 days; write such as 24h")
    if every is not None and not (1 <= every <= back / 2 and back / every <= 10_000):
        raise BadInput(
            f"--step: {shown(step)} does not divide --since into 2 to 10,000 steps; write such as "
            f"{max(1, round(back / 60))}s"
        )
    return back, None if every is None else round(every)


def _seconds(name: str, given: Any) -> float | None:
    if given in (None, ""):
        return None
    read = parse_seconds(given, f"--{name}") if isinstance(given, str) else given
    if isinstance(read, bool) or not isinstance(read, (int, float)) or not 0 < read < 1e10:
        raise BadInput(f"--{name}: {shown(given)} is not a time; write one such as 24h")
    return float(read)


def learned_of(history: History, busiest: float | None = None) -> Learned:
    """Lengths, curve and shared prefix of a history. Raises BadInput where it has no requests or lengths."""
    reading = history.reading
    traffic = traffic_of(reading, history.known_seconds)
    if not traffic.requests:
        why = "counts no requests" if traffic.requests is None else "had no request that ended in that time"
        raise BadInput(f"--prometheus: {reading.engine} {why}; widen --since, or give a trace to simulate")
    notes = list(history.notes)
    found = {}
    for name, mean in (("prompt_tokens", traffic.prompt_tokens), ("output_tokens", traffic.output_tokens)):
        histogram = traffic.histogram(name)
        if histogram is not None and histogram.has_buckets:
            found[name] = learned_lengths(histogram)
            notes += _of_lengths(name, found[name])
        elif mean:
            found[name] = fixed_length(mean)
            notes.append(f"{name}: the engine has no histogram of them: all take the mean, {mean:,.1f}")
        else:
            raise BadInput(f"--prometheus: {reading.engine} states no {name} in that time; widen --since")
    curve = Curve(history.rates, history.span.step)
    if busiest is not None:
        curve = curve.busiest(busiest)
    shared = shared_prefix_for(found["prompt_tokens"], traffic.prefix_hit_share or 0.0)
    return Learned(history, curve, found["prompt_tokens"], found["output_tokens"], shared, tuple(notes))


def _of_lengths(name: str, lengths: LearnedLengths) -> list[str]:
    notes = []
    if lengths.above > 0:
        share = f"{lengths.above:.2%}"
        notes.append(f"{name}: {share} lie above the last bucket, of which no more is known: up to twice it")
    if not lengths.exact:
        notes.append(
            f"{name}: no spread within the buckets gives the mean that is counted; the nearest is taken"
        )
    return notes


def _document(learned: Learned, url: str) -> dict[str, Any]:
    history, curve = learned.history, learned.curve
    traffic = traffic_of(history.reading, history.known_seconds).document()
    return {
        "source": {
            "kind": "prometheus",
            "name": url,
            "engine": history.reading.engine,
            "model": history.reading.model,
            "instances": history.instances,
            "from": history.span.start,
            "to": history.span.end,
            "step_seconds": history.span.step,
        },
        "requests": round(curve.expected),
        "seconds": len(curve.rates) * curve.step,
        "requests_per_second": _rates(curve.rates),
        "rate": [[i * curve.step, rate] for i, rate in enumerate(curve.rates)],
        "prompt_tokens": _lengths(learned.prompt),
        "output_tokens": _lengths(learned.output),
        "prefix_hit_rate": traffic["prefix_hit_rate"],
        "shared_prefix_tokens": learned.shared_tokens,
        "concurrency": _gauge(history, "running"),
        "waiting": _gauge(history, "waiting"),
        "kv_usage": _gauge(history, "usage"),
        "preemptions": traffic["preemptions"],
        "measured": traffic["histograms"],
        "lost": list(_LOST),
        "notes": list(learned.notes),
    }


def _gauge(history: History, name: str) -> dict[str, float | None]:
    return {"mean": history.means.get(name), "max": history.peaks.get(name)}


def _rates(rates: Sequence[float | None]) -> dict[str, float | None]:
    known = sorted(rate for rate in rates if rate is not None)
    if not known:
        return {"mean": None, "p50": None, "max": None}
    return {"mean": sum(known) / len(known), "p50": known[len(known) // 2], "max": known[-1]}


def _lengths(lengths: LearnedLengths) -> dict[str, float]:
    found = {f"p{round(100 * q)}": lengths.quantile(q) for q in (0.5, 0.9, 0.99)}
    return {"mean": lengths.mean, **found, "max": float(lengths.values[-1])}


def _folder(given: str | None) -> Path | None:
    if given in (None, ""):
        return None
    folder = Path(str(given))
    if not folder.is_dir():
        raise BadInput(f"--histograms: {shown(given)} is no folder; make it first")
    return folder


def _written(learned: Learned, out: str | None, folder: Path | None, seed: int) -> dict[str, Any]:
    """The files that were written."""
    found: dict[str, Any] = {}
    if out is not None:
        made = learned_workload(learned.curve, learned.prompt, learned.output, seed, learned.shared_tokens)
        write_trace(out, made)
        found["trace"] = {"file": out, "requests": len(made), "seed": seed}
    if folder is not None:
        for name, lengths in (("prompt_tokens", learned.prompt), ("output_tokens", learned.output)):
            file = folder / f"{name}.csv"
            write_histogram(str(file), lengths.rows())
            found[name] = {"file": str(file), "lengths": len(lengths.values)}
    return found


def _commands(learned: Learned, written: Mapping[str, Any]) -> list[str]:
    """How what was written is simulated."""
    shared = learned.shared_tokens
    found = []
    if "trace" in written:
        block = f" --prefix-block-tokens {shared}" if shared else ""
        found.append(f"kvplan simulate MODEL --gpu GPU --trace {written['trace']['file']}{block}")
    if "prompt_tokens" in written:
        rate = _rates(learned.curve.rates)["mean"] or 0.0
        prefix = f" --shared-prefix-tokens {shared}" if shared else ""
        found.append(
            f"kvplan simulate MODEL --gpu GPU --rate {rate:.4g} "
            f"--prompt-tokens 'histogram({written['prompt_tokens']['file']})' "
            f"--output-tokens 'histogram({written['output_tokens']['file']})'{prefix}"
        )
    return found


def _of_trace(path: str, block: int) -> dict[str, Any]:
    """A trace in the same words."""
    try:
        found = read_trace(path, block)
    except KvplanError as error:
        raise type(error)(f"--trace: {error}") from None
    summary = found.summary()
    rates, step = _curve(found)
    return {
        "source": {"kind": "trace", "name": path},
        "requests": summary.requests,
        "seconds": summary.duration_seconds,
        "requests_per_second": {**_rates(rates), "mean": summary.requests_per_second},
        "gap_variation": summary.gap_variation,
        "rate": [[i * step, rate] for i, rate in enumerate(rates)],
        "prompt_tokens": summary.prompt_tokens,
        "output_tokens": summary.output_tokens,
        "prefix_hit_rate": summary.prefix_hit_share,
        "shared_prefix_tokens": None,
        "concurrency": {"mean": None, "max": None},
        "lost": [],
        "notes": list(found.notes),
        "written": {},
        "commands": [f"kvplan simulate MODEL --gpu GPU --trace {path}"],
    }


def _curve(workload: Workload) -> tuple[list[float], float]:
    """Requests a second in equal parts of the trace."""
    times = workload.arrival_seconds[workload.arrival_seconds >= 0]
    last = float(times[-1]) if len(times) else 0.0
    if last <= 0:
        return [], 0.0
    count = max(1, min(_BUCKETS, len(times) // 4))
    step = last / count
    parts = [0] * count
    for time in times.tolist():
        parts[min(count - 1, int(time / step))] += 1
    return [n / step for n in parts], step
