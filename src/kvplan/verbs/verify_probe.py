"""`verify --url --probe`: a short load is sent, and its times stand beside those predicted."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kvplan.engines.deployment import Deployment
from kvplan.errors import BadInput, shown
from kvplan.observe.http import Client
from kvplan.observe.load import PATHS, TRIES, Level, Plan, Sent, send
from kvplan.observe.served import served_as
from kvplan.observe.server import Server
from kvplan.units import parse_seconds, seconds_text
from kvplan.verbs.check import whole
from kvplan.verbs.verify_check import Check
from kvplan.verbs.verify_times import Measured, times

LEVELS = (1, 4, 8)
ROUNDS = 3
MOST_AT_ONCE, MOST_REQUESTS = 256, 2000
_WHY = "the first request of each user is left out"


@dataclass(frozen=True, slots=True)
class Probe:
    """What to send: requests at once, most requests in all, lengths, requests a second, seconds."""

    levels: tuple[int, ...] = LEVELS
    requests: int = 100
    prompt_tokens: int = 256
    output_tokens: int = 64
    rate: float = 20.0
    seconds: float = 120.0

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Probe:
        """As a user gave it. Raises BadInput for what is out of bounds."""
        plain = {name: value for name, value in given.items() if value not in (None, "")}
        made: dict[str, Any] = {}
        if "probe_concurrency" in plain:
            made["levels"] = _levels(plain["probe_concurrency"])
        if "probe_requests" in plain:
            made["requests"] = whole("--probe-requests", plain["probe_requests"], 1, MOST_REQUESTS)
        for name in ("prompt_tokens", "output_tokens"):
            if name in plain:
                made[name] = whole(f"--{name.replace('_', '-')}", plain[name], 2, 1_000_000)
        if "probe_rate" in plain:
            made["rate"] = _rate(plain["probe_rate"])
        if "probe_seconds" in plain:
            made["seconds"] = _seconds(plain["probe_seconds"])
        probe = cls(**made)
        if not probe.counts():
            least = min(probe.levels) + 2
            raise BadInput(f"{probe.left_out.replace(' ', ': ', 1)}; give at least {least}")
        return probe

    def counts(self) -> tuple[tuple[int, int], ...]:
        """Requests of each level: three rounds, one of them left out, as far as they may go in all.

        A level is left out where the requests do not reach for its first round and one more.
        """
        left, found = self.requests - 1, []
        for level in self.levels:
            count = min(left, max(4, ROUNDS * level))
            if count > level:
                found.append((level, count))
                left -= count
        return tuple(found)

    @property
    def left_out(self) -> str:
        """The levels for which no request is left, as a sentence; empty where there are none."""
        sent = [level for level, _ in self.counts()]
        without = [str(level) for level in self.levels if level not in sent]
        return (
            f"--probe-requests {self.requests} are too few for {', '.join(without)} at once"
            if without
            else ""
        )

    @property
    def most(self) -> int:
        """All requests that may be sent."""
        return 1 + sum(count for _, count in self.counts())

    def said(self, base: str) -> str:
        """What will be sent, before it is."""
        levels = ", ".join(str(level) for level, _ in self.counts())
        return (
            f"--probe sends up to {self.most} requests of about {self.prompt_tokens:,} random words, each "
            f"for {self.output_tokens:,} tokens, to {base}{PATHS[0]}, or where that is refused "
            f"{base}{PATHS[1]}, and nowhere else: {levels} at once, at most {self.rate:g} a second, for at "
            f"most {seconds_text(self.seconds)}"
        )


@dataclass(frozen=True, slots=True)
class Probed:
    """Rows of a load that was sent, what came back, and what could not be compared."""

    checks: list[Check] = field(default_factory=list)
    document: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def probed(
    client: Client,
    server: Server,
    probe: Probe,
    d: Deployment | None,
    tell: Callable[[str], None] | None,
) -> Probed:
    """Send a load and set its times beside those predicted."""
    if tell is not None:
        tell(probe.said(client.address.base))
    model = served_as(server) or ""
    plan = Plan(
        model, probe.counts(), probe.most, probe.prompt_tokens, probe.output_tokens, probe.rate, probe.seconds
    )
    sent = send(client.with_limits(seconds=probe.seconds, all_seconds=probe.seconds), plan)
    levels = [level for level in sent.levels if level.steady]
    if not levels:
        raise _nothing(client, probe, sent)
    rows: list[Check] = []
    notes = _notes(probe, sent)
    for level in levels:
        timed = times(_measured(level, probe), d, f" at {level.concurrency}", _WHY)
        rows += timed.checks
        notes += timed.notes
    document = {"path": sent.path, "requests": sent.requests, "levels": [_row(level) for level in levels]}
    return Probed(rows, document, list(dict.fromkeys(notes)))


def _nothing(client: Client, probe: Probe, sent: Sent) -> Exception:
    """Why there is no time to compare."""
    page = client.address.page(sent.path)
    if sent.cut:
        what = f"answers no completion that is measured within {seconds_text(probe.seconds)}"
        return client.unreachable(page, what, "--probe-seconds gives it longer")
    if not sent.levels and (sent.answers or sent.tried == probe.most < len(TRIES)):
        return BadInput(
            f"--probe-requests: {probe.requests} are too few: {sent.tried} went to finding out what the "
            "server takes; give more"
        )
    return client.unreachable(
        page, f"answers no completion ({shown(sent.why, 120)})",
        "is it an OpenAI-compatible server? metrics are compared without --probe",
    )  # fmt: skip


def _measured(level: Level, probe: Probe) -> Measured:
    every = level.steady
    return Measured(
        prompt_tokens=statistics.fmean(a.prompt_tokens or probe.prompt_tokens for a in every),
        output_tokens=statistics.fmean(a.output_tokens for a in every),
        concurrency=level.concurrency,
        ttft_seconds=statistics.fmean(a.ttft_seconds for a in every),
        tpot_seconds=_mean([t for a in every if (t := a.tpot_seconds) is not None]),
        e2e_seconds=statistics.fmean(a.e2e_seconds for a in every),
    )


def _mean(values: list[float]) -> float | None:
    return statistics.fmean(values) if values else None


def _row(level: Level) -> dict[str, Any]:
    every = level.steady
    found: dict[str, Any] = {"concurrency": level.concurrency, "requests": len(every), "failed": level.failed}
    for name in ("ttft_seconds", "tpot_seconds", "e2e_seconds"):
        values = sorted(v for a in every if (v := getattr(a, name)) is not None)
        found[name] = {
            "mean": _mean(values),
            "p50": values[len(values) // 2] if values else None,
            "max": values[-1] if values else None,
        }
    found["prompt_tokens"] = _mean([float(a.prompt_tokens) for a in every])
    found["output_tokens"] = _mean([float(a.output_tokens) for a in every])
    return found


def _notes(probe: Probe, sent: Sent) -> list[str]:
    notes = [probe.left_out] if probe.left_out else []
    planned = [level for level, _ in probe.counts()]
    without = [str(level) for level in planned[len(sent.levels) :]]
    if sent.tried > 1:
        notes.append(f"{sent.tried} requests went to finding out what the server takes")
    if without:
        notes.append(f"no request was left, or no time, for {', '.join(without)} at once")
    failed = sum(level.failed for level in sent.levels)
    if failed:
        notes.append(f"{failed} of {sent.requests} requests failed: {shown(sent.why, 120)}")
    if sent.cut:
        notes.append("the probe's time was over before all was sent")
    if any(not a.prompt_tokens for level in sent.levels for a in level.answered):
        notes.append("the server counts no tokens: pieces of its stream are taken for tokens")
    claimed = max((a.claimed for level in sent.levels for a in level.answered), default=0)
    if claimed:
        notes.append(
            f"the server counts {claimed:,} tokens of a request for {probe.output_tokens:,}: not believed, "
            "pieces of its stream are taken for tokens"
        )
    return notes


def _levels(given: Any) -> tuple[int, ...]:
    parts = (
        given.split(",")
        if isinstance(given, str)
        else list(given)
        if isinstance(given, (list, tuple))
        else [given]
    )
    try:
        found = tuple(int(str(part).strip()) for part in parts)
    except ValueError:
        found = ()
    if not found or len(found) > 8 or not all(1 <= n <= MOST_AT_ONCE for n in found):
        raise BadInput(
            f"--probe-concurrency: {shown(given)} is no list of requests at once; write numbers up to "
            f"{MOST_AT_ONCE}, such as 1,4,16"
        )
    return found


def _rate(given: Any) -> float:
    if isinstance(given, bool) or not isinstance(given, (int, float)) or not 0 < given <= 1000:
        raise BadInput(f"--probe-rate: {shown(given)} is not requests a second; give a number up to 1000")
    return float(given)


def _seconds(given: Any) -> float:
    read = parse_seconds(given, "--probe-seconds") if isinstance(given, str) else given
    if isinstance(read, bool) or not isinstance(read, (int, float)) or not 0 < read <= 3600:
        raise BadInput(f"--probe-seconds: {shown(given)} is not a time up to 1h; write one such as 120s")
    return float(read)
