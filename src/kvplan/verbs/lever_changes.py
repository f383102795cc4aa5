"""Changes to how an engine is started: its cache, weights, steps and ranks; one function a kind of lever."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from kvplan.cost import cache
from kvplan.cost.weights import weight_bytes
from kvplan.engines.deployment import Deployment
from kvplan.engines.registry import CONTEXT_DECIDES
from kvplan.errors import KvplanError
from kvplan.facts.engine_versions import key
from kvplan.figure import bare
from kvplan.model.model import Model
from kvplan.verbs import fit as fitting
from kvplan.verbs.asked import Asked
from kvplan.verbs.deploy import with_flags, with_kv_cache_dtype, with_quantization
from kvplan.verbs.lever import Lever, none, refusal, refused, tried, words
from kvplan.verbs.timing import BUDGET_FLAGS, UNLIMITED, budget_of, dealt
from kvplan.verbs.verdict import LENGTHS, most_running

_TIMES = 4  # how far steps and sequences at once are moved
_LEAST_STEP = {"llama.cpp": 64}
_SHORT = 8192
_RUNNING_FLAGS = {
    "vllm": "max_num_seqs",
    "sglang": "max_running_requests",
    "tensorrt-llm": "max_batch_size",
    "llama.cpp": "parallel",
}


def unmeasured(d: Deployment, *names: str) -> Deployment:
    """The deployment without figures that were measured of another: those named, or all."""
    if not d.measured:
        return d
    kept = {name: value for name, value in d.measured.items() if names and name not in names}
    return replace(d, measured=kept)


def kv_cache_dtype(d: Deployment, asked: Asked) -> Iterator[Lever]:
    """The cache in every narrower format that the engine has."""
    latent = any(g.attention.latent for g in cache.groups_of(d.model))
    sparse = any(g.attention.latent and g.attention.index_width for g in cache.groups_of(d.model))
    for name in words("kv_cache_dtype")["formats"][d.setup.engine]:
        if d.setup.engine == "vllm" and sparse and name in ("fp8", "nvfp4"):
            name = f"{name}_ds_mla"
        change, fields = {"kv_cache_dtype": name}, {"format": name}
        why = _format_refused(d, name, latent=latent)
        if why:
            yield refused("kv_cache_dtype", change, asked, why, fields)
            continue
        same = none("kv_cache_dtype", "same" if cache.groups_of(d.model) else "empty")
        yield tried("kv_cache_dtype", change, asked, partial(with_kv_cache_dtype, d, name), fields, same)


def _format_refused(d: Deployment, name: str, *, latent: bool) -> str:
    """Why engine or device does not take a cache in that format; empty where nothing is known against it."""
    engine, table = d.setup.engine, words("kv_cache_dtype")
    spelt = f"{engine} {name}"
    since = table["since"].get(spelt)
    if since and key(d.setup.version) < key(since):
        return refusal("kv_cache_dtype", "version", engine=engine, since=since)
    peak, a = table["peaks"].get(spelt), d.accelerator
    if peak and a is not None and not a.peak(peak):
        return refusal("kv_cache_dtype", "peak", accelerator=a.name, format=peak, engine=engine)
    if name == "int8" and engine in ("sglang", "tensorrt-llm"):
        return refusal("kv_cache_dtype", f"{engine.split('-')[0]}_int8")
    if engine != "vllm":
        return ""
    word = ""
    if name == "int8_per_token_head" and latent:
        word = "int8_latent"
    elif name.startswith("nvfp4"):
        word = _nvfp4_refused(d, name, latent=latent)
    below = table["since"]["vllm nvfp4 below sm100"]
    return refusal("kv_cache_dtype", word, version=d.setup.version, since=below) if word else ""


def _nvfp4_refused(d: Deployment, name: str, *, latent: bool) -> str:
    """Which of vLLM's rules for a 4-bit cache is against it."""
    arch = d.setup.arch or ""
    newest = arch.startswith("sm10")
    if latent:
        return "" if newest and name == "nvfp4_ds_mla" else "nvfp4_latent"
    if d.setup.platform != "cuda" or arch in ("sm70", "sm75"):
        return "nvfp4_platform"
    below = words("kv_cache_dtype")["since"]["vllm nvfp4 below sm100"]
    if not newest and key(d.setup.version) < key(below):
        return "nvfp4_before"
    narrow = any(g.attention.key_width == 64 for g in cache.groups_of(d.model))
    sinks = any(w.name == "sinks" for _, layer in d.model.grouped() for w in layer.weights)
    return "nvfp4_heads" if (narrow or sinks) and not newest else ""


def quantization(d: Deployment, asked: Asked) -> Iterator[Lever]:
    """Weights in fewer bits, where the accelerator multiplies them."""
    now, a = _bits(d.model), d.accelerator
    for name, peak in words("quantization")["schemes"][d.setup.engine]:
        needs = "" if name == "fp8" else "needs a checkpoint quantised so"
        change, fields = {"quantization": name}, {"scheme": name, "needs": needs}
        try:
            changed = with_quantization(unmeasured(d, "weight_bytes"), name)
        except KvplanError as error:
            yield refused("quantization", change, asked, " ".join(str(error).split()), fields)
            continue
        then, why = _bits(changed.model), ""
        if peak and a is not None and not a.peak(peak):
            why = refusal("quantization", "peak", accelerator=a.name, format=peak)
        elif now is not None and then is not None and then > 0.99 * now and changed.model != d.model:
            why = refusal("quantization", "narrow", bits=now)
        if why:
            yield refused("quantization", change, asked, why, fields)
        else:
            same = none("quantization", "same")
            yield Lever("quantization", change, changed, asked, fields, same)


def _bits(model: Model) -> float | None:
    """Bits that a value of the weights takes on average; None where it is not known."""
    found = weight_bytes(model, bare)
    return None if found is None or not model.parameters else 8 * float(found) / model.parameters


def max_model_len(d: Deployment, asked: Asked) -> Iterator[Lever]:
    """A shorter longest sequence: the longest that fits where the present one does not."""
    flag = LENGTHS[d.setup.engine]
    slots = int(d.setup.flags.get("parallel") or 1) if d.setup.engine == "llama.cpp" else 1
    needed = max(1, asked.length) * max(1, slots)
    tokens = max(_SHORT, 1 << (needed - 1).bit_length())
    found = fitting.fit_part(d, None, bare)["capacity"]
    longest = found["estimated_max_model_len"]
    if found["fits"] is False and longest and needed <= longest < d.max_model_len:
        tokens = int(longest)
    if tokens >= d.max_model_len:
        return
    why = "" if d.setup.engine in CONTEXT_DECIDES else none("max_model_len", "pool", engine=d.setup.engine)
    make = partial(with_flags, d, **{flag: tokens})
    yield tried("max_model_len", {flag: tokens}, asked, make, {"tokens": tokens}, why)


def _step(d: Deployment) -> int:
    """Tokens of one step, as the engine's flag has them: of one rank where ranks share steps."""
    budget = int(budget_of(d))
    shared = d.setup.engine == "vllm" and dealt(d).replicas < d.setup.dp
    return budget // d.setup.dp if shared else budget


def smaller_steps(d: Deployment, asked: Asked) -> Iterator[Lever]:
    """Prompts cut into smaller chunks."""
    flag, now = BUDGET_FLAGS.get(d.setup.engine), _step(d)
    tokens = _SHORT if now >= UNLIMITED else now // _TIMES
    if d.setup.engine == "vllm":  # a step has room for one token of every sequence
        tokens = max(tokens, most_running(fitting.capacity_numbers(d)) or 0)
    if flag is None:
        yield refused("smaller_steps", {}, asked, _whole(d, "smaller_steps"))
    elif tokens >= now or tokens < _LEAST_STEP.get(d.setup.engine, 256):
        yield refused("smaller_steps", {}, asked, refusal("smaller_steps", "least", tokens=now))
    else:
        make, change = partial(with_flags, d, **{flag: tokens}), {flag: tokens}
        yield tried("smaller_steps", change, asked, make, {"tokens": tokens}, none("smaller_steps", "short"))


def _whole(d: Deployment, kind: str) -> str:
    return refusal(kind, "whole", engine=d.setup.engine)


def larger_steps(d: Deployment, asked: Asked) -> Iterator[Lever]:
    """Steps that carry more tokens."""
    flag, now = BUDGET_FLAGS.get(d.setup.engine), _step(d)
    if flag is None or now >= UNLIMITED:
        yield refused("larger_steps", {}, asked, _whole(d, "larger_steps"))
        return
    tokens = _TIMES * now
    new = asked.prompt_tokens - asked.shared
    rows = new if asked.mode == "rate" else new * int(asked.amount)
    why = none("larger_steps", "short", rows=rows)
    make = partial(with_flags, d, **{flag: tokens})
    yield tried("larger_steps", {flag: tokens}, asked, make, {"tokens": tokens}, why)


def running(d: Deployment, asked: Asked) -> Iterator[Lever]:
    """More sequences at once than the engine lets run."""
    flag, limit = _RUNNING_FLAGS.get(d.setup.engine), most_running(fitting.capacity_numbers(d))
    if flag is None or limit is None:
        why = refusal("running", "whole", engine=d.setup.engine)
        yield refused("running", {}, asked, why)
        return
    sequences = _TIMES * limit
    changed = {flag: sequences}
    budget = BUDGET_FLAGS[d.setup.engine]
    if d.setup.engine == "vllm" and sequences > _step(d):
        changed[budget] = sequences  # vLLM 0.32.0 config/scheduler.py: a step is never smaller than that
    why = none("running", "unreached", held=min(int(asked.amount), limit), limit=limit)
    make = partial(with_flags, d, **changed)
    yield tried("running", changed, asked, make, {"sequences": sequences}, why)
