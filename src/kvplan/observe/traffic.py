"""What requests a server had: how many, how long, how many at once, how fast they were answered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvplan.observe.histogram import Histogram, ratio
from kvplan.observe.metrics import Reading

TIMES = ("ttft_seconds", "tpot_seconds", "itl_seconds", "e2e_seconds", "queue_seconds")
LENGTHS = ("prompt_tokens", "output_tokens")


@dataclass(frozen=True, slots=True)
class Traffic:
    """Requests that ended, over `seconds` where these are known; means None where nothing states them.

    `batch` is how many sequences a decode step had on the average, on one engine of several.
    """

    reading: Reading
    requests: float | None
    seconds: float | None = None
    prompt_tokens: float | None = None
    output_tokens: float | None = None
    prefix_hit_share: float | None = None
    batch: float | None = None

    def mean(self, name: str) -> float | None:
        """The mean of a time, in seconds; of tokens' times those of whole requests before those of tokens."""
        found = self.histogram(name)
        return found.mean if found is not None else None

    def histogram(self, name: str) -> Histogram | None:
        """The histogram of a time or a length, where it has a value."""
        names = ("tpot_seconds", "itl_seconds") if name == "tpot_seconds" else (name,)
        found = (self.reading.histograms.get(one) for one in names)
        return next((h for h in found if h is not None and h.count > 0), None)

    def document(self) -> dict[str, Any]:
        """In numbers, as an answer has it."""
        r, gauges = self.reading, self.reading.gauges
        found = {name: h.document() for name in (*LENGTHS, *TIMES) if (h := self.histogram(name)) is not None}
        return {
            "model": r.model,
            "engines": r.replicas,
            "running": gauges.get("running"),
            "waiting": gauges.get("waiting"),
            "kv_usage": gauges.get("usage"),
            "requests": self.requests,
            "seconds": self.seconds,
            "requests_per_second": ratio(self.requests, self.seconds),
            "preemptions": r.counters.get("preemptions"),
            "prefix_hit_rate": self.prefix_hit_share,
            "mean_batch": self.batch,
            "mean_prompt_tokens": self.prompt_tokens,
            "mean_output_tokens": self.output_tokens,
            "histograms": found,
        }


def traffic_of(reading: Reading, seconds: float | None = None) -> Traffic:
    """The requests of a reading: since the engine's start, or in so many seconds."""
    requests = _requests(reading)
    return Traffic(
        reading=reading,
        requests=requests,
        seconds=seconds,
        prompt_tokens=_length(reading, "prompt_tokens", requests),
        output_tokens=_length(reading, "output_tokens", requests),
        prefix_hit_share=reading.prefix_hit_rate,
        batch=_batch(reading),
    )


def _requests(reading: Reading) -> float | None:
    """How many ended: counted, else as many as have a length or a time; None where nothing counts them."""
    counted = reading.counters.get("requests")
    if counted is not None:
        return counted
    known = (reading.histograms.get(name) for name in (*LENGTHS, *TIMES))
    return next((h.count for h in known if h is not None), None)


def _length(reading: Reading, name: str, requests: float | None) -> float | None:
    """The mean length: of the histogram, which is exact, else tokens over requests."""
    found = reading.histograms.get(name)
    if found is not None and found.mean is not None:
        return found.mean
    tokens = reading.counters.get(name)
    return ratio(tokens, requests) if tokens else None


def _batch(reading: Reading) -> float | None:
    """Tokens made over steps: sequences of a step, those that compute prompts alone included."""
    steps = reading.histograms.get("step_tokens")
    count = steps.count if steps is not None else reading.counters.get("steps", 0.0)
    made = reading.counters.get("output_tokens")
    if count and made and (found := ratio(made, count)) is not None:
        return found
    busy = reading.gauges.get("busy_slots")
    return busy or None
