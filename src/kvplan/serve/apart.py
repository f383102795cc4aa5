"""Prefill and decode on separate accelerators: the cache of a prompt crosses a link before decode begins.

Splitwise (arXiv 2311.18677) and DistServe (arXiv 2401.09670): neither phase disturbs the other, each side
is as fast as its own steps, and the narrower one sets the rate. The first token leaves the decode side.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from kvplan.cost import pairs
from kvplan.cost.estimate import Clock
from kvplan.cost.operations import Operations
from kvplan.figure import Leaf, Number, Source, Trust, bare, formula, least, most, named, power, value_of
from kvplan.serve.load import Load, Policy, tokens_a_step
from kvplan.serve.prompt import prompt_seconds, prompts_seconds
from kvplan.serve.steady import decode_seconds, e2e_seconds, front_end

_ASKED = Source(Trust.STATED, "as asked")
_SHAPE = Source(Trust.STATED, "the model's shapes, split over ranks (cost/operations.py)")
_STEADY = Source(Trust.ENGINE_RULE, "as many as keep arrivals and departures equal (Little's law)")
_HALVINGS = 40
_NEARLY = 0.999  # of the narrower side's rate: at all of it queues of random arrivals grow without end


@dataclass(frozen=True, slots=True)
class Side:
    """One side: its clock, its scheduler, and how many workers (replicas of its deployment) there are."""

    clock: Clock
    policy: Policy
    workers: int = 1

    @property
    def accelerators(self) -> int:
        """Accelerators of all workers."""
        return self.workers * self.clock.ops.ranks.tp * self.clock.ops.ranks.pp


@dataclass(frozen=True, slots=True)
class Apart:
    """Two sides and the link between them: bytes a second of one accelerator, one direction.

    `overlapped`: a layer's cache leaves while the next one computes; else all of it after the last.
    """

    prefill: Side
    decode: Side
    link_bytes_per_second: float
    overlapped: bool = True


@dataclass(frozen=True, slots=True)
class Rates:
    """Requests a second: of the prefill side, of the decode side, of both; `narrower` says which binds."""

    prefill: Any
    decode: Any
    both: Any
    narrower: str


@dataclass(frozen=True, slots=True)
class ServedApart:
    """Means over requests, in seconds, and the deployment's rates; None where more arrive than leave."""

    requests_per_second: Any
    output_tokens_per_second: Any
    ttft_seconds: Any
    tpot_seconds: Any
    e2e_seconds: Any
    queue_seconds: Any
    prefill_seconds: Any
    transfer_seconds: Any
    running: Any
    rates: Rates


@formula("B")
def slots_bytes(layers: Number, slots: Number, slot_bytes: Number, stages: Number) -> Number:
    """What the layers of one stage keep of a prompt on one rank."""
    return layers * slots * slot_bytes / stages


@formula("s", "each accelerator sends its own part over its own link")
def transfer_seconds(cache_bytes: Number, link_bytes_per_second: Number) -> Number:
    """A prompt's cache over the link."""
    return cache_bytes / link_bytes_per_second


@formula("s", "layer by layer, as in Splitwise (arXiv 2311.18677): the last layer's part can hide nowhere")
def exposed_seconds(transfer_seconds: Number, prefill_seconds: Number, layers: Number) -> Number:
    """What a request waits for of a transfer that goes on while later layers compute."""
    return most(transfer_seconds / layers, transfer_seconds - prefill_seconds)


@formula("request/s", "a worker computes the next prompt while the last one's cache leaves")
def prefill_rate(workers: Number, prompt_seconds: Number, transfer_seconds: Number) -> Number:
    """Prompts a second: the slower of computing and sending."""
    return workers / most(prompt_seconds, transfer_seconds)


@formula("request/s")
def decode_rate(workers: Number, running: Number, token_seconds: Number, output_tokens: Number) -> Number:
    """As many sequences as run at once, each replaced when it ends."""
    return workers * running / (token_seconds * output_tokens)


@formula("request/s", "throughput is the narrower side's")
def joint_rate(prefill_side: Number, decode_side: Number) -> Number:
    """What passes both sides."""
    return least(prefill_side, decode_side)


@formula("worker", "no side waits for the other: workers × rate of a worker are equal")
def workers_ratio(one_prefill_rate: Number, one_decode_rate: Number) -> Number:
    """Prefill workers for each decode worker."""
    return one_decode_rate / one_prefill_rate


@formula("s", "M/D/c: half of M/M/c as Sakasegawa 1977 (Ann. Inst. Stat. Math. 29) has it")
def shared_queue_seconds(utilisation: Number, servers: Number, service_seconds: Number) -> Number:
    """Waiting for the first free of several workers behind prompts that arrive at random."""
    exponent = power(2 * (servers + 1), 0.5) - 1
    return power(utilisation, exponent) / (2 * servers * (1 - utilisation)) * service_seconds


@formula("s")
def first_token_seconds(
    request_seconds: Number,
    queue_seconds: Number,
    prefill_seconds: Number,
    transfer_seconds: Number,
    decode_step_seconds: Number,
) -> Number:
    """Front end, queue, prefill, what is left of the transfer, and the first decode step."""
    return request_seconds + queue_seconds + prefill_seconds + transfer_seconds + decode_step_seconds


def prompt_cache_bytes(ops: Operations, tokens: Any, leaf: Leaf = bare) -> Any:
    """Bytes of cache and states that a prompt leaves on one rank: what that rank sends."""
    stages = leaf("pp", ops.ranks.pp, "stage", _ASKED) if ops.ranks.pp > 1 else 1
    found: Any = 0
    for a in ops.attends:
        if not a.attention.holds:
            continue
        slots = pairs.kept_slots(a.attention, a.name, tokens, leaf)
        layers = leaf(f"{a.name}_layers", a.layers, "layer", _SHAPE)
        each = leaf(f"{a.name}_slot_bytes", a.slot_bytes, "B", _SHAPE)
        found = found + slots_bytes(layers, slots, each, stages)
        if a.index_bytes:
            keys = pairs.index_slots(a.attention, a.name, tokens, leaf)
            each = leaf(f"{a.name}_index_bytes", a.index_bytes, "B", _SHAPE)
            found = found + slots_bytes(layers, keys, each, stages)
    for r in ops.recurs:
        each = leaf(f"{r.name}_bytes", r.values * r.value_bytes, "B", _SHAPE)
        found = found + slots_bytes(leaf(f"{r.name}_layers", r.layers, "layer", _SHAPE), 1, each, stages)
    return named("prompt_cache_bytes", "B", found)


def transfer(a: Apart, load: Load, prefill: Any, leaf: Leaf = bare) -> tuple[Any, Any]:
    """(seconds a prompt's cache is on the link, seconds of them that its request waits for).

    What decode finds cached (`depth`, `shared`) does not cross: only the new tokens' part does.
    """
    rate = leaf("link_bytes_per_second", a.link_bytes_per_second, "B/s", _ASKED)
    ops = a.prefill.clock.ops
    sent = transfer_seconds(prompt_cache_bytes(ops, load.new_tokens, leaf), rate)
    if not a.overlapped:
        return sent, sent
    layers = leaf("layers_of_a_stage", max(1, ops.layers // ops.ranks.pp), "layer", _SHAPE)
    return sent, exposed_seconds(sent, prefill, layers)


def token_seconds(a: Apart, load: Load, running: Any, leaf: Leaf = bare) -> tuple[Any, Any]:
    """(seconds a token, seconds a step) of a decode worker with so many sequences, no prompts beside them."""
    step = decode_seconds(a.decode.clock, load, a.decode.policy, running, leaf)
    return named("tpot_seconds", "s", step / tokens_a_step(load)), step


def rates(a: Apart, load: Load, running: Any = None, leaf: Leaf = bare) -> Rates:
    """What each side passes with prompts always queued; `running` on a decode worker, else all it holds."""
    side = a.prefill
    batch = most(1, side.policy.budget // load.new_tokens)
    full = batch if value_of(batch) <= 64 else 64  # more in a step change nothing: compute binds long before
    one = prompts_seconds(side.clock, load, side.policy, full, leaf) / full
    sent, _ = transfer(a, load, one, leaf)
    prefill = prefill_rate(leaf("prefill_workers", side.workers, "worker", _ASKED), one, sent)
    held = most(1, a.decode.policy.running if running is None else least(running, a.decode.policy.running))
    tpot, _ = token_seconds(a, load, held, leaf)
    workers = leaf("decode_workers", a.decode.workers, "worker", _ASKED)
    decode = decode_rate(workers, held, tpot, load.output_tokens)
    narrower = "prefill" if prefill < decode else "decode"
    return Rates(prefill, decode, joint_rate(prefill, decode), narrower)


def at_rate(a: Apart, load: Load, rate: Any, leaf: Leaf = bare) -> ServedApart:
    """Requests that arrive at random, `rate` a second, at one queue before the prefill workers."""
    top = rates(a, load, None, leaf)
    if rate >= top.both:
        held = most(1, a.decode.policy.running)
        alone, exposed = _prefilled(a, load, leaf)
        tpot, _ = token_seconds(a, load, held, leaf)
        output = named("output_tokens_per_second", "token/s", top.both * load.output_tokens)
        return ServedApart(top.both, output, None, tpot, None, None, alone, exposed, held, top)
    running = leaf("running_sequences", _running(a, load, value_of(rate)), "sequence", _STEADY)
    return _served(a, load, rate, running, top, leaf)


def _served(a: Apart, load: Load, rate: Any, running: Any, top: Rates, leaf: Leaf) -> ServedApart:
    alone, exposed = _prefilled(a, load, leaf)
    tpot, step = token_seconds(a, load, most(1, running), leaf)
    workers = a.prefill.workers
    queue = shared_queue_seconds(rate / top.prefill, workers, workers / top.prefill)
    front = front_end(a.prefill.clock, leaf).request_seconds
    ttft = named("ttft_seconds", "s", first_token_seconds(front, queue, alone, exposed, step))
    return ServedApart(
        rate,
        named("output_tokens_per_second", "token/s", rate * load.output_tokens),
        ttft,
        tpot,
        named("e2e_seconds", "s", e2e_seconds(ttft, tpot, load.output_tokens)),
        queue,
        alone,
        exposed,
        running,
        top,
    )


def _prefilled(a: Apart, load: Load, leaf: Leaf) -> tuple[Any, Any]:
    """Seconds of one prompt alone, and those of its transfer that a request waits for."""
    seconds = prompt_seconds(a.prefill.clock, load, a.prefill.policy, leaf)
    alone = named("prefill_seconds", "s", seconds)
    return alone, transfer(a, load, alone, leaf)[1]


def _running(a: Apart, load: Load, rate: Any) -> Any:
    """Sequences of one decode worker when so many requests arrive in all: Little's law, repeated."""
    running: Any = 1.0
    for _ in range(24):
        tpot, _ = token_seconds(a, load, most(1, running))
        wanted = rate / a.decode.workers * load.output_tokens * tpot
        running = (running + least(a.decode.policy.running, wanted)) / 2
    return running


def at_concurrency(a: Apart, load: Load, concurrency: Any) -> ServedApart:
    """`concurrency` users who ask again as soon as they are answered: the rate at which all are under way.

    Those beyond what both sides pass wait before prefill.
    """
    top = rates(a, load)
    low, high = 0.0, float(a.decode.policy.running)
    found = None
    for _ in range(_HALVINGS):
        running = (low + high) / 2
        tpot, _ = token_seconds(a, load, most(1, running))
        rate = decode_rate(a.decode.workers, running, tpot, load.output_tokens)
        if rate >= top.both * _NEARLY:
            high = running
            continue
        found = _served(a, load, rate, running, top, bare)
        low, high = (running, high) if rate * found.e2e_seconds < concurrency else (low, running)
    if found is None:  # no sequence at all may run without a queue that grows
        found = _served(a, load, top.both * _NEARLY, low, top, bare)
    waiting = max(0.0, concurrency / found.requests_per_second - found.e2e_seconds)
    return replace(
        found,
        queue_seconds=found.queue_seconds + waiting,
        ttft_seconds=found.ttft_seconds + waiting,
        e2e_seconds=found.e2e_seconds + waiting,
    )


def best_split(a: Apart, load: Load, workers: int, tpot_seconds: float | None = None) -> tuple[Apart, Rates]:
    """Of so many workers, how many prefill and how many decode pass the most requests; at least one each.

    With a TPOT goal in seconds decode workers hold only as many sequences as meet it.
    """
    held = None if tpot_seconds is None else largest_running(a, load, tpot_seconds)
    found = []
    for n in range(1, max(2, workers)):
        split = replace(
            a,
            prefill=replace(a.prefill, workers=n),
            decode=replace(a.decode, workers=max(1, workers - n)),
        )
        found.append((split, rates(split, load, held)))
    return max(found, key=lambda pair: pair[1].both)


def best_ratio(a: Apart, load: Load, running: Any = None, leaf: Leaf = bare) -> Any:
    """Prefill workers for each decode worker at which both sides pass the same."""
    alone = replace(a, prefill=replace(a.prefill, workers=1), decode=replace(a.decode, workers=1))
    one = rates(alone, load, running, leaf)
    return workers_ratio(one.prefill, one.decode)


def largest_running(a: Apart, load: Load, tpot_seconds: float) -> int:
    """Sequences of one decode worker whose tokens are within the goal (seconds): 1 where none is."""
    low, high = 1, max(1, int(min(a.decode.policy.running, 1 << 20))) + 1
    while high - low > 1:
        middle = (low + high) // 2
        within = token_seconds(a, load, middle)[0] <= tpot_seconds
        low, high = (middle, high) if within else (low, middle)
    return low
