"""What a request waits for: others' prompts, a burst, a place among those that run."""

from __future__ import annotations

from kvplan.figure import Number, formula


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


@formula("s", "decoding goes on between the chunks of a prompt")
def first_token_seconds(
    request_seconds: Number,
    steps_under_way: Number,
    token_seconds: Number,
    prompt_factor: Number,
    prompt_seconds: Number,
    other_chunks: Number,
    step_seconds: Number,
) -> Number:
    """What a request meets before its first token: the front end, steps under way, its own prompt."""
    return (
        request_seconds
        + steps_under_way * token_seconds
        + prompt_factor * (prompt_seconds + other_chunks * step_seconds)
    )


@formula("s", "Little's law: those beyond what runs at once wait")
def waiting_seconds(concurrency: Number, requests_per_second: Number, service_seconds: Number) -> Number:
    """Waiting for a place among those that run."""
    return concurrency / requests_per_second - service_seconds


@formula("s", "Little's law: more than one step's budget feeds wait for their prompts")
def fed_service_seconds(decoding_seconds: Number, running: Number, fed: Number) -> Number:
    """From the start to the last token where steps are full of prompts."""
    return decoding_seconds * running / fed


@formula("s", "as if so many slots were missing; alone nobody waits")
def slot_seconds(share: Number, decoding_seconds: Number, running: Number) -> Number:
    """Requests that wait for a whole other one, of those that run at once."""
    return share * decoding_seconds * (running - 1) / (running * running)
