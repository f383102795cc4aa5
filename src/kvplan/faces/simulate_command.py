"""`kvplan simulate`: the command and its flags."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

import kvplan
from kvplan.errors import BadInput, shown
from kvplan.faces import load_options as load
from kvplan.faces import options, output
from kvplan.faces.engine_options import takes
from kvplan.faces.progress import progress

_FLEET = "replicas"
_PLAIN = (
    "steps", "requests", "completed", "rejected", "preemptions", "prefix_hit_rate", "kv_peak_fraction",
    "duration_seconds", "output_tokens_per_second", "requests_per_second", "goodput_requests_per_second",
)  # fmt: skip
_APART = "so many more compute prompts alone; the others decode"


@takes(options.deployment, options.links, load.traffic, options.measured)
def simulate(
    model: options.MaybeModel = "",
    batch: load.Batch = 0,
    routing: Annotated[
        str, load.option("--routing", "of --dp replicas: round-robin, least-loaded or prefix", _FLEET)
    ] = "round-robin",
    prefill_replicas: Annotated[
        int,
        load.option("--prefill-replicas", "so many more compute prompts alone; the others decode", _FLEET),
    ] = 0,
    calibrate_from: Annotated[
        str,
        load.option(
            "--calibrate-from",
            "a measured run's requests: its step times are taken",
            "figures you measured",
            "FILE",
        ),
    ] = "",
    requests_out: Annotated[
        str, typer.Option(metavar="FILE", help="a row a request: .parquet, .csv or .jsonl")
    ] = "",
    against: Annotated[
        str, typer.Option(metavar="FILE", help="another run's --json, to stand beside this one")
    ] = "",
    as_json: options.Json = False,
    explain: options.Explain = "",
    plot: options.Plot = "",
    save: options.Save = "",
    check: Annotated[
        bool, typer.Option("--check", help="exit 1 when a goal is missed, or nothing is answered")
    ] = False,
    **rest: Any,
) -> None:
    """A trace or a load, step by step: percentiles, queueing, preemption, cache use over time."""
    other = _other(against) if against else None
    asked = {name: value for name, value in output.asked().items() if name != "against"}
    with progress("compiling, the first time only") as report:
        answer = kvplan.simulate(**asked, report=report)
    if other is not None:
        answer["against"] = kvplan.compare(other, answer)["figures"]
    output.draw(plot, answer, "simulate")
    output.save(save, answer)
    output.show(answer, "simulate", as_json, explain, {"against": other} if other else {})
    if check and not _met(answer):
        raise typer.Exit(1)


def _met(answer: dict[str, Any]) -> bool:
    """Whether the engine starts, something was answered, and every goal is met."""
    goals = answer["goals"]
    started = answer["deployment"]["starts"] is not False
    return started and bool(answer["completed"]) and (goals is None or goals["met"])


def _other(path: str) -> dict[str, Any]:
    """Another run's document."""
    try:
        found = json.loads(Path(path).read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(
            f"--against: {shown(path)} is no document of a run ({error}); write one with --json"
        ) from None
    if not isinstance(found, dict) or not _is_run(found):
        raise BadInput(
            f"--against: {shown(path)} is not a run's document; write one with kvplan simulate … --json"
        )
    return found


def _is_run(found: dict[str, Any]) -> bool:
    """Whether a document has what a run's has, in the same kinds."""
    kinds = [found.get(f"{kind}_seconds") for kind in ("ttft", "tpot", "e2e", "queue")]
    spreads = [value for kind in kinds if isinstance(kind, dict) for value in kind.values()]
    plain = [found.get(name) for name in _PLAIN]
    return all(isinstance(kind, dict) for kind in kinds) and all(
        value is None or isinstance(value, int | float) for value in (*spreads, *plain)
    )
