"""Prefill: a prompt alone, many at once, and what one costs those that decode beside it."""

from __future__ import annotations

from dataclasses import replace
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
    alone = not hasattr(policy.budget, "dtype") and policy.budget == 1
    if alone:  # token by token: a decode step like any other
        return Step(decoding=prompts, context=load.cached + tokens / 2)
    chunk = tokens / count
    depth = middle_depth(load.cached, tokens, chunk)
    return Step(prompts=prompts, chunk=chunk, depth=depth, finishing=prompts / count)


def prompt_floor_seconds(clock: Clock, load: Load, batch: Any, pp: int = 1, leaf: Leaf = bare) -> Any:
    """The least time of `batch` prompts, all stages at work at once."""
    step = Step(prompts=batch, chunk=load.new_tokens, depth=load.cached)
    floor = clock.floor(step, leaf)
    return floor / pp if pp > 1 else floor


@formula("step", "what is left of a prompt shares its step with the next one")
def full_chunks(tokens: Number, budget: Number) -> Number:
    """Steps' worth of a prompt where others follow it at once: no chunk but the last of all is cut short."""
    return most(1, tokens / budget)


@formula("sequence", "chunked prefill (arXiv 2403.02310): one budget for prompts and decoding")
def fed_sequences(budget: Number, tokens: Number, steps: Number, positions: Number, stages: Number) -> Number:
    """Decoding sequences whose successors' prompts fill every step: more wait for their first token."""
    return most(1, stages * budget / (tokens / steps + positions))


@formula("prompt")
def arriving_prompts(sequences: Number, steps: Number, stages: Number) -> Number:
    """Prompts a step where as many sequences end in `steps` steps, at least one where there are any."""
    return most(1, sequences / steps / stages)


@formula("", "where prompts need more steps than there are tokens to decode, the rest carry prompts alone")
def decoding_share(
    sequences: Number, steps: Number, chunks: Number, prompts: Number, stages: Number
) -> Number:
    """The share of steps with prompts in which something decodes: one, unless each ends in few steps."""
    return least(1, prompts * stages * steps / (sequences * chunks))


def beside_decoding(
    clock: Clock,
    load: Load,
    policy: Policy,
    decoding: Step,
    plain: Any,
    prompts: Any,
    leaf: Leaf = bare,
    ended: Any = None,
) -> Any:
    """Seconds one prompt adds to steps of `decoding`, which take `plain`; `prompts` of them in a step.

    `ended` is (sequences, steps in which they end), where as many prompts come as sequences end.
    """
    chunks = full_chunks(load.new_tokens, policy.budget)
    chunk = load.new_tokens / chunks
    depth = middle_depth(load.cached, load.new_tokens, chunk)
    own = Step(prompts=prompts, chunk=chunk, depth=depth, finishing=prompts / chunks)
    if not policy.mixes:
        return waited_seconds(clock.seconds(own, leaf), chunks, prompts, policy.pp)
    both = replace(own, decoding=decoding.decoding, context=decoding.context, positions=decoding.positions)
    mixed = named("mixed_step_seconds", "s", clock.seconds(both, leaf))
    share = 1 if ended is None else decoding_share(ended[0], ended[1], chunks, prompts, policy.pp)
    return added_seconds(mixed, plain, share, chunks, prompts, policy.pp)


@formula("s")
def added_seconds(
    mixed_seconds: Number,
    plain_seconds: Number,
    decoding_share: Number,
    chunks: Number,
    prompts: Number,
    stages: Number,
) -> Number:
    """What one prompt adds to steps of decoding: mixed ones less the plain ones they replace."""
    return (mixed_seconds - decoding_share * plain_seconds) * chunks / prompts / stages


@formula("s")
def waited_seconds(seconds: Number, chunks: Number, prompts: Number, stages: Number) -> Number:
    """What one prompt adds where decoding waits for it: its share of steps of prompts alone."""
    return seconds * chunks / prompts / stages
