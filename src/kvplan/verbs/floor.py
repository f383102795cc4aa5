"""The least time prefill and a decode step can take, and what binds each.

A floor counts only what no engine can leave out: of experts those that one token uses, of the cache
what attention reads. `bound` and `compute_bound_batch` say what to expect instead, experts spread evenly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvplan.cost import reads, roofline, work
from kvplan.cost.weights import step_compute
from kvplan.engines.deployment import Deployment
from kvplan.errors import BadInput
from kvplan.facts.accelerators import Accelerator
from kvplan.figure import Leaf, Number, Source, Trust, bare, formula, named, value_of

_ESTIMATES = (
    "ttft_seconds",
    "tpot_seconds",
    "e2e_seconds",
    "output_tokens_per_second",
    "total_tokens_per_second",
    "decode_tokens_per_second",
    "requests_per_second",
)
_WIDER = {  # what a format's values are multiplied as where an accelerator has no peak for it
    "fp4": ("fp8", "bf16", "fp16"),
    "fp8": ("bf16", "fp16"),
    "int8": ("bf16", "fp16"),
    "bf16": ("fp16",),
    "fp16": ("bf16",),
    "tf32": ("bf16", "fp16"),
}


@formula("FLOP")
def flops_on_rank(flops: Number, ranks: Number) -> Number:
    """One rank's share of the operations, rounded down."""
    return flops // ranks


@formula("B", "a lower bound: one token's experts, and of the cache only what attention must move")
def step_bytes(weight_bytes_read: Number, ranks: Number, cache_bytes: Number) -> Number:
    """The weights a step reads at least, split over ranks, and every sequence's cache on this rank."""
    return weight_bytes_read // ranks + cache_bytes


@formula("token")
def middle_context(prompt_tokens: Number, output_tokens: Number) -> Number:
    """The context halfway through the output."""
    return prompt_tokens + output_tokens // 2


@dataclass(frozen=True, slots=True)
class Work:
    """What one rank does in a phase at least, and the weights it is expected to read (whole model's)."""

    matmul_flops: Any
    attention_flops: Any
    flops: Any
    cache_bytes: Any
    bytes_read: Any
    expected_weights: float


@dataclass(frozen=True, slots=True)
class Rates:
    """The peaks of one rank's accelerator for this model: matrices, attention, memory."""

    peak: Any
    attention_peak: Any
    bytes_per_second: Any

    def compute_seconds(self, flops: Any, matmul_flops: Any, attention_flops: Any) -> Any:
        """All operations at their peaks."""
        if value_of(self.peak) == value_of(self.attention_peak):
            return roofline.compute_seconds(flops, self.peak)
        return roofline.mixed_compute_seconds(matmul_flops, self.peak, attention_flops, self.attention_peak)


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
    rates = _rates(d, leaf)
    context = middle_context(prompt, output)
    prefill = _prefill(d, prompt, sequences, leaf)
    decode = _decode(d, context, sequences, leaf)
    ridge = roofline.ridge_point(rates.peak, rates.bytes_per_second)
    unknown = dict.fromkeys(_ESTIMATES)
    return {
        "prefill": {"seconds": None, **_bound(d, prefill, rates)},
        "decode": {"step_seconds": None, **_bound(d, decode, rates)},
        "ridge_point": named("ridge_point", "FLOP/B", ridge),
        "compute_bound_batch": compute_bound_batch(d, context, leaf),
        "serving": {"concurrency": sequences, **unknown, "low": {}, "high": {}},
    }


def _bound(d: Deployment, w: Work, rates: Rates) -> dict[str, Any]:
    compute = rates.compute_seconds(w.flops, w.matmul_flops, w.attention_flops)
    memory = roofline.memory_seconds(w.bytes_read, rates.bytes_per_second)
    expected = w.expected_weights / _ranks(d, bare) + value_of(w.cache_bytes)
    return {
        "lower_bound_seconds": roofline.lower_bound_seconds(compute, memory),
        "low_seconds": None,
        "high_seconds": None,
        "bound": roofline.binds(value_of(compute), expected / value_of(rates.bytes_per_second)),
        "flops": w.flops,
        "bytes_read": w.bytes_read,
        "arithmetic_intensity": roofline.arithmetic_intensity(w.flops, w.bytes_read),
    }


def _rates(d: Deployment, leaf: Leaf) -> Rates:
    peak, rate = peaks(d, leaf)
    return Rates(peak, attention_peak(d, leaf), rate)


def peaks(d: Deployment, leaf: Leaf) -> tuple[Any, Any]:
    """The accelerator's dense peak for this model's arithmetic, and its bandwidth."""
    a = accelerator_of(d)
    wanted = step_compute(d.model)
    peak = leaf("peak_flops_per_second", *_peak(a, wanted))
    return peak, leaf("bytes_per_second", a.bytes_per_second, "B/s", a.source("bandwidth"))


def attention_peak(d: Deployment, leaf: Leaf) -> Any:
    """The peak that attention can reach: of the cache's format, or of an indexer's 8 bit, if higher."""
    formats = [step_compute(d.model), d.stored.format.compute]
    if any(a.index_width for _, a in work.attentions_of(d.model)):
        formats.append("fp8")
    best = max((_peak(accelerator_of(d), name) for name in formats), key=lambda found: found[0])
    return leaf("attention_peak_flops_per_second", *best)


def _peak(a: Accelerator, wanted: str) -> tuple[float, str, Source]:
    """Dense peak of a format, or of the next wider one where the accelerator has none of its own."""
    taken = next((name for name in (wanted, *_WIDER.get(wanted, ())) if a.peak(name)), wanted)
    source = a.source("peak")
    why = f"dense {taken}" + (f" ({a.name} has no {wanted} peak of its own)" if taken != wanted else "")
    return a.peak(taken) or 0.0, "FLOP/s", Source(source.trust, f"{why}, {source.where}")


def accelerator_of(d: Deployment) -> Accelerator:
    """The accelerator of a deployment; raises BadInput where times are asked of one without."""
    if d.accelerator is None:
        raise BadInput("--gpu: times need an accelerator with known peaks; see kvplan accelerators")
    return d.accelerator


def _prefill(d: Deployment, prompt: Any, sequences: Any, leaf: Leaf) -> Work:
    matrices = sequences * work.prefill_matmul_flops(d.model, prompt, leaf)
    attention = sequences * work.prefill_attention_flops(d.model, prompt, leaf)
    written = sequences * reads.sequence_bytes_written(d.model, d.stored, prompt, leaf)
    return _on_rank(d, matrices, attention, written, value_of(prompt) * value_of(sequences), leaf)


def _decode(d: Deployment, context: Any, sequences: Any, leaf: Leaf) -> Work:
    matrices = sequences * work.decode_matmul_flops(d.model, leaf)
    attention = sequences * work.decode_attention_flops(d.model, context, leaf)
    held = sequences * reads.sequence_bytes_read(d.model, d.stored, context, leaf)
    return _on_rank(d, matrices, attention, held, value_of(sequences), leaf)


def _stages(d: Deployment, leaf: Leaf) -> Any:
    return leaf("pp", d.setup.pp, "stage", Source(Trust.STATED, f"--pp {d.setup.pp}"))


def _ranks(d: Deployment, leaf: Leaf) -> Any:
    """Ranks that share the layers' work; stages may all be busy with other sequences at once."""
    tp = leaf("tp", d.tp, "rank", d.stored.tp_source)
    return named("ranks", "rank", tp * _stages(d, leaf)) if d.setup.pp > 1 else tp


def _on_rank(d: Deployment, matrices: Any, attention: Any, moved: Any, tokens: int, leaf: Leaf) -> Work:
    ranks = _ranks(d, leaf)
    whole = named("matmul_flops", "FLOP", matrices) + named("attention_flops", "FLOP", attention)
    weights = named("weight_bytes_read", "B", work.weight_bytes_read(d.model, leaf))
    held = named("cache_bytes", "B", moved // _stages(d, leaf) if d.setup.pp > 1 else moved)
    return Work(
        matmul_flops=named("matmul_flops_on_rank", "FLOP", matrices // ranks),
        attention_flops=named("attention_flops_on_rank", "FLOP", attention // ranks),
        flops=named("flops", "FLOP", flops_on_rank(named("model_flops", "FLOP", whole), ranks)),
        cache_bytes=held,
        bytes_read=named("bytes_read", "B", step_bytes(weights, ranks, held)),
        expected_weights=work.expected_weight_bytes_read(d.model, tokens, bare),
    )


def compute_bound_batch(d: Deployment, context: Any, leaf: Leaf) -> Any:
    """The batch from which a decode step at that context waits for compute, or None if none does."""
    rates, one = _rates(d, leaf), _decode(d, context, 1, leaf)
    if not rates.peak:
        return None
    seconds = rates.compute_seconds(one.flops, one.matmul_flops, one.attention_flops)
    each = value_of(seconds) * value_of(rates.bytes_per_second) - value_of(one.cache_bytes)

    def bound(batch: int) -> bool:
        return bool(batch * each > work.expected_weight_bytes_read(d.model, batch, bare) / _ranks(d, bare))

    first = roofline.first_compute_bound(bound) if each > 0 else None
    if first is None:
        return None
    tried = leaf(
        "batch_tried", first, "sequence", Source(Trust.STATED, "the first batch that computes for longer")
    )
    weights = work.expected_weight_bytes_read(d.model, tried, leaf) / _ranks(d, leaf)
    weights = named("expected_weight_bytes_on_rank", "B", weights)
    return roofline.compute_bound_batch(weights, one.cache_bytes, seconds, rates.bytes_per_second)


def latency_numbers(d: Deployment, prompt_tokens: int, output_tokens: int, batch: int) -> dict[str, Any]:
    """The few bare numbers that sentences about a deployment need."""
    part = latency_part(d, prompt_tokens, output_tokens, batch, Source(Trust.STATED, "--batch"), bare)
    return {
        "decode_bound": part["decode"]["bound"],
        "decode_seconds": part["decode"]["lower_bound_seconds"],
        "compute_bound_batch": part["compute_bound_batch"],
    }


def decode_seconds(d: Deployment, prompt_tokens: int, output_tokens: int, batch: int) -> tuple[float, float]:
    """The floor of a decode step as (compute, memory), in seconds."""
    rates = _rates(d, bare)
    w = _decode(d, middle_context(prompt_tokens, output_tokens), batch, bare)
    compute = rates.compute_seconds(w.flops, w.matmul_flops, w.attention_flops)
    return float(compute), float(roofline.memory_seconds(w.bytes_read, rates.bytes_per_second))
