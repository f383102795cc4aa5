"""Bytes that one head keeps of one token, by --kv-cache-dtype; and which dtype `auto` means.

vLLM 0.32.0 v1/kv_cache_interface.py, v1/attention/backend.py customize_spec, utils/torch_utils.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvplan.engines.vllm_version import Rules
from kvplan.errors import BadInput, UnknownName, did_you_mean, shown

VALUE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "uint8": 1, "float8_e4m3fn": 1}
_ALIASES = {"half": "float16", "float": "float32", "fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
_FP8 = ("fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc")
_HEAD_SCALES = {"int8_per_token_head": 8, "fp8_per_token_head": 8, "int4_per_token_head": 4}
_SCALE_BYTES = 4
_TURBO = {"k8v4": (8, 4), "4bit_nc": (4, 4), "k3v4_nc": (3, 4), "3bit_nc": (3, 3)}
_OPAQUE = {"fp8_ds_mla": 656, "nvfp4_ds_mla": 352}
KNOWN = (
    "auto",
    *VALUE_BYTES,
    *_FP8,
    *_HEAD_SCALES,
    *(f"turboquant_{name}" for name in _TURBO),
    "nvfp4",
    *_OPAQUE,
)


def dtype_named(name: str) -> str:
    """The dtype that a name or alias means."""
    found = _ALIASES.get(name, name.removeprefix("torch."))
    if found not in VALUE_BYTES:
        hint = did_you_mean(name, VALUE_BYTES) or "use float16, bfloat16 or float32"
        raise UnknownName(f"--dtype: {shown(name)} is not known; {hint}")
    return found


def cache_dtype(given: str, quantization: Mapping[str, Any] | None, rules: Rules) -> str:
    """What the cache is stored as: as given, else as the checkpoint names, else `auto`, the model's dtype."""
    if given not in KNOWN:
        hint = did_you_mean(given, KNOWN) or f"use one of {', '.join(KNOWN)}"
        raise UnknownName(f"--kv-cache-dtype: {shown(given)} is not known to vllm; {hint}")
    if given != "auto" or not quantization or not rules.checkpoint_kv_dtype:
        return given
    return checkpoint_dtype(quantization)


def checkpoint_dtype(quantization: Mapping[str, Any]) -> str:
    """The cache format that a checkpoint's own quantisation config names, or `auto`."""
    method = str(quantization.get("quant_method", ""))
    inner = quantization.get("quantization")
    tables = [t for t in (inner, quantization) if isinstance(t, Mapping)]
    keys = ["kv_cache_scheme"]
    if method.startswith("modelopt"):
        keys.append("kv_cache_quant_algo")
    found = next((t[key] for key in keys for t in tables if t.get(key)), None)
    if isinstance(found, Mapping):
        bits, dynamic = found.get("num_bits"), found.get("dynamic")
        if found.get("type") != "float":
            return "auto"
        return "fp8" if bits == 8 and not dynamic else "nvfp4" if bits == 4 else "auto"
    if isinstance(found, str):
        return {"fp8": "fp8", "fp8_e4m3": "fp8", "nvfp4": "nvfp4"}.get(found.lower(), "auto")
    return "auto"


def value_bytes(cached: str, model_dtype: str) -> int:
    """Bytes of one value where the format has no scales of its own."""
    if cached == "auto":
        return VALUE_BYTES[dtype_named(model_dtype)]
    return 1 if cached in _FP8 else VALUE_BYTES[cached]


def head_bytes(key: int, value: int, cached: str, model_dtype: str) -> int:
    """Bytes of one token's key and value vectors of one head, scales kept beside them included."""
    if cached in _HEAD_SCALES:
        bits = _HEAD_SCALES[cached]
        return key * bits // 8 + value * bits // 8 + 2 * _SCALE_BYTES
    if cached == "nvfp4":
        return sum(width // 2 + width // 16 for width in (key, value))
    if cached.startswith("turboquant_"):
        key_bits, value_bits = _TURBO[cached.removeprefix("turboquant_")]
        keys = key if key_bits == 8 else -(-key * key_bits // 8) + 2
        slot = keys + -(-value * value_bits // 8) + 4
        return slot + slot % 2
    if cached in _OPAQUE:
        raise BadInput(
            f"--kv-cache-dtype: {cached} is a layout of latent attention, which this model has not"
        )
    return (key + value) * value_bytes(cached, model_dtype)


def latent_bytes(width: int, cached: str, model_dtype: str) -> int:
    """Bytes of one token's latent vector."""
    if cached in _OPAQUE:
        return _OPAQUE[cached]
    if cached in _HEAD_SCALES:
        return width * _HEAD_SCALES[cached] // 8 + 2 * _SCALE_BYTES
    if cached == "nvfp4":
        return width // 2 + width // 16
    return width * value_bytes(cached, model_dtype)


def stored_dtype(cached: str, model_dtype: str) -> str:
    """The torch dtype that vLLM prints of the cache."""
    if cached == "auto":
        return dtype_named(model_dtype)
    return cached if cached in VALUE_BYTES else "uint8"
