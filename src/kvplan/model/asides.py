"""What engines read of a config beside its layers: dtype, quantisation, idle windows, positions."""

from __future__ import annotations

from typing import Any

from kvplan.errors import BadConfig, shown
from kvplan.model.keys import Keys


def asides(keys: Keys) -> dict[str, Any]:
    """Fields of `Model`: windows that do nothing, dtypes and chunks of states, whether positions rotate."""
    window, dtype = keys.find("sliding_window", ["sliding_window"]), None
    for key in ("mamba_ssm_dtype", "mamba_ssm_cache_dtype"):
        dtype = dtype or keys.text(key)
    chunk = keys.find("chunk", ["mamba_chunk_size", "chunk_size"])
    scaling = keys.raw.get("rope_parameters") or keys.raw.get("rope_scaling") or {}
    kind = scaling.get("rope_type", scaling.get("type")) if isinstance(scaling, dict) else None
    trained = keys.raw.get("original_max_position_embeddings") if kind in ("longrope", "su") else None
    off = keys.find("use_sliding_window", ["use_sliding_window"])
    return {
        "trained_context": trained if type(trained) is int and trained > 0 else None,
        "stated_window": window[1] if window and type(window[1]) is int and window[1] > 0 else None,
        "rotary": _rotates(keys),
        "window_off": off is not None and off[1] is False,
        "state_dtype": dtype or "",
        "state_chunk": chunk[1] if chunk and type(chunk[1]) is int and chunk[1] > 0 else None,
    }


def _rotates(keys: Keys) -> bool:
    """Whether attention takes positions from a rotary table: as the type says, or as its key does."""
    rule = keys.spec.get("rotary", True)
    if not isinstance(rule, dict):
        return bool(rule)
    read = keys.find(rule["key"], [rule["key"]])
    value = read[1] if read is not None else None
    return bool(value == rule["is"] if "is" in rule else value != rule["is_not"])


def dtype_of(raw: dict[str, Any], text: dict[str, Any], file: str) -> str:
    """The name of the dtype a config states for its weights, empty where it states none."""
    for table in (text, raw):
        for key in ("dtype", "torch_dtype"):
            value = table.get(key)
            if isinstance(value, str) and value:
                return value.removeprefix("torch.")
            if value is not None and not isinstance(value, str):
                raise BadConfig(f"{key}: {shown(value)} in {file}; expected a name such as bfloat16")
    return ""


def quantization_config(
    raw: dict[str, Any], keys: Keys, sidecar: dict[str, Any] | None
) -> dict[str, Any] | None:
    """The quantisation config as stated, or that of a hf_quant_config.json in its place."""
    text = keys.raw
    for table in (text, raw):
        for key in ("quantization_config", "compression_config"):
            value = table.get(key)
            if value is not None and not isinstance(value, dict):
                raise keys.wrong(key, value, "expected an object or null")
            if value is not None:
                experts = {"expert_dtype": text["expert_dtype"]} if "expert_dtype" in text else {}
                return {**experts, **value}
    if sidecar and isinstance(sidecar.get("quantization"), dict):
        return {"quant_method": "modelopt", **sidecar["quantization"]}
    return None
