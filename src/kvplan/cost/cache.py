"""Bytes of cache: what one token, one sequence and a batch hold on one rank.

Every function takes plain numbers (or figures) in SI base units; the model's shapes come in as
`Attention` and `State` records. Sources: grouped-query attention (arXiv 2305.13245), multi-head
latent attention (arXiv 2405.04434), PagedAttention (arXiv 2309.06180).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvplan.errors import BadInput
from kvplan.facts.formats import Format
from kvplan.figure import Leaf, Number, Source, Trust, ceiling, formula, least, most, named, total
from kvplan.model.model import Attention, Model, State

CONV_VALUE_BYTES = 2
STATE_VALUE_BYTES = 4
_CONV_RULE = Source(Trust.ENGINE_RULE, "convolution state in 16 bit: vLLM 0.32.0 mamba_cache_dtype auto")
_STATE_RULE = Source(Trust.ENGINE_RULE, "recurrent state in float32, as transformers 5.24.0 keeps it")
_TEXT_KINDS = ("full", "sliding", "chunked", "latent", "compressed")


@dataclass(frozen=True, slots=True)
class Group:
    """Layers whose attention keeps the same shape, with a name that tells them apart."""

    label: str
    layers: int
    attention: Attention


@dataclass(frozen=True, slots=True)
class Stored:
    """How the cache is stored and split: its format and the tensor-parallel size."""

    format: Format
    tp: int
    format_source: Source
    tp_source: Source


@formula("head", "vLLM 0.32.0 config/model.py get_num_kv_heads")
def kv_heads_on_rank(kv_heads: Number, tp: Number) -> Number:
    """Heads one rank holds: divided by tensor parallelism, repeated when there are fewer heads."""
    return most(1, kv_heads // tp)


@formula("B/token")
def head_bytes_per_token(key_width: Number, value_width: Number, value_bytes: Number) -> Number:
    """One key vector and one value vector of one head."""
    return (key_width + value_width) * value_bytes


@formula("B/token")
def block_layer_bytes_per_token(
    kv_heads: Number,
    key_width: Number,
    value_width: Number,
    block_bytes: Number,
    block_values: Number,
    scale_bytes: Number,
) -> Number:
    """What one layer keeps of one token in a block format, scales per token and head included."""
    return kv_heads * (key_width + value_width) * block_bytes // block_values + kv_heads * scale_bytes


@formula("B/token")
def layer_bytes_per_token(kv_heads: Number, head_bytes: Number) -> Number:
    """What one layer keeps of one token."""
    return kv_heads * head_bytes


@formula("token")
def held_tokens(tokens: Number, window_tokens: Number) -> Number:
    """A window keeps at most its own length."""
    return least(tokens, window_tokens)


@formula("B")
def convolution_bytes(channels: Number, columns: Number, value_bytes: Number) -> Number:
    """The last columns of a convolution's input."""
    return channels * columns * value_bytes


@formula("B")
def recurrent_bytes(values: Number, value_bytes: Number) -> Number:
    """A recurrent state: the same size after one token as after a million."""
    return values * value_bytes


def groups_of(model: Model, kinds: tuple[str, ...] = _TEXT_KINDS) -> list[Group]:
    """The model's caches, layers of one shape together, in order of appearance."""
    counts: dict[Attention, int] = {}
    for n, layer in model.grouped():
        for attention in layer.attentions:
            if attention.holds and attention.kind in kinds:
                counts[attention] = counts.get(attention, 0) + n
    seen: dict[str, int] = {}
    groups = []
    for attention, n in counts.items():
        seen[attention.kind] = seen.get(attention.kind, 0) + 1
        again = f"_{seen[attention.kind]}" if seen[attention.kind] > 1 else ""
        groups.append(Group(f"{attention.kind}{again}", n, attention))
    return groups


def states_of(model: Model) -> list[tuple[int, State]]:
    """The model's fixed states, layers of one shape together."""
    counts: dict[State, int] = {}
    for n, layer in model.grouped():
        for state in layer.states:
            counts[state] = counts.get(state, 0) + n
    return [(n, state) for state, n in counts.items()]


def check_split(model: Model, tp: int) -> None:
    """Raise BadInput when tensor parallelism of that size cannot divide the model's heads."""
    heads: dict[str, set[int]] = {"attention": set(), "state": set()}
    for _, layer in model.grouped():
        heads["attention"] |= {a.query_heads for a in layer.attentions}
        heads["state"] |= {s.heads for s in layer.states}
    for part, counts in heads.items():
        for count in sorted(counts):
            if count % tp:
                allowed = ", ".join(str(n) for n in range(1, min(count, 64) + 1) if count % n == 0)
                raise BadInput(f"--tp: {tp} does not divide the {count} {part} heads; use one of {allowed}")
    for group in groups_of(model):
        a = group.attention
        if tp > 1 and a.latent is None and a.kv_heads % tp and tp % a.kv_heads:
            raise BadInput(
                f"--tp: {tp} neither divides nor repeats {a.kv_heads} KV heads; use a divisor or multiple"
            )


def group_bytes_per_token(group: Group, stored: Stored, leaf: Leaf) -> Any:
    """What one layer of the group keeps of one token (or of one slot, when compressed)."""
    a, fmt = group.attention, stored.format

    def given(name: str, value: float, unit: str) -> Any:
        return leaf(f"{group.label}_{name}", value, unit, a.origin(name))

    if fmt.latent_bytes is not None:
        _check_latent(a, fmt)
        return leaf("latent_bytes", fmt.latent_bytes, "B/token", stored.format_source)
    heads = given("kv_heads", a.kv_heads, "head")
    if stored.tp > 1 and a.kv_heads > 1:
        tp = leaf("tp", stored.tp, "rank", stored.tp_source)
        heads = named(f"{group.label}_kv_heads_on_rank", "head", kv_heads_on_rank(heads, tp))
    key = given("key_width", a.key_width, "value")
    value = given("value_width", a.value_width, "value") if a.value_width else 0
    rule = stored.format_source
    name = f"{group.label}_bytes_per_token"
    if fmt.block_values == 1 and not fmt.head_bytes:
        one = head_bytes_per_token(key, value, leaf("value_bytes", fmt.block_bytes, "B/value", rule))
        return named(name, "B/token", layer_bytes_per_token(heads, one))
    _check_blocks(a, fmt, stored.tp)
    return named(
        name,
        "B/token",
        block_layer_bytes_per_token(
            heads,
            key,
            value,
            leaf("block_bytes", fmt.block_bytes, "B", rule),
            leaf("block_values", fmt.block_values, "value", rule),
            leaf("scale_bytes", 2 * fmt.head_bytes, "B", rule),
        ),
    )


def _check_blocks(a: Attention, fmt: Format, tp: int) -> None:
    heads = max(1, a.kv_heads // tp)
    for width in (a.key_width, a.value_width):
        if heads * width % fmt.block_values:
            raise BadInput(
                f"--kv-cache-dtype: {fmt.name} stores {fmt.block_values} values a block, and a row of "
                f"{heads} KV heads × {width} values is no multiple of that; use another format"
            )


def _check_latent(a: Attention, fmt: Format) -> None:
    if a.latent is None or (a.latent.kv_rank, a.latent.rope_width) != (512, 64):
        raise BadInput(
            f"--kv-cache-dtype: {fmt.name} is a layout for latent attention of 512 + 64 values, "
            f"which this model has not; use fp8"
        )


def index_bytes(group: Group, stored: Stored, leaf: Leaf) -> Any:
    """One index key of one layer of the group, in the cache's format."""
    a, fmt = group.attention, stored.format
    rule = stored.format_source
    width = leaf(f"{group.label}_index_width", a.index_width, "value", a.origin("index_width"))
    block = leaf("block_bytes" if fmt.block_values > 1 else "value_bytes", fmt.block_bytes, "B", rule)
    key = width * block if fmt.block_values == 1 else width * block // fmt.block_values
    if fmt.index_head_bytes:
        key = key + leaf("index_scale_bytes", fmt.index_head_bytes, "B", rule)
    return named(f"{group.label}_index_key_bytes", "B", key)


def layers_of(group: Group, leaf: Leaf, model: Model) -> Any:
    """How many layers the group has, as an input."""
    return leaf(f"{group.label}_layers", group.layers, "layer", model.origin("layer_kinds"))


def bytes_per_token(model: Model, stored: Stored, leaf: Leaf, *, after_windows: bool) -> Any:
    """What one more token costs on one rank, while windows still fill or once all are full."""
    parts = []
    for group in groups_of(model):
        if after_windows and group.attention.window is not None:
            continue
        one = group_bytes_per_token(group, stored, leaf)
        one = one // group.attention.stride if group.attention.stride > 1 else one
        parts.append(layers_of(group, leaf, model) * one)
    return total(parts) if parts else _no_layers(model, leaf)


def indexer_bytes_per_token(model: Model, stored: Stored, leaf: Leaf) -> Any:
    """Index keys of sparse attention, per token on one rank (never split over ranks)."""
    parts = []
    for group in groups_of(model):
        if group.attention.index_width:
            one = index_bytes(group, stored, leaf)
            stride = group.attention.index_stride
            parts.append(layers_of(group, leaf, model) * (one // stride if stride > 1 else one))
    return total(parts) if parts else _no_layers(model, leaf)


def state_bytes_per_sequence(model: Model, tp: int, leaf: Leaf) -> Any:
    """Memory of one sequence that does not grow with its tokens, on one rank."""
    parts = []
    for n, state in states_of(model):
        layers = leaf(f"{state.mixer}_layers", n, "layer", model.origin("layer_kinds"))
        parts.append(layers * _layer_state_bytes(model, state, tp, leaf))
    return total(parts) if parts else _no_layers(model, leaf)


def _layer_state_bytes(model: Model, state: State, tp: int, leaf: Leaf) -> Any:
    shape = _shape_source(model, state, tp)
    groups = max(1, state.groups // tp) if state.groups else 0
    channels = state.channels // tp + groups * state.group_channels
    parts = []
    if channels and state.columns:
        parts.append(
            convolution_bytes(
                leaf(f"{state.mixer}_channels", channels, "value", shape),
                leaf(f"{state.mixer}_columns", state.columns, "column", shape),
                leaf("conv_value_bytes", CONV_VALUE_BYTES, "B/value", _CONV_RULE),
            )
        )
    if state.values:
        parts.append(
            recurrent_bytes(
                leaf(f"{state.mixer}_state_values", state.values // tp, "value", shape),
                leaf("state_value_bytes", STATE_VALUE_BYTES, "B/value", _STATE_RULE),
            )
        )
    return total(parts)


def _shape_source(model: Model, state: State, tp: int) -> Source:
    """Where a state's shape was read: its weakest key, and every key it came from."""
    trust = max((origin.trust for origin in state.origins.values()), default=Trust.STATED)
    keys = ", ".join(origin.where.split(" ")[-1] for origin in state.origins.values())
    split = f"; ÷ tp {tp}" if tp > 1 else ""
    return Source(trust, f"{model.file} {state.mixer} from {keys or 'hidden_size'}{split}")


def cross_bytes(model: Model, stored: Stored, positions: Any, leaf: Leaf) -> Any:
    """Keys and values of image or encoder positions that cross-attention keeps."""
    parts = [
        layers_of(group, leaf, model) * group_bytes_per_token(group, stored, leaf) * positions
        for group in groups_of(model, ("cross",))
    ]
    return total(parts)


@formula("token")
def whole_blocks(tokens: Number, block_tokens: Number) -> Number:
    """Tokens rounded up to whole blocks."""
    return ceiling(tokens, block_tokens) * block_tokens


def _blocks(tokens: Any, block_tokens: int, leaf: Leaf) -> Any:
    if block_tokens == 1:
        return tokens
    return whole_blocks(
        tokens, leaf("block_tokens", block_tokens, "token", Source(Trust.STATED, "--block-size"))
    )


def bytes_per_sequence(model: Model, stored: Stored, tokens: Any, leaf: Leaf, block_tokens: int = 1) -> Any:
    """Everything one sequence of `tokens` holds on one rank: caches, windows, index keys, state.

    With `block_tokens` the sequence is rounded up to whole blocks of tokens; a window still holds at most
    its own length, a compressed cache one slot per stride.
    """
    tokens = _blocks(tokens, block_tokens, leaf)
    parts = []
    for group in groups_of(model):
        a = group.attention
        one = group_bytes_per_token(group, stored, leaf)
        layers = layers_of(group, leaf, model)
        held = tokens
        if a.window is not None:
            window = leaf(f"{group.label}_window_tokens", a.window, "token", a.origin("window"))
            held = named(f"{group.label}_held_tokens", "token", held_tokens(tokens, window))
        elif a.stride > 1:
            held = named(f"{group.label}_slots", "slot", tokens // a.stride)
        parts.append(layers * held * one)
        if a.index_width:
            slots = tokens // a.index_stride if a.index_stride > 1 else tokens
            parts.append(layers * slots * index_bytes(group, stored, leaf))
    if model_has_state(model):
        state = state_bytes_per_sequence(model, stored.tp, leaf)
        parts.append(named("state_bytes_per_sequence", "B", state))
    return total(parts) if parts else _no_layers(model, leaf)


def model_has_state(model: Model) -> bool:
    """Whether any layer keeps a state that does not grow."""
    return any(layer.states for _, layer in model.grouped())


def mha_bytes_per_token(model: Model, stored: Stored, leaf: Leaf) -> Any:
    """The same model with one KV head per query head, on one rank, in the same format."""
    parts = []
    for group in groups_of(model):
        if group.attention.kind == "compressed":
            continue  # slots of tokens that the window's attention already counts
        parts.append(layers_of(group, leaf, model) * _mha_layer(group, stored, leaf))
    return total(parts) if parts else _no_layers(model, leaf)


def _mha_layer(group: Group, stored: Stored, leaf: Leaf) -> Any:
    a, fmt, rule = group.attention, stored.format, stored.format_source
    key, value = a.key_width, a.value_width or a.key_width
    if a.latent is not None:
        key, value = a.latent.nope_width + a.latent.rope_width, a.latent.value_width
    heads = leaf(f"{group.label}_query_heads", a.query_heads, "head", a.origin("query_heads"))
    if stored.tp > 1:
        heads = heads // leaf("tp", stored.tp, "rank", stored.tp_source)
    return block_layer_bytes_per_token(
        heads,
        leaf(f"{group.label}_mha_key_width", key, "value", a.origin("key_width")),
        leaf(f"{group.label}_mha_value_width", value, "value", a.origin("value_width")),
        leaf("block_bytes", fmt.block_bytes, "B", rule),
        leaf("block_values", fmt.block_values, "value", rule),
        leaf("scale_bytes", 2 * fmt.head_bytes, "B", rule),
    )


def _no_layers(model: Model, leaf: Leaf) -> Any:
    """The zero of a model none of whose layers keeps such a thing."""
    return leaf("layers_that_keep_it", 0, "layer", model.origin("layer_kinds"))
