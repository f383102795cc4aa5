"""Prefill: a prompt alone, many at once, and what one costs those that decode beside it."""

from __future__ import annotations

from typing import Any

from kvplan.cost.estimate import Clock
from kvplan.cost.step import Step
from kvplan.figure import Leaf, Number, bare, ceiling, formula, least, most, named
from kvplan.serve.load import Load, Policy


@formula("step")
def chunks_of(tokens: Number, budget: Number) -> Number:
    """Steps a prompt takes when one carries at most `budget` of its tokens."""
    return ceiling(tokens, budget)


@formula("token")
def middle_depth(cached: Number, tokens: Number, chunk: Number) -> Number:
    """Where a prompt's middle chunk starts: there attention costs what it costs on average."""
    return cached + (tokens - chunk) / 2


@formula("s", "stages work on other chunks meanwhile; `overlap` is how far they do")
def staged_seconds(seconds: Number, chunks: Number, stages: Number, overlap: Number) -> Number:
    """Chunks that follow one another through pipeline stages."""
    return seconds * (overlap * (chunks + stages - 1) / (chunks * stages) + 1 - overlap)


def prompt_seconds(clock: Clock, load: Load, policy: Policy, leaf: Leaf = bare) -> Any:
    """One prompt alone on the deployment, in as many steps as its engine takes."""
    return prompts_seconds(clock, load, policy, 1, leaf)


def prompts_seconds(clock: Clock, load: Load, policy: Policy, batch: Any, leaf: Leaf = bare) -> Any:
    """`batch` prompts that start together: as many in a step as its budget holds."""
    steps, middle = prompt_steps(load, policy, batch)
    return staged(policy, steps, steps * clock.seconds(middle, leaf))


def staged(policy: Policy, steps: Any, seconds: Any) -> Any:
    """Seconds of steps one after another, dealt over pipeline stages where there are any."""
    if policy.pp == 1:
        return named("prompt_seconds", "s", seconds)
    return staged_seconds(seconds, most(1, steps), policy.pp, policy.overlap)


def prompt_steps(load: Load, policy: Policy, batch: Any) -> tuple[Any, Step]:
    """Steps that so many prompts take, and the middle one: it costs what they cost on average."""
    tokens = load.new_tokens
    together = most(1, least(batch, policy.budget // tokens))
    count = chunks_of(tokens, policy.budget)
    return named("prefill_steps", "step", batch / together * count), _chunk(load, policy, count, together)


def _chunk(load: Load, policy: Policy, count: Any, prompts: Any) -> Step:
    """The middle one of a prompt's chunks, which costs what they cost on average."""
    tokens = load.new_tokens
    if policy.budget == 1:  # token by token: a decode step like any other
        return Step(decoding=prompts, context=load.cached + tokens / 2)
    chunk = tokens / count
    return Step(prompts=prompts, chunk=chunk, depth=middle_depth(load.cached, tokens, chunk))


def prompt_floor_seconds(clock: Clock, load: Load, batch: Any, pp: int = 1, leaf: Leaf = bare) -> Any:
    """The least time of `batch` prompts, all stages at work at once."""
    step = Step(prompts=batch, chunk=load.new_tokens, depth=load.cached)
    floor = clock.floor(step, leaf)
    return floor / pp if pp > 1 else floor


def beside_decoding(
    clock: Clock, load: Load, policy: Policy, decoding: Any, prompts: Any, leaf: Leaf = bare
) -> Any:
    """Seconds that one prompt adds to the steps of `decoding` sequences, `prompts` of them in a step."""
    count = chunks_of(load.new_tokens, policy.budget)
    own = _chunk(load, policy, count, prompts)
    alone = clock.seconds(own, leaf) * count
    if not policy.mixes:
        return named("added_seconds", "s", alone / prompts / policy.pp)
    each = policy.stage_share(decoding)
    context, positions = load.middle_context, load.drafts + 1
    ending = prompts if _is_one(count) else 0
    both = Step(each, context, positions, prompts, own.chunk, own.depth, finishing=ending)
    mixed = named("mixed_step_seconds", "s", clock.seconds(both, leaf))
    plain = named("decode_step_seconds", "s", clock.seconds(Step(each, context, positions), leaf))
    return added_seconds(mixed, plain, count, alone, prompts, policy.pp)


@formula("s", "at least a fiftieth of what it takes alone")
def added_seconds(
    mixed_seconds: Number, plain_seconds: Number, chunks: Number, alone: Number, prompts: Number, pp: Number
) -> Number:
    """What one prompt adds to steps of decoding: a mixed step less a plain one, for each chunk."""
    return most((mixed_seconds - plain_seconds) * chunks, 0.02 * alone) / prompts / pp


def _is_one(count: Any) -> bool:
    return not hasattr(count, "shape") and count == 1
