"""Run small random models in transformers and say what their caches hold, in bytes.

Usage: PYTHON ask_transformers.py CASES.json, a list of {"config", "tokens", "steps", "batch", "cache"}.
Prints the version, then one JSON line a case: bytes of every kind of tensor, as shaped and as stored.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import transformers

warnings.filterwarnings("ignore")
transformers.logging.set_verbosity_error()


def tensors_of(value: Any) -> list[torch.Tensor]:
    """Every tensor below an attribute of a cache layer, quantised ones as what they are made of."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        return [t for one in value.values() for t in tensors_of(one)]
    if isinstance(value, (list, tuple)):
        return [t for one in value for t in tensors_of(one)]
    return []


def held(cache: Any) -> dict[str, int]:
    """Bytes by attribute over all layers, and what their storages take (`stored`)."""
    found: dict[str, int] = {}
    storages: dict[int, int] = {}
    caches = [cache]
    if hasattr(cache, "self_attention_cache"):
        caches = [cache.self_attention_cache, cache.cross_attention_cache]
    for number, one in enumerate(caches):
        for layer in one.layers:
            for name, value in vars(layer).items():
                if name.startswith("_sliding") or "position" in name:
                    continue
                for tensor in tensors_of(value):
                    key = ("cross_" if number else "") + name.lstrip("_")
                    found[key] = found.get(key, 0) + tensor.numel() * tensor.element_size()
                    storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
    found["stored"] = sum(size for where, size in storages.items() if where)
    return found


def made(case: dict[str, Any], config: Any) -> Any:
    """An empty cache of the kind asked for."""
    kind = case.get("cache", "dynamic")
    if kind == "static":
        return transformers.StaticCache(config=config, max_cache_len=case["max_cache_len"])
    if kind == "fp8":
        return transformers.QuantizedCache("fp8", config)
    return transformers.DynamicCache(config=config)


def answer(case: dict[str, Any]) -> dict[str, Any]:
    """What one model's cache holds after a prompt and after some steps more."""
    torch.manual_seed(0)
    given = dict(case["config"])
    config = transformers.AutoConfig.for_model(given.pop("model_type"), **given)
    auto = (
        transformers.AutoModelForSeq2SeqLM if config.is_encoder_decoder else transformers.AutoModelForCausalLM
    )
    model = auto.from_config(config).to(torch.bfloat16).eval()
    ids = torch.randint(3, config.get_text_config().vocab_size, (case.get("batch", 1), case["tokens"]))
    with torch.no_grad():
        if config.is_encoder_decoder:
            start = ids[:, : case["steps"]]
            out = model(input_ids=ids, decoder_input_ids=start, use_cache=True)
            return {"after": held(out.past_key_values)}
        cache = made(case, config)
        name = "cache_params" if config.model_type in ("mamba", "mamba2") else "past_key_values"
        model(input_ids=ids, use_cache=True, **{name: cache})
        prompt = held(cache)
        for _ in range(case["steps"]):
            model(input_ids=ids[:, :1], use_cache=True, **{name: cache})
    return {"prompt": prompt, "after": held(cache)}


def main() -> None:
    """Answer every case of the file given."""
    print(json.dumps({"version": transformers.__version__}), flush=True)  # noqa: T201
    for case in json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")):
        try:
            found = answer(case)
        except Exception as error:  # noqa: BLE001
            found = {"error": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps(found), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
