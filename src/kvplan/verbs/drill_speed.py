"""Questions about decode steps and throughput: bytes over bandwidth, at best."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvplan.cost import reads, roofline, work
from kvplan.drills.question import Asked
from kvplan.figure import bare, named, sourced, value_of, whole
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
from kvplan.verbs.drill_work import ASKED, apart, bandwidth, check_held, peak_of, rank_weights, states

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


def _counted(drawn: Drawn) -> Counted:
    """What a decode step reads; Unsuitable where it would not fit, or compute would come near."""
    check_deployed(drawn)
    check_length(drawn, drawn["context"])
    who, a, tp = subject(drawn["model"]), accelerator(drawn["gpu"]), drawn.get("tp", 1)
    if who.group.attention.kv_heads % tp:
        raise Unsuitable("heads are repeated")
    context = sourced("context_tokens", drawn["context"], "token", ASKED)
    held = reads.sequence_bytes_read(
        who.model, stored(drawn["model"], drawn.get("dtype", "bfloat16"), tp), context, sourced
    )
    counted = Counted(
        rank_weights(drawn),
        named("sequence_bytes", "B", held),
        bandwidth(a),
        sourced("batch", drawn["batch"], "sequence", ASKED),
    )
    check_held(drawn, drawn["batch"] * held.value)
    compute = drawn["batch"] * value_of(work.decode_matmul_flops(who.model, bare)) / tp / peak_of(a).value
    if compute > _TOO_NEAR * counted.seconds.value:
        raise Unsuitable("compute comes near")
    return counted


def step_seconds(drawn: Drawn) -> Asked:
    """The least time of a decode step of a batch."""
    counted = _counted(drawn)
    found = counted.seconds
    rate, weights, one = counted.rate.value, counted.weights.value, counted.sequence.value
    slips = {"no_caches": weights / rate, "no_weights": drawn["batch"] * one / rate}
    if drawn["batch"] > 1:
        slips["one_cache"] = (weights + one) / rate
    return Asked(found, states(drawn, counted.weights), apart(drawn, slips, found.value))


def weights_seconds(drawn: Drawn) -> Asked:
    """The least time in which one step reads the weights."""
    check_deployed(drawn)
    weights, a = rank_weights(drawn), accelerator(drawn["gpu"])
    check_held(drawn)
    found: Any = roofline.memory_seconds(weights, bandwidth(a))
    return Asked(found, states(drawn, weights), apart(drawn, {}, found.value))


def cache_share(drawn: Drawn) -> Asked:
    """How much of what a step reads is caches."""
    counted = _counted(drawn)
    caches = named("cache_bytes", "B", counted.batch * counted.sequence)
    found = named("cache_share", "", caches / counted.bytes_read)
    return Asked(found, states(drawn, counted.weights), {"the_rest": 1 - found.value})


def tokens_per_second(drawn: Drawn) -> Asked:
    """What a batch yields at best, all its sequences together."""
    counted = _counted(drawn)
    found = named("tokens_per_second", "token/s", counted.batch / counted.seconds)
    slips = {
        "per_sequence": found.value / drawn["batch"],
        "no_caches": drawn["batch"] * counted.rate.value / counted.weights.value,
    }
    return Asked(found, states(drawn, counted.weights), slips)


def batch_gain(drawn: Drawn) -> Asked:
    """How many times more a batch yields than one sequence alone."""
    counted, one = _counted(drawn), _counted({**drawn, "batch": 1})
    many = named("tokens_per_second_of_the_batch", "token/s", counted.batch / counted.seconds)
    alone = named("tokens_per_second_alone", "token/s", one.batch / one.seconds)
    found = factor("times_more", many, alone)
    return Asked(found, states(drawn, counted.weights), {"one_cache": float(drawn["batch"])})


def step_growth(drawn: Drawn) -> Asked:
    """How many times longer a step of more sequences takes."""
    if drawn["bigger"] <= drawn["batch"]:
        raise Unsuitable("not bigger")
    few, many = _counted(drawn), _counted({**drawn, "batch": drawn["bigger"]})
    times = drawn["bigger"] / drawn["batch"]
    long = named(f"seconds_of_batch_{drawn['bigger']}", "s", many.seconds)
    short = named(f"seconds_of_batch_{drawn['batch']}", "s", few.seconds)
    words = {**states(drawn, few.weights), "times": f"{times:g}"}
    return Asked(factor("times_longer", long, short), words, given={"times": times})


def batch_within(drawn: Drawn) -> Asked:
    """The largest batch whose step is within a time, at best."""
    counted = _counted({**drawn, "batch": 1})
    goal = sourced("goal_seconds", drawn["goal"] / 1000, "s", ASKED)
    room = named("bytes_within_goal", "B", goal * counted.rate - counted.weights)
    found: Any = named("largest_batch", "sequence", whole(room / counted.sequence))
    if found.value < 1:
        raise Unsuitable("not one")
    _counted({**drawn, "batch": found.value})
    slips = {"no_weights": goal.value * counted.rate.value / counted.sequence.value}
    return Asked(found, states(drawn, counted.weights), slips)


def rate_ceiling(drawn: Drawn) -> Asked:
    """What no batch exceeds: the bandwidth over one sequence's cache."""
    counted = _counted({**drawn, "batch": 1})
    found = named("tokens_per_second_at_most", "token/s", counted.rate / counted.sequence)
    return Asked(found, states(drawn, counted.weights))


def gpu_ratio(drawn: Drawn) -> Asked:
    """How many times faster another accelerator decodes one sequence, at best."""
    if drawn["gpu"] == drawn["other_gpu"]:
        raise Unsuitable("the same")
    here, there = _counted({**drawn, "batch": 1}), _counted({**drawn, "batch": 1, "gpu": drawn["other_gpu"]})
    slow = named("seconds_on_the_first", "s", here.seconds)
    quick = named("seconds_on_the_second", "s", there.seconds)
    found = factor("times_faster", slow, quick)
    peaks = peak_of(accelerator(drawn["other_gpu"])).value / peak_of(accelerator(drawn["gpu"])).value
    if not 1.2 < peaks < 20 or abs(peaks / found.value - 1) < 0.25:
        raise Unsuitable("peaks say the same")
    words = {**states(drawn, here.weights), "times": f"{peaks:.3g}"}
    return Asked(found, words, {"other_peak": peaks}, given={"times": peaks})


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
}
