"""Serving in steady state: what a request waits for, and what the deployment yields.

Closed loop, open loop, all at once, and saturation. Prompts share steps with decoding (chunked
prefill, arXiv 2403.02310), so a token's time is its decode step plus its share of others' prompts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any

from kvplan.cost.estimate import Clock
from kvplan.cost.step import Step, is_some
from kvplan.facts.efficiency import fit_source
from kvplan.figure import Leaf, Number, Source, Trust, bare, ceiling, formula, least, most, named, value_of
from kvplan.serve.draft import drafting
from kvplan.serve.load import Load, Policy, plain, tokens_a_step
from kvplan.serve.prompt import (
    arriving_prompts,
    beside_decoding,
    fed_sequences,
    prompt_seconds,
    prompts_seconds,
)
from kvplan.serve.waits import (
    burst_seconds,
    fed_service_seconds,
    first_token_seconds,
    queue_seconds,
    slot_seconds,
    waiting_seconds,
)

_STEADY = Source(
    Trust.ENGINE_RULE, "as many as keep arrivals and departures equal, found by repeating these formulas"
)
_CALM = 0.99  # of what is answered: how near arrays of rates are computed
_TRIES = 6  # evaluations between the ends of the search for a steady state
_FRONT = {
    "request_seconds": "s",
    "first_steps": "step",
    "prompt_factor": "",
    "burst_share": "",
    "admit_seconds": "s",
    "slot_share": "",
}


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


@formula("request/s")
def requests_per_second(running: Number, seconds: Number) -> Number:
    """As many as run at once, each replaced when it ends."""
    return running / seconds


@formula("token/s")
def output_tokens_per_second(requests_per_second: Number, output_tokens: Number) -> Number:
    """Tokens that leave."""
    return requests_per_second * output_tokens


@formula("token/s")
def total_tokens_per_second(
    requests_per_second: Number, prompt_tokens: Number, output_tokens: Number
) -> Number:
    """Tokens of prompts and outputs."""
    return requests_per_second * (prompt_tokens + output_tokens)


@formula("token/s")
def decode_tokens_per_second(sequences: Number, tokens_a_step: Number, step_seconds: Number) -> Number:
    """Tokens of steps that carry no prompts."""
    return sequences * tokens_a_step / step_seconds


@dataclass(frozen=True, slots=True)
class FrontEnd:
    """What requests meet before and beside the model, per engine version: fitted."""

    request_seconds: Any
    first_steps: Any
    prompt_factor: Any
    burst_share: Any
    admit_seconds: Any
    slot_share: Any


def front_end(clock: Clock, leaf: Leaf = bare) -> FrontEnd:
    """The front end of the clock's engine and version."""
    if leaf is bare:
        return FrontEnd(*(clock.front(name) for name in _FRONT))
    key = clock.accelerator.key
    return FrontEnd(
        *(leaf(n, clock.front(n), unit, fit_source(n, clock.engine, key)) for n, unit in _FRONT.items())
    )


def decode_step(load: Load, policy: Policy, sequences: Any) -> Step:
    """One step of so many decoding sequences, stages working on a share each."""
    return Step(policy.stage_share(sequences), load.middle_context, load.drafts + 1)


def decode_seconds(clock: Clock, load: Load, policy: Policy, sequences: Any, leaf: Leaf = bare) -> Any:
    """Seconds of such a step, drafting included."""
    step = decode_step(load, policy, sequences)
    return _with_drafting(clock, load, step, clock.seconds(step, leaf), leaf)


def _with_drafting(clock: Clock, load: Load, step: Step, verify: Any, leaf: Leaf) -> Any:
    """A step that verifies in so many seconds, with what it drafts."""
    drafts = load.drafts and load.draft_layers
    seconds = verify + drafting(clock, load, step, leaf) if drafts else verify
    return named("decode_step_seconds", "s", seconds)


def _steps(load: Load) -> Any:
    """Steps that a sequence decodes."""
    return most(1, load.output_tokens / tokens_a_step(load))


def _fed(load: Load, policy: Policy) -> Any:
    """Sequences that decode at most while their successors' prompts are computed beside them."""
    if not policy.mixes:
        return policy.running
    stages = policy.pp if policy.microbatches else 1
    return fed_sequences(policy.budget, load.new_tokens, _steps(load), load.drafts + 1, stages)


@dataclass(frozen=True, slots=True)
class _Pace:
    """How fast so many sequences decode, in seconds: a token, a step with its drafts, its verifying alone.

    `added` is what one prompt adds, `prompts` of them in a step.
    """

    token: Any
    step: Any
    verify: Any
    added: Any
    prompts: Any


def _pace(clock: Clock, load: Load, policy: Policy, running: Any, leaf: Leaf = bare) -> _Pace:
    """How fast it goes while so many sequences decode."""
    gained, steps = tokens_a_step(load), _steps(load)
    decoding = decode_step(load, policy, running)
    verify = clock.seconds(decoding, leaf)
    step = _with_drafting(clock, load, decoding, verify, leaf)
    prompts = arriving_prompts(running, steps, policy.pp if policy.microbatches else 1)
    prompts = least(prompts, _packed(load, policy))
    ended = (running, steps)
    added = beside_decoding(clock, load, policy, decoding, verify, prompts, leaf, ended)
    token = token_seconds(step, running, steps, added) / gained
    return _Pace(named("tpot_seconds", "s", token), step, verify, added, prompts)


def _packed(load: Load, policy: Policy) -> Any:
    """Prompts that fill a step."""
    return most(1, policy.budget / load.new_tokens)


def _first(
    clock: Clock, load: Load, policy: Policy, front: FrontEnd, tpot: Any, step: Any, leaf: Leaf
) -> Any:
    """Seconds to the first token of a request that waits for no other prompt."""
    alone = prompt_seconds(clock, load, policy, leaf)
    others = ceiling(load.new_tokens, policy.budget) - 1
    return first_token_seconds(
        front.request_seconds, front.first_steps * policy.interval, tpot, front.prompt_factor, alone, others,
        step,
    )  # fmt: skip


def closed_loop(clock: Clock, load: Load, policy: Policy, concurrency: Any, leaf: Leaf = bare) -> Served:
    """`concurrency` users who ask again as soon as they are answered; means over a run of ten rounds."""
    if leaf is bare:
        running = _round(clock, load, policy, concurrency, least(concurrency, policy.running), bare)[0]
    else:
        simple, rule, users = plain(load), plain(policy), value_of(concurrency)
        found = _round(clock, simple, rule, users, least(users, rule.running), bare)[0]
        running = leaf("running_sequences", value_of(found), "sequence", _STEADY)
    then, tpot, ttft, step = _round(clock, load, policy, concurrency, running, leaf)
    service = named("service_seconds", "s", e2e_seconds(ttft, tpot, load.output_tokens))
    rate = requests_per_second(least(concurrency, policy.running), service)
    waiting = waiting_seconds(concurrency, rate, service)
    return _served(load, concurrency, ttft + waiting, tpot, rate, waiting, step, then)


def _round(
    clock: Clock, load: Load, policy: Policy, concurrency: Any, running: Any, leaf: Leaf
) -> tuple[Any, Any, Any, Any]:
    """(sequences that decode at once, token's, first token's and step's seconds) while `running` decode."""
    front = front_end(clock, leaf)
    most_running = least(concurrency, policy.running)
    fed = _fed(load, policy)
    running = least(running, fed)
    pace = _pace(clock, load, policy, running, leaf)
    tpot, step = pace.token, pace.step
    burst = least(most_running, _packed(load, policy))
    packed = beside_decoding(
        clock, load, policy, decode_step(load, policy, running), pace.verify, burst, leaf
    )
    taken = named("decoding_seconds", "s", tpot * load.output_tokens)
    ttft = (
        _first(clock, load, policy, front, tpot, step, leaf)
        + burst_seconds(most_running, packed, front.admit_seconds, front.burst_share)
        + slot_seconds(front.slot_share, taken, most_running)
    )
    full = fed_service_seconds(taken, most_running, fed) - (load.output_tokens - 1) * tpot
    ttft = named("first_token_seconds_running", "s", most(ttft, full))
    service = e2e_seconds(ttft, tpot, load.output_tokens)
    decoding = most(1, least(most_running, most_running * taken / service))
    return named("decoding_sequences", "sequence", decoding), tpot, ttft, step


def open_loop(clock: Clock, load: Load, policy: Policy, rate: Any, leaf: Leaf = bare) -> Served:
    """Requests that arrive at random, `rate` a second; None where more arrive than can be answered.

    Of arrays, nan at those rates.
    """
    top = saturated(clock, load, policy, leaf)
    over = rate >= top.requests_per_second
    if hasattr(over, "dtype"):
        calm = least(rate, _CALM * top.requests_per_second)
        return _where_calm(over, _overrun(policy, top, math.nan), _open_loop(clock, load, policy, calm, top))
    if not over:
        return _open_loop(clock, load, policy, rate, top, leaf)
    asked, answered = value_of(rate), value_of(top.requests_per_second)
    note = f"{asked:g} requests a second are more than the {answered:.3g} it answers"
    return replace(_overrun(policy, top, None), note=note)


def _overrun(policy: Policy, top: Served, never: Any) -> Served:
    """What leaves when more arrive than can be answered: all that can, each later than the one before."""
    return replace(
        top, concurrency=policy.running, ttft_seconds=never, e2e_seconds=never, waiting_seconds=never
    )


def _where_calm(over: Any, overrun: Served, calm: Served) -> Served:
    """Point by point, the one or the other."""
    import numpy as np

    names = [f.name for f in fields(Served) if f.name != "note"]
    found = {name: np.where(over, getattr(overrun, name), getattr(calm, name)) for name in names}
    return Served(**found, note=f"{int(over.sum())} of {over.size} rates are more than it answers")


def _open_loop(clock: Clock, load: Load, policy: Policy, rate: Any, top: Served, leaf: Leaf = bare) -> Served:
    running = _arriving(clock, plain(load), plain(policy), value_of(rate), value_of(top.tpot_seconds))
    running = leaf("running_sequences", running, "sequence", _STEADY)
    decoding = most(1, running)  # a step is run for one at least
    pace = _pace(clock, load, policy, decoding, leaf)
    tpot, step = pace.token, pace.step
    used = least(0.97, rate * pace.added)
    front = front_end(clock, leaf)
    ttft = _first(clock, load, policy, front, tpot, step, leaf) + queue_seconds(
        used, pace.added * pace.prompts
    )
    full = rate / top.requests_per_second
    service = named("service_seconds", "s", e2e_seconds(ttft, tpot, load.output_tokens))
    waiting = named("waiting_seconds", "s", queue_seconds(full, service / policy.running))
    return _served(load, running, ttft + waiting, tpot, rate, waiting, step, decoding)


def _arriving(clock: Clock, load: Load, policy: Policy, rate: Any, slowest: Any) -> Any:
    """Sequences that decode at once when so many requests arrive, by Little's law: regula falsi (Illinois).

    As many must decode as arrive while one is decoded: more than that from none on, fewer at the most,
    where a token takes `slowest` seconds.
    """
    low, high = 0.0, most(1, least(policy.running, _fed(load, policy)))
    tokens = rate * load.output_tokens

    def excess(running: Any) -> Any:
        return tokens * _pace(clock, load, policy, most(1, running)).token - running

    above, below = excess(low), tokens * slowest - high
    running: Any = low
    for _ in range(_TRIES):
        running = (low * below - high * above) / (below - above)
        found = excess(running)
        more = found > 0  # 1 or 0, of arrays each
        low, high = more * running + (1 - more) * low, more * high + (1 - more) * running
        above = more * found + (1 - more) * above / 2
        below = more * below / 2 + (1 - more) * found
    return running


def saturated(clock: Clock, load: Load, policy: Policy, leaf: Leaf = bare) -> Served:
    """Prompts always queued: as many sequences as run at once, each replaced when it ends."""
    running = most(1, least(policy.running, _fed(load, policy)))
    pace = _pace(clock, load, policy, running, leaf)
    rate = requests_per_second(running, pace.token * load.output_tokens)
    return _served(load, running, None, pace.token, rate, None, pace.step, running)


def together(clock: Clock, load: Load, policy: Policy, batch: Any, leaf: Leaf = bare) -> Served:
    """`batch` requests that start at once and end at once, in waves where not all run at once."""
    running = least(batch, policy.running)
    waves = named("waves", "", ceiling(batch, running))
    first = _all_prompts(clock, load, policy, running, leaf) if is_some(load.prompt_tokens) else 0.0
    gained = tokens_a_step(load)
    step = decode_seconds(clock, load, policy, running, leaf)
    tpot = named("tpot_seconds", "s", step / gained)
    wave = named("wave_seconds", "s", e2e_seconds(first, tpot, load.output_tokens))
    ttft = first + (waves - 1) / 2 * wave
    rate = requests_per_second(batch, waves * wave)
    return _served(load, batch, ttft, tpot, rate, ttft - first, step, running, e2e=ttft + wave - first)


def _all_prompts(clock: Clock, load: Load, policy: Policy, batch: Any, leaf: Leaf) -> Any:
    """Seconds of all prompts of a batch; of arrays, 0 where there are none."""
    if not hasattr(load.prompt_tokens, "dtype"):
        return prompts_seconds(clock, load, policy, batch, leaf)
    some = replace(load, prompt_tokens=most(1, load.prompt_tokens))
    return prompts_seconds(clock, some, policy, batch, leaf) * (load.prompt_tokens > 0)


def _served(
    load: Load, concurrency: Any, ttft: Any, tpot: Any, rate: Any, waiting: Any, step: Any, running: Any,
    e2e: Any = None,
) -> Served:  # fmt: skip
    if e2e is None and ttft is not None:
        e2e = e2e_seconds(ttft, tpot, load.output_tokens)
    return Served(
        concurrency,
        named("ttft_seconds", "s", ttft),
        tpot,
        named("e2e_seconds", "s", e2e),
        output_tokens_per_second(rate, load.output_tokens),
        total_tokens_per_second(rate, load.prompt_tokens, load.output_tokens),
        decode_tokens_per_second(running, tokens_a_step(load), step),
        rate,
        waiting,
        step,
    )
