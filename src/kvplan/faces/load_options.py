"""Options of a load that is replayed or drawn, and of goals: those of `simulate` and of `recommend`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from kvplan.faces.options import Acceptance, Drafts

TRACE = "a trace"
DRAWN = "a load that is drawn: one of batch, concurrency and rate"
GOALS = "goals"


def option(name: str, help: str, panel: str, metavar: str | None = None) -> Any:
    """An option in a panel of its own, its default not shown."""
    return typer.Option(name, help=help, metavar=metavar, rich_help_panel=panel, show_default=False)


_TRACES = "CSV, JSONL or Parquet; Azure's and Mooncake's as they are; a ServeGen folder"
Trace = Annotated[str, option("--trace", _TRACES, TRACE, "FILE")]
_BLOCKS = "tokens that one of the trace's hashes stands for; 512 else"
PrefixBlock = Annotated[int, option("--prefix-block-tokens", _BLOCKS, TRACE)]
RateScale = Annotated[float, option("--rate-scale", "so many times as fast", TRACE)]
First = Annotated[str, option("--first-seconds", "leave out what comes before", TRACE, "TIME")]
Last = Annotated[str, option("--last-seconds", "leave out what comes after", TRACE, "TIME")]
_RATES = "requests a second, or conversations with --turns; of a trace, its mean"
Rate = Annotated[float, option("--rate", _RATES, DRAWN)]
_LAWS = "of a rate: poisson, constant, gamma(VARIATION), ramp(LAST, SECONDS)"
Arrivals = Annotated[str, option("--arrivals", _LAWS, DRAWN, "LAW")]
Concurrency = Annotated[int, option("--concurrency", "users who ask again once answered", DRAWN)]
Think = Annotated[str, option("--think", "mean time before users ask again", DRAWN, "TIME")]
Batch = Annotated[int, option("--batch", "requests that start together", DRAWN)]
Requests = Annotated[int, option("--requests", "how many", DRAWN)]
Duration = Annotated[str, option("--duration", "those of so long", DRAWN, "TIME")]
_LENGTHS = "512, lognormal(512, 300), uniform(1, 999), histogram(FILE), …; 2,048 else"
Prompt = Annotated[str, option("--prompt-tokens", _LENGTHS, DRAWN, "LENGTHS")]
Output = Annotated[str, option("--output-tokens", "the same; 256 else", DRAWN, "LENGTHS")]
Shared = Annotated[int, option("--shared-prefix-tokens", "the same first tokens of every prompt", DRAWN)]
_TURNS = "conversations of so many turns; lengths are then what a turn adds"
Turns = Annotated[str, option("--turns", _TURNS, DRAWN, "LENGTHS")]
System = Annotated[int, option("--system-tokens", "that every conversation begins with", DRAWN)]
Seed = Annotated[int, option("--seed", "the same seed draws the same", DRAWN)]
TtftGoal = Annotated[str, option("--ttft-p99", "99 of 100 first tokens within", GOALS, "TIME")]
TpotGoal = Annotated[str, option("--tpot-p99", "each further token within", GOALS, "TIME")]
E2eGoal = Annotated[str, option("--e2e-p99", "the whole answer within", GOALS, "TIME")]


# A group for `engine_options.takes`.
def traffic(
    trace: Trace = "",
    prefix_block_tokens: PrefixBlock = 512,
    rate_scale: RateScale = 1.0,
    first_seconds: First = "",
    last_seconds: Last = "",
    rate: Rate = 0.0,
    arrivals: Arrivals = "poisson",
    concurrency: Concurrency = 0,
    think: Think = "",
    requests: Requests = 0,
    duration: Duration = "",
    prompt_tokens: Prompt = "",
    output_tokens: Output = "",
    shared_prefix_tokens: Shared = 0,
    turns: Turns = "",
    system_tokens: System = 0,
    speculative_tokens: Drafts = 0,
    acceptance: Acceptance = 0.0,
    seed: Seed = 0,
    ttft_p99: TtftGoal = "",
    tpot_p99: TpotGoal = "",
    e2e_p99: E2eGoal = "",
) -> None:
    """A load that is replayed or drawn, and goals of its percentiles."""
