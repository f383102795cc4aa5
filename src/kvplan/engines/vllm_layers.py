"""The caches that vLLM's model class registers on one rank, in the order in which it makes them.

From our reading of the config; where vLLM keeps something else than the model needs,
facts/engines/vllm.toml says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kvplan.engines.engine import Setup
from kvplan.engines.vllm_defaults import Settings, is_latent
from kvplan.engines.vllm_dtypes import cache_dtype, head_bytes, latent_bytes, stored_dtype
from kvplan.engines.vllm_specs import CHUNKED, CROSS, FULL, MLA, SLIDING, SLIDING_MLA, CacheLayer, Spec
from kvplan.engines.vllm_states import request_blocks, state_dtypes, state_spec, tensors_of
from kvplan.engines.vllm_version import Rules, row_for, table_of
from kvplan.errors import BadInput
from kvplan.figure import Source, Trust
from kvplan.model.model import Attention, Layer, Model, State

INDEX_SCALE_VALUES = 128  # one fp32 scale for so many index values
_V4 = Source(Trust.ENGINE_RULE, "vLLM 0.32.0 models/deepseek_v4/attention.py, compressor.py")


@dataclass(frozen=True, slots=True)
class Rank:
    """The model on one rank, as specs are built for it."""

    model: Model
    setup: Setup
    settings: Settings
    rules: Rules
    cached: str
    drafted: int
    stated_widths: bool = False  # heads as the config states them, whatever the class makes of it

    @property
    def dtype(self) -> str:
        """The model's dtype on the engine."""
        return self.setup.dtype if self.setup.dtype != "auto" else self.model.dtype or "bfloat16"


def rank_of(model: Model, setup: Setup, settings: Settings, rules: Rules) -> Rank:
    """The model on one rank, with the cache's format settled."""
    cached = cache_dtype(setup.kv_cache_dtype, model.quantization, rules)
    drafted = int((setup.drafter or {}).get("num_speculative_tokens") or 0)
    if is_sparse(model) and is_latent(model, rules):
        if cached == "auto":
            cached = rules.sparse_auto_dtype
        row = row_for(
            table_of("sparse_dtype"),
            rules.version,
            given=cached,
            platform=setup.platform,
            arch=setup.arch,
            model_type=model.model_type,
        )
        cached = row["value"] if row else cached
    return Rank(model, setup, settings, rules, cached, drafted)


def is_sparse(model: Model) -> bool:
    """Whether latent attention looks up its tokens by index keys (DSA)."""
    attentions = (a for _, layer in model.grouped() for a in layer.attentions)
    return any(a.latent is not None and a.index_width for a in attentions)


def layers_of(rank: Rank, block: int) -> tuple[CacheLayer, ...]:
    """Every cache of the model's decoder, with blocks of that many tokens."""
    found: list[CacheLayer] = []
    window = uniform_window(rank.model)
    alike = {id(layer): tuple(_layer_specs(layer, rank, block, window)) for _, layer in rank.model.grouped()}
    for number, layer in enumerate(rank.model.layers):
        found += [CacheLayer(number, spec) for spec in alike[id(layer)]]
    if rank.model.model_type in table_of("model")["attention_first"]:
        found.sort(key=lambda m: bool(m.spec.tensors))
    return tuple(found)


def uniform_window(model: Model) -> int | None:
    """A window that vLLM applies to every layer although it never binds: stated, and no layer is else.

    vLLM 0.32.0 engine/arg_utils.py: cache_config.sliding_window where the layers are not mixed.
    """
    always = model.model_type in table_of("model")["window_always"]
    if model.stated_window is None or (model.window_off and not always):
        return None
    holding = [a for _, layer in model.grouped() for a in layer.attentions if a.holds]
    alike = all(a.kind == "full" for a in holding) and len({layer.kinds for _, layer in model.grouped()}) == 1
    return model.stated_window if holding and alike else None


def _layer_specs(layer: Layer, rank: Rank, block: int, window: int | None) -> Iterator[Spec]:
    states = [_state(state, rank) for state in layer.states]
    attentions = [s for a in layer.attentions if a.holds for s in attention_specs(a, rank, block, window)]
    yield from (*states, *attentions)


def attention_specs(a: Attention, rank: Rank, block: int, window: int | None) -> Iterator[Spec]:
    """The caches of one attention: its keys and values, and index keys if it has any."""
    if a.kind == "encoder":
        return
    if a.kind == "compressed":
        yield from _compressed(a, rank, block)
    elif a.latent is not None and is_latent(rank.model, rank.rules):
        if a.index_width:
            yield _index(a, block)
        yield _latent(a, rank, block)
    elif a.value_width == 0 and a.latent is None:
        yield _shared_vector(a, rank)
    else:
        yield _grouped(a, rank, block, window)
        if a.index_width:
            yield _index_of_grouped(a, rank, block)


def kv_heads_on_rank(kv_heads: int, tp: int) -> int:
    """Heads one rank holds: divided, or repeated when there are fewer.

    vLLM 0.32.0 config/model.py get_num_kv_heads.
    """
    if kv_heads % tp and tp % kv_heads:
        raise BadInput(
            f"--tensor-parallel-size: {tp} neither divides nor repeats {kv_heads} KV heads; vllm refuses it"
        )
    return max(1, kv_heads // tp)


def _grouped(a: Attention, rank: Rank, block: int, window: int | None) -> Spec:
    rules, heads, key, value = rank.rules, a.kv_heads, a.key_width, a.value_width
    if a.latent is not None:  # latent attention run as plain attention
        heads = a.query_heads
        key = value = a.latent.nope_width + a.latent.rope_width
    elif rank.model.model_type in table_of("model")["head_from_hidden"] and not rank.stated_widths:
        key = value = rank.model.hidden // a.query_heads
    kind, span, chunk = FULL, None, None
    if a.kind == "cross":
        kind = CROSS
    elif a.kind == "chunked" and a.window is not None and rules.chunked_spec:
        kind, chunk = CHUNKED, a.window
    elif a.kind == "sliding" or window is not None:
        kind, span = SLIDING, _window(a.window or window or 0, rank)
    if kind == SLIDING and not rules.sliding_value_width:
        value = key
    return Spec(
        kind=kind,
        block_size=block,
        kv_heads=kv_heads_on_rank(heads, rank.setup.tp),
        key_width=key,
        value_width=value,
        dtype=stored_dtype(rank.cached, rank.dtype),
        content_bytes=head_bytes(key, value, rank.cached, rank.dtype),
        window=span,
        chunk=chunk,
        extra_retained=_retained(rank) if kind == SLIDING else 0,
        dcp_sharded=kind != CROSS,
        origins=a.origins,
    )


def _window(window: int, rank: Rank) -> int:
    row = row_for(table_of("window_plus"), rank.rules.version, model_type=rank.model.model_type)
    return window + (row["value"] if row else 0)


def _retained(rank: Rank) -> int:
    drafter = rank.setup.drafter or {}
    return max(0, int(drafter.get("prefill_lookahead_tokens") or 0) - 1)


def _latent(a: Attention, rank: Rank, block: int) -> Spec:
    return Spec(
        kind=SLIDING_MLA if a.window is not None else MLA,
        block_size=block,
        key_width=a.key_width,
        dtype=stored_dtype(rank.cached, rank.dtype),
        content_bytes=latent_bytes(a.key_width, rank.cached, rank.dtype),
        window=a.window,
        origins=a.origins,
    )


def _index(a: Attention, block: int, alignment: int | None = None) -> Spec:
    """Index keys of sparse latent attention: one byte a value and a scale for each 128."""
    return Spec(
        kind=MLA,
        block_size=block,
        key_width=_index_row(a.index_width),
        dtype="uint8",
        content_bytes=_index_row(a.index_width),
        tokens_per_state=a.index_stride,
        alignment=alignment,
        role="indexer",
        origins={**a.origins, "key_width": a.origin("index_width")},
    )


def _index_row(width: int) -> int:
    return width + width // INDEX_SCALE_VALUES * 4


def _index_of_grouped(a: Attention, rank: Rank, block: int) -> Spec:
    """MiniMax-M3: one key vector a token in the model's dtype."""
    return Spec(
        kind=MLA,
        block_size=block,
        key_width=a.index_width,
        dtype=rank.dtype,
        content_bytes=latent_bytes(a.index_width, "auto", rank.dtype),
        role="indexer",
        origins={**a.origins, "key_width": a.origin("index_width")},
    )


def _shared_vector(a: Attention, rank: Rank) -> Spec:
    """DeepSeek-V4's window: 64 tokens a block, 584 bytes a token."""
    packed = v4_packed(rank)
    return Spec(
        kind=SLIDING_MLA,
        block_size=64,
        key_width=a.key_width,
        dtype="uint8" if packed else stored_dtype(rank.cached, rank.dtype),
        content_bytes=584 if packed else latent_bytes(a.key_width, rank.cached, rank.dtype),
        window=a.window,
        alignment=576 if packed else 512,
        role="window",
        origins={**a.origins, "block_size": _V4},
    )


def v4_packed(rank: Rank) -> bool:
    """Whether DeepSeek-V4's caches are in the packed 8-bit layout: the default."""
    return rank.cached in ("auto", "fp8_ds_mla") or rank.cached.startswith("fp8")


def _compressed(a: Attention, rank: Rank, block: int) -> Iterator[Spec]:
    """DeepSeek-V4's slots, their index keys, and the states that compress into them."""
    packed = v4_packed(rank)
    alignment = 576 if packed else 512
    overlap = 2 if a.index_width else 1
    if a.index_width:
        yield _index(a, block, alignment)
    yield Spec(
        kind=MLA,
        block_size=block,
        key_width=a.key_width,
        dtype="uint8" if packed else stored_dtype(rank.cached, rank.dtype),
        content_bytes=584 if packed else latent_bytes(a.key_width, rank.cached, rank.dtype),
        tokens_per_state=a.stride,
        alignment=alignment,
        role="compressed",
        origins=a.origins,
    )
    widths = [("compressor", a.key_width)]
    if a.index_width:
        widths.insert(0, ("index_compressor", a.index_width))
    for role, width in widths:
        yield Spec(
            kind=SLIDING_MLA,
            block_size=4 if overlap == 2 else 8,
            key_width=2 * overlap * width,
            dtype="float32",
            content_bytes=2 * overlap * width * 4,
            window=overlap * a.stride,
            alignment=alignment,
            role=role,
            origins={**a.origins, "block_size": _V4, "window": _V4},
        )


def _state(state: State, rank: Rank) -> Spec:
    s = rank.settings
    dtypes = state_dtypes(rank.model, state, rank.dtype, dict(rank.setup.flags), rank.rules.version)
    tensors = tensors_of(state, rank.setup.tp, dtypes, rank.drafted)
    blocks = request_blocks(state, s.state_mode, rank.drafted, rank.rules)
    return state_spec(state, tensors, s.state_block_size, s.state_page_padded, blocks)
