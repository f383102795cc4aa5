"""What transformers' caches hold: dynamic, static, sliding, chunked, quantised and offloaded, and peaks.

A dynamic cache grows by concatenation, so one layer's keys exist twice for a moment; a layer with a window
keeps one token less than the window, but after a prompt its storage is still the whole prompt's. Sources:
transformers 5.24.0 cache_utils.py; what a version does differently is in facts/engines/transformers.toml.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvplan.engines.engine import CacheGroup, Capacity, Setup
from kvplan.engines.transformers_asked import FACTS, Asked, asked_of
from kvplan.engines.transformers_quantized import quantized_bytes
from kvplan.facts import store
from kvplan.figure import Leaf, Number, Source, Trust, bare, formula, least, most, named, total, value_of
from kvplan.model.model import Attention, Model, State


@formula("token", "transformers 5.24.0 cache_utils.py DynamicSlidingWindowLayer")
def kept_tokens(tokens: Number, window_tokens: Number) -> Number:
    """A window keeps one token less than its length: the next one completes it."""
    return least(tokens, most(window_tokens - 1, 1))


@formula("B", "transformers 5.24.0 cache_utils.py DynamicLayer, StaticLayer")
def layer_tensor_bytes(
    batch: Number, heads: Number, tokens: Number, width: Number, value_bytes: Number
) -> Number:
    """Keys or values of one layer: batch × heads × tokens × width."""
    return batch * heads * tokens * width * value_bytes


@formula("B", "transformers 5.24.0 cache_utils.py LinearAttentionLayer")
def convolution_state_bytes(batch: Number, channels: Number, columns: Number, value_bytes: Number) -> Number:
    """The last columns of a convolution's input, as many as the convolution is wide."""
    return batch * channels * columns * value_bytes


@formula("B", "transformers 5.24.0 cache_utils.py LinearAttentionLayer")
def recurrent_state_bytes(batch: Number, values: Number, value_bytes: Number) -> Number:
    """A recurrent state of each sequence."""
    return batch * values * value_bytes


@dataclass(frozen=True, slots=True)
class Held:
    """What a cache holds, in bytes: `stored` with what lies behind views, `prompt` right after the prompt,
    `peak` while the widest layer is concatenated, `device` what an offloaded cache leaves there."""

    k_bytes: Any
    v_bytes: Any
    state_bytes: Any
    stored_bytes: int
    prompt_bytes: int
    peak_bytes: int
    device_bytes: int
    groups: tuple[CacheGroup, ...]


def capacity(model: Model, setup: Setup, pool_bytes: int | None, leaf: Leaf = bare) -> Capacity:
    """What a cache of the asked length holds; with a pool in bytes, how many tokens of one batch fit it."""
    asked = asked_of(model, setup, leaf)
    found = held_bytes(model, asked, leaf)
    kv = named("kv_bytes", "B", found.k_bytes + found.v_bytes)
    most_tokens = None if pool_bytes is None else largest_tokens(model, setup, pool_bytes)
    settings = {
        **asked.settings,
        "stored_bytes": (found.stored_bytes, "views keep what they are cut from"),
        "prompt_storage_bytes": (found.prompt_bytes, "right after a prompt, before the next step"),
        "peak_bytes": (found.peak_bytes, "while the widest layer is concatenated"),
        "device_bytes": (found.device_bytes, "on the accelerator"),
    }
    return Capacity(
        fits=None if pool_bytes is None else found.peak_bytes <= pool_bytes,
        kv_tokens=most_tokens if pool_bytes is not None else asked.tokens,
        max_running_requests=int(value_of(asked.batch)),
        needed_kv_bytes=found.peak_bytes,
        estimated_max_model_len=most_tokens,
        kv_bytes=kv,
        k_bytes=found.k_bytes,
        v_bytes=found.v_bytes,
        state_bytes=found.state_bytes,
        groups=found.groups,
        settings=settings,
        notes=tuple(_notes(model, asked)),
    )


def largest_tokens(model: Model, setup: Setup, pool_bytes: int) -> int | None:
    """Tokens of each sequence whose cache, peak included, fits a pool in bytes; None if not one does."""
    low, high = 0, max(model.max_context or 2**24, int(value_of(asked_of(model, setup, bare).tokens)))
    while low < high:
        middle = (low + high + 1) // 2
        asked = asked_of(model, setup, bare, middle)
        low, high = (
            (middle, high) if held_bytes(model, asked, bare).peak_bytes <= pool_bytes else (low, middle - 1)
        )
    return low or None


def shapes_of(a: Attention, asked: Asked) -> tuple[tuple[int, int], tuple[int, int]]:
    """(heads, width) of keys and of values as `cache.update` is given them.

    Compressed attention keeps the latent under keys and its rotary part under values, one head each.
    """
    if a.latent is None:
        return (a.kv_heads, a.key_width), (a.kv_heads if a.value_width else 0, a.value_width)
    m = a.latent
    if asked.latent:
        return (1, m.kv_rank), (1 if m.rope_width else 0, m.rope_width)
    return (a.query_heads, m.nope_width + m.rope_width), (a.query_heads, m.value_width)


def tokens_kept(a: Attention, asked: Asked, leaf: Leaf, name: str) -> Any:
    """Tokens of a sequence that one layer keeps: all, the window's, or the encoder's."""
    if a.kind in ("cross", "encoder"):
        return leaf("encoder_tokens", asked.encoder_tokens, "token", Source(Trust.STATED, "--encoder-tokens"))
    if a.window is None:
        return asked.tokens // a.stride if a.stride > 1 else asked.tokens
    window = leaf(f"{name}_window_tokens", a.window, "token", a.origin("window"))
    kept = least(asked.tokens, window) if "static" in asked.kind else kept_tokens(asked.tokens, window)
    return named(f"{name}_kept_tokens", "token", kept)


def held_bytes(model: Model, asked: Asked, leaf: Leaf) -> Held:
    """Everything the cache of a model holds, and what it takes for a moment."""
    counts: dict[Attention, int] = {}
    for n, layer in model.grouped():
        for a in layer.attentions:
            if a.holds and a.kind != "encoder":
                counts[a] = counts.get(a, 0) + n
    keys: list[Any] = []
    values: list[Any] = []
    groups = []
    stored = prompt = widest = resident = 0
    for number, (a, layers) in enumerate(counts.items(), 1):
        name = f"{a.kind}_{number}"
        k, v, index = _layer(a, asked, leaf, name)
        count = leaf(f"{name}_layers", layers, "layer", model.origin("layer_kinds"))
        keys.append(named(f"{name}_k_bytes", "B", count * (k + index)))
        values.append(named(f"{name}_v_bytes", "B", count * v))
        one = _moments(a, asked, int(value_of(k + index)), int(value_of(v)))
        stored += layers * one.stored
        prompt += layers * one.prompt
        widest = max(widest, one.extra)
        resident += int(value_of(k + index + v)) * (min(layers, _layers_on_device(a, asked)))
        groups.append(
            CacheGroup(
                kind=a.kind,
                layers=layers,
                cells=int(value_of(tokens_kept(a, asked, bare, name))),
                streams=int(value_of(asked.batch)),
                k_bytes=int(value_of(keys[-1])),
                v_bytes=int(value_of(values[-1])),
            )
        )
    state = _states(model, asked, leaf)
    fixed = int(value_of(state or 0))
    held = sum(int(value_of(x)) for x in (*keys, *values))
    offloaded = asked.kind.startswith("offloaded")
    return Held(
        k_bytes=named("k_bytes", "B", total(keys)),
        v_bytes=named("v_bytes", "B", total(values)),
        state_bytes=state,
        stored_bytes=stored + fixed,
        prompt_bytes=prompt + fixed,
        peak_bytes=(resident if offloaded else stored) + fixed + widest,
        device_bytes=(resident if offloaded else held) + fixed,
        groups=tuple(groups),
    )


def _layer(a: Attention, asked: Asked, leaf: Leaf, name: str) -> tuple[Any, Any, Any]:
    """Bytes of one layer's keys, values and index keys."""
    tokens = tokens_kept(a, asked, leaf, name)
    found = []
    for letter, (heads, width) in zip("kv", shapes_of(a, asked), strict=True):
        origin = a.origin("key_width" if letter == "k" else "value_width")
        h = leaf(f"{name}_{letter}_heads", heads, "head", a.origin("kv_heads"))
        w = leaf(f"{name}_{letter}_width", width, "value", origin)
        if asked.quantized is not None:
            found.append(
                quantized_bytes(asked.quantized, asked.batch * h * w, tokens, asked.value_bytes, leaf)
            )
        else:
            found.append(layer_tensor_bytes(asked.batch, h, tokens, w, asked.value_bytes))
    counter = _counter(asked, leaf)
    index: Any = 0
    if a.index_width:
        width = leaf(f"{name}_index_width", a.index_width, "value", a.origin("index_width"))
        slots = asked.tokens // a.index_stride if a.index_stride > 1 else asked.tokens
        index = layer_tensor_bytes(asked.batch, 1, slots, width, asked.value_bytes) + counter
    return found[0] + counter, found[1], index


def _counter(asked: Asked, leaf: Leaf) -> Any:
    """A static layer counts its tokens in a tensor, so that compiled graphs need no new build."""
    if "static" not in asked.kind:
        return 0
    entry = store.toml(FACTS)["static"]
    return leaf("counter_bytes", entry["counter_bytes"], "B", Source(Trust.ENGINE_RULE, entry["source"]))


@dataclass(frozen=True, slots=True)
class Moments:
    """One layer over time, in bytes: what lies in memory, what lay there after the prompt, what is remade."""

    stored: int
    prompt: int
    extra: int


def _moments(a: Attention, asked: Asked, k: int, v: int) -> Moments:
    """A static layer never changes. A dynamic one is made anew at every step: first keys, then values, or
    both at once where it has a window. A quantised one is unpacked whole."""
    if "static" in asked.kind or a.kind in ("cross", "encoder"):
        return Moments(k + v, k + v, 0)
    batch, value = int(value_of(asked.batch)), int(value_of(asked.value_bytes))
    tokens = int(value_of(asked.tokens))
    rows = [batch * heads * width * value for heads, width in shapes_of(a, asked)]
    if asked.quantized is not None:
        return Moments(k + v, k + v, 2 * sum(rows) * tokens)
    if a.window is None:
        return Moments(k + v, k + v, max(k, v))
    stored = sum(rows) * min(tokens, a.window)
    return Moments(stored, sum(rows) * asked.prompt, stored)


def _layers_on_device(a: Attention, asked: Asked) -> int:
    """How many layers alike an offloaded cache leaves on the accelerator; all of them otherwise.

    An offloaded static cache leaves its sliding layers there (offload_only_non_sliding is true for it).
    """
    everything = 2**31
    if not asked.kind.startswith("offloaded") or (asked.kind == "offloaded_static" and a.window is not None):
        return everything
    return int(store.toml(FACTS)["offloaded"]["layers"])


def _states(model: Model, asked: Asked, leaf: Leaf) -> Any:
    """Bytes of every recurrent layer's convolutions and states; None for a model without any in its cache."""
    facts = store.toml(FACTS)["states"]
    counts: dict[State, int] = {}
    for n, layer in model.grouped():
        for state in layer.states:
            counts[state] = counts.get(state, 0) + n
    if not counts or model.model_type in facts["own"]:
        return None
    rule_source = Source(Trust.ENGINE_RULE, facts["source"])
    parts = []
    for state, layers in counts.items():
        shape = Source(Trust.STATED, f"{model.file} {state.mixer}")
        count = leaf(f"{state.mixer}_layers", layers, "layer", model.origin("layer_kinds"))
        channels = state.channels + state.groups * state.group_channels
        if channels and state.columns:
            columns = state.columns + int(facts["extra_columns"])
            one = convolution_state_bytes(
                asked.batch,
                leaf(f"{state.mixer}_channels", channels, "value", shape),
                leaf(f"{state.mixer}_columns", columns, "column", rule_source),
                asked.value_bytes,
            )
            parts.append(count * one)
        if state.values:
            values = leaf(f"{state.mixer}_state_values", state.values, "value", shape)
            four = leaf("state_value_bytes", facts["recurrent_bytes"], "B/value", rule_source)
            parts.append(count * recurrent_state_bytes(asked.batch, values, four))
    return named("state_bytes", "B", total(parts))


def _notes(model: Model, asked: Asked) -> list[str]:
    attentions = [a for _, layer in model.grouped() for a in layer.attentions]
    notes = list(asked.notes)
    if asked.kind == "dynamic" and any(a.window for a in attentions):
        notes.append("after a prompt, layers with a window still store all of it until the next token")
    if any(a.latent for a in attentions):
        how = "the compressed latent" if asked.latent else "keys and values of every head"
        notes.append(f"compressed attention keeps {how} in this version; heads are expanded at every step")
    if any(a.kind == "compressed" for a in attentions):
        notes.append("compressed slots are counted, their unfinished buffers are not")
    if any(a.kind == "cross" for a in attentions) and not asked.encoder_tokens:
        notes.append("cross-attention holds nothing without --encoder-tokens")
    return notes
