"""The requests that `simulate` is asked to replay or to draw."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kvplan.errors import BadInput, KvplanError, shown
from kvplan.serve import arrivals as laws
from kvplan.serve.arrivals import Arrivals, Think
from kvplan.serve.lengths import Lengths, fixed, parse_lengths
from kvplan.serve.servegen import servegen
from kvplan.serve.synthetic import Sessions, drawn
from kvplan.serve.traces import read_trace
from kvplan.serve.workload import Workload
from kvplan.units import parse_seconds
from kvplan.verbs.asked import DEFAULT_OUTPUT, DEFAULT_PROMPT
from kvplan.verbs.check import whole
from kvplan.verbs.size import MAX_TOKENS

REQUESTS = 1000
ROUNDS = 10  # of a closed loop
_LAW = re.compile(r"(poisson|constant|gamma|ramp)\s*(?:\(([^)]*)\))?", re.IGNORECASE)
_OF_DRAWN = (
    "prompt_tokens", "output_tokens", "duration", "arrivals", "think", "turns", "concurrency", "batch",
    "system_tokens", "shared_prefix_tokens",
)  # fmt: skip


WORKLOAD = (
    "trace", "prefix_block_tokens", "first_seconds", "last_seconds", "rate", "rate_scale", "concurrency",
    "batch", "requests", "duration", "arrivals", "think", "prompt_tokens", "output_tokens",
    "shared_prefix_tokens", "turns", "system_tokens",
)  # fmt: skip


def workload_of(words: Mapping[str, Any], seed: int) -> Workload:
    """The workload that these WORKLOAD words describe: a trace, or one that is drawn.

    A word is None or absent where not given. Raises BadInput for what contradicts itself or cannot be read.
    """
    given = {name: value for name, value in words.items() if value is not None}
    if "trace" in given:
        return _traced(given, seed)
    for name in ("prefix_block_tokens", "first_seconds", "last_seconds", "rate_scale"):
        if name in given:
            raise BadInput(f"--{name.replace('_', '-')}: is for --trace; give one, or leave it out")
    return _drawn(given, seed)


def _traced(given: Mapping[str, Any], seed: int) -> Workload:
    clash = next((name for name in _OF_DRAWN if name in given), None)
    if clash is not None:
        raise BadInput(f"--{clash.replace('_', '-')}: the trace says it; leave it out, or leave --trace out")
    path, block = (
        str(given["trace"]),
        whole("--prefix-block-tokens", given.get("prefix_block_tokens", 512), 1, 2**20),
    )
    first, last = _time(given, "first_seconds") or 0.0, _time(given, "last_seconds")
    folder = Path(path).is_dir()
    try:
        found = _clients(path, seed, first, last) if folder else read_trace(path, block)
    except KvplanError as error:
        raise type(error)(f"--trace: {error}") from None
    if not folder and (first or last is not None):
        found = found.clipped(first, last)
    if "requests" in given:
        found = found.clipped(requests=whole("--requests", given["requests"], 1, laws.MOST_REQUESTS))
    if "rate" in given:
        found = found.at_rate(given["rate"])
    return found.scaled(given["rate_scale"]) if "rate_scale" in given else found


def _clients(folder: str, seed: int, first: float, last: float | None) -> Workload:
    """ServeGen's clients from `first` to `last` seconds of their days, an hour where nobody says."""
    seconds = 3600.0 if last is None else last - first
    return servegen(Path(folder), seed=seed, start_seconds=first, seconds=seconds)


def _drawn(given: Mapping[str, Any], seed: int) -> Workload:
    law = _arrivals(given)
    prompt = _lengths(given, "prompt_tokens", DEFAULT_PROMPT)
    output = _lengths(given, "output_tokens", DEFAULT_OUTPUT)
    seconds = _time(given, "duration")
    count = whole("--requests", given["requests"], 1, laws.MOST_REQUESTS) if "requests" in given else None
    if count is not None and seconds is not None:
        raise BadInput("--duration: --requests is given too; give one of them")
    if count is None and seconds is None:
        count = _count(given)
    sessions = None
    if "turns" in given:
        system = whole("--system-tokens", given.get("system_tokens", 0), 0, MAX_TOKENS)
        sessions = Sessions(parse_lengths(str(given["turns"]), "--turns"), _think(given), system)
    elif "system_tokens" in given:
        raise BadInput(
            "--system-tokens: are those that sessions share; give --turns, or --shared-prefix-tokens"
        )
    shared = whole("--shared-prefix-tokens", given.get("shared_prefix_tokens", 0), 0, MAX_TOKENS)
    return drawn(
        prompt, output, law, requests=count, seconds=seconds, seed=seed, shared_prefix_tokens=shared,
        sessions=sessions,
    )  # fmt: skip


def _count(given: Mapping[str, Any]) -> int:
    """Requests that are drawn where nobody says how many."""
    if "batch" in given:
        return int(given["batch"])
    return max(REQUESTS // 5, ROUNDS * int(given["concurrency"])) if "concurrency" in given else REQUESTS


def _lengths(given: Mapping[str, Any], name: str, default: int) -> Lengths:
    field = f"--{name.replace('_', '-')}"
    value = given.get(name, default)
    return (
        parse_lengths(value, field) if isinstance(value, str) else fixed(whole(field, value, 1, MAX_TOKENS))
    )


def _time(given: Mapping[str, Any], name: str) -> float | None:
    value = given.get(name)
    field = f"--{name.replace('_', '-')}"
    if isinstance(value, str):
        value = parse_seconds(value, field)
    if value is not None and (
        isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e12
    ):
        raise BadInput(f"{field}: {shown(value)} is not a time; write one such as 600s or 1h")
    return None if value is None else float(value)


def _think(given: Mapping[str, Any]) -> Think:
    return Think(_time(given, "think") or 0.0, exponential=True)


def _arrivals(given: Mapping[str, Any]) -> Arrivals:
    """The law of arrival: of a batch, of users, or of a rate."""
    named = [name for name in ("batch", "concurrency", "rate") if name in given]
    if len(named) > 1:
        raise BadInput(
            f"--{named[1]}: --{named[0]} is given too; a load has one of --batch, --concurrency, --rate"
        )
    if not named:
        raise BadInput("--rate: missing; give a load: --trace, --rate, --concurrency or --batch")
    name, value = named[0], given[named[0]]
    if name != "rate":
        if "arrivals" in given:
            raise BadInput(f"--arrivals: is for --rate; --{name} says when requests arrive")
        count = whole(f"--{name}", value, 1, 10**7)
        return laws.at_once() if name == "batch" else laws.closed(count, _think(given))
    if "think" in given and "turns" not in given:
        raise BadInput("--think: is for --concurrency or --turns; requests at a rate wait for nobody")
    return _law(str(given.get("arrivals", "poisson")), value)


def _law(text: str, rate: Any) -> Arrivals:
    found = _LAW.fullmatch(text.strip())
    words = "poisson, constant, gamma(VARIATION) or ramp(LAST_RATE, SECONDS)"
    if found is None:
        raise BadInput(f"--arrivals: {shown(text)} is not known; write {words}")
    kind, inner = (
        found.group(1).lower(),
        [part.strip() for part in (found.group(2) or "").split(",") if part.strip()],
    )
    try:
        numbers = [float(part.removesuffix("s")) for part in inner]
    except ValueError:
        raise BadInput(f"--arrivals: {shown(text)} has no numbers in it; write {words}") from None
    if len(numbers) != {"poisson": 0, "constant": 0, "gamma": 1, "ramp": 2}[kind]:
        raise BadInput(f"--arrivals: {shown(text)} takes other numbers; write {words}")
    made: dict[str, Callable[..., Arrivals]] = {
        "poisson": laws.poisson,
        "constant": laws.constant,
        "gamma": laws.gamma,
        "ramp": laws.ramp,
    }
    try:
        return made[kind](rate, *numbers)
    except BadInput as error:
        raise BadInput(f"--{error}") from None
