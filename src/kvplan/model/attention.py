"""Reading one kind of attention: its heads and widths, what it keeps, and its weights."""

from __future__ import annotations

from typing import Any

from kvplan.errors import BadConfig
from kvplan.figure import Source, Trust
from kvplan.model.extras import extra_weights
from kvplan.model.keys import Keys
from kvplan.model.model import Attention, Latent, Weight
from kvplan.model.sparse import selection

Table = dict[str, Any]


_ONE_LATENT = Source(Trust.ENGINE_RULE, "multi-head latent attention (DeepSeek-V2): one vector for all heads")
_ONE_VECTOR = Source(Trust.ENGINE_RULE, "DeepSeek-V4: one vector serves all heads as key and value")


def attention_of(keys: Keys, kind: str, table: Table, hidden: int) -> tuple[Attention, tuple[Weight, ...]]:
    """The attention that `table` (a model type's data) describes, read from the config."""
    keys.origins = {}
    if table.get("form") == "latent" and keys.find("kv_rank") and keys.flag("use_mla", True):
        return _latent(keys, kind, table, hidden)
    if table.get("form") == "compressed":
        return _compressed(keys, table)
    return _grouped(keys, "full" if kind == "latent" else kind, table, hidden)


def _grouped(keys: Keys, kind: str, table: Table, hidden: int) -> tuple[Attention, tuple[Weight, ...]]:
    query_heads = _query_heads(keys, table)
    kv_heads = _kv_heads(keys, table, query_heads)
    if query_heads % kv_heads:
        raise BadConfig(
            f"num_key_value_heads: {kv_heads} does not divide num_attention_heads: {query_heads} "
            f"in {keys.file}; correct the file"
        )
    width = _head_width(keys, table, hidden, query_heads)
    value_width = keys.count("value_width", table.get("value_width", [])) or width
    keys.origins.setdefault("value_width", keys.origins["key_width"])
    window = _window(keys, kind, table)
    index = keys.count("index_width", table["index_width"]) or 0 if table.get("index_width") else 0
    attended, block = selection(keys, table, sparse=index)
    found = Attention(
        kind="full" if kind in ("sliding", "chunked") and window is None else kind,
        query_heads=query_heads,
        kv_heads=kv_heads,
        key_width=width,
        value_width=value_width,
        window=window,
        index_width=index,
        index_heads=keys.count("index_heads", table["index_heads"]) or 0 if table.get("index_heads") else 0,
        attended=attended,
        attended_block=block,
        origins=dict(keys.origins),
    )
    weights = _grouped_weights(keys, table, found, hidden)
    return found, tuple(w for w in weights if w.name not in table.get("without", ()))


def _query_heads(keys: Keys, table: Table) -> int:
    if "query_heads_product" in table and not keys.stated("num_attention_heads"):
        factors = [keys.need(name) for name in table["query_heads_product"]]
        keys.origins["query_heads"] = keys.origins[table["query_heads_product"][0]]
        return factors[0] * factors[1]
    own = keys.count("query_heads", table["query_heads"]) if "query_heads" in table else None
    return own or keys.need("query_heads")


def _kv_heads(keys: Keys, table: Table, query_heads: int) -> int:
    many = table.get("multi_query")
    if many and keys.flag(many) and not keys.flag(table.get("multi_query_unless")):
        keys.origins["kv_heads"] = Source(Trust.STATED, f"{keys.file} {many}: one KV head")
        return 1
    if "group_size" in table:  # nemotron-nas states query heads per KV head
        keys.origins["kv_heads"] = Source(
            Trust.STATED, f"{keys.file} block_configs: {query_heads} heads ÷ n_heads_in_group"
        )
        return max(1, query_heads // int(table["group_size"]))
    own = "kv_heads" in table and keys.flag(table.get("kv_heads_when", True))
    stated = keys.count("kv_heads", table["kv_heads"]) if own else None
    if stated is None:
        stated = keys.count("kv_heads")
        stated = stated and stated * int(table.get("kv_heads_times", 1))
    if stated is None:
        keys.origins["kv_heads"] = keys.assume("kv_heads", "one KV head per query head")
    return stated if stated is not None else query_heads


def _head_width(keys: Keys, table: Table, hidden: int, query_heads: int) -> int:
    width = keys.count("key_width", table.get("head_width")) if "head_width" in table else None
    width = width or keys.count("key_width", keys.spellings("head_width"))
    if width:
        return width
    times = int(table.get("head_width_times", 1))
    if hidden % query_heads and not table.get("head_width_floor"):
        raise BadConfig(
            f"head_dim: not stated in {keys.file}, and hidden_size {hidden} is not a multiple of "
            f"{query_heads} attention heads; state head_dim"
        )
    keys.origins["key_width"] = Source(
        Trust.STATED,
        f"{keys.file} {times if times > 1 else ''}{' × ' if times > 1 else ''}"
        f"hidden_size {hidden} ÷ {query_heads} heads",
    )
    return times * hidden // query_heads


def _window(keys: Keys, kind: str, table: Table) -> int | None:
    if kind not in ("sliding", "chunked"):
        return None
    spelt = keys.spellings("chunk" if kind == "chunked" else "window")
    window = keys.count("window", table.get("window") or spelt)
    if not window:
        return None
    window //= int(table.get("window_divisor", 1))
    if keys.raw.get(table.get("window_half_when", "")) in (True, "all"):
        window = window // 2 + 1
    context = keys.count("context", table.get("inert_against"))
    keys.origins.pop("context", None)
    return None if context is not None and window >= context else window


def _grouped_weights(keys: Keys, table: Table, a: Attention, hidden: int) -> tuple[Weight, ...]:
    if table.get("weights") is False:  # a block shared between layers, counted once elsewhere
        return ()
    source = int(table.get("input_times", 1)) * hidden
    bias, out_bias = keys.flag(table.get("qkv_bias")), keys.flag(table.get("out_bias"))
    gate = keys.flag(table.get("output_gate"))
    shared_key_value = keys.flag(table.get("key_is_value"))
    q, k, v = a.query_heads * a.key_width, a.kv_heads * a.key_width, a.kv_heads * a.value_width
    rank = keys.count("query_rank", table["query_rank"]) if "query_rank" in table else None
    low = [Weight("q_a_proj", "attention", rank, source), Weight("q_a_norm", "norm", rank)] if rank else []
    weights = [
        *low,
        Weight("q_proj", "attention", q * (2 if gate else 1), rank or source, bias, split="column"),
        Weight("k_proj", "attention", k, source, bias and keys.flag(table.get("key_bias", True)), split="kv"),
    ]
    if not shared_key_value:
        weights.append(Weight("v_proj", "attention", v, source, bias, split="kv"))
    out = a.query_heads * a.value_width
    weights.append(Weight("o_proj", "attention", hidden, out, out_bias, split="row"))
    if table.get("routed"):
        weights = [*_routed(keys, a, hidden), *weights[1:-1]]
    if "gate" in table:
        gates = a.query_heads * (1 if table["gate"] == "head" else a.value_width)
        weights.append(Weight("g_proj", "attention", gates, source, split="column"))
    norm = table.get("qk_norm")
    if isinstance(norm, str) and norm not in ("head", "full"):
        norm = table.get("qk_norm_form", "head") if keys.flag(norm) else None
    if norm in ("head", "full"):
        full, norm_bias = norm == "full", keys.flag(table.get("qk_norm_bias"))
        weights.append(Weight("q_norm", "norm", q if full else a.key_width, 1, norm_bias))
        weights.append(Weight("k_norm", "norm", k if full else a.key_width, 1, norm_bias))
    if keys.flag(table.get("sinks")):
        weights.append(Weight("sinks", "norm", a.query_heads))
    return (*weights, *_index_weights(table, a, hidden, hidden), *_extras(keys, table, a, hidden))


def _routed(keys: Keys, a: Attention, hidden: int) -> list[Weight]:
    """JetMoe: queries and outputs are experts, each with one query head per KV head."""
    experts, active = keys.need("experts"), keys.need("experts_per_token")
    width = a.kv_heads * a.key_width
    return [
        Weight("q_experts", "expert", width, hidden, False, experts, active, "expert"),
        Weight("o_experts", "expert", hidden, width, False, experts, active, "expert"),
        Weight("attention_router", "router", experts, hidden),
    ]


def _extras(keys: Keys, table: Table, a: Attention, hidden: int) -> tuple[Weight, ...]:
    known = {
        "hidden": hidden,
        "query_heads": a.query_heads,
        "kv_heads": a.kv_heads,
        "key_width": a.key_width,
        "value_width": a.value_width,
        "kv_rank": a.latent.kv_rank if a.latent else 0,
    }
    return extra_weights(keys, table.get("extras", {}), known)


def _index_weights(table: Table, a: Attention, hidden: int, query_input: int) -> tuple[Weight, ...]:
    if not a.index_width:
        return ()
    heads = a.index_heads or 1
    found = [
        Weight("index_q", "indexer", heads * a.index_width, query_input),
        Weight("index_k", "indexer", a.index_width, hidden),
    ]
    if table.get("form") == "latent":
        found += [
            Weight("index_k_norm", "norm", a.index_width, bias=True),
            Weight("index_weights", "indexer", heads, hidden),
        ]
    else:
        found.append(Weight("index_norms", "norm", 2 * a.index_width))
    return tuple(found)


def _latent(keys: Keys, kind: str, table: Table, hidden: int) -> tuple[Attention, tuple[Weight, ...]]:
    def stated(quantity: str) -> int:
        return keys.count(quantity, table.get(quantity)) or 0

    heads = _query_heads(keys, table)
    kv_rank = stated("kv_rank") or keys.need("kv_rank")
    rope, nope = stated("rope_width"), stated("nope_width")
    if table.get("no_rope"):  # the rotary part is spent on the other one
        rope, nope = 0, rope + nope
    index = keys.count("index_width") or 0 if table.get("indexer") else 0
    value = stated("latent_value_width") or nope
    pool = table.get("index_pool")
    stride = (keys.count("index_stride", [pool]) or 1) if index and pool else 1
    keys.origins["kv_heads"] = _ONE_LATENT
    keys.origins["key_width"] = _together(keys, ("kv_rank", "rope_width") if rope else ("kv_rank",))
    widths = [name for name in ("nope_width", "rope_width") if name in keys.origins]
    if widths:  # of one head, were each to keep its own keys and values
        keys.origins["head_key_width"] = _together(keys, tuple(widths))
        keys.origins["value_width"] = keys.origins.get("latent_value_width", keys.origins[widths[0]])
    latent = Latent(kv_rank, rope, nope, value, stated("q_rank") or None)
    attended, block = selection(keys, table, sparse=table.get("selects") and keys.count("index_width"))
    found = Attention(
        kind="latent",
        query_heads=heads,
        kv_heads=1,
        key_width=kv_rank + rope,
        value_width=0,
        window=_window(keys, kind, table),
        index_width=index,
        index_heads=keys.count("index_heads") or 0 if index else 0,
        index_stride=stride,
        attended=attended,
        attended_block=block,
        latent=latent,
        origins=dict(keys.origins),
    )
    weights = _latent_weights(keys, table, found, latent, hidden)
    return found, tuple(w for w in weights if w.name not in table.get("without", ()))


def _together(keys: Keys, quantities: tuple[str, ...]) -> Source:
    """The source of a sum: its weakest part's trust, and where each part was read."""
    parts = [keys.origins[name] for name in quantities]
    where = [parts[0].where, *(part.where.removeprefix(f"{keys.file} ") for part in parts[1:])]
    return Source(max(part.trust for part in parts), " + ".join(where))


def _latent_weights(keys: Keys, table: Table, a: Attention, m: Latent, hidden: int) -> tuple[Weight, ...]:
    query = a.query_heads * (m.nope_width + m.rope_width)
    bias = keys.flag(table.get("qkv_bias"))
    weights = []
    if m.q_rank:
        weights += [
            Weight("q_a_proj", "attention", m.q_rank, hidden, bias),
            Weight("q_a_norm", "norm", m.q_rank),
            Weight("q_b_proj", "attention", query, m.q_rank, split="column"),
        ]
    else:
        weights.append(Weight("q_proj", "attention", query, hidden, split="column"))
    weights += [
        Weight("kv_a_proj", "attention", m.kv_rank + m.rope_width, hidden, bias),
        Weight("kv_a_norm", "norm", m.kv_rank),
        Weight(
            "kv_b_proj",
            "attention",
            a.query_heads * (m.nope_width + m.value_width),
            m.kv_rank,
            split="column",
        ),
        Weight(
            "o_proj",
            "attention",
            hidden,
            a.query_heads * m.value_width,
            keys.flag(table.get("out_bias")),
            split="row",
        ),
    ]
    if "gate" in table:
        gates = a.query_heads * (1 if table["gate"] == "head" else m.value_width)
        weights.append(Weight("g_proj", "attention", gates, hidden, split="column"))
    index = _index_weights(table, a, hidden, m.q_rank or hidden)
    return (*weights, *index, *_extras(keys, table, a, hidden))


def _compressed(keys: Keys, table: Table) -> tuple[Attention, tuple[Weight, ...]]:
    """DeepSeek-V4: one shared vector serves as key and value; a window of them is kept beside
    one compressed slot per `ratio` tokens."""
    heads, width = keys.need("query_heads"), keys.need("head_width")
    width_source = keys.origins["head_width"]
    keys.origins |= {"key_width": width_source, "value_width": width_source, "kv_heads": _ONE_VECTOR}
    ratio = int(table.get("ratio", 0))
    if keys.layer_source is not None:
        keys.origins |= {"stride": keys.layer_source, "index_stride": keys.layer_source}
    indexed = ratio == table.get("indexed_ratio", 4)
    attended, block = selection(keys, table, sparse=indexed and keys.count("index_width"))
    found = Attention(
        kind="compressed",
        query_heads=heads,
        kv_heads=1,
        key_width=width,
        value_width=0,
        stride=ratio or 1,
        index_width=keys.count("index_width") or 0 if indexed else 0,
        index_heads=keys.count("index_heads") or 0 if indexed else 0,
        index_stride=ratio if indexed else 1,
        attended=attended,
        attended_block=block,
        origins=dict(keys.origins),
    )
    return found, ()


def compressed_weights(keys: Keys, a: Attention, hidden: int) -> tuple[Weight, ...]:
    """DeepSeek-V4's projections: low-rank queries, one key-value vector, grouped low-rank output."""
    q_rank = keys.need("q_rank")
    o_rank = keys.count("o_lora_rank", ["o_lora_rank"]) or 0
    groups = keys.count("o_groups", ["o_groups"]) or 1
    out = a.query_heads * a.key_width
    return (
        Weight("q_a_proj", "attention", q_rank, hidden),
        Weight("q_a_norm", "norm", q_rank),
        Weight("q_b_proj", "attention", out, q_rank, split="column"),
        Weight("kv_proj", "attention", a.key_width, hidden),
        Weight("kv_norm", "norm", a.key_width),
        Weight("o_a_proj", "attention", groups * o_rank, out // groups, split="column"),
        Weight("o_b_proj", "attention", hidden, groups * o_rank, split="row"),
        Weight("sinks", "norm", a.query_heads),
    )
