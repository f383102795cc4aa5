"""Questions about what tokens, sequences and batches cost in cache: figures of `size`."""

from __future__ import annotations

from kvplan.drills.question import Asked
from kvplan.figure import Source, Trust, named, sourced
from kvplan.verbs import size
from kvplan.verbs.drill_subject import (
    Asker,
    Drawn,
    Unsuitable,
    check_deployed,
    check_length,
    factor,
    kv,
    stored,
    subject,
)

_ONE_BYTE = ("fp8",)
_UNITS = {"GB": 10**9, "TB": 10**12, "MB": 10**6}


def bytes_per_token(drawn: Drawn) -> Asked:
    """What one more token costs on one rank while windows still fill."""
    check_deployed(drawn)
    found = kv(drawn)["bytes_per_token"]
    return Asked(found, slips=_slips(drawn, found.value))


def bytes_per_token_later(drawn: Drawn) -> Asked:
    """What one more token costs once every window is full."""
    found = kv(drawn)
    later = found["bytes_per_token_after_windows"]
    before = found["bytes_per_token"].value
    slips = _slips(drawn, later.value)
    slips.pop("query_heads", None)
    return Asked(later, slips={**slips, "no_window": before, "all_windows": before - later.value})


def smaller_than_mha(drawn: Drawn) -> Asked:
    """How many times less a token costs than with one KV head for each query head."""
    found = kv(drawn)
    times = factor("times_smaller", found["mha_bytes_per_token"], found["bytes_per_token"])
    a = subject(drawn["model"]).group.attention
    slips = {"inverse": 1 / times.value, "keys_only": times.value * 2}
    if a.latent is None:
        slips["query_heads"] = float(a.query_heads)
    return Asked(times, slips=slips)


def attending_layers(drawn: Drawn) -> Asked:
    """How many layers keep keys and values of tokens."""
    who = subject(drawn["model"])
    part = size.model_part(who.model, sourced)
    if who.attending == len(who.model.layers):
        raise Unsuitable("every layer attends")
    return Asked(named("attention_layers", "layer", part["attention_layers"]), slips={})


def bytes_per_sequence(drawn: Drawn) -> Asked:
    """Everything one sequence of that many tokens holds on one rank."""
    check_deployed(drawn)
    check_length(drawn, drawn["tokens"])
    found = kv(drawn)
    whole = found["bytes_per_sequence"]
    slips = _slips(drawn, whole.value)
    if found["window_tokens"] is not None:
        slips["no_window"] = found["bytes_per_token"].value * drawn["tokens"]
    state = found["state_bytes_per_sequence"].value
    if state:
        slips["state_left_out"] = whole.value - state
    return Asked(whole, slips=slips)


def bytes_total(drawn: Drawn) -> Asked:
    """What a whole batch of sequences holds on one rank."""
    one = bytes_per_sequence(drawn)
    total = kv(drawn)["bytes_total"]
    batch = drawn["batch"]
    slips = {name: value * batch for name, value in one.slips.items()}
    return Asked(total, slips={**slips, "one_sequence": one.figure.value})


def saved(drawn: Drawn) -> Asked:
    """What a narrower cache leaves free for the same batch."""
    check_length(drawn, drawn["tokens"])
    wide = named(f"bytes_in_{drawn['dtype']}", "B", kv(drawn)["bytes_total"])
    narrow = named(f"bytes_in_{drawn['other']}", "B", kv(drawn, dtype=drawn["other"])["bytes_total"])
    found = named("bytes_saved", "B", wide - narrow)
    if found.value <= 0:
        raise Unsuitable("nothing is saved")
    return Asked(found, slips={"the_rest": narrow.value, "the_whole": wide.value})


def times_narrower(drawn: Drawn) -> Asked:
    """How many times more tokens the same bytes hold in a narrower format."""
    wide = named(f"bytes_per_token_in_{drawn['dtype']}", "B/token", kv(drawn)["bytes_per_token"])
    other = kv(drawn, dtype=drawn["other"])["bytes_per_token"]
    narrow = named(f"bytes_per_token_in_{drawn['other']}", "B/token", other)
    found = factor("times_more_tokens", wide, narrow)
    if abs(found.value - 1) < 0.01:
        raise Unsuitable("the same width")
    plain = {"q8_0": 2.0, "q4_0": 4.0, "nvfp4": 4.0, "q5_1": 3.2}.get(drawn["other"])
    slips = {"inverse": 1 / found.value} | ({"no_scales": plain} if plain else {})
    return Asked(found, slips=slips)


def tokens_ratio(drawn: Drawn) -> Asked:
    """How many times more a longer sequence holds than a shorter one."""
    check_length(drawn, drawn["longer"])
    long = named("longer_bytes", "B", kv(drawn, tokens=drawn["longer"])["bytes_per_sequence"])
    short = named("shorter_bytes", "B", kv(drawn, tokens=drawn["tokens"])["bytes_per_sequence"])
    if drawn["longer"] <= drawn["tokens"]:
        raise Unsuitable("not longer")
    times = drawn["longer"] // drawn["tokens"]
    if times * drawn["tokens"] != drawn["longer"]:
        raise Unsuitable("not a whole factor")
    return Asked(
        factor("times_more", long, short), {"times": str(times)}, {"inverse": short.value / long.value},
        given={"times": times},
    )  # fmt: skip


def ranks_ratio(drawn: Drawn) -> Asked:
    """How many times less a rank holds of a token over more ranks."""
    if drawn["more"] <= drawn["tp"]:
        raise Unsuitable("not more ranks")
    check_deployed({**drawn, "tp": drawn["more"]})
    few = named(f"bytes_per_token_at_tp_{drawn['tp']}", "B/token", kv(drawn)["bytes_per_token"])
    many = kv(drawn, tp=drawn["more"])["bytes_per_token"]
    many = named(f"bytes_per_token_at_tp_{drawn['more']}", "B/token", many)
    times = drawn["more"] // drawn["tp"]
    return Asked(factor("times_less", few, many), {"times": str(times)}, {"divided": float(times)},
                 given={"times": times})  # fmt: skip


def weights_ratio(drawn: Drawn) -> Asked:
    """How many times less a token costs once the weights alone are stored in another scheme."""
    plain = named("bytes_per_token_as_published", "B/token", kv(drawn)["bytes_per_token"])
    changed = subject(drawn["model"], drawn["scheme"]).model
    asked = {"tokens": 1, "batch": 1, "crossed": 0}
    narrow = size.kv_part(changed, stored(drawn["model"], "bfloat16"), asked, sourced)["bytes_per_token"]
    narrow = named(f"bytes_per_token_with_{drawn['scheme']}_weights", "B/token", narrow)
    return Asked(factor("times_less", plain, narrow))


def least_per_token(drawn: Drawn) -> Asked:
    """Which of several models' tokens cost least."""
    ids = [drawn["model"], drawn["second"], drawn["third"]]
    options = tuple((_described(id), kv({"model": id})["bytes_per_token"]) for id in ids)
    values = sorted(figure.value for _, figure in options)
    if len(set(ids)) < 3 or values[0] * 1.15 > values[1]:
        raise Unsuitable("too alike")
    return Asked(min((figure for _, figure in options), key=lambda f: f.value), options=options)


def _described(id: str) -> str:
    who = subject(id)
    return f"{who.name}: {who.shape}"


def decimal_in_binary(drawn: Drawn) -> Asked:
    """How many GiB so many GB are."""
    size_of, unit = drawn["amount"], drawn["unit"]
    why = Source(Trust.STATED, "as asked")
    amount = sourced("amount", size_of, unit, why)
    found = named("bytes", "B", amount * sourced(f"bytes_of_1_{unit}", _UNITS[unit], "B", why))
    binary = {"GB": "GiB", "TB": "TiB", "MB": "MiB"}[unit]
    each = sourced(f"bytes_of_1_{binary}", {"GiB": 2**30, "TiB": 2**40, "MiB": 2**20}[binary], "B", why)
    return Asked(
        named("in_binary_units", binary, found / each),
        {"binary": binary, "amount": f"{size_of:,}"},
        {"gb_for_gib": float(size_of), "inverse": size_of * each.value / _UNITS[unit]},
        given={"binary": binary},
    )


def _slips(drawn: Drawn, right: float) -> dict[str, float]:
    """Wrong values with a name for a size that grows with its tokens."""
    who, tp = subject(drawn["model"]), drawn.get("tp", 1)
    a, found = who.group.attention, kv(drawn)
    share = right / found["bytes_per_token"].value
    slips: dict[str, float] = {}
    if a.latent is not None:
        slips["counted_twice"] = right * 2
    else:
        slips["keys_only"] = right / 2
    mha = found["mha_bytes_per_token"].value * share
    if a.kv_heads != a.query_heads:
        slips["query_heads"] = mha
    slips["one_layer"] = right / who.attending
    if who.attending < len(who.model.layers):
        slips["all_layers"] = right * len(who.model.layers) / who.attending
    if tp > 1:
        slips["all_ranks"] = kv(drawn, tp=1)["bytes_per_token"].value * share
        slips["divided"] = slips["all_ranks"] / tp
    if drawn.get("dtype") in _ONE_BYTE:
        slips["sixteen_bit"] = right * 2
    return slips


ASKERS: dict[str, Asker] = {
    "bytes_per_token": bytes_per_token,
    "bytes_per_token_later": bytes_per_token_later,
    "smaller_than_mha": smaller_than_mha,
    "attending_layers": attending_layers,
    "bytes_per_sequence": bytes_per_sequence,
    "bytes_total": bytes_total,
    "saved": saved,
    "times_narrower": times_narrower,
    "tokens_ratio": tokens_ratio,
    "ranks_ratio": ranks_ratio,
    "weights_ratio": weights_ratio,
    "least_per_token": least_per_token,
    "decimal_in_binary": decimal_in_binary,
}
