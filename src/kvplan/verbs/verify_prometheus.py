"""`verify --prometheus`: what a Prometheus has kept of an engine, beside what kvplan predicts for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kvplan.facts.engine_versions import find_engine
from kvplan.observe.history import History, read_history
from kvplan.observe.served import observed_of
from kvplan.observe.server import Server
from kvplan.observe.traffic import Traffic, traffic_of
from kvplan.verbs.given import ModelLike
from kvplan.verbs.verify_outcome import Outcome
from kvplan.verbs.verify_server import Asking, outcome_of, without_secrets
from kvplan.verbs.workload import source_of, span_of


def from_prometheus(
    url: Any,
    model: ModelLike | None,
    words: Mapping[str, Any],
    flags: Mapping[str, Any],
    asking: Asking,
    asked: Mapping[str, Any],
) -> Outcome:
    """Capacity as the engine last said it, and times of all requests of a span, with their predictions.

    `asked`: selector, since, step. Raises Unreachable, BadInput.
    """
    source, secrets = source_of(url, asking, asked.get("selector"))
    back, step = span_of(asked.get("since"), asked.get("step"))

    def work() -> Outcome:
        stated = words.get("engine")
        history = read_history(source, back, step, find_engine(stated) if stated else None)
        reading = history.reading
        server = Server(source.client.address.base, reading.engine, reading=reading, notes=history.notes)
        outcome = outcome_of(
            observed_of(server), _traffic(history), model, words, flags, _source(history, server)
        )
        return replace(outcome, observed={**outcome.observed, "peaks": history.peaks})

    return without_secrets(secrets, work, "--prometheus")


def _source(history: History, server: Server) -> dict[str, Any]:
    span = history.span
    return {
        "kind": "prometheus",
        "name": server.url,
        "from": span.start,
        "to": span.end,
        "step_seconds": span.step,
        "instances": history.instances,
    }


def _traffic(history: History) -> Traffic:
    """The span's requests; where no steps are counted, as many at once as there were while there were any."""
    found = traffic_of(history.reading, history.known_seconds)
    if found.batch is not None or not history.busy_mean:
        return found
    return replace(found, batch=max(1.0, history.busy_mean / max(1, history.reading.replicas)))
