"""Questions about intensity, ridge points and prompts: operations beside bytes, at best."""

from __future__ import annotations

from typing import Any

from kvplan.cost import reads, roofline, work
from kvplan.cost.weights import weight_bytes
from kvplan.drills.question import Asked
from kvplan.figure import named, sourced, whole
from kvplan.units import decimal_text
from kvplan.verbs.drill_subject import (
    Asker,
    Drawn,
    Unsuitable,
    accelerator,
    check_deployed,
    check_length,
    factor,
    stored,
    subject,
)
from kvplan.verbs.drill_work import (
    ASKED,
    apart,
    bandwidth,
    check_held,
    on_rank,
    peak_of,
    states,
    weights_read,
)

_OUTPUT = 256  # tokens that kvplan answers with where none are stated


def ridge(drawn: Drawn) -> Asked:
    """Operations for each byte at which compute and bandwidth are both full."""
    a = accelerator(drawn["gpu"])
    found: Any = roofline.ridge_point(peak_of(a, drawn["compute"]), bandwidth(a))
    return Asked(found, states(drawn), {"inverse": 1 / found.value})


def batch_intensity(drawn: Drawn) -> Asked:
    """Operations for each byte of weights in a decode step of a batch."""
    who = subject(drawn["model"])
    batch = sourced("batch", drawn["batch"], "sequence", ASKED)
    flops = named("flops", "FLOP", batch * work.decode_matmul_flops(who.model, sourced))
    read = weights_read(drawn["model"])
    found: Any = roofline.arithmetic_intensity(flops, read)
    return Asked(found, states(drawn), {"no_two": found.value / 2})


def attention_intensity(drawn: Drawn) -> Asked:
    """Operations for each byte of cache that one sequence's attention reads."""
    check_length(drawn, drawn["context"])
    who = subject(drawn["model"])
    context = sourced("context_tokens", drawn["context"], "token", ASKED)
    flops = named("attention_flops", "FLOP", work.decode_attention_flops(who.model, context, sourced))
    held = stored(drawn["model"], drawn.get("dtype", "bfloat16"))
    read = named("sequence_bytes", "B", reads.sequence_bytes_read(who.model, held, context, sourced))
    return Asked(roofline.arithmetic_intensity(flops, read))  # type: ignore[arg-type]


def crossing_batch(drawn: Drawn) -> Asked:
    """The first batch whose weights take longer to multiply than to read."""
    check_held(drawn)
    who, a = subject(drawn["model"]), accelerator(drawn["gpu"])
    each = named("sequence_compute_seconds", "s", work.decode_matmul_flops(who.model, sourced) / peak_of(a))
    read = weights_read(drawn["model"])
    found: Any = roofline.compute_bound_batch(read, 0, each, bandwidth(a))
    return Asked(found, states(drawn), {"no_two": 2 * found.value, "inverse": 1 / found.value})


def of_ridge(drawn: Drawn) -> Asked:
    """How many times the ridge point a step's intensity is: below 1 it waits for memory."""
    check_held(drawn)
    who, a = subject(drawn["model"]), accelerator(drawn["gpu"])
    tokens = drawn.get("prompt", drawn.get("batch", 1))
    check_length(drawn, tokens if "prompt" in drawn else 1)
    count = sourced("tokens_of_the_step", tokens, "token", ASKED)
    flops = named(
        "flops", "FLOP", count * 2 * sourced("parameters", work.token_parameters(who.model), "", ASKED)
    )
    read = weights_read(drawn["model"])
    intensity: Any = roofline.arithmetic_intensity(flops, read)
    turning: Any = roofline.ridge_point(peak_of(a), bandwidth(a))
    return Asked(factor("times_the_ridge", intensity, turning), states(drawn))


def _prefill(drawn: Drawn, tokens: int) -> Any:
    """Operations of one prompt's matrices on one rank."""
    model = subject(drawn["model"]).model
    count = sourced("prompt_tokens", tokens, "token", ASKED)
    flops = named("prefill_flops", "FLOP", work.prefill_matmul_flops(model, count, sourced))
    return on_rank(drawn, "flops", "FLOP", flops)


def prefill_flops(drawn: Drawn) -> Asked:
    """Operations of a prompt's matrices."""
    check_length(drawn, drawn["prompt"] + _OUTPUT)
    found = _prefill(drawn, drawn["prompt"])
    return Asked(found, states(drawn), {"no_two": found.value / 2, **_experts(drawn, found.value)})


def prefill_seconds(drawn: Drawn) -> Asked:
    """The least time of a prompt, or of the last of several that are computed in turn."""
    check_deployed(drawn)
    check_held(drawn)
    ahead, cached = drawn.get("ahead", 0), drawn.get("cached", 0)
    check_length(drawn, drawn["prompt"] + _OUTPUT)
    if cached >= drawn["prompt"]:
        raise Unsuitable("nothing left to compute")
    flops, peak = _prefill(drawn, drawn["prompt"] - cached), peak_of(accelerator(drawn["gpu"]))
    found: Any = roofline.compute_seconds(flops, peak)
    slips = {"no_two": found.value / 2, **_experts(drawn, found.value)}
    if ahead:
        queue = sourced("prompts_ahead", ahead, "prompt", ASKED)
        slips["one_prompt"] = found.value
        found = named("ttft_at_best", "s", (queue + 1) * found)
    if cached:
        slips["prefix_computed"] = _prefill(drawn, drawn["prompt"]).value / peak.value
    return Asked(found, states(drawn), apart(drawn, slips, found.value))


def _experts(drawn: Drawn, right: float) -> dict[str, float]:
    """The slip of counting every expert."""
    model = subject(drawn["model"]).model
    used, all_of_it = work.token_parameters(model), model.parameters
    experts, _ = work.expert_counts(model)
    return (
        {"all_experts": right * all_of_it / used} if experts else {"embedding_too": right * all_of_it / used}
    )


def prompt_within(drawn: Drawn) -> Asked:
    """The longest prompt whose matrices are computed within a time, at best."""
    check_deployed(drawn)
    check_held(drawn)
    who, peak = subject(drawn["model"]), peak_of(accelerator(drawn["gpu"]))
    goal = sourced("goal_seconds", drawn["goal"] / 1000, "s", ASKED)
    each = sourced("token_parameters", work.token_parameters(who.model), "value", ASKED)
    token = on_rank(drawn, "token_flops", "FLOP", named("token_flops", "FLOP", 2 * each))
    found: Any = named("longest_prompt", "token", whole(goal * peak / token))
    check_length(drawn, found.value)
    return Asked(found, states(drawn), {"no_two": found.value * 2})


def attention_share(drawn: Drawn) -> Asked:
    """How much of a prompt's operations is attention's own."""
    check_length(drawn, drawn["prompt"] + _OUTPUT)
    model = subject(drawn["model"]).model
    count = sourced("prompt_tokens", drawn["prompt"], "token", ASKED)
    scores = named("attention_flops", "FLOP", work.prefill_attention_flops(model, count, sourced))
    every = named("all_flops", "FLOP", _prefill({**drawn, "tp": 1}, drawn["prompt"]) + scores)
    return Asked(named("attention_share", "", scores / every), states(drawn))


def read_share(drawn: Drawn) -> Asked:
    """How much of a model's weights one token's step reads."""
    model = subject(drawn["model"]).model
    read = named("bytes_read_for_one_token", "B", work.weight_bytes_read(model, sourced))
    held = named("weight_bytes", "B", weight_bytes(model, sourced))
    total = decimal_text(model.parameters, "").strip()
    return Asked(named("share_read", "", read / held), {**states(drawn), "total": total})


ASKERS: dict[str, Asker] = {
    "ridge": ridge,
    "batch_intensity": batch_intensity,
    "attention_intensity": attention_intensity,
    "crossing_batch": crossing_batch,
    "of_ridge": of_ridge,
    "prefill_flops": prefill_flops,
    "prefill_seconds": prefill_seconds,
    "prompt_within": prompt_within,
    "attention_share": attention_share,
    "read_share": read_share,
}
