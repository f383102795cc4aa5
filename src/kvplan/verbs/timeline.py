"""`timeline`: when a request claims its cache, step by step."""

from __future__ import annotations

from typing import Any

from kvplan.cost import cache
from kvplan.cost.cache import Stored
from kvplan.cost.growth import Request, growth_of, steps_of
from kvplan.errors import BadInput, shown
from kvplan.figure import Leaf, Number, Source, Trust, bare, formula, named, value_of
from kvplan.model.model import Model
from kvplan.verbs.answer import Answer
from kvplan.verbs.check import whole
from kvplan.verbs.given import ModelLike, given_model
from kvplan.verbs.series import held_by_step
from kvplan.verbs.size import MAX_TP, stored_as, uncrossed

MAX_STEPS = 1_000_000
MAX_REQUESTS = 4096
MAX_STATES = 10_000_000


@formula("")
def decode_share(decode_bytes: Number, total_bytes: Number) -> Number:
    """How much of what is held at the end was claimed by decode."""
    return decode_bytes / total_bytes


def timeline(
    model: ModelLike,
    *,
    prompt_tokens: int = 2048,
    output_tokens: int = 128,
    batch: int = 1,
    tp: int = 1,
    kv_cache_dtype: str = "auto",
    dtype: str = "auto",
    chunk_tokens: int | None = None,
    block_size: int = 1,
    arrivals: list[int] | None = None,
) -> Answer:
    """Bytes claimed and held on one rank after prefill, each chunk and each decode step.

    `arrivals` are the steps in which requests of these lengths arrive (else `batch` at step 0);
    `chunk_tokens` bounds a step's tokens; `block_size` rounds each sequence up to whole blocks.
    Returns the contract's `timeline` document; each step adds `held_bytes`. Raises BadInput.
    """
    loaded = given_model(model, dtype)
    _check(prompt_tokens, output_tokens, batch, tp, chunk_tokens, block_size)
    cache.check_split(loaded, tp)
    stored = stored_as(loaded, kv_cache_dtype, tp, dtype)
    starts = _starts(batch, arrivals)
    _check_steps(starts, prompt_tokens, output_tokens, chunk_tokens)
    requests = [Request(start, prompt_tokens, output_tokens) for start in starts]
    growth = growth_of(loaded, stored, block_size)
    steps = [
        {"phase": s.phase, "tokens": s.tokens, "bytes": s.bytes, "held_bytes": s.held_bytes}
        for s in steps_of(growth, requests, chunk_tokens)
    ]

    def compute(leaf: Leaf) -> dict[str, Any]:
        count = leaf("requests", len(requests), "sequence", Source(Trust.STATED, "--batch or --arrivals"))
        prompt = leaf(
            "prompt_tokens", prompt_tokens, "token", Source(Trust.STATED, "--prompt-tokens or its default")
        )
        output = leaf(
            "output_tokens", output_tokens, "token", Source(Trust.STATED, "--output-tokens or its default")
        )
        asked = (prompt, output, block_size, steps[-1])
        before = count * cache.bytes_per_sequence(loaded, stored, prompt, leaf, block_size)
        after = count * cache.bytes_per_sequence(loaded, stored, prompt + output, leaf, block_size)
        prefill, held = named("prefill_bytes", "B", before), named("total_bytes", "B", after)
        decode = named("decode_bytes", "B", held - prefill)
        return {
            "prefill_bytes": prefill,
            "decode_bytes": decode,
            "total_bytes": held,
            "decode_share": decode_share(decode, held) if held else None,
            "steps": steps if leaf is bare else {"bytes": _last_step(loaded, stored, asked, leaf)},
            "notes": [*loaded.notes, *_beyond(loaded, prompt_tokens + output_tokens), *uncrossed(loaded)],
        }

    rank = f", one rank of {tp}" if tp > 1 else ""
    load = f"{len(requests):,} × ({prompt_tokens:,} prompt + {output_tokens:,} output tokens)"
    of = f"{loaded.id}, {stored.format.name} cache{rank}; {load}"
    return Answer(compute, lambda answer: {"steps": held_by_step(answer["steps"]), "of": of})


def _beyond(model: Model, length: int) -> list[str]:
    """A note where a sequence is longer than the model was made for."""
    if model.max_context is None or length <= model.max_context:
        return []
    return [
        f"a sequence of {length:,} tokens is longer than the model's {model.max_context:,} "
        f"({model.origin('max_context').where}): an engine refuses it or stops there"
    ]


def _check(prompt: int, output: int, batch: int, tp: int, chunk: int | None, block: int) -> None:
    whole("--prompt-tokens", prompt, 1, 10**9)
    whole("--output-tokens", output, 0, MAX_STEPS)
    whole("--batch", batch, 1, MAX_REQUESTS)
    whole("--tp", tp, 1, MAX_TP)
    whole("--block-size", block, 1, 1 << 20)
    if chunk is not None:
        whole("--chunked-prefill-size", chunk, 1, 10**9)


def _check_steps(starts: list[int], prompt: int, output: int, chunk: int | None) -> None:
    """Refuse what would take too long to walk: too many steps, or too many requests apart in each."""
    count = len(starts)
    cut = 0 if chunk is None else count * (prompt + output) // chunk
    if cut > MAX_STEPS:
        raise BadInput(
            f"--chunked-prefill-size: {chunk} cuts {count * (prompt + output):,} tokens into more than "
            f"{MAX_STEPS:,} steps; give a larger one"
        )
    steps = starts[-1] + output + cut
    if steps > MAX_STEPS:
        raise BadInput(
            f"--output-tokens: {output:,} after step {starts[-1]:,} are more than {MAX_STEPS:,} steps"
        )
    apart = len(set(starts)) if chunk is None else count
    if output * apart > MAX_STATES:
        raise BadInput(
            f"--output-tokens: {output:,} of each of {apart:,} requests that are not in step are more than "
            f"{MAX_STATES:,} tokens; give fewer, or let all start together and whole"
        )


def _starts(batch: int, arrivals: list[int] | None) -> list[int]:
    if arrivals is None:
        return [0] * batch
    if not isinstance(arrivals, (list, tuple)):
        raise BadInput(f"--arrivals: {shown(arrivals)} is no list of steps; give such as [0, 5, 9]")
    if batch != 1:
        raise BadInput(f"--arrivals: gives one step per request; drop --batch {batch}")
    if not 0 < len(arrivals) <= MAX_REQUESTS:
        raise BadInput(f"--arrivals: {len(arrivals)} requests; give 1 to {MAX_REQUESTS:,}")
    return sorted(whole("--arrivals", step, 0, MAX_STEPS) for step in arrivals)


@formula("B", "every other step likewise")
def claimed_bytes(sequences: Number, held_after: Number, held_before: Number) -> Number:
    """What the last step claims: what its sequences hold after it, less what they held before."""
    return sequences * (held_after - held_before)


def _last_step(model: Model, stored: Stored, asked: tuple[Any, Any, int, dict[str, Any]], leaf: Leaf) -> Any:
    """The bytes of the last step as a figure: a decode step, or prompts where nothing is decoded."""
    prompt, output, block, step = asked
    each = 1 if value_of(output) else value_of(prompt)
    if step["tokens"] % each:  # the last chunk of a prompt
        return step["bytes"]
    served = Source(Trust.STATED, "sequences that the last step serves")
    sequences = leaf("sequences", step["tokens"] // each, "sequence", served)
    after = cache.bytes_per_sequence(model, stored, prompt + output, leaf, block)
    before: Any = 0
    if value_of(output):
        held = cache.bytes_per_sequence(model, stored, prompt + output - 1, leaf, block)
        before = named("held_before", "B", held)
    return claimed_bytes(sequences, named("held_after", "B", after), before)
