"""Shapes and weights of the models that questions are about, read off their config files by hand.

Nothing of kvplan is imported here: this is what its answers to practice questions are checked against.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

FACTS = Path(__file__).parents[1] / "src" / "kvplan" / "facts"
VALUE_BYTES = {
    "float32": Fraction(4),
    "bfloat16": Fraction(2),
    "float16": Fraction(2),
    "f16": Fraction(2),
    "fp8": Fraction(1),
    "int4": Fraction(1, 2),
    "q8_0": Fraction(34, 32),
    "q5_1": Fraction(24, 32),
    "q4_0": Fraction(18, 32),
    "nvfp4": Fraction(9, 16),
}
# What a class assumes where a config leaves it out: transformers' Gemma3TextConfig.
DEFAULTS = {"gemma3_text": {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256}}


@dataclass(frozen=True)
class Geometry:
    """Layers by what they keep, heads and widths, and the bytes of a state."""

    layers: int
    attending: int
    windowed: int
    window: int
    query_heads: int
    kv_heads: int
    width: int
    latent: int
    per_head: int  # key and value of one head, had each query head its own
    state_bytes: int

    def heads_on(self, tp: int) -> int:
        return max(1, self.kv_heads // tp)

    def layer_values(self, tp: int = 1) -> int:
        return self.latent or self.heads_on(tp) * 2 * self.width

    def token(self, dtype: str, tp: int = 1, *, full: bool = False) -> Fraction:
        """Bytes of one token: of all layers that attend, or of those without a window."""
        layers = self.attending - (self.windowed if full else 0)
        return layers * self.layer_values(tp) * VALUE_BYTES[dtype]

    def mha_token(self, dtype: str) -> Fraction:
        return self.attending * self.query_heads * self.per_head * VALUE_BYTES[dtype]

    def sequence(self, tokens: int, dtype: str, tp: int = 1) -> Fraction:
        one = self.layer_values(tp) * VALUE_BYTES[dtype]
        kept = min(tokens, self.window) if self.windowed else 0
        return one * ((self.attending - self.windowed) * tokens + self.windowed * kept) + self.state_bytes


@functools.cache
def files() -> dict[str, str]:
    rows = (json.loads(line) for line in (FACTS / "models.jsonl").read_text("utf-8").splitlines())
    return {row["id"]: row["file"] for row in rows}


@functools.cache
def config(id: str) -> dict[str, Any]:
    raw = json.loads((FACTS / "models" / files()[id]).read_text("utf-8"))
    inner = raw.get("text_config", raw)
    return {**DEFAULTS.get(inner.get("model_type", ""), {}), **inner}


def first(c: dict[str, Any], *names: str) -> Any:
    return next((c[name] for name in names if c.get(name) is not None), None)


@functools.cache
def geometry(id: str) -> Geometry:
    c = config(id)
    kind, layers = c.get("model_type"), first(c, "num_hidden_layers", "n_layer")
    query = first(c, "num_attention_heads", "n_head")
    kv = 1 if c.get("multi_query") else first(c, "num_key_value_heads") or query
    width = first(c, "head_dim", "attention_head_dim") or first(c, "hidden_size", "n_embd") // query
    latent, per_head = 0, 2 * width
    if c.get("kv_lora_rank"):
        latent = c["kv_lora_rank"] + c["qk_rope_head_dim"]
        value = c.get("v_head_dim") or c["hidden_size"] // query
        per_head = c["qk_nope_head_dim"] + c["qk_rope_head_dim"] + value
    attending = len(attention_layers(c, layers))
    windowed = windows(c, kind, layers)
    window = c["sliding_window"] if windowed else 0
    state = state_bytes(c, kind, layers - attending) if attending < layers else 0
    return Geometry(layers, attending, windowed, window, query, kv, width, latent, per_head, state)


def attention_layers(c: dict[str, Any], layers: int) -> list[int]:
    every = range(layers)
    if "hybrid_override_pattern" in c:
        return [i for i, letter in enumerate(c["hybrid_override_pattern"]) if letter == "*"]
    if "attn_layer_period" in c:
        return [i for i in every if i % c["attn_layer_period"] == c["attn_layer_offset"]]
    if "attn_layer_indices" in c:
        return list(c["attn_layer_indices"])
    kinds = c.get("layer_types") or []
    if {"mamba", "linear_attention"} & set(kinds):
        return [i for i, k in enumerate(kinds) if k in ("attention", "full_attention")]
    if "full_attention_interval" in c:
        return [i for i in every if (i + 1) % c["full_attention_interval"] == 0]
    return list(every)


def windows(c: dict[str, Any], kind: str | None, layers: int) -> int:
    kinds = c.get("layer_types") or []
    if "sliding_attention" in kinds:
        return kinds.count("sliding_attention")
    if kind == "gemma2":  # every other layer, the first of them
        return (layers + 1) // 2
    if kind == "gemma3_text":  # all but every sixth
        return layers - layers // (c.get("sliding_window_pattern") or 6)
    return layers if kind in ("mistral", "starcoder2") and c.get("sliding_window") else 0


def state_bytes(c: dict[str, Any], kind: str | None, others: int) -> int:
    """State of all layers that keep one: a convolution's last columns in 16 bit, the rest in float32."""
    if kind == "jamba":
        inner = c["mamba_expand"] * c["hidden_size"]
        return others * (inner * (c["mamba_d_conv"] - 1) * 2 + inner * c["mamba_d_state"] * 4)
    if "linear_num_value_heads" in c:
        keys = c["linear_num_key_heads"] * c["linear_key_head_dim"]
        values = c["linear_num_value_heads"] * c["linear_value_head_dim"]
        tail = (2 * keys + values) * (c["linear_conv_kernel_dim"] - 1) * 2
        return others * (tail + values * c["linear_key_head_dim"] * 4)
    heads = first(c, "mamba_n_heads", "mamba_num_heads")
    inner = heads * first(c, "mamba_d_head", "mamba_head_dim")
    state, groups = first(c, "mamba_d_state", "ssm_state_size"), first(c, "mamba_n_groups", "n_groups")
    kernel = first(c, "mamba_d_conv", "conv_kernel")
    mixers = c["hybrid_override_pattern"].count("M") if "hybrid_override_pattern" in c else others
    return mixers * ((inner + 2 * groups * state) * (kernel - 1) * 2 + inner * state * 4)


@dataclass(frozen=True)
class Weights:
    """Parameters: what a token passes in the layers, the head, what a step reads, all of them."""

    token: int
    head: int
    read: int
    total: int


@functools.cache
def weights(id: str) -> Weights:
    """Of a Llama-like model, with experts or without, in 16 bit."""
    c, g = config(id), geometry(id)
    hidden, layers, kind = c["hidden_size"], g.layers, c["model_type"]
    bias = kind == "qwen2"
    q, kv = g.query_heads * g.width, g.kv_heads * g.width
    attention = (hidden + bias) * (q + 2 * kv) + q * hidden
    norms = 2 * hidden + (2 * g.width if kind.startswith("qwen3") else 0)
    experts = first(c, "num_local_experts", "num_experts")
    wide = first(c, "moe_intermediate_size", "intermediate_size") if experts else c["intermediate_size"]
    one, router = 3 * hidden * wide, hidden * (experts or 0)
    used = one * (c["num_experts_per_tok"] if experts else 1)
    held = one * (experts or 1)
    head = c["vocab_size"] * hidden
    table = 0 if c.get("tie_word_embeddings") else head
    token = layers * (attention + router + used)
    return Weights(
        token=token,
        head=head,
        read=token + layers * norms + hidden + head,
        total=layers * (attention + norms + router + held) + hidden + head + table,
    )


@functools.cache
def accelerators() -> dict[str, dict[str, Any]]:
    rows = json.loads((FACTS / "accelerators.json").read_text("utf-8"))["gpus"]
    return {row["key"]: row for row in rows}


def bandwidth(key: str) -> float:
    return float(accelerators()[key]["mem_bw_gbps"]) * 1e9


def peak(key: str, compute: str = "bf16") -> float:
    return float(accelerators()[key]["dense_tflops"][compute]) * 1e12
