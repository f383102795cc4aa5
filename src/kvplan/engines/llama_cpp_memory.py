"""Which caches llama.cpp makes of a model: their layers, cells, streams and rows.

Follows llama_model::create_memory (src/llama-model.cpp) and the caches it chooses between,
src/llama-kv-cache.cpp, -iswa, -dsa, -msa and -dsv4, src/llama-memory-hybrid.cpp and -recurrent, all at
llama.cpp 0c1e57098. A cache holds for each of its layers a tensor of rows × cells × streams for keys and
one for values.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any

from kvplan.engines.llama_cpp_settings import FACTS, Context, padded, rule
from kvplan.errors import BadInput
from kvplan.facts import store
from kvplan.figure import Leaf, Number, Source, Trust, ceiling, formula, least, most, named, value_of
from kvplan.model.ggml import GgmlType
from kvplan.model.model import Attention, Model, State

_OTHER = ("cross", "encoder")


@formula("cell", "llama.cpp 0c1e57098 src/llama-kv-cache-iswa.cpp size_swa")
def swa_cells(n_ctx_seq: Number, n_swa: Number, sequences: Number, n_ubatch: Number, pad: Number) -> Number:
    """A window for each sequence of the stream and one pass of tokens, at most the context, rounded up."""
    return padded(least(n_ctx_seq, n_swa * sequences + n_ubatch), pad)


@formula("cell", "llama.cpp before pull request 17046: src/llama-kv-cache-unified-iswa.cpp")
def swa_cells_capped(
    n_ctx_seq: Number, n_swa: Number, sequences: Number, n_ubatch: Number, pad: Number
) -> Number:
    """The same, rounded up before it is held against the context."""
    return least(n_ctx_seq, padded(n_swa * sequences + n_ubatch, pad))


@formula("cell", "llama.cpp 0c1e57098 src/llama-kv-cache-dsv4.cpp dsv4_comp_size")
def compressed_cells(n_ctx_seq: Number, ratio: Number, pad: Number) -> Number:
    """One cell per so many tokens, rounded up to whole paddings."""
    return padded(most(1, ceiling(n_ctx_seq, ratio)), pad)


@formula("B", "llama.cpp 0c1e57098 src/llama-kv-cache.cpp ggml_new_tensor_3d")
def row_bytes(heads: Number, width: Number, block_values: Number, block_bytes: Number) -> Number:
    """One cell's row of one layer: its heads' values in whole blocks of the type."""
    return heads * width // block_values * block_bytes


@dataclass(frozen=True, slots=True)
class Rows:
    """What one layer keeps in a cell: heads and width of keys and of values (`v_heads` 0: no values)."""

    attention: Attention
    k_heads: int
    k_width: int
    v_heads: int
    v_width: int


@dataclass(frozen=True, slots=True)
class Cache:
    """One llama_kv_cache: `layers` are (number, rows) pairs, `cells` one stream's.

    `kind` is the type of its rows where that is not the context's.
    """

    name: str
    cells: Any
    streams: Any
    layers: tuple[tuple[int, Rows | None], ...]
    kind: GgmlType | None = None


@dataclass(frozen=True, slots=True)
class StateRows:
    """What one recurrent layer keeps for a sequence, in float32 values: `r` convolutions, `s` states."""

    layer: int
    name: str
    r: int
    s: int
    source: Source


def caches_of(model: Model, ctx: Context, leaf: Leaf) -> list[Cache]:
    """The caches of keys and values, in the order in which llama.cpp logs them."""
    if any(a.kind == "compressed" for _, layer in model.grouped() for a in layer.attentions):
        return _dsv4(model, ctx, leaf)
    layers = _attention_layers(model)
    if not layers:
        return []
    rows = {i: rows_of(model, a, ctx) for i, a in layers.items() if a is not None and a.holds}
    held = [i for i, a in layers.items() if a is None or a.holds]
    rows = _padded_values(model, rows, held, ctx)
    window = _window(model, ctx)
    caches = []
    if window is None:
        caches.append(Cache("kv", ctx.n_ctx_seq, ctx.streams, tuple((i, rows.get(i)) for i in held)))
    else:
        slides = {i for i in held if _slides(layers[i])}
        cells = _swa_cells(window, ctx, leaf)
        base = tuple((i, rows.get(i)) for i in held if i not in slides)
        swa = tuple((i, rows[i]) for i in held if i in slides)
        caches += [Cache("base", ctx.n_ctx_seq, ctx.streams, base), Cache("swa", cells, ctx.streams, swa)]
    indexed = tuple((i, _index_rows(model, a)) for i, a in layers.items() if a is not None and a.index_width)
    if indexed:
        caches.append(Cache("indexer", ctx.n_ctx_seq, ctx.streams, indexed))
    return [*caches, *_mtp(model, layers, ctx)]


def _mtp(model: Model, layers: dict[int, Attention | None], ctx: Context) -> list[Cache]:
    """The cache of the context that a model's own prediction layers draft in: as the last full layer's."""
    full = [a for a in layers.values() if a is not None and a.holds and not _slides(a)]
    if not ctx.mtp_layers or not full:
        return []
    rows = tuple((len(model.layers) + i, rows_of(model, full[-1], ctx)) for i in range(ctx.mtp_layers))
    return [Cache("mtp", ctx.n_ctx_seq, ctx.streams, rows, ctx.draft_type)]


def check_types(caches: list[Cache], ctx: Context) -> None:
    """Raise BadInput where llama.cpp would refuse the cache types for this model's rows.

    src/llama-context.cpp llama_init_from_model: under flash attention a head is whole blocks, else a row is.
    """
    keys_only = all(rows is None or not rows.v_heads for c in caches for _, rows in c.layers)
    if caches and keys_only and ctx.type_k != ctx.type_v:
        raise BadInput(
            f"--cache-type-v: {ctx.type_v.name.lower()} beside {ctx.type_k.name.lower()} keys; "
            "this model's cache has only keys, give both the same type"
        )
    for cache in caches:
        for _, rows in cache.layers:
            if rows is not None:
                _check(rows.k_heads, rows.k_width, ctx.type_k, "k", ctx.flash)
                _check(rows.v_heads, rows.v_width, ctx.type_v, "v", ctx.flash)


def _check(heads: int, width: int, kind: GgmlType, letter: str, flash: bool) -> None:
    unit = width if flash else heads * width
    if heads and unit % kind.block:
        what = f"a head of {width} values" if flash else f"a row of {heads} × {width} values"
        raise BadInput(
            f"--cache-type-{letter}: {kind.name.lower()} stores {kind.block} values a block, and {what} "
            f"is no multiple of that; use f16"
        )


def states_of(model: Model) -> list[StateRows]:
    """The recurrent layers' rows; DeepSeek-V4's compressors keep states too."""
    found = []
    for i, layer in enumerate(model.layers):
        for state in layer.states:
            r = state.columns * (state.channels + state.groups * state.group_channels)
            found.append(StateRows(i, state.mixer, r, state.values, _shape(model, state)))
        for a in layer.attentions:
            if a.kind == "compressed" and a.stride > 1:
                found += _compressor_states(i, a)
    return found


def _shape(model: Model, state: State) -> Source:
    keys = ", ".join(origin.where.split(" ")[-1] for origin in state.origins.values())
    return Source(Trust.STATED, f"{model.file} {state.mixer} from {keys or 'hidden_size'}")


def _attention_layers(model: Model) -> dict[int, Attention | None]:
    """Cache layers by number: of a model without states every layer counts, attention in it or not."""
    found: dict[int, Attention | None] = {}
    hybrid = any(layer.states for _, layer in model.grouped())
    for i, layer in enumerate(model.layers):
        own = [a for a in layer.attentions if a.kind not in _OTHER]
        if own:
            found[i] = own[0]
        elif not hybrid and any(lay.holds_tokens for _, lay in model.grouped()):
            found[i] = None
    return found


def rows_of(model: Model, a: Attention, ctx: Context) -> Rows:
    """The rows of one layer; compressed attention as the build and the architecture store it."""
    if a.latent is None:
        return Rows(a, a.kv_heads, a.key_width, a.kv_heads, a.value_width)
    how = rule("latent", ctx.build)["value"]
    if how == "heads" or model.model_type in store.toml(FACTS)["arch"]["latent_heads"]:
        width = a.latent.nope_width + a.latent.rope_width
        return Rows(a, a.query_heads, width, a.query_heads, a.latent.value_width)
    values = a.latent.kv_rank if how == "keys and values" else 0
    return Rows(a, 1, a.key_width, 1 if values else 0, values)


def _index_rows(model: Model, a: Attention) -> Rows:
    """An indexer's cache: one head of index keys; values as in the main cache but of one head."""
    hybrid = any(layer.states for _, layer in model.grouped())
    values = 0 if a.latent is not None or hybrid else a.value_width
    return Rows(a, 1, a.index_width, 1 if values else 0, values)


def _padded_values(model: Model, rows: dict[int, Rows], held: list[int], ctx: Context) -> dict[int, Rows]:
    """Without flash attention values are transposed, and every layer's are as wide as the widest.

    Layers without attention get such values too (src/llama-kv-cache.cpp n_embd_v_gqa_max).
    """
    if ctx.flash or not any(r.v_heads for r in rows.values()):
        return rows
    every = [a for _, layer in model.grouped() for a in layer.attentions if a.kind not in _OTHER]
    made = {id(a): rows_of(model, a, ctx) for a in every}
    widest = max(r.v_heads * r.v_width for r in made.values())
    empty = Rows(every[0], 0, 0, 0, 0)
    found = {i: rows.get(i, empty) for i in held}
    return {
        i: r if r.v_heads * r.v_width == widest else replace(r, v_heads=1, v_width=widest)
        for i, r in found.items()
    }


def _slides(a: Attention | None) -> bool:
    return a is not None and a.window is not None and a.kind in ("sliding", "chunked", "latent")


def _window(model: Model, ctx: Context) -> Attention | None:
    """An attention with the model's window, if llama.cpp keeps windows for this model type and build."""
    if not rule("sliding", ctx.build)["value"] or not keeps_windows(model):
        return None
    found = [a for _, layer in model.grouped() for a in layer.attentions if _slides(a)]
    return found[0] if found else None


def keeps_windows(model: Model) -> bool:
    """Whether llama.cpp gives this model a window, whatever its config states."""
    if model.tensors is not None and "general.architecture" in model.tensors.metadata:
        return True  # model/gguf_config.py read the windows as llama.cpp does
    if model.model_type not in _windowed_types():
        return False
    only = _windowed_types()[model.model_type]
    return only is None or only == len(model.layers)


@functools.cache
def _windowed_types() -> dict[str, int | None]:
    """Model types with windows in llama.cpp, and the number of layers it restricts that to."""
    found: dict[str, int | None] = dict.fromkeys(store.toml(FACTS)["arch"]["windows"])
    archs = store.toml("gguf_archs.toml")["arch"]
    for entry in archs.values():
        whole = {**archs.get(entry.get("like", ""), {}), **entry}
        window = whole.get("window")
        if window is None or window.get("off"):
            continue
        names = [whole["window_type"]] if "window_type" in whole else [whole["model_type"]]
        for name in [*names, *([whole["expert_type"]] if "expert_type" in whole else [])]:
            found[name] = window.get("only_layers")
    return found


def _swa_cells(a: Attention, ctx: Context, leaf: Leaf, *, shared: bool | None = None) -> Any:
    """Cells of the sliding cache: a window per sequence that shares the stream, and one pass of tokens."""
    if ctx.swa_full:
        return ctx.n_ctx_seq
    window = leaf("n_swa", a.window or 0, "token", a.origin("window"))
    together = value_of(ctx.streams) == 1 if shared is None else shared
    sequences = ctx.n_seq_max if together else 1
    entry = rule("padding", ctx.build)
    pad = entry["flash" if ctx.flash else "plain"]
    formula_of = swa_cells if entry["from"] else swa_cells_capped
    cells = formula_of(ctx.n_ctx_seq, window, sequences, ctx.n_ubatch, _pad(leaf, pad, entry["source"]))
    return named("swa_cells", "cell", cells)


def _pad(leaf: Leaf, value: int, source: str) -> Any:
    return leaf("n_pad", value, "cell", Source(Trust.ENGINE_RULE, source))


def _dsv4(model: Model, ctx: Context, leaf: Leaf) -> list[Cache]:
    """DeepSeek-V4: a sliding cache of every layer and compressed ones, a stream for every sequence."""
    streams, caches = ctx.n_seq_max, []
    layers = {i: layer.attentions for i, layer in enumerate(model.layers)}
    slides = {
        i: next(a for a in found if _slides(a)) for i, found in layers.items() if any(map(_slides, found))
    }
    if slides:
        cells = _swa_cells(next(iter(slides.values())), ctx, leaf, shared=False)
        caches.append(Cache("base", ctx.n_ctx_seq, streams, ()))
        caches.append(Cache("swa", cells, streams, tuple((i, _keys(a)) for i, a in slides.items())))
    by_ratio: dict[int, list[tuple[int, Attention]]] = {}
    for i, found in layers.items():
        for a in found:
            if a.kind == "compressed" and a.stride > 1:
                by_ratio.setdefault(a.stride, []).append((i, a))
    pad, indexers = _pad(leaf, 256, "llama.cpp src/llama-kv-cache-dsv4.cpp"), []
    for ratio in sorted(by_ratio):
        per = leaf(f"ratio_{ratio}", ratio, "token", by_ratio[ratio][0][1].origin("stride"))
        cells = named(f"compressed_{ratio}_cells", "cell", compressed_cells(ctx.n_ctx_seq, per, pad))
        rows = tuple((i, _keys(a)) for i, a in by_ratio[ratio])
        caches.append(Cache(f"compressed_{ratio}", cells, streams, rows))
        keyed = tuple((i, Rows(a, 1, a.index_width, 0, 0)) for i, a in by_ratio[ratio] if a.index_width)
        if keyed:
            indexers.append(Cache("indexer", cells, streams, keyed))
    return [*caches, *indexers]


def _keys(a: Attention) -> Rows:
    return Rows(a, a.kv_heads, a.key_width, 0, 0)


def _compressor_states(layer: int, a: Attention) -> list[StateRows]:
    """What DeepSeek-V4's compressors carry from token to token: keys and scores of an unfinished slot.

    src/llama-kv-cache-dsv4.cpp: overlapping slots (those with an indexer) keep twice the rows and widths.
    """
    times = 2 if a.index_width else 1
    where = Source(Trust.ENGINE_RULE, "llama.cpp src/llama-kv-cache-dsv4.cpp llama_dsv4_comp_state")
    rows = times * a.stride
    found = [StateRows(layer, "compressor", 0, 2 * rows * times * a.key_width, where)]
    if a.index_width:
        found.append(StateRows(layer, "index_compressor", 0, 2 * rows * times * a.index_width, where))
    return found
