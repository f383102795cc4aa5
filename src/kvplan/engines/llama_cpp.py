"""What llama.cpp prints of its caches when it loads a model: n_ctx, cells, bytes of keys, values and states.

The context decides, not memory: a cache is allocated whole when the context is made. Ollama and LM Studio
start the same code with settings of their own (`facts/engines/llama_cpp.toml`, `launcher`).
"""

from __future__ import annotations

from typing import Any

from kvplan.engines.engine import CacheGroup, Capacity, Setup
from kvplan.engines.llama_cpp_memory import (
    Cache,
    Rows,
    StateRows,
    caches_of,
    check_types,
    keeps_windows,
    row_bytes,
    states_of,
)
from kvplan.engines.llama_cpp_settings import FACTS, Context, Flags, build_of, launcher_of, read_context, rule
from kvplan.facts import store
from kvplan.figure import Leaf, Number, Source, Trust, bare, formula, named, total, value_of
from kvplan.model.ggml import GgmlType
from kvplan.model.model import Model


@formula("B", "llama.cpp 0c1e57098 src/llama-kv-cache.cpp size_k_bytes, size_v_bytes")
def tensor_bytes(layers: Number, streams: Number, cells: Number, row: Number) -> Number:
    """Keys or values of the layers whose rows are alike, every stream's cells."""
    return layers * streams * cells * row


@formula("B", "llama.cpp 0c1e57098 src/llama-memory-recurrent.cpp")
def recurrent_tensor_bytes(layers: Number, rows: Number, values: Number, value_bytes: Number) -> Number:
    """States of the layers whose states are alike, one row for each sequence that may run."""
    return layers * rows * values * value_bytes


@formula("row", "llama.cpp 0c1e57098 src/llama-memory-recurrent.cpp n_rows")
def state_rows(n_seq_max: Number, copies: Number) -> Number:
    """One state per sequence, and a copy per draft token that may be taken back."""
    return n_seq_max * copies


def capacity(model: Model, setup: Setup, pool_bytes: int | None, leaf: Leaf = bare) -> Capacity:
    """The caches that llama.cpp allocates for a model under a setup, in bytes, with n_ctx as `kv_tokens`.

    `pool_bytes` is what a device has for them, None when it is not known. With it a context that the user
    left open shrinks as `--fit` shrinks it, and `fits` says whether the caches find room.
    """
    n_ctx = None if pool_bytes is None else _fitted(model, setup, pool_bytes)
    ctx = read_context(model, setup, leaf, n_ctx)
    caches = caches_of(model, ctx, leaf)
    check_types(caches, ctx)
    keys = [cache_bytes(c, "k", ctx, leaf, model) for c in caches]
    values = [cache_bytes(c, "v", ctx, leaf, model) for c in caches]
    states = states_of(model)
    state = state_bytes(states, ctx, leaf) if states else None
    k: Any = named("k_bytes", "B", total(keys)) if caches else None
    v: Any = named("v_bytes", "B", total(values)) if caches else None
    kv = named("kv_bytes", "B", k + v) if caches else None
    used = value_of(kv or 0) + value_of(state or 0)
    return Capacity(
        fits=None if pool_bytes is None else used <= pool_bytes,
        kv_tokens=ctx.n_ctx,
        max_running_requests=value_of(ctx.n_seq_max),
        needed_kv_bytes=int(used) if pool_bytes is not None else None,
        estimated_max_model_len=None if pool_bytes is None else largest_context(model, setup, pool_bytes),
        kv_bytes=kv,
        k_bytes=k,
        v_bytes=v,
        state_bytes=state,
        groups=tuple(_group(c, kb, vb) for c, kb, vb in zip(caches, keys, values, strict=True)),
        settings=_settings(ctx),
        notes=tuple(_notes(model, ctx, caches, states)),
    )


def cache_bytes(cache: Cache, letter: str, ctx: Context, leaf: Leaf, model: Model) -> Any:
    """Bytes of one cache's keys (`k`) or values (`v`): layers with rows alike are counted together."""
    kind = cache.kind or (ctx.type_k if letter == "k" else ctx.type_v)
    counts: dict[Rows, int] = {}
    for _, rows in cache.layers:
        if rows is not None and (rows.v_heads or letter == "k"):
            counts[rows] = counts.get(rows, 0) + 1
    parts = []
    for number, (rows, layers) in enumerate(counts.items(), 1):
        name = f"{cache.name}_{letter}" + (f"_{number}" if number > 1 else "")
        row = named(f"{name}_row_bytes", "B", _row(rows, letter, kind, name, leaf))
        count = leaf(f"{name}_layers", layers, "layer", model.origin("layer_kinds"))
        part = tensor_bytes(count, cache.streams, cache.cells, row)
        parts.append(named(f"{name}_tensor_bytes", "B", part))
    return named(f"{cache.name}_{letter}_bytes", "B", total(parts))


def _row(rows: Rows, letter: str, kind: GgmlType, name: str, leaf: Leaf) -> Any:
    a = rows.attention
    heads, width = (rows.k_heads, rows.k_width) if letter == "k" else (rows.v_heads, rows.v_width)
    typed = Source(
        Trust.ENGINE_RULE, f"ggml type {kind.name.lower()}: {store.toml('ggml_types.toml')['source']}"
    )
    return row_bytes(
        leaf(f"{name}_heads", heads, "head", a.origin("kv_heads")),
        leaf(f"{name}_width", width, "value", a.origin("key_width" if letter == "k" else "value_width")),
        leaf(f"type_{letter}_block_values", kind.block, "value", typed),
        leaf(f"type_{letter}_block_bytes", kind.bytes, "B", typed),
    )


def state_bytes(states: list[StateRows], ctx: Context, leaf: Leaf) -> Any:
    """Bytes of all recurrent states, the same for every context and cache type."""
    entry = store.toml(FACTS)["state"]
    value = leaf(
        "state_value_bytes", entry["value_bytes"], "B/value", Source(Trust.ENGINE_RULE, entry["source"])
    )
    copies = leaf(
        "state_copies", 1 + ctx.n_rs_seq, "copy", Source(Trust.ENGINE_RULE, "1 + n_rs_seq draft tokens")
    )
    rows = state_rows(ctx.n_seq_max, copies)
    counts: dict[tuple[str, int, int], list[StateRows]] = {}
    for state in states:
        counts.setdefault((state.name, state.r, state.s), []).append(state)
    parts = []
    for (name, r, s), alike in counts.items():
        layers = leaf(f"{name}_layers", len(alike), "layer", alike[0].source)
        for letter, values in (("r", r), ("s", s)):
            if values:
                one = leaf(f"{name}_{letter}_values", values, "value", alike[0].source)
                part = recurrent_tensor_bytes(layers, rows, one, value)
                parts.append(named(f"{name}_{letter}_bytes", "B", part))
    return named("state_bytes", "B", total(parts))


def _group(cache: Cache, keys: Any, values: Any) -> CacheGroup:
    return CacheGroup(
        kind=cache.name,
        layers=len(cache.layers),
        cells=int(value_of(cache.cells)),
        streams=int(value_of(cache.streams)),
        k_bytes=int(value_of(keys)),
        v_bytes=int(value_of(values)),
    )


def _settings(ctx: Context) -> dict[str, tuple[Any, str]]:
    """What was filled in, and what llama.cpp made of the context."""
    made = "llama.cpp src/llama-context.cpp"
    return {
        **ctx.settings,
        "n_ctx_seq": (int(value_of(ctx.n_ctx_seq)), made),
        "n_seq_max": (int(value_of(ctx.n_seq_max)), made),
        "n_batch": (ctx.n_batch, made),
        "n_ubatch": (int(value_of(ctx.n_ubatch)), made),
    }


def used_bytes(model: Model, setup: Setup, n_ctx: int | None = None) -> int:
    """Bytes of every cache and state at a context, in bytes; `n_ctx` None is the setup's own."""
    ctx = read_context(model, setup, bare, n_ctx)
    parts = [
        int(cache_bytes(c, letter, ctx, bare, model))
        for c in caches_of(model, ctx, bare)
        for letter in ("k", "v")
    ]
    return sum(parts) + int(state_bytes(states_of(model), ctx, bare))


def largest_context(model: Model, setup: Setup, pool_bytes: int, limit: int | None = None) -> int | None:
    """The largest n_ctx, a multiple of 256 a sequence, whose caches fit `pool_bytes`; None if none does."""
    ctx = read_context(model, setup, bare, 256)
    step = 256 * (1 if ctx.unified else int(ctx.n_seq_max))
    low, high = 0, (limit or model.max_context or 2**20) // 256
    high = max(high, 1) * (1 if ctx.unified else int(ctx.n_seq_max)) * 256 // step
    while low < high:
        middle = (low + high + 1) // 2
        if used_bytes(model, setup, middle * step) <= pool_bytes:
            low = middle
        else:
            high = middle - 1
    return low * step or None


def _fitted(model: Model, setup: Setup, pool_bytes: int) -> int | None:
    """The context that `--fit` leaves, where the user set none and the caches do not fit; else None.

    common/fit.cpp step 2: a straight line between the smallest and the trained context, rounded down.
    """
    flags = Flags(setup)
    build = build_of(setup.version or str(launcher_of(setup, flags).get("build", "")))
    wanted = flags.yes("fit")
    open_ctx = flags.get("ctx_size") is None and not launcher_of(setup, flags)
    if (
        not open_ctx
        or not (rule("fit", build)["value"] if wanted is None else wanted)
        or not model.max_context
    ):
        return None
    probe = read_context(model, setup, bare)
    streams = 1 if probe.unified else int(probe.n_seq_max)
    low = (flags.whole("fit_ctx", 0) or int(store.toml(FACTS)["fitting"]["min_ctx"])) * streams
    high = model.max_context * streams
    most, least = used_bytes(model, setup, high), used_bytes(model, setup, low)
    if most <= pool_bytes:
        return high if streams > 1 else None
    if high <= low:
        return None
    if pool_bytes <= least:
        return low
    reached = low + (high - low) * (pool_bytes - least) // (most - least)
    return max(reached - reached % (256 * streams), low)


def _notes(model: Model, ctx: Context, caches: list[Cache], states: list[StateRows]) -> list[str]:
    notes = []
    asked = [value for flag, (value, _) in ctx.settings.items() if flag == "parallel"]
    if asked == [4] and ctx.unified:
        notes.append(
            "no --parallel given: 4 slots share one cache; -np N gives each slot n_ctx ÷ N of its own"
        )
    windows = any(a.window for _, layer in model.grouped() for a in layer.attentions)
    if windows and not any(c.name == "swa" for c in caches):
        why = "in this build" if keeps_windows(model) else "for this model type"
        notes.append(f"llama.cpp keeps no windows {why}: every layer holds the whole context")
    if ctx.swa_full and any(c.name == "swa" for c in caches):
        notes.append("swa_full: layers with a window hold the whole context; without it they hold the window")
    if states:
        layers = len({s.layer for s in states})
        rows = int(value_of(ctx.n_seq_max)) * (1 + ctx.n_rs_seq)
        notes.append(f"recurrent states of {layers} layers in float32, {rows} rows: no context changes them")
    if model.mtp_layers and not ctx.mtp_layers:
        notes.append(
            "layers that predict ahead hold no cache unless --spec-type draft-mtp makes a context for them"
        )
    return notes
