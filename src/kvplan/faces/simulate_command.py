"""`kvplan simulate`: the command and its flags."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

import kvplan
from kvplan.errors import BadInput, shown
from kvplan.faces import options, output
from kvplan.faces.engine_options import takes_engine_flags

_TRACE = "a trace"
_DRAWN = "a load that is drawn: one of batch, concurrency and rate"
_FLEET = "replicas"
_GOALS = "goals"


def _option(name: str, help: str, panel: str, metavar: str | None = None) -> Any:
    return typer.Option(name, help=help, metavar=metavar, rich_help_panel=panel, show_default=False)


@takes_engine_flags
def simulate(
    model: Annotated[
        str, typer.Argument(metavar="[MODEL]", help="an id, a path or a repo; --command names one too")
    ] = "",
    gpu: options.Gpu = "",
    engine: options.Engine = "vllm",
    engine_version: options.Version = "",
    tp: options.Tp = 1,
    pp: options.Pp = 1,
    dp: options.Dp = 1,
    ep: options.Ep = 1,
    dcp: Annotated[int, typer.Option(hidden=True)] = 1,
    attention_dp: options.AttentionDp = 1,
    trace: Annotated[
        str,
        _option(
            "--trace",
            "CSV, JSONL or Parquet; Azure's and Mooncake's as they are; a ServeGen folder",
            _TRACE,
            "FILE",
        ),
    ] = "",
    prefix_block_tokens: Annotated[
        int,
        _option(
            "--prefix-block-tokens", "tokens that one of the trace's hashes stands for; 512 else", _TRACE
        ),
    ] = 512,
    rate_scale: Annotated[float, _option("--rate-scale", "so many times as fast", _TRACE)] = 1.0,
    first_seconds: Annotated[
        str, _option("--first-seconds", "leave out what comes before", _TRACE, "TIME")
    ] = "",
    last_seconds: Annotated[
        str, _option("--last-seconds", "leave out what comes after", _TRACE, "TIME")
    ] = "",
    rate: Annotated[float, _option("--rate", "requests a second; of a trace, its mean", _DRAWN)] = 0.0,
    arrivals: Annotated[
        str,
        _option(
            "--arrivals", "of a rate: poisson, constant, gamma(VARIATION), ramp(LAST, SECONDS)", _DRAWN, "LAW"
        ),
    ] = "poisson",
    concurrency: Annotated[int, _option("--concurrency", "users who ask again once answered", _DRAWN)] = 0,
    think: Annotated[str, _option("--think", "mean time before users ask again", _DRAWN, "TIME")] = "",
    batch: Annotated[int, _option("--batch", "requests that start together", _DRAWN)] = 0,
    requests: Annotated[int, _option("--requests", "how many", _DRAWN)] = 0,
    duration: Annotated[str, _option("--duration", "those of so long", _DRAWN, "TIME")] = "",
    prompt_tokens: Annotated[
        str,
        _option(
            "--prompt-tokens",
            "512, lognormal(512, 300), uniform(1, 999), histogram(FILE), …; 2,048 else",
            _DRAWN,
            "LENGTHS",
        ),
    ] = "",
    output_tokens: Annotated[str, _option("--output-tokens", "the same; 256 else", _DRAWN, "LENGTHS")] = "",
    shared_prefix_tokens: Annotated[
        int, _option("--shared-prefix-tokens", "the same first tokens of every prompt", _DRAWN)
    ] = 0,
    turns: Annotated[
        str,
        _option(
            "--turns", "conversations of so many turns; lengths are then what a turn adds", _DRAWN, "LENGTHS"
        ),
    ] = "",
    system_tokens: Annotated[
        int, _option("--system-tokens", "that every conversation begins with", _DRAWN)
    ] = 0,
    speculative_tokens: options.Drafts = 0,
    acceptance: options.Acceptance = 0.0,
    seed: Annotated[int, _option("--seed", "the same seed draws the same", _DRAWN)] = 0,
    routing: Annotated[
        str, _option("--routing", "of --dp replicas: round-robin, least-loaded or prefix", _FLEET)
    ] = "round-robin",
    prefill_replicas: Annotated[
        int, _option("--prefill-replicas", "so many more compute prompts alone; the others decode", _FLEET)
    ] = 0,
    ttft_p99: Annotated[str, _option("--ttft-p99", "99 of 100 first tokens within", _GOALS, "TIME")] = "",
    tpot_p99: Annotated[str, _option("--tpot-p99", "each further token within", _GOALS, "TIME")] = "",
    e2e_p99: Annotated[str, _option("--e2e-p99", "the whole answer within", _GOALS, "TIME")] = "",
    dtype: options.Dtype = "auto",
    quantization: options.Quantization = "",
    kv_cache_dtype: options.Kv = "auto",
    gpu_memory: options.GpuMemory = "",
    memory_in_use: options.InUse = "",
    link: options.Link = "",
    kv_cache_memory_bytes: options.Pool = "",
    weights_memory: options.Weights = "",
    activation_memory: options.Activation = "",
    graph_memory: options.Graphs = "",
    calibrate_from: Annotated[
        str,
        _option(
            "--calibrate-from",
            "a measured run's requests: its step times are taken",
            "figures you measured",
            "FILE",
        ),
    ] = "",
    command: options.Command = "",
    requests_out: Annotated[
        str, typer.Option(metavar="FILE", help="a row a request: .parquet, .csv or .jsonl")
    ] = "",
    against: Annotated[
        str, typer.Option(metavar="FILE", help="another run's --json, to stand beside this one")
    ] = "",
    as_json: options.Json = False,
    explain: options.Explain = "",
    plot: options.Plot = "",
    check: Annotated[
        bool, typer.Option("--check", help="exit 1 when a goal is missed, or nothing is answered")
    ] = False,
    **engine_flags: Any,
) -> None:
    """A trace or a load, step by step: percentiles, queueing, preemption, cache use over time."""
    other = _other(against) if against else None
    asked = {name: value for name, value in output.asked().items() if name != "against"}
    with _progress() as report:
        answer = kvplan.simulate(**asked, report=report)
    output.draw(plot, answer, "simulate")
    output.show(answer, "simulate", as_json, explain, {"against": other} if other else {})
    if check and not _met(answer):
        raise typer.Exit(1)


def _met(answer: dict[str, Any]) -> bool:
    """Whether something was answered, within every goal."""
    goals = answer["goals"]
    return bool(answer["completed"]) and (goals is None or goals["met"])


def _other(path: str) -> dict[str, Any]:
    """Another run's document."""
    try:
        found = json.loads(Path(path).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise BadInput(
            f"--against: {shown(path)} is no document of a run ({error}); write one with --json"
        ) from None
    if not isinstance(found, dict) or "ttft_seconds" not in found or "steps" not in found:
        raise BadInput(
            f"--against: {shown(path)} is not a run's document; write one with kvplan simulate … --json"
        )
    return found


@contextmanager
def _progress() -> Iterator[Any]:
    """A bar on standard error while it is a terminal; the first run of all compiles first, and says so."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    text = TextColumn("{task.description}")
    with Progress(
        text, BarColumn(), TimeElapsedColumn(), console=Console(stderr=True), transient=True
    ) as bar:
        task = bar.add_task("compiling, the first time only", total=None)

        def report(what: str, done: int, of: int) -> None:
            if done:
                bar.update(task, description=f"{done:,} of {of:,} {what}", completed=done, total=of)

        yield report
