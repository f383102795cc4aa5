"""The least time prefill and a decode step can take, and what binds each."""

from __future__ import annotations

from typing import Any

from kvplan.cost import cache, roofline, work
from kvplan.cost.weights import step_compute
from kvplan.engines.deployment import Deployment
from kvplan.errors import BadInput
from kvplan.facts.accelerators import Accelerator
from kvplan.figure import Leaf, Number, Source, Trust, bare, formula, named, value_of


@formula("FLOP")
def flops_on_rank(flops: Number, ranks: Number) -> Number:
    """One rank's share of the operations."""
    return flops / ranks


@formula("B")
def step_bytes(weight_bytes_read: Number, ranks: Number, cache_bytes: Number) -> Number:
    """The weights a step reads, split over ranks, and every sequence's cache on this rank."""
    return weight_bytes_read / ranks + cache_bytes


@formula("token")
def middle_context(prompt_tokens: Number, output_tokens: Number) -> Number:
    """The context halfway through the output."""
    return prompt_tokens + output_tokens // 2


def latency_part(
    d: Deployment, prompt_tokens: int, output_tokens: int, batch: int, batch_source: Source, leaf: Leaf
) -> dict[str, Any]:
    """The contract's `latency` document with floors; estimates that need calibration are None."""
    prompt = leaf(
        "prompt_tokens", prompt_tokens, "token", Source(Trust.STATED, "--prompt-tokens or its default")
    )
    output = leaf(
        "output_tokens", output_tokens, "token", Source(Trust.STATED, "--output-tokens or its default")
    )
    sequences = leaf("batch", batch, "sequence", batch_source)
    peak, rate = peaks(d, leaf)
    context = middle_context(prompt, output)
    prefill = _prefill(d, prompt, sequences, leaf)
    decode = _decode(d, context, sequences, leaf)
    unknown = dict.fromkeys(
        (
            "ttft_seconds",
            "tpot_seconds",
            "e2e_seconds",
            "output_tokens_per_second",
            "total_tokens_per_second",
            "decode_tokens_per_second",
            "requests_per_second",
        )
    )
    return {
        "prefill": {"seconds": None, **_bound(*prefill, peak, rate)},
        "decode": {"step_seconds": None, **_bound(*decode, peak, rate)},
        "ridge_point": named("ridge_point", "FLOP/B", roofline.ridge_point(peak, rate)),
        "compute_bound_batch": compute_bound_batch(d, value_of(context)),
        "serving": {"concurrency": batch, **unknown, "low": {}, "high": {}},
    }


def _bound(flops: Any, moved: Any, peak: Any, rate: Any) -> dict[str, Any]:
    compute, memory = roofline.compute_seconds(flops, peak), roofline.memory_seconds(moved, rate)
    return {
        "lower_bound_seconds": roofline.lower_bound_seconds(compute, memory),
        "low_seconds": None,
        "high_seconds": None,
        "bound": roofline.binds(compute, memory),
        "flops": flops,
        "bytes_read": moved,
        "arithmetic_intensity": roofline.arithmetic_intensity(flops, moved),
    }


def peaks(d: Deployment, leaf: Leaf) -> tuple[Any, Any]:
    """The accelerator's dense peak for this model's arithmetic, and its bandwidth."""
    name = step_compute(d.model)
    accelerator = accelerator_of(d)
    peak = accelerator.peak(name) or accelerator.peak("bf16") or accelerator.peak("fp16") or 0.0
    peak_source, rate_source = accelerator.source("peak"), accelerator.source("bandwidth")
    return (
        leaf(
            "peak_flops_per_second",
            peak,
            "FLOP/s",
            Source(peak_source.trust, f"dense {name}, {peak_source.where}"),
        ),
        leaf("bytes_per_second", accelerator.bytes_per_second, "B/s", rate_source),
    )


def accelerator_of(d: Deployment) -> Accelerator:
    """The accelerator of a deployment; raises BadInput where times are asked of one without."""
    if d.accelerator is None:
        raise BadInput("--gpu: times need an accelerator with known peaks; see kvplan accelerators")
    return d.accelerator


def _ranks(d: Deployment, leaf: Leaf) -> Any:
    return leaf("tp", d.tp, "rank", d.stored.tp_source)


def _prefill(d: Deployment, prompt: Any, sequences: Any, leaf: Leaf) -> tuple[Any, Any]:
    flops = work.prefill_flops(d.model, prompt, sequences, leaf)
    written = sequences * cache.bytes_per_sequence(d.model, d.stored, prompt, leaf)
    read = work.weight_bytes_read(d.model, prompt * sequences, leaf)
    return _on_rank(d, flops, read, written, leaf)


def _decode(d: Deployment, context: Any, sequences: Any, leaf: Leaf) -> tuple[Any, Any]:
    flops = work.decode_flops(d.model, context, sequences, leaf)
    held = sequences * cache.bytes_per_sequence(d.model, d.stored, context, leaf)
    read = work.weight_bytes_read(d.model, sequences, leaf)
    return _on_rank(d, flops, read, held, leaf)


def _on_rank(d: Deployment, flops: Any, read: Any, held: Any, leaf: Leaf) -> tuple[Any, Any]:
    mine = named("flops", "FLOP", flops_on_rank(flops, _ranks(d, leaf)))
    weights = named("weight_bytes_read", "B", read)
    moved = step_bytes(weights, _ranks(d, leaf), named("cache_bytes", "B", held))
    return mine, named("bytes_read", "B", moved)


def compute_bound_batch(d: Deployment, context: int) -> int | None:
    """The batch from which a decode step at that context waits for compute, or None if none does."""
    peak, rate = peaks(d, bare)
    if not peak:
        return None

    def bound(batch: int) -> bool:
        flops, moved = _decode(d, context, batch, bare)
        return bool(flops / peak > moved / rate)

    return roofline.first_compute_bound(bound)


def latency_numbers(d: Deployment, prompt_tokens: int, output_tokens: int, batch: int) -> dict[str, Any]:
    """The few bare numbers that sentences about a deployment need."""
    part = latency_part(d, prompt_tokens, output_tokens, batch, Source(Trust.STATED, "--batch"), bare)
    return {
        "decode_bound": part["decode"]["bound"],
        "decode_seconds": part["decode"]["lower_bound_seconds"],
        "compute_bound_batch": part["compute_bound_batch"],
    }
