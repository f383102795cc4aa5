"""What questions about times share: peaks and rates, weights that a step reads, whether memory holds it."""

from __future__ import annotations

import functools
from typing import Any

from kvplan.cost import work
from kvplan.cost.weights import weight_bytes
from kvplan.facts.accelerators import Accelerator
from kvplan.figure import Source, Trust, bare, named, sourced
from kvplan.units import bytes_text, decimal_text
from kvplan.verbs.drill_subject import Drawn, Unsuitable, accelerator, kv, subject

ASKED = Source(Trust.STATED, "as asked")
_SHARE = 0.92  # of the memory that an engine takes


def bandwidth(a: Accelerator) -> Any:
    """What an accelerator reads a second, as a figure."""
    return sourced("bytes_per_second", a.bytes_per_second, "B/s", a.source("bandwidth"))


def peak_of(a: Accelerator, compute: str = "bf16") -> Any:
    """Its dense peak for arithmetic of that name, as a figure; Unsuitable where it has none."""
    found = a.peak(compute)
    if found is None:
        raise Unsuitable("no such peak")
    source = a.source("peak")
    where = Source(source.trust, f"dense {compute}, {source.where}")
    return sourced("peak_flops_per_second", found, "FLOP/s", where)


def on_rank(drawn: Drawn, name: str, unit: str, amount: Any) -> Any:
    """A rank's share of what is divided evenly."""
    tp = drawn.get("tp", 1)
    if tp == 1:
        return amount
    return named(f"rank_{name}", unit, amount / sourced("tp", tp, "rank", ASKED))


@functools.cache
def weights_read(id: str) -> Any:
    """What one step reads of a model's weights, as a figure."""
    return named("weight_bytes", "B", work.weight_bytes_read(subject(id).model, sourced))


@functools.cache
def _all_weights(id: str) -> int:
    return int(weight_bytes(subject(id).model, bare))


def rank_weights(drawn: Drawn) -> Any:
    """What one rank reads of the weights in a step."""
    return on_rank(drawn, "weight_bytes", "B", weights_read(drawn["model"]))


def check_held(drawn: Drawn, caches: float = 0) -> None:
    """Unsuitable where a rank's memory does not hold its weights and caches."""
    memory = accelerator(drawn["gpu"]).memory_bytes
    weights = _all_weights(drawn["model"]) / drawn.get("tp", 1)
    if memory is None or weights + caches > _SHARE * memory:
        raise Unsuitable("does not fit")


def states(drawn: Drawn, weights: Any = None) -> dict[str, str]:
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
            found[f"{prefix}peak"] = _short(peak_of(a, drawn.get("compute", "bf16")).value, "FLOP/s")
    if "gpu" in drawn:
        tp = drawn.get("tp", 1)
        found["gpus"] = (
            f"{tp} × {accelerator(drawn['gpu']).name}" if tp > 1 else f"one {accelerator(drawn['gpu']).name}"
        )
    return found


def _short(value: float, unit: str) -> str:
    """A rate without zeros that say nothing: 989 TFLOP/s, 3.35 TB/s."""
    return decimal_text(value, unit).replace(".00 ", " ")


def apart(drawn: Drawn, slips: dict[str, float], right: float) -> dict[str, float]:
    """Slips, with that of taking the whole for a rank's share."""
    tp = drawn.get("tp", 1)
    return {**slips, "all_ranks": right * tp} if tp > 1 else slips
