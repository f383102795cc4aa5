"""What SGLang keeps of one token on one rank, by groups of like layers.

SGLang 0.5.23 model_executor/pool_configurator.py, mem_cache/kv_cache_configurator.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvplan.engines.sglang_rules import FACTS
from kvplan.engines.sglang_setup import Started, since, sparse_latent
from kvplan.facts import store
from kvplan.figure import Leaf, Number, Source, Trust, ceiling, formula, most, named, total
from kvplan.model.model import Attention, Layer, Model

DSA_BLOCK = 128
_RULE = "SGLang 0.5.23 model_executor/pool_configurator.py _compute_cell_size"


@dataclass(frozen=True, slots=True)
class Kept:
    """Layers of one rank that keep alike: bytes of one token in one layer, key and value side.

    Latents have no value side. `index_bytes` is one index key, kept by `index_layers` of them.
    """

    kind: str
    layers: int
    key_bytes: Any
    value_bytes: Any
    index_bytes: Any = 0
    index_layers: int = 0
    window: int | None = None
    latent: bool = False

    def layer_bytes(self) -> Any:
        """One token in one layer, both sides, index keys left out."""
        return self.key_bytes + self.value_bytes if not self.latent else self.key_bytes

    def cell(self) -> Any:
        """One token in all the layers."""
        main = self.layers * self.layer_bytes()
        return main + self.index_layers * self.index_bytes if self.index_layers else main


@formula("head", "SGLang 0.5.23 configs/model_config.py get_num_kv_heads")
def kv_heads_on_rank(kv_heads: Number, attention_tp: Number, dcp: Number) -> Number:
    """Heads one rank holds: divided over attention ranks, one where there are fewer heads."""
    return most(1, kv_heads // (attention_tp // dcp))


@formula("B/token", _RULE)
def side_bytes(kv_heads: Number, width: Number, value_bytes: Number) -> Number:
    """Keys (or values) of one token in one layer."""
    return kv_heads * width * value_bytes


@formula("B/token", _RULE)
def packed_side_bytes(kv_heads: Number, width: Number, pack: Number, scale_block: Number) -> Number:
    """The same with values packed into a byte, and one byte of scale per block."""
    return kv_heads * (width // pack) + kv_heads * width // scale_block


@formula("B/token", "SGLang 0.5.23 mem_cache/kv_cache_configurator.py calculate_mla_kv_cache_dim")
def scaled_latent_bytes(kv_rank: Number, rope_width: Number, block: Number) -> Number:
    """An fp8 latent of sparse attention: fp8 values, a float32 scale a block, rotary values in 16 bit."""
    return kv_rank + kv_rank // block * 4 + rope_width * 2


@formula("B/token", "SGLang 0.5.23 model_executor/pool_configurator.py _compute_dsa_indexer_cell_size")
def index_key_bytes(index_width: Number, block: Number, stride: Number) -> Number:
    """An index key in fp8 with a float32 scale a block, pooled over `stride` tokens."""
    return ceiling(index_width + index_width // block * 4, stride)


def kept_of(model: Model, run: Started, layers: tuple[Layer, ...], leaf: Leaf) -> list[Kept]:
    """What these layers keep of a token, like ones together, in order of appearance.

    Layers that read another's cache are charged too, and so is a layer without attention unless the
    model keeps states: SGLang counts all layers of the stage.
    """
    hybrid = any(layer.states for layer in model.layers)
    first = next((a for layer in model.layers for a in layer.attentions), None)
    counts: dict[tuple[Any, ...], list[Any]] = {}
    for layer in layers:
        found = layer.attentions or (() if hybrid or first is None else (first,))
        for a in found:
            key = (a.kind in ("sliding", "chunked"), a.kv_heads, a.key_width, a.value_width, a.window)
            entry = counts.setdefault(key, [a, 0, 0, None])
            entry[1] += 1
            if a.index_width:
                entry[2] += 1
                entry[3] = entry[3] or a
    return [_kept(model, run, a, n, (indexed, owner), leaf) for a, n, indexed, owner in counts.values()]


def _kept(
    model: Model,
    run: Started,
    a: Attention,
    n: int,
    index: tuple[int, Attention | None],
    leaf: Leaf,
) -> Kept:
    kind = "swa" if a.kind in ("sliding", "chunked") else "full"
    label = "latent" if a.latent is not None else kind

    def given(name: str, value: float, unit: str) -> Any:
        return leaf(f"{label}_{name}", value, unit, a.origin(name))

    indexed, owner = index
    if run.rules["dsa_index_layers"] == "all" and indexed and a.latent is not None:
        indexed = n
    index_bytes = _index_bytes(owner, run, leaf) if owner is not None else 0
    if a.latent is not None:
        one = _latent_bytes(model, run, a, leaf)
        return Kept("latent", n, one, 0, index_bytes, indexed, a.window, latent=True)
    heads = given("kv_heads", a.kv_heads, "head")
    if run.attn_tp > 1:
        where = Source(Trust.STATED, f"tp {run.setup.tp} ÷ attention dp {run.attn_dp}")
        tp = leaf("attention_tp", run.attn_tp, "rank", where)
        heads = kv_heads_on_rank(heads, tp, run.setup.dcp if run.attn_tp % run.setup.dcp == 0 else 1)
    key = given("key_width", a.key_width, "value")
    own = run.rules["value_width"] == "own"
    value = given("value_width", (a.value_width or a.key_width) if own else a.key_width, "value")
    return Kept(
        kind,
        n,
        named(f"{label}_key_bytes", "B/token", _side(heads, key, run, leaf)),
        named(f"{label}_value_bytes", "B/token", _side(heads, value, run, leaf)),
        index_bytes,
        indexed,
        a.window,
    )


def format_leaves(run: Started, leaf: Leaf) -> Mapping[str, Any]:
    """The cache format's numbers as inputs."""
    where = Source(
        Trust.ENGINE_RULE, f"cache {run.format_name}: SGLang {store.toml(FACTS)['formats']['source']}"
    )
    return {k: leaf(k, v, "B/value" if k == "value_bytes" else "value", where) for k, v in run.format.items()}


def _side(heads: Any, width: Any, run: Started, leaf: Leaf) -> Any:
    fmt = format_leaves(run, leaf)
    if "pack" in fmt:
        return packed_side_bytes(heads, width, fmt["pack"], fmt["scale_block"])
    one = side_bytes(heads, width, fmt["value_bytes"])
    return one + heads * width // fmt["scale_block"] if "scale_block" in fmt else one


def _latent_bytes(model: Model, run: Started, a: Attention, leaf: Leaf) -> Any:
    m = a.latent
    assert m is not None  # noqa: S101
    rank = leaf("kv_rank", m.kv_rank, "value", a.origin("kv_rank"))
    rope = leaf("rope_width", m.rope_width, "value", a.origin("rope_width"))
    fmt = format_leaves(run, leaf)
    if scaled_latents(model, run):
        block = leaf("scale_block", DSA_BLOCK, "value", run.rule("dsa_scaled_fp8"))
        return scaled_latent_bytes(rank, rope, block)
    if "pack" in fmt:
        return named(
            "latent_bytes", "B/token", packed_side_bytes(1, rank + rope, fmt["pack"], fmt["scale_block"])
        )
    return named("latent_bytes", "B/token", (rank + rope) * fmt["value_bytes"])


def scaled_latents(model: Model, run: Started) -> bool:
    """Whether fp8 latents carry scales: sparse attention, unless its kernels take raw rows."""
    backends = {
        run.flag(f"{prefix}_{phase}_backend") for prefix in ("dsa", "nsa") for phase in ("prefill", "decode")
    }
    raw = "trtllm" in backends or "tilelang" in backends or run.setup.platform == "rocm"
    fp8 = run.format_name.startswith("fp8") and run.format_name != "fp8_e5m2"
    return bool(run.rules["dsa_scaled_fp8"]) and fp8 and sparse_latent(model) and not raw


def _index_bytes(a: Attention, run: Started, leaf: Leaf) -> Any:
    width = leaf("index_width", a.index_width, "value", a.origin("index_width"))
    if a.latent is None:  # block-sparse attention keeps index keys in the cache's own width
        size = run.format.get("value_bytes", 2)
        return width * leaf("index_value_bytes", size, "B/value", Source(Trust.ENGINE_RULE, _RULE))
    block = leaf("index_scale_block", DSA_BLOCK, "value", Source(Trust.ENGINE_RULE, _RULE))
    one = index_key_bytes(width, block, a.index_stride)
    return one * run.setup.dcp if run.setup.dcp > 1 and since(run, "0.5.20") else one


def cell_of(kept: list[Kept]) -> Any:
    """Bytes one token costs in all layers of a pool that treats them alike."""
    return total([k.cell() for k in kept])
