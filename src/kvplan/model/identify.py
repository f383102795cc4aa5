"""Which part of a config is the text decoder, and which model type's data reads it."""

from __future__ import annotations

from typing import Any

from kvplan.errors import BadConfig, shown
from kvplan.facts.model_types import Spec, is_encoder, is_known, spec_of, text_types, with_defaults

_NESTS = (
    "text_config",
    "llm_config",
    "language_config",
    "llm_cfg",
    "thinker_config",
    "text",
    "text_model_config",
)
_MAX_DEPTH = 6


def text_part(raw: dict[str, Any], file: str) -> tuple[dict[str, Any], str]:
    """The decoder's own table: nested under one of several names, or the top level."""
    here, path = raw, ""
    for _ in range(_MAX_DEPTH):
        name = next((n for n in _NESTS if isinstance(here.get(n), dict) and here[n]), None)
        if name is None:
            return here, path
        here, path = here[name], f"{path}{name}."
    raise BadConfig(f"{path[:-1]}: nested more than {_MAX_DEPTH} deep in {file}; correct the file")


def spec_for(raw: dict[str, Any], text: dict[str, Any], file: str) -> tuple[str, Spec, list[str]]:
    """The decoder's model type, how it spells its layers, and what had to be assumed."""
    outer, inner = _named_type(raw, file), _named_type(text, file)
    if inner is None and text is not raw:
        inner = text_types().get(outer or "")
    if text is raw and outer is not None and not is_known(outer):
        inner = text_types().get(outer, outer)
    for name in (inner,) if inner else (outer,):
        if name is not None and is_known(name):
            return name, spec_of(name), []
    return _unknown(inner or outer, text, file)


def _named_type(raw: dict[str, Any], file: str) -> str | None:
    name = raw.get("model_type")
    if name is not None and not isinstance(name, str):
        raise BadConfig(f"model_type: {shown(name)} in {file}; expected a name in quotes")
    return name or None


def _unknown(name: str | None, text: dict[str, Any], file: str) -> tuple[str, Spec, list[str]]:
    """An unknown type is read by its keys; the note names what was assumed."""
    seen: list[str] = []
    if is_encoder(name or ""):
        like = "bert"
        seen.append("an encoder, which keeps no cache, with BERT's weights")
    elif text.get("kv_lora_rank"):
        like = "deepseek_v3" if text.get("n_routed_experts") else "minicpm3"
        seen.append("latent attention from kv_lora_rank")
    elif text.get("linear_num_value_heads"):
        like = "qwen3_next"
        seen.append("gated delta net layers from linear_num_value_heads")
    elif text.get("hybrid_override_pattern"):
        like = "nemotron_h"
        seen.append("layers from hybrid_override_pattern")
    elif "state_size" in text and not text.get("num_attention_heads"):
        like = "mamba2" if text.get("n_groups") else "mamba"
        seen.append("a recurrent state from state_size")
    else:
        like = "unknown"
        seen.append("a Llama-like decoder: grouped attention, gated feed-forward, two norms a layer")
    if text.get("layer_types"):
        seen.append("layer kinds from layer_types")
    elif text.get("sliding_window") and like == "unknown":
        seen.append("the window on every layer" if text.get("use_sliding_window", True) else "no window")
    return (
        name or "unknown",
        with_defaults(spec_of(like), name or ""),
        [
            f"model_type {shown(name)[1:-1] if name else 'absent'} in {file} is not known; "
            f"read by its keys: {'; '.join(seen)}"
        ],
    )
