"""A few changes to a deployment or its load, each through the same arithmetic: what it gives, in figures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from kvplan.cost import cache
from kvplan.engines.deployment import Deployment
from kvplan.engines.registry import CONTEXT_DECIDES
from kvplan.errors import KvplanError
from kvplan.facts import store
from kvplan.figure import bare
from kvplan.serve.apart import Apart, Side, at_concurrency
from kvplan.units import count_text
from kvplan.verbs import fit as fitting
from kvplan.verbs.asked import ACCEPTANCE, Asked
from kvplan.verbs.deploy import with_flags, with_kv_cache_dtype, with_quantization, with_tp
from kvplan.verbs.latency import dealt_out, room, served
from kvplan.verbs.timing import BUDGET_FLAGS, budget_of, clock_of, dealt, policy_of

_DRAFTS = 3
_TIMES = ("ttft_seconds", "tpot_seconds", "output_tokens_per_second")
_QUANTISED = (("fp8", "fp8"), ("nvfp4", "fp4"), ("awq", ""))  # a scheme, and the peak that it needs


@dataclass(frozen=True, slots=True)
class Lever:
    """A change by name, what it leaves, and what has to be said beside its figures."""

    name: str
    change: dict[str, Any]
    d: Deployment
    asked: Asked
    note: str = ""


def levers_part(d: Deployment, asked: Asked) -> list[dict[str, Any]]:
    """The contract's rows: bytes, tokens, seconds and rates of every lever that the engine accepts."""
    rows = [row for lever in _levers(d, asked) if (row := lever_row(lever)) is not None]
    apart = _apart(d, asked)
    return [*rows, apart] if apart else rows


def _levers(d: Deployment, asked: Asked) -> Iterator[Lever]:
    if d.setup.engine == "llama.cpp":
        narrow = {"cache_type_k": "q8_0", "cache_type_v": "q8_0"}
        yield Lever("q8_0 caches", narrow, with_flags(d, **narrow), asked)
    if d.setup.engine not in CONTEXT_DECIDES:
        yield from _of_deployment(d, asked)
    yield from _of_load(d, asked)


def _of_deployment(d: Deployment, asked: Asked) -> Iterator[Lever]:
    """Changes to how the engine is started."""
    if d.stored.format.bits > 8:
        sparse = any(g.attention.latent and g.attention.index_width for g in cache.groups_of(d.model))
        name = "fp8_ds_mla" if sparse and d.setup.engine == "vllm" else "fp8"
        yield Lever(f"{name} KV cache", {"kv_cache_dtype": name}, with_kv_cache_dtype(d, name), asked)
    yield from _quantised(d, asked)
    wider = _wider(d)
    if wider is not None:
        stages = f", {d.setup.pp} stages" if d.setup.pp > 1 else ""
        yield Lever(f"tensor parallelism over {wider.tp}{stages}", {"tp": wider.tp}, wider, asked)
    if d.max_model_len > 8192 and d.setup.engine == "vllm" and asked.length <= 8192:
        shorter = with_flags(d, max_model_len=8192)
        yield Lever("sequences of 8,192 tokens", {"max_model_len": 8192}, shorter, asked)
    flag, chunk = BUDGET_FLAGS.get(d.setup.engine), budget_of(d) // 4
    if flag and chunk >= 512:
        name = f"steps of {count_text(chunk)} tokens"
        note = "a long prompt takes more steps, each of which holds decoding up for less"
        yield Lever(name, {flag: chunk}, with_flags(d, **{flag: chunk}), asked, note)


def _quantised(d: Deployment, asked: Asked) -> Iterator[Lever]:
    """Weights in fewer bits, where the checkpoint is not quantised and the accelerator multiplies them."""
    if d.model.quantization or d.accelerator is None:
        return
    for name, peak in _QUANTISED:
        if peak and not d.accelerator.peak(peak):
            continue
        try:
            changed = with_quantization(d, name)
        except KvplanError:
            continue
        note = "needs a checkpoint quantised so" if name != "fp8" else ""
        yield Lever(f"{name} weights", {"quantization": name}, changed, asked, note)


def _of_load(d: Deployment, asked: Asked) -> Iterator[Lever]:
    """Changes to what each request costs."""
    if not asked.drafts:
        drafted = replace(asked, drafts=_DRAFTS, acceptance=ACCEPTANCE)
        change = {"speculative_tokens": _DRAFTS, "acceptance": ACCEPTANCE}
        note = f"assumes that {ACCEPTANCE:g} of drafted tokens stand, each drafted by one layer and the head"
        yield Lever(f"{_DRAFTS} tokens drafted a step", change, d, drafted, note)
    if not asked.shared and asked.prompt_tokens > 1:
        half = asked.prompt_tokens // 2
        note = "assumes that half of every prompt is found in the cache"
        yield Lever(
            "half of each prompt cached", {"shared_prefix_tokens": half}, d, replace(asked, shared=half), note
        )


def _wider(d: Deployment) -> Deployment | None:
    """Twice the ranks or, where this does not fit, the fewest on which one sequence does."""
    for tp in (d.tp * 2**n for n in range(1, 8)):
        try:
            cache.check_split(d.model, tp)
        except KvplanError:
            continue
        wider = with_tp(d, tp)
        enough = fitting.concurrency_of(wider)
        if enough is None or enough >= 1:
            return wider
    return None


def lever_row(lever: Lever) -> dict[str, Any] | None:
    """One lever's figures; None where the engine refuses the change."""
    d = lever.d
    try:
        capacity = fitting.capacity_numbers(d)
        if capacity.kv_tokens is None:
            return None
        times = lever_times(d, lever.asked)
    except KvplanError:
        return None
    return {
        "name": lever.name,
        "change": lever.change,
        "bytes_per_token": cache.bytes_per_token(d.model, d.stored, bare, after_windows=False),
        "kv_tokens": capacity.kv_tokens,
        "max_concurrency": capacity.max_concurrency,
        **times,
        "cost_per_million_output_tokens": None,
        "note": lever.note,
    }


def lever_times(d: Deployment, asked: Asked) -> dict[str, Any]:
    """TTFT, TPOT and tokens a second of the whole deployment under the load; None where it does not fit."""
    clock, policy, replicas = (
        clock_of(d),
        policy_of(d, asked.held(d.setup.engine), shared=asked.shared),
        dealt(d).replicas,
    )
    if not room(d, policy, asked.length):
        return dict.fromkeys(_TIMES)
    share, busy = dealt_out(asked, replicas)
    found = served(clock, asked.load(), policy, asked.mode, share)
    rate = found.output_tokens_per_second
    return {
        "ttft_seconds": found.ttft_seconds,
        "tpot_seconds": found.tpot_seconds,
        "output_tokens_per_second": rate * busy,
    }


def _apart(d: Deployment, asked: Asked) -> dict[str, Any] | None:
    """Prompts on one such deployment, decoding on another: a closed loop of as many users."""
    if d.setup.engine in CONTEXT_DECIDES or asked.mode == "rate" or dealt(d).replicas > 1:
        return None
    clock, policy = clock_of(d), policy_of(d, asked.held(d.setup.engine), shared=asked.shared)
    if not room(d, policy, asked.length):
        return None
    a = clock.accelerator
    link = a.stated_link_bytes_per_second or a.link_bytes_per_second
    link = link or store.toml("efficiency/classes.toml")["node"]["bytes_per_second"]
    both = Apart(Side(clock, policy), Side(clock, policy), link)
    found = at_concurrency(both, asked.load(), asked.amount)
    capacity = fitting.capacity_numbers(d)
    return {
        "name": "prefill and decode apart",
        "change": {"prefill_workers": 1, "decode_workers": 1},
        "bytes_per_token": cache.bytes_per_token(d.model, d.stored, bare, after_windows=False),
        "kv_tokens": capacity.kv_tokens,
        "max_concurrency": capacity.max_concurrency,
        "ttft_seconds": found.ttft_seconds,
        "tpot_seconds": found.tpot_seconds,
        "output_tokens_per_second": found.output_tokens_per_second,
        "cost_per_million_output_tokens": None,
        "note": f"twice the accelerators; {count_text(asked.amount)} users who ask again once answered",
    }
