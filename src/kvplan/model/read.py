"""From a config to a `Model`: which layers there are, what each keeps and weighs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvplan.facts.model_types import (
    Spec,
    overlay,
    quantities,
    wrapper_tie,
)
from kvplan.figure import Source, Trust
from kvplan.model.asides import asides, dtype_of, quantization_config
from kvplan.model.attention import attention_of, compressed_weights
from kvplan.model.beside import beside_parameters, tower_values
from kvplan.model.context import max_context
from kvplan.model.extras import extra_weights
from kvplan.model.feed_forward import dense_weights, expert_weights
from kvplan.model.identify import spec_for, text_part
from kvplan.model.keys import PER_LAYER, Keys
from kvplan.model.model import Attention, Layer, Model, Weight
from kvplan.model.spelling import spell
from kvplan.model.state import state_of
from kvplan.model.unknown import assumed_notes, assumed_origins, unused_note


def read_config(raw: dict[str, Any], file: str, id: str = "", sidecar: dict[str, Any] | None = None) -> Model:
    """The model that a config.json's content describes.

    `file` names the config in errors and explanations; `sidecar` is the content of a
    hf_quant_config.json beside it. Raises BadConfig for content that cannot be used.
    """
    text, path = text_part(raw, file)
    model_type, spec, notes = spec_for(raw, text, file)
    keys = Keys(text, file, path, spec)
    layers, origins = _layers(keys, spec)
    notes += unused_note(keys)
    hidden = keys.need("hidden") if _needs_hidden(spec) else keys.count("hidden") or 0
    vocab = keys.count("vocab")
    if vocab is None:
        keys.assume("vocab", "no embedding and no head counted")
    weights = _outer_weights(keys, raw, spec, hidden, vocab or 0)
    notes += assumed_notes(keys)
    context, context_source = max_context(keys)
    origins |= {k: keys.origins[k] for k in ("hidden", "vocab") if k in keys.origins}
    origins["max_context"] = context_source
    origins |= assumed_origins(keys)
    model = Model(
        id=id or file,
        model_type=model_type,
        file=file,
        layers=layers,
        weights=weights,
        hidden=hidden,
        vocab=vocab or 0,
        max_context=context,
        dtype=dtype_of(raw, text, file),
        quantization=quantization_config(raw, keys, sidecar),
        other_parameters=None,
        origins=origins,
        notes=tuple(notes),
        mtp_layers=keys.count("mtp_layers") or 0,
        outer_type=str(raw.get("model_type") or model_type),
        **asides(keys),
    )
    beside = beside_parameters(raw, model, spec)
    return replace(
        model,
        tower_parameters=beside.towers,
        tower_values=tower_values(raw),
        mtp_parameters=beside.mtp,
        other_parameters=beside.parameters,
        origins={**model.origins, **beside.origins},
    )


def _needs_hidden(spec: Spec) -> bool:
    return bool(spec.get("needs_hidden", True))


def _layers(keys: Keys, spec: Spec) -> tuple[tuple[Layer, ...], dict[str, Source]]:
    count = _layer_count(keys, spec)
    origins = {"layers": keys.origins["layers"]}
    words, said_by = spell(spec["layers"], keys, count)
    dense = spell(spec["sparse_layers"], keys, count)[0] if _has_experts(keys) else ["dense"] * count
    index = spell(spec["index_layers"], keys, count)[0] if "index_layers" in spec else ["own"] * count
    shared = _sharing(keys, spec, count)
    origins["layer_kinds"] = keys.layer_source = said_by
    listed = _listed(keys, count)
    built: dict[tuple[Any, ...], Layer] = {}
    layers = []
    for i in range(count):
        ident = (words[i], dense[i], index[i], shared[i], _at_layer(keys, listed, i))
        if ident not in built:
            keys.layer = i
            built[ident] = _layer(keys, spec, *ident[:4])
        layers.append(built[ident])
    keys.layer = None
    return tuple(layers), origins


def _layer_count(keys: Keys, spec: Spec) -> int:
    count = keys.count("layers")
    stated = any(keys.stated(key) for key in keys.spellings("layers"))
    if stated and count is not None:
        return count
    for key in sorted(spec.get("layers_from", ()), key=lambda key: not keys.stated(key)):
        read = keys.find(key, [key])
        if read and isinstance(read[1], (list, str)) and read[1]:
            keys.origins["layers"] = Source(Trust.STATED, f"{keys.file} length of {key}")
            return len(read[1])
    return count if count is not None else keys.need("layers")


def _has_experts(keys: Keys) -> bool:
    read = keys.find("experts")
    if read is None:
        return False
    value = read[1]
    if isinstance(value, list):
        return any(isinstance(v, int) and v > 1 for v in value)
    return keys.whole(read[0], value, 0, quantities()["experts"]["at_most"]) > 0


def _listed(keys: Keys, count: int) -> dict[str, list[Any]]:
    """The keys that state a number for each layer as a list."""
    found: dict[str, list[Any]] = {}
    for quantity in (*quantities(), *keys.spec["keys"]):
        for key in keys.spellings(quantity):
            value = keys.raw.get(key)
            if not isinstance(value, list) or key in found:
                continue
            found[key] = value
            if quantity in PER_LAYER and len(value) < count:
                raise keys.wrong(key, f"{len(value)} entries", f"{count} layers need one each")
    return found


def _at_layer(keys: Keys, listed: dict[str, list[Any]], layer: int) -> tuple[Any, ...]:
    """What differs from layer to layer where a config gives numbers as lists."""
    here = []
    for key, values in listed.items():
        item = values[layer] if layer < len(values) else None
        if item is not None and not isinstance(item, (int, float)):
            raise keys.wrong(key, item, "expected a whole number for each layer")
        here.append(item)
    return tuple(here)


def _sharing(keys: Keys, spec: Spec, count: int) -> list[bool]:
    """Which layers read another layer's keys and values instead of holding their own."""
    last = keys.count("kv_shared_layers") or 0
    if last > count:
        raise keys.wrong("num_kv_shared_layers", last, f"there are {count} layers")
    factor = 1
    if "cla" in spec and keys.flag(spec["cla"]["when"]):
        factor = keys.count("cla_factor", [spec["cla"]["factor"]]) or 1
    sources = keys.list_of(spec["kv_sources"]) if "kv_sources" in spec else None
    if sources is not None and len(sources) != count:
        raise keys.wrong(spec["kv_sources"], f"{len(sources)} entries", f"{count} layers need one each")
    return [
        i >= count - last or i % factor != 0 or (sources is not None and sources[i] != i)
        for i in range(count)
    ]


def _layer(keys: Keys, spec: Spec, word: str, dense: str, index: str, shared: bool) -> Layer:
    kind = _kind(spec, word)
    shared = shared or bool(kind.get("reads"))  # layers that always read another's keys and values
    hidden = keys.count("hidden") or 0
    attentions, weights = _attention_part(keys, spec, kind, index == "own", shared)
    states = []
    if kind.get("state"):
        table = overlay(spec.get(kind["state"], {}), kind.get("mix", {}))
        state, its = state_of(keys, kind["state"], table, hidden)
        states.append(state)
        weights += its
    weights += _feed_forward(keys, spec, kind, dense, hidden, shared)
    weights += _norms(keys, spec, kind, hidden)
    extras = spec.get("layer_extras", {}) | kind.get("layer_extras", {})
    weights += extra_weights(keys, extras, {"hidden": hidden})
    return Layer(tuple(attentions), tuple(states), tuple(weights))


def _attention_part(
    keys: Keys, spec: Spec, kind: dict[str, Any], indexes: bool, shared: bool
) -> tuple[list[Attention], list[Weight]]:
    """The attentions of one layer, and their weights."""
    attentions: list[Attention] = []
    weights: list[Weight] = []
    hidden = keys.count("hidden") or 0
    if kind.get("attention"):
        table = overlay(spec["attention"], kind.get("attend", {}))
        if kind.get("use_if") and not keys.flag(kind["use_if"]):
            table = spec["attention"]
        table = {**table, "selects": table.get("indexer"), "indexer": table.get("indexer") and indexes}
        dropped = tuple(spec.get("shared_drops", ())) if shared else ()
        for _ in range(int(spec.get("attentions_per_layer", 1))):
            found, its = _attentions(keys, kind, table, hidden)
            attentions += [_shared(a, shared) for a in found]
            weights += [w for w in its if w.name not in dropped]
    if kind.get("cross"):
        table = overlay(spec["attention"], spec.get("cross_attention", {}))
        cross, its = attention_of(keys, "cross", table, hidden)
        attentions.append(cross)
        weights += [replace(w, name=f"cross_{w.name}") for w in its]
    return attentions, weights


def _kind(spec: Spec, word: str) -> dict[str, Any]:
    """The table of a layer word; nemotron-nas packs its numbers into the word."""
    if word.startswith("block:"):
        _, attention, width = word.split(":")
        attends = attention not in ("none", "linear")
        made: dict[str, Any] = {"label": "full" if attends else "none", "attention": attends}
        if attends:
            made["attend"] = {"group_size": int(attention)}
        made["block_width"] = width
        made["linear"] = attention == "linear"
        return made
    return {"label": word, **spec["kinds"][word]}


def _attentions(
    keys: Keys, kind: dict[str, Any], table: dict[str, Any], hidden: int
) -> tuple[list[Attention], tuple[Weight, ...]]:
    label = str(kind["label"])
    if kind.get("ratio_key") is not None or table.get("form") == "compressed":
        return _compressed_pair(keys, kind, table, hidden)
    found, weights = attention_of(keys, label, table, hidden)
    return [found], weights


def _compressed_pair(
    keys: Keys, kind: dict[str, Any], table: dict[str, Any], hidden: int
) -> tuple[list[Attention], tuple[Weight, ...]]:
    ratio = int(kind.get("ratio", 0))
    slots, _ = attention_of(keys, "compressed", {**table, "ratio": ratio}, hidden)
    window = keys.need("window")
    recent = Attention(
        "sliding",
        slots.query_heads,
        1,
        slots.key_width,
        0,
        window,
        origins=dict(keys.origins) | dict(slots.origins),
    )
    weights = compressed_weights(keys, slots, hidden)
    if not ratio:
        return [recent], weights
    width = slots.key_width * (2 if ratio == table.get("indexed_ratio", 4) else 1)
    weights += (
        Weight("compressor", "attention", 2 * width, hidden),
        Weight("compressor_position", "norm", width, ratio),
        Weight("compressor_norm", "norm", slots.key_width),
    )
    if slots.index_width:
        inner = 2 * slots.index_width
        weights += (
            Weight("index_q", "indexer", slots.index_heads * slots.index_width, keys.need("q_rank")),
            Weight("index_weights", "indexer", slots.index_heads, hidden),
            Weight("index_compressor", "indexer", 2 * inner, hidden),
            Weight("index_position", "norm", inner, ratio),
            Weight("index_norm", "norm", slots.index_width),
        )
    return [recent, slots], weights


def _shared(a: Attention, shared: bool) -> Attention:
    if not shared:
        return a
    return Attention(
        a.kind,
        a.query_heads,
        a.kv_heads,
        a.key_width,
        a.value_width,
        a.window,
        holds=False,
        attended=a.attended,
        attended_block=a.attended_block,
        latent=a.latent,
        origins=a.origins,
    )


def _feed_forward(
    keys: Keys, spec: Spec, kind: dict[str, Any], dense: str, hidden: int, shared: bool
) -> tuple[Weight, ...]:
    part = kind.get("feed_forward", "own")
    if part == "none":
        return ()
    if "block_width" in kind:
        return _block_weights(keys, spec, kind, hidden)
    sparse = part == "sparse" or (part == "own" and dense == "sparse")
    table, side = spec["experts"], spec["feed_forward"]
    found = expert_weights(keys, table, hidden) if sparse else ()
    if found and not table.get("beside_dense"):
        return found
    if found and table.get("dense_width"):
        side = {**side, "width": table["dense_width"]}
    if shared and keys.flag(side.get("double_when_shared")):
        side = {**side, "width_numerator": 2}
    beside = dense_weights(keys, side, hidden)
    copies = int(table.get("dense_copies", 1)) if found else 1
    return (*found, *(replace(w, copies=copies) for w in beside))


def _block_weights(keys: Keys, spec: Spec, kind: dict[str, Any], hidden: int) -> tuple[Weight, ...]:
    linear = (Weight("linear_attn", "attention", hidden, hidden),) if kind["linear"] else ()
    width = kind["block_width"]
    if width == "none":
        return linear
    if width == "linear":
        return (*linear, Weight("linear_mlp", "feed_forward", hidden, hidden))
    exact = int(2 * float(width) * hidden / 3)
    rounded = -(-exact // 256) * 256
    return linear + dense_weights(keys, spec["feed_forward"], hidden, rounded)


def _norms(keys: Keys, spec: Spec, kind: dict[str, Any], hidden: int) -> tuple[Weight, ...]:
    block = spec["block"]
    count = int(kind.get("norms", block.get("norms", 2)))
    bias = keys.flag(block.get("norm_bias"))
    return (Weight("norms", "norm", count * hidden, 1, bias),) if count else ()


def _tied(keys: Keys, raw: dict[str, Any], outer: dict[str, Any]) -> bool:
    """Whether the head is the embedding: the decoder's own word, else the whole model's."""
    for key in outer["tied"]:
        for table in (keys.raw, raw):
            if isinstance(table.get(key), bool):
                return bool(table[key])
    tie = wrapper_tie(str(raw.get("model_type")))
    if tie is not None:
        return tie
    read = keys.find("tied", outer["tied"])
    return bool(read[1]) if read is not None else bool(outer.get("tied_default", False))


def _outer_weights(
    keys: Keys, raw: dict[str, Any], spec: Spec, hidden: int, vocab: int
) -> tuple[Weight, ...]:
    outer = spec["outer"]
    width = keys.count("embedding_width", [outer["embedding_width"]]) if "embedding_width" in outer else None
    width = width or hidden
    tied = _tied(keys, raw, outer)
    weights = [Weight("embed_tokens", "embedding", vocab, width, split="vocab")]
    if outer.get("head", True) and not tied:
        weights.append(
            Weight("lm_head", "head", vocab, width, keys.flag(outer.get("head_bias")), split="vocab")
        )
    if outer.get("final_norms", 1):
        bias = keys.flag(spec["block"].get("norm_bias"))
        weights.append(Weight("final_norm", "norm", int(outer.get("final_norms", 1)) * hidden, 1, bias))
    if width != hidden:
        weights.append(Weight("project_in_out", "other", 2 * width, hidden))
    return (*weights, *extra_weights(keys, outer.get("extras", {}), {"hidden": hidden}))
