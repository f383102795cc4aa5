"""Serving in steady state: what a request waits for, and what the deployment yields.

Closed loop, open loop, all at once, and saturation. Prompts share steps with decoding (chunked
prefill, arXiv 2403.02310), so a token's time is its decode step plus its share of others' prompts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvplan.cost.estimate import Clock
from kvplan.cost.step import Step, is_some
from kvplan.figure import Number, ceiling, formula, least, most
from kvplan.serve.load import Load, Policy, tokens_a_step
from kvplan.serve.prompt import beside_decoding, prompt_seconds, prompts_seconds


@dataclass(frozen=True, slots=True)
class Served:
    """Means over requests, seconds, and the deployment's rates; None where there is no steady state."""

    concurrency: Any
    ttft_seconds: Any
    tpot_seconds: Any
    e2e_seconds: Any
    output_tokens_per_second: Any
    total_tokens_per_second: Any
    decode_tokens_per_second: Any
    requests_per_second: Any
    waiting_seconds: Any = 0.0
    decode_step_seconds: Any = 0.0
    note: str = ""


@formula("s")
def token_seconds(step_seconds: Number, sequences: Number, steps: Number, prompt_seconds: Number) -> Number:
    """A decode step and its share of the prompts that come in: each sequence brings one in `steps` steps."""
    return step_seconds + sequences / steps * prompt_seconds


@formula("s")
def e2e_seconds(ttft_seconds: Number, tpot_seconds: Number, output_tokens: Number) -> Number:
    """From submission to the last token."""
    return ttft_seconds + (output_tokens - 1) * tpot_seconds


@formula("s", "Pollaczek-Khinchine for equal service times (M/D/1)")
def queue_seconds(utilisation: Number, prompt_seconds: Number) -> Number:
    """Waiting behind other prompts that arrive at random."""
    return utilisation / (2 * (1 - utilisation)) * prompt_seconds


@formula("s", "a run starts with all of its requests at once; `share` of that wait is in a request's mean")
def burst_seconds(
    concurrency: Number, prompt_seconds: Number, admit_seconds: Number, share: Number
) -> Number:
    """Half the prompts of a burst come before one's own."""
    return share * (concurrency - 1) / 2 * (prompt_seconds + admit_seconds)


@dataclass(frozen=True, slots=True)
class FrontEnd:
    """What requests meet before and beside the model, per engine version: fitted."""

    request_seconds: float
    first_steps: float
    prompt_factor: float
    burst_share: float
    admit_seconds: float
    slot_share: float


def front_end(clock: Clock) -> FrontEnd:
    """The front end of the clock's engine and version."""
    names = ("request_seconds", "first_steps", "prompt_factor", "burst_share", "admit_seconds", "slot_share")
    return FrontEnd(*(clock.front(name) for name in names))


def decode_seconds(clock: Clock, load: Load, policy: Policy, sequences: Any) -> Any:
    """One step of so many decoding sequences, stages working on a share each."""
    return clock.seconds(Step(policy.stage_share(sequences), load.middle_context, load.drafts + 1))


def _token_time(clock: Clock, load: Load, policy: Policy, running: Any) -> tuple[Any, Any, Any]:
    """(seconds a token, seconds a decode step, seconds one prompt adds) while so many sequences run."""
    gained = tokens_a_step(load)
    step = decode_seconds(clock, load, policy, running)
    steps = most(1, load.output_tokens / gained)
    prompts = most(1, least(running / steps, policy.budget // load.new_tokens))
    added = beside_decoding(clock, load, policy, running, prompts)
    return token_seconds(step, running, steps, added) / gained, step, added


def closed_loop(clock: Clock, load: Load, policy: Policy, concurrency: Any) -> Served:
    """`concurrency` users who ask again as soon as they are answered; means over a run of ten rounds."""
    front = front_end(clock)
    most_running = least(concurrency, policy.running)
    running = most_running
    ttft = tpot = step = 0.0
    for _ in range(2):
        tpot, step, _ = _token_time(clock, load, policy, running)
        packed = beside_decoding(clock, load, policy, running, most(1, policy.budget // load.new_tokens))
        alone = prompt_seconds(clock, load, policy)
        chunks = ceiling(load.new_tokens, policy.budget)
        decoding = tpot * load.output_tokens
        ttft = (
            front.request_seconds
            + front.first_steps * policy.interval * tpot
            + front.prompt_factor * (alone + (chunks - 1) * step)
            + burst_seconds(most_running, packed, front.admit_seconds, front.burst_share)
            + front.slot_share * decoding / concurrency
        )
        running = most(1, most_running * decoding / (decoding + ttft))
    service = e2e_seconds(ttft, tpot, load.output_tokens)
    rate = most_running / service
    waiting = concurrency / rate - service  # those beyond what runs at once, by Little's law
    return _served(load, concurrency, ttft + waiting, tpot, rate, waiting, step, running)


def open_loop(clock: Clock, load: Load, policy: Policy, rate: Any) -> Served:
    """Requests that arrive at random, `rate` a second; None where more arrive than can be answered."""
    top = saturated(clock, load, policy)
    if rate >= top.requests_per_second:
        note = f"{rate:g} requests a second are more than the {top.requests_per_second:.3g} it answers"
        return Served(
            policy.running, None, top.tpot_seconds, None, top.output_tokens_per_second,
            top.total_tokens_per_second, top.decode_tokens_per_second, top.requests_per_second,
            None, top.decode_step_seconds, note,
        )  # fmt: skip
    front = front_end(clock)
    running: Any = 1.0
    tpot = step = added = 0.0
    for _ in range(12):
        tpot, step, added = _token_time(clock, load, policy, running)
        wanted = least(policy.running, most(0.05, rate * load.output_tokens * tpot))
        running = (running + wanted) / 2
    alone = prompt_seconds(clock, load, policy)
    chunks = ceiling(load.new_tokens, policy.budget)
    used = least(0.97, rate * added)
    ttft = (
        front.request_seconds
        + front.first_steps * policy.interval * tpot
        + front.prompt_factor * (alone + (chunks - 1) * step)
        + queue_seconds(used, added)
    )
    full = rate / top.requests_per_second
    service = e2e_seconds(ttft, tpot, load.output_tokens)
    waiting = queue_seconds(full, service / policy.running)
    return _served(load, running, ttft + waiting, tpot, rate, waiting, step, running)


def saturated(clock: Clock, load: Load, policy: Policy) -> Served:
    """Prompts always queued: as many sequences as run at once, each replaced when it ends."""
    running = most(1, policy.running)
    tpot, step, _ = _token_time(clock, load, policy, running)
    rate = running / (tpot * load.output_tokens)
    return _served(load, running, None, tpot, rate, None, step, running)


def together(clock: Clock, load: Load, policy: Policy, batch: Any) -> Served:
    """`batch` requests that start at once and end at once, in waves where not all run at once."""
    running = least(batch, policy.running)
    waves = ceiling(batch, running)
    first = prompts_seconds(clock, load, policy, running) if is_some(load.prompt_tokens) else 0.0
    gained = tokens_a_step(load)
    step = decode_seconds(clock, load, policy, running)
    tpot = step / gained
    wave = e2e_seconds(first, tpot, load.output_tokens)
    ttft = first + (waves - 1) / 2 * wave
    rate = batch / (waves * wave)
    return _served(load, batch, ttft, tpot, rate, ttft - first, step, running, e2e=ttft + wave - first)


def _served(
    load: Load, concurrency: Any, ttft: Any, tpot: Any, rate: Any, waiting: Any, step: Any, running: Any,
    e2e: Any = None,
) -> Served:  # fmt: skip
    if e2e is None and ttft is not None:
        e2e = e2e_seconds(ttft, tpot, load.output_tokens)
    output = rate * load.output_tokens
    gained = tokens_a_step(load)
    return Served(
        concurrency,
        ttft,
        tpot,
        e2e,
        output,
        rate * (load.prompt_tokens + load.output_tokens),
        running * gained / step,
        rate,
        waiting,
        step,
    )
