"""A GGUF file's keys as a log shows them: those the loader lists, and what `print_info` says of the model."""

from __future__ import annotations

import json
from typing import Any

from kvplan.observe.startup import StartUp

# What print_info says, by the key that the loader would have listed, without the architecture before it.
_INFO = {
    "n_ctx_train": "context_length",
    "n_embd": "embedding_length",
    "n_layer": "block_count",
    "n_head": "attention.head_count",
    "n_head_kv": "attention.head_count_kv",
    "n_embd_head_k": "attention.key_length",
    "n_embd_head_v": "attention.value_length",
    "n_ff": "feed_forward_length",
    "n_expert": "expert_count",
    "n_expert_used": "expert_used_count",
    "n_vocab": "vocab_size",
    "n_swa": "attention.sliding_window",
    "ssm_d_conv": "ssm.conv_kernel",
    "ssm_d_inner": "ssm.inner_size",
    "ssm_d_state": "ssm.state_size",
    "ssm_dt_rank": "ssm.time_step_rank",
    "ssm_n_group": "ssm.group_count",
    "n_lora_kv": "attention.kv_lora_rank",
    "n_rot": "rope.dimension_count",
}
_ZERO_IS_NONE = (
    "n_swa", "n_expert", "n_expert_used", "ssm_d_conv", "ssm_d_inner", "ssm_d_state", "ssm_dt_rank",
    "ssm_n_group", "n_lora_kv",
)  # fmt: skip
_MOST_KEYS = 2000


def metadata_of(startup: StartUp) -> dict[str, object]:
    """The keys of the last file that was loaded; empty where the log shows none."""
    loads = [i for i, hit in enumerate(startup.hits) if "model" in hit.values]
    start = loads[-1] if loads and not startup.drafting else loads[0] if loads else 0
    end = loads[1] if startup.drafting and len(loads) > 1 else len(startup.hits)
    listed: dict[str, object] = {}
    info: dict[str, str] = {}
    for hit in startup.hits[start:end]:
        if "gguf_key" in hit.values and len(listed) < _MOST_KEYS:
            value = _value(str(hit.values["gguf_kind"]), str(hit.values["gguf_value"]))
            if value is not None:
                listed[str(hit.values["gguf_key"])] = value
        elif "info_key" in hit.values and len(info) < _MOST_KEYS:
            info.setdefault(str(hit.values["info_key"]).strip(), str(hit.values["info_value"]))
    arch = str(listed.get("general.architecture") or info.get("arch") or "")
    if not arch:
        return {}
    return {**_from_info(arch, info), **listed, "general.architecture": arch}


def _value(kind: str, text: str) -> object | None:
    """A key's value; None for lists that the log does not show whole."""
    if kind == "str":
        return text
    if kind.startswith("arr") and ("..." in text or "str" in kind):
        return None
    try:
        found: object = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found


def _from_info(arch: str, info: dict[str, str]) -> dict[str, object]:
    found: dict[str, Any] = {}
    for name, key in _INFO.items():
        if name not in info:
            continue
        value = _value("arr" if info[name].startswith("[") else "u32", info[name])
        if value is None or (name in _ZERO_IS_NONE and value == 0):
            continue
        found[f"{arch}.{key}"] = value
    if "general.name" in info:
        found["general.name"] = info["general.name"]
    return found
