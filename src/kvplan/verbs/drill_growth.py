"""Questions about when a request claims its cache: figures of `timeline`, and chunks of a prompt."""

from __future__ import annotations

from typing import Any

from kvplan.cost import cache
from kvplan.drills.question import Asked
from kvplan.figure import Source, Trust, named, sourced
from kvplan.serve.prompt import chunks_of
from kvplan.units import bytes_text
from kvplan.verbs.drill_subject import Asker, Drawn, Unsuitable, check_length, factor, kv, stored, subject
from kvplan.verbs.timeline import decode_share as decode_share_of
from kvplan.verbs.timeline import timeline

_ASKED = Source(Trust.STATED, "as asked")


def _figures(drawn: Drawn) -> dict[str, Any]:
    """What `timeline` says of a prompt and an output, without walking its steps."""
    check_length(drawn, drawn["prompt"] + drawn["output"])
    who, held = subject(drawn["model"]), stored(drawn["model"], drawn.get("dtype", "bfloat16"))
    count = sourced("requests", drawn.get("batch", 1), "sequence", _ASKED)
    output = sourced("output_tokens", drawn["output"], "token", _ASKED)
    before = count * cache.bytes_per_sequence(who.model, held, _prompt(drawn), sourced)
    after = count * cache.bytes_per_sequence(who.model, held, _prompt(drawn) + output, sourced)
    prefill, total = named("prefill_bytes", "B", before), named("total_bytes", "B", after)
    decode = named("decode_bytes", "B", total - prefill)
    share = decode_share_of(decode, total)
    return {"prefill_bytes": prefill, "decode_bytes": decode, "total_bytes": total, "decode_share": share}


def prefill_bytes(drawn: Drawn) -> Asked:
    """What the prompts claim at once."""
    found = _figures(drawn)
    claimed, held = found["prefill_bytes"], found["total_bytes"]
    slips = {"keys_only": claimed.value / 2, "the_whole": held.value}
    if drawn.get("batch", 1) > 1:
        slips["one_sequence"] = claimed.value / drawn["batch"]
    return Asked(claimed, _per_token(drawn), {**slips, **_query_heads(drawn, claimed.value)})


def decode_bytes(drawn: Drawn) -> Asked:
    """What the output tokens add, one step after another."""
    found = _figures(drawn)
    added = found["decode_bytes"]
    slips = {"the_whole": found["total_bytes"].value, "the_rest": found["prefill_bytes"].value}
    if drawn.get("batch", 1) > 1:
        slips["one_sequence"] = added.value / drawn["batch"]
    slips |= {"keys_only": added.value / 2, **_query_heads(drawn, added.value)}
    return Asked(added, _per_token(drawn), slips)


def decode_share(drawn: Drawn) -> Asked:
    """How much of all that is held at the end was claimed by decode."""
    found = _figures(drawn)
    of_prompt = found["decode_bytes"].value / found["prefill_bytes"].value
    return Asked(found["decode_share"], _per_token(drawn), {"of_prompt": of_prompt})


def _per_token(drawn: Drawn) -> dict[str, str]:
    return {"each": bytes_text(kv(drawn)["bytes_per_token"].value)}


def _query_heads(drawn: Drawn, right: float) -> dict[str, float]:
    found = kv(drawn)
    times = found["mha_bytes_per_token"].value / found["bytes_per_token"].value
    alike = subject(drawn["model"]).group.attention.window is None
    return {"query_heads": right * times} if times > 1 and alike else {}


def _prompt(drawn: Drawn) -> Any:
    return sourced("prompt_tokens", drawn["prompt"], "token", _ASKED)


def _budget(drawn: Drawn) -> Any:
    """Tokens of a step that are left for prompts: all of it, or what decoding leaves."""
    whole = sourced("step_tokens", drawn["chunk"], "token", _ASKED)
    if not drawn.get("decoding"):
        return whole
    beside = sourced("decoding_sequences", drawn["decoding"], "token", _ASKED)
    return named("tokens_left_for_prompts", "token", whole - beside)


def _check_cut(drawn: Drawn, least: int = 2) -> None:
    if drawn["prompt"] < least * drawn["chunk"] - drawn["chunk"] + 1:
        raise Unsuitable("the prompt fits a step")


def chunks(drawn: Drawn) -> Asked:
    """How many steps a prompt takes under a budget of tokens a step."""
    _check_cut(drawn)
    found = chunks_of(_prompt(drawn), _budget(drawn))
    slips: dict[str, float] = {"rounded_down": found.value - 1}  # type: ignore[union-attr]
    if drawn.get("decoding"):
        slips["no_budget_shared"] = -(-drawn["prompt"] // drawn["chunk"])
    return Asked(found, slips=slips)  # type: ignore[arg-type]


def chunks_of_all(drawn: Drawn) -> Asked:
    """How many steps several prompts take that are there at once: what is left of a step goes to the next."""
    _check_cut(drawn)
    count = sourced("prompts", drawn["prompts"], "prompt", _ASKED)
    together = named("tokens_of_all_prompts", "token", count * _prompt(drawn))
    found: Any = chunks_of(together, _budget(drawn))
    apart = drawn["prompts"] * -(-drawn["prompt"] // drawn["chunk"])
    return Asked(found, slips={"rounded_down": found.value - 1, "a_full_chunk": float(apart)})


def last_chunk(drawn: Drawn) -> Asked:
    """How many tokens the last step of a prompt carries."""
    _check_cut(drawn)
    steps: Any = chunks_of(_prompt(drawn), _budget(drawn))
    full = named("tokens_before_the_last", "token", (steps - 1) * _budget(drawn))
    found = named("last_chunk_tokens", "token", _prompt(drawn) - full)
    if found.value == _budget(drawn).value:
        raise Unsuitable("the last chunk is full")
    return Asked(found, slips={"a_full_chunk": _budget(drawn).value})


def chunk_bytes(drawn: Drawn) -> Asked:
    """What one full step of a prompt claims: the first, where windows still fill."""
    _check_cut(drawn)
    check_length(drawn, drawn["prompt"])
    who, dtype = subject(drawn["model"]), drawn.get("dtype", "bfloat16")
    tokens = sourced("chunk_tokens", drawn["chunk"], "token", _ASKED)
    held = cache.bytes_per_sequence(who.model, stored(drawn["model"], dtype), tokens, sourced)
    found = named("chunk_bytes", "B", held)
    whole = kv(drawn, tokens=drawn["prompt"], dtype=dtype)["bytes_per_sequence"].value
    slips = {"keys_only": found.value / 2, "the_whole": whole, **_query_heads(drawn, found.value)}
    return Asked(found, _per_token(drawn), slips)


def chunked_ratio(drawn: Drawn) -> Asked:
    """How many times what a whole prompt claims its chunks claim together: the same."""
    _check_cut(drawn)
    check_length(drawn, drawn["prompt"])
    model = subject(drawn["model"]).model
    cut = timeline(model, prompt_tokens=drawn["prompt"], output_tokens=0, chunk_tokens=drawn["chunk"])
    why = Source(Trust.STATED, "all steps of kvplan timeline, added")
    claimed = sourced("bytes_of_all_chunks", sum(step["bytes"] for step in cut["steps"]), "B", why)
    whole = timeline(model, prompt_tokens=drawn["prompt"], output_tokens=0).figures()["prefill_bytes"]
    return Asked(factor("times_more", claimed, named("bytes_of_the_whole_prompt", "B", whole)))


ASKERS: dict[str, Asker] = {
    "prefill_bytes": prefill_bytes,
    "decode_bytes": decode_bytes,
    "decode_share": decode_share,
    "chunks": chunks,
    "chunks_of_all": chunks_of_all,
    "last_chunk": last_chunk,
    "chunk_bytes": chunk_bytes,
    "chunked_ratio": chunked_ratio,
}
