"""Questions about times, intensity and throughput: counted work over peaks and bandwidth, at best."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvplan.cost import reads, roofline, work
from kvplan.cost.weights import weight_bytes
from kvplan.drills.question import Asked
from kvplan.facts.accelerators import Accelerator
from kvplan.figure import Source, Trust, bare, named, sourced, value_of, whole
from kvplan.units import bytes_text, decimal_text
from kvplan.verbs.drill_subject import (
    Asker,
    Drawn,
    Unsuitable,
    accelerator,
    check_deployed,
    check_length,
    factor,
    kv,
    stored,
    subject,
)

_ASKED = Source(Trust.STATED, "as asked")
_OUTPUT = 256  # tokens that kvplan answers with where none are stated
_SHARE = 0.92  # of the memory that an engine takes
_TOO_NEAR = 0.8  # of what compute takes: at best neither binds alone there


@dataclass(frozen=True, slots=True)
class Counted:
    """What a decode step of one rank reads, as figures: weights, one sequence's cache, and the rate."""

    weights: Any
    sequence: Any
    rate: Any
    batch: Any

    @property
    def bytes_read(self) -> Any:
        """Weights once, every sequence's cache once."""
        return named("bytes_read", "B", self.weights + self.batch * self.sequence)

    @property
    def seconds(self) -> Any:
        """At the full bandwidth."""
        return roofline.memory_seconds(self.bytes_read, self.rate)


def _bandwidth(a: Accelerator) -> Any:
    return sourced("bytes_per_second", a.bytes_per_second, "B/s", a.source("bandwidth"))


def _peak(a: Accelerator, compute: str = "bf16") -> Any:
    found = a.peak(compute)
    if found is None:
        raise Unsuitable("no such peak")
    source = a.source("peak")
    where = Source(source.trust, f"dense {compute}, {source.where}")
    return sourced("peak_flops_per_second", found, "FLOP/s", where)


def _on_rank(drawn: Drawn, name: str, unit: str, amount: Any) -> Any:
    """A rank's share of what is divided evenly."""
    tp = drawn.get("tp", 1)
    if tp == 1:
        return amount
    return named(f"rank_{name}", unit, amount / sourced("tp", tp, "rank", _ASKED))


def _weights(drawn: Drawn) -> Any:
    model = subject(drawn["model"]).model
    return _on_rank(
        drawn, "weight_bytes", "B", named("weight_bytes", "B", work.weight_bytes_read(model, sourced))
    )


def _check_held(drawn: Drawn, caches: float = 0) -> None:
    """Unsuitable where a rank's memory does not hold its weights and caches."""
    memory = accelerator(drawn["gpu"]).memory_bytes
    weights = int(weight_bytes(subject(drawn["model"]).model, bare)) / drawn.get("tp", 1)
    if memory is None or weights + caches > _SHARE * memory:
        raise Unsuitable("does not fit")


def _counted(drawn: Drawn) -> Counted:
    """What a decode step reads; Unsuitable where it would not fit, or compute would come near."""
    check_deployed(drawn)
    check_length(drawn, drawn["context"])
    who, a, tp = subject(drawn["model"]), accelerator(drawn["gpu"]), drawn.get("tp", 1)
    if who.group.attention.kv_heads % tp:
        raise Unsuitable("heads are repeated")
    context = sourced("context_tokens", drawn["context"], "token", _ASKED)
    held = reads.sequence_bytes_read(
        who.model, stored(drawn["model"], drawn.get("dtype", "bfloat16"), tp), context, sourced
    )
    counted = Counted(
        _weights(drawn),
        named("sequence_bytes", "B", held),
        _bandwidth(a),
        sourced("batch", drawn["batch"], "sequence", _ASKED),
    )
    _check_held(drawn, drawn["batch"] * held.value)
    compute = drawn["batch"] * value_of(work.decode_matmul_flops(who.model, bare)) / tp / _peak(a).value
    if compute > _TOO_NEAR * counted.seconds.value:
        raise Unsuitable("compute comes near")
    return counted


def _states(drawn: Drawn, weights: Any = None) -> dict[str, str]:
    """What a question states of the model and the accelerator."""
    found: dict[str, str] = {}
    who = subject(drawn["model"]) if "model" in drawn else None
    if weights is not None:
        found["weights"] = bytes_text(weights.value)
        found["each"] = bytes_text(kv(drawn)["bytes_per_token"].value)
    if who is not None:
        found["parameters"] = decimal_text(work.token_parameters(who.model), "").strip()
    for name in ("gpu", "other_gpu"):
        if name in drawn:
            a = accelerator(drawn[name])
            prefix = name.removesuffix("gpu")
            found[f"{prefix}bandwidth"] = _short(a.bytes_per_second, "B/s")
            found[f"{prefix}peak"] = _short(_peak(a, drawn.get("compute", "bf16")).value, "FLOP/s")
    if "gpu" in drawn:
        tp = drawn.get("tp", 1)
        found["gpus"] = (
            f"{tp} × {accelerator(drawn['gpu']).name}" if tp > 1 else f"one {accelerator(drawn['gpu']).name}"
        )
    return found


def _short(value: float, unit: str) -> str:
    """A rate without zeros that say nothing: 989 TFLOP/s, 3.35 TB/s."""
    return decimal_text(value, unit).replace(".00 ", " ")


def step_seconds(drawn: Drawn) -> Asked:
    """The least time of a decode step of a batch."""
    counted = _counted(drawn)
    found = counted.seconds
    rate, weights, one = counted.rate.value, counted.weights.value, counted.sequence.value
    slips = {"no_caches": weights / rate, "no_weights": drawn["batch"] * one / rate}
    if drawn["batch"] > 1:
        slips["one_cache"] = (weights + one) / rate
    return Asked(found, _states(drawn, counted.weights), _apart(drawn, slips, found.value))


def _apart(drawn: Drawn, slips: dict[str, float], right: float) -> dict[str, float]:
    tp = drawn.get("tp", 1)
    return {**slips, "all_ranks": right * tp} if tp > 1 else slips


def weights_seconds(drawn: Drawn) -> Asked:
    """The least time in which one step reads the weights."""
    check_deployed(drawn)
    weights, a = _weights(drawn), accelerator(drawn["gpu"])
    _check_held(drawn)
    found: Any = roofline.memory_seconds(weights, _bandwidth(a))
    return Asked(found, _states(drawn, weights), _apart(drawn, {}, found.value))


def cache_share(drawn: Drawn) -> Asked:
    """How much of what a step reads is caches."""
    counted = _counted(drawn)
    caches = named("cache_bytes", "B", counted.batch * counted.sequence)
    found = named("cache_share", "", caches / counted.bytes_read)
    return Asked(found, _states(drawn, counted.weights), {"the_rest": 1 - found.value})


def tokens_per_second(drawn: Drawn) -> Asked:
    """What a batch yields at best, all its sequences together."""
    counted = _counted(drawn)
    found = named("tokens_per_second", "token/s", counted.batch / counted.seconds)
    slips = {
        "per_sequence": found.value / drawn["batch"],
        "no_caches": drawn["batch"] * counted.rate.value / counted.weights.value,
    }
    return Asked(found, _states(drawn, counted.weights), slips)


def batch_gain(drawn: Drawn) -> Asked:
    """How many times more a batch yields than one sequence alone."""
    counted, one = _counted(drawn), _counted({**drawn, "batch": 1})
    many = named("tokens_per_second_of_the_batch", "token/s", counted.batch / counted.seconds)
    alone = named("tokens_per_second_alone", "token/s", one.batch / one.seconds)
    found = factor("times_more", many, alone)
    return Asked(found, _states(drawn, counted.weights), {"one_cache": float(drawn["batch"])})


def step_growth(drawn: Drawn) -> Asked:
    """How many times longer a step of more sequences takes."""
    if drawn["bigger"] <= drawn["batch"]:
        raise Unsuitable("not bigger")
    few, many = _counted(drawn), _counted({**drawn, "batch": drawn["bigger"]})
    times = drawn["bigger"] / drawn["batch"]
    long = named(f"seconds_of_batch_{drawn['bigger']}", "s", many.seconds)
    short = named(f"seconds_of_batch_{drawn['batch']}", "s", few.seconds)
    words = {**_states(drawn, few.weights), "times": f"{times:g}"}
    return Asked(factor("times_longer", long, short), words, given={"times": times})


def batch_within(drawn: Drawn) -> Asked:
    """The largest batch whose step is within a time, at best."""
    counted = _counted({**drawn, "batch": 1})
    goal = sourced("goal_seconds", drawn["goal"] / 1000, "s", _ASKED)
    room = named("bytes_within_goal", "B", goal * counted.rate - counted.weights)
    found: Any = named("largest_batch", "sequence", whole(room / counted.sequence))
    if found.value < 1:
        raise Unsuitable("not one")
    _counted({**drawn, "batch": found.value})
    slips = {"no_weights": goal.value * counted.rate.value / counted.sequence.value}
    return Asked(found, _states(drawn, counted.weights), slips)


def rate_ceiling(drawn: Drawn) -> Asked:
    """What no batch exceeds: the bandwidth over one sequence's cache."""
    counted = _counted({**drawn, "batch": 1})
    found = named("tokens_per_second_at_most", "token/s", counted.rate / counted.sequence)
    return Asked(found, _states(drawn, counted.weights))


def gpu_ratio(drawn: Drawn) -> Asked:
    """How many times faster another accelerator decodes one sequence, at best."""
    if drawn["gpu"] == drawn["other_gpu"]:
        raise Unsuitable("the same")
    here, there = _counted({**drawn, "batch": 1}), _counted({**drawn, "batch": 1, "gpu": drawn["other_gpu"]})
    slow = named("seconds_on_the_first", "s", here.seconds)
    quick = named("seconds_on_the_second", "s", there.seconds)
    found = factor("times_faster", slow, quick)
    peaks = _peak(accelerator(drawn["other_gpu"])).value / _peak(accelerator(drawn["gpu"])).value
    if not 1.2 < peaks < 20 or abs(peaks / found.value - 1) < 0.25:
        raise Unsuitable("peaks say the same")
    words = {**_states(drawn, here.weights), "times": f"{peaks:.3g}"}
    return Asked(found, words, {"other_peak": peaks}, given={"times": peaks})


def ridge(drawn: Drawn) -> Asked:
    """Operations for each byte at which compute and bandwidth are both full."""
    a = accelerator(drawn["gpu"])
    found: Any = roofline.ridge_point(_peak(a, drawn["compute"]), _bandwidth(a))
    return Asked(found, _states(drawn), {"inverse": 1 / found.value})


def batch_intensity(drawn: Drawn) -> Asked:
    """Operations for each byte of weights in a decode step of a batch."""
    who = subject(drawn["model"])
    batch = sourced("batch", drawn["batch"], "sequence", _ASKED)
    flops = named("flops", "FLOP", batch * work.decode_matmul_flops(who.model, sourced))
    read = named("weight_bytes", "B", work.weight_bytes_read(who.model, sourced))
    found: Any = roofline.arithmetic_intensity(flops, read)
    return Asked(found, _states(drawn), {"no_two": found.value / 2})


def attention_intensity(drawn: Drawn) -> Asked:
    """Operations for each byte of cache that one sequence's attention reads."""
    check_length(drawn, drawn["context"])
    who = subject(drawn["model"])
    context = sourced("context_tokens", drawn["context"], "token", _ASKED)
    flops = named("attention_flops", "FLOP", work.decode_attention_flops(who.model, context, sourced))
    held = stored(drawn["model"], drawn.get("dtype", "bfloat16"))
    read = named("sequence_bytes", "B", reads.sequence_bytes_read(who.model, held, context, sourced))
    return Asked(roofline.arithmetic_intensity(flops, read))  # type: ignore[arg-type]


def crossing_batch(drawn: Drawn) -> Asked:
    """The first batch whose weights take longer to multiply than to read."""
    _check_held(drawn)
    who, a = subject(drawn["model"]), accelerator(drawn["gpu"])
    each = named("sequence_compute_seconds", "s", work.decode_matmul_flops(who.model, sourced) / _peak(a))
    read = named("weight_bytes", "B", work.weight_bytes_read(who.model, sourced))
    found: Any = roofline.compute_bound_batch(read, 0, each, _bandwidth(a))
    return Asked(found, _states(drawn), {"no_two": 2 * found.value, "inverse": 1 / found.value})


def of_ridge(drawn: Drawn) -> Asked:
    """How many times the ridge point a step's intensity is: below 1 it waits for memory."""
    _check_held(drawn)
    who, a = subject(drawn["model"]), accelerator(drawn["gpu"])
    tokens = drawn.get("prompt", drawn.get("batch", 1))
    check_length(drawn, tokens if "prompt" in drawn else 1)
    count = sourced("tokens_of_the_step", tokens, "token", _ASKED)
    flops = named(
        "flops", "FLOP", count * 2 * sourced("parameters", work.token_parameters(who.model), "", _ASKED)
    )
    read = named("weight_bytes", "B", work.weight_bytes_read(who.model, sourced))
    intensity: Any = roofline.arithmetic_intensity(flops, read)
    turning: Any = roofline.ridge_point(_peak(a), _bandwidth(a))
    return Asked(factor("times_the_ridge", intensity, turning), _states(drawn))


def _prefill(drawn: Drawn, tokens: int) -> Any:
    """Operations of one prompt's matrices on one rank."""
    model = subject(drawn["model"]).model
    count = sourced("prompt_tokens", tokens, "token", _ASKED)
    flops = named("prefill_flops", "FLOP", work.prefill_matmul_flops(model, count, sourced))
    return _on_rank(drawn, "flops", "FLOP", flops)


def prefill_flops(drawn: Drawn) -> Asked:
    """Operations of a prompt's matrices."""
    check_length(drawn, drawn["prompt"] + _OUTPUT)
    found = _prefill(drawn, drawn["prompt"])
    return Asked(found, _states(drawn), {"no_two": found.value / 2, **_experts(drawn, found.value)})


def prefill_seconds(drawn: Drawn) -> Asked:
    """The least time of a prompt, or of the last of several that are computed in turn."""
    check_deployed(drawn)
    _check_held(drawn)
    ahead, cached = drawn.get("ahead", 0), drawn.get("cached", 0)
    check_length(drawn, drawn["prompt"] + _OUTPUT)
    if cached >= drawn["prompt"]:
        raise Unsuitable("nothing left to compute")
    flops, peak = _prefill(drawn, drawn["prompt"] - cached), _peak(accelerator(drawn["gpu"]))
    found: Any = roofline.compute_seconds(flops, peak)
    slips = {"no_two": found.value / 2, **_experts(drawn, found.value)}
    if ahead:
        queue = sourced("prompts_ahead", ahead, "prompt", _ASKED)
        slips["one_prompt"] = found.value
        found = named("ttft_at_best", "s", (queue + 1) * found)
    if cached:
        slips["prefix_computed"] = _prefill(drawn, drawn["prompt"]).value / peak.value
    return Asked(found, _states(drawn), _apart(drawn, slips, found.value))


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
    _check_held(drawn)
    who, peak = subject(drawn["model"]), _peak(accelerator(drawn["gpu"]))
    goal = sourced("goal_seconds", drawn["goal"] / 1000, "s", _ASKED)
    each = sourced("token_parameters", work.token_parameters(who.model), "value", _ASKED)
    token = _on_rank(drawn, "token_flops", "FLOP", named("token_flops", "FLOP", 2 * each))
    found: Any = named("longest_prompt", "token", whole(goal * peak / token))
    check_length(drawn, found.value)
    return Asked(found, _states(drawn), {"no_two": found.value * 2})


def attention_share(drawn: Drawn) -> Asked:
    """How much of a prompt's operations is attention's own."""
    check_length(drawn, drawn["prompt"] + _OUTPUT)
    model = subject(drawn["model"]).model
    count = sourced("prompt_tokens", drawn["prompt"], "token", _ASKED)
    scores = named("attention_flops", "FLOP", work.prefill_attention_flops(model, count, sourced))
    every = named("all_flops", "FLOP", _prefill({**drawn, "tp": 1}, drawn["prompt"]) + scores)
    return Asked(named("attention_share", "", scores / every), _states(drawn))


def read_share(drawn: Drawn) -> Asked:
    """How much of a model's weights one token's step reads."""
    model = subject(drawn["model"]).model
    read = named("bytes_read_for_one_token", "B", work.weight_bytes_read(model, sourced))
    held = named("weight_bytes", "B", weight_bytes(model, sourced))
    total = decimal_text(model.parameters, "").strip()
    return Asked(named("share_read", "", read / held), {**_states(drawn), "total": total})


ASKERS: dict[str, Asker] = {
    "step_seconds": step_seconds,
    "weights_seconds": weights_seconds,
    "cache_share": cache_share,
    "tokens_per_second": tokens_per_second,
    "batch_gain": batch_gain,
    "step_growth": step_growth,
    "batch_within": batch_within,
    "rate_ceiling": rate_ceiling,
    "gpu_ratio": gpu_ratio,
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
