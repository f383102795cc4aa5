"""Questions about changes made together: which multiply, and which take each other's place."""

from __future__ import annotations

from kvplan.drills.question import Asked
from kvplan.figure import Source, Trust, named, sourced
from kvplan.units import bytes_text
from kvplan.verbs.drill_subject import (
    Asker,
    Drawn,
    Unsuitable,
    check_deployed,
    check_length,
    factor,
    kv,
)

_ASKED = Source(Trust.STATED, "as asked")


def heads_and_format(drawn: Drawn) -> Asked:
    """How many times more tokens fit with fewer KV heads and a narrower format than with neither."""
    wide, narrow = kv(drawn), kv(drawn, dtype=drawn["other"])
    first = named("bytes_with_a_KV_head_per_query_head", "B/token", wide["mha_bytes_per_token"])
    both = named("bytes_with_both", "B/token", narrow["bytes_per_token"])
    heads = first.value / wide["bytes_per_token"].value
    found = factor("times_more_tokens", first, both)
    width = found.value / heads
    if heads < 2:
        raise Unsuitable("no fewer heads")
    return Asked(found, slips={"one_lever": heads, "added": heads + width})


def format_and_ranks(drawn: Drawn) -> Asked:
    """How many times less one rank holds of a token in a narrower format over several ranks."""
    check_deployed(drawn)
    if drawn["tp"] < 2:
        raise Unsuitable("one rank")
    one = named("bytes_per_token_on_one_rank_in_16_bit", "B/token", kv(drawn, tp=1)["bytes_per_token"])
    both = named("bytes_per_token_with_both", "B/token", kv(drawn, dtype=drawn["other"])["bytes_per_token"])
    found = factor("times_less", one, both)
    ranks = kv(drawn, tp=1)["bytes_per_token"].value / kv(drawn)["bytes_per_token"].value
    slips = {
        "one_lever": ranks,
        "added": ranks + found.value / ranks,
        "divided": drawn["tp"] * found.value / ranks,
    }
    return Asked(found, slips=slips)


def window_and_length(drawn: Drawn) -> Asked:
    """How many times less is held once sequences are cut, where windows already cut what they keep."""
    check_length(drawn, drawn["longer"])
    if drawn["longer"] <= drawn["tokens"]:
        raise Unsuitable("not longer")
    long = named("longer_bytes", "B", kv(drawn, tokens=drawn["longer"])["bytes_per_sequence"])
    short = named("shorter_bytes", "B", kv(drawn)["bytes_per_sequence"])
    times = drawn["longer"] / drawn["tokens"]
    slips = {"no_window": times, "inverse": short.value / long.value}
    return Asked(factor("times_less", long, short), {"times": f"{times:g}"}, slips, given={"times": times})


def shared_prefix(drawn: Drawn) -> Asked:
    """What a batch holds whose sequences begin alike, the beginning being held once."""
    check_length(drawn, drawn["tokens"])
    if drawn["shared"] >= drawn["tokens"]:
        raise Unsuitable("nothing of their own")
    once = named("shared_bytes", "B", kv(drawn, tokens=drawn["shared"])["bytes_per_sequence"])
    whole = named("sequence_bytes", "B", kv(drawn)["bytes_per_sequence"])
    own = named("own_bytes", "B", whole - once)
    batch = sourced("batch", drawn["batch"], "sequence", _ASKED)
    found = named("batch_bytes", "B", once + batch * own)
    words = {"each": bytes_text(kv(drawn, tokens=1)["bytes_per_token"].value)}
    return Asked(
        found, words, {"not_shared": whole.value * drawn["batch"], "one_lever": own.value * drawn["batch"]}
    )


def strongest(drawn: Drawn) -> Asked:
    """Which change leaves least of one sequence's cache on a rank."""
    check_length(drawn, drawn["tokens"])
    check_deployed({**drawn, "tp": drawn["more"]})
    tokens = drawn["tokens"]
    shorter = tokens // drawn["cut"]
    changes = {
        "an fp8 cache": kv(drawn, dtype="fp8"),
        f"sequences cut to {shorter:,} tokens": kv(drawn, tokens=shorter),
        f"tensor parallelism over {drawn['more']} ranks": kv(drawn, tp=drawn["more"]),
        "fp8 weights": kv(drawn),
    }
    options = tuple(
        (label, named(f"bytes_left_{i}", "B", part["bytes_per_sequence"]))
        for i, (label, part) in enumerate(changes.items(), 1)
    )
    values = sorted(figure.value for _, figure in options)
    if values[0] * 1.2 > values[1]:
        raise Unsuitable("too alike")
    least = min((figure for _, figure in options), key=lambda figure: figure.value)
    return Asked(least, {"shorter": f"{shorter:,}"}, options=options, given={"shorter": shorter})


ASKERS: dict[str, Asker] = {
    "heads_and_format": heads_and_format,
    "format_and_ranks": format_and_ranks,
    "window_and_length": window_and_length,
    "shared_prefix": shared_prefix,
    "strongest": strongest,
}
