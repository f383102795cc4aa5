"""Write tests/golden/parameters.jsonl: exact parameter counts and cache layers, from transformers.

Run where transformers and torch are installed (`pip install transformers==5.24.0 torch`); models are
built on the meta device, so nothing is allocated. One row per built-in model that transformers knows
and one per model type with its class defaults; rows that cannot be built are named and left out.
"""

from __future__ import annotations

import copy
import importlib
import json
import re
import sys
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import DynamicCache, PreTrainedModel
from transformers import initialization as init
from transformers.models.auto import modeling_auto as auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "src"))
from kvplan.facts.model_types import is_known, text_types  # noqa: E402
from kvplan.facts.store import ROOT as FACTS  # noqa: E402

GOLDEN = ROOT / "tests" / "golden" / "parameters.jsonl"
MAPPINGS = (
    auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES,
    auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES,
    auto.MODEL_FOR_PRETRAINING_MAPPING_NAMES,
)
PREDICTORS = re.compile(r"(^|\.)(mtp\w*|nextn\w*|eagle\w*|\w*_mtp)(\.|$)")
# What a class needs stated because its own defaults cannot be built.
NEEDED: dict[str, dict[str, Any]] = {
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128},
    "ministral": {"head_dim": 128},
    "nemotron": {"num_key_value_heads": 48},
    "dots1": {
        "n_routed_experts": 128,
        "n_shared_experts": 2,
        "num_experts_per_tok": 6,
        "first_k_dense_replace": 1,
    },
    "lfm2_moe": {"layer_types": ["conv", "conv", "full_attention", "conv"] * 8},
    "dbrx": {"attn_config": {"kv_n_heads": 8, "rope_theta": 500000.0, "clip_qkv": 8}},
    "qwen4_exp_text": {
        "indexer_n_heads": 16,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 256,
        "indexer_budget": 2048,
        "indexer_compress_ratio": 4,
    },
}
# Published types that run their own code, and the class that builds the same decoder.
SAME_AS = {"kimi_k2": "deepseek_v3", "mimo": "qwen2", "phi3_v": "phi3", "deepseek_ref": "deepseek_v4"}
WORDS = {
    "DynamicLayer": "full",
    "DynamicIndexedLayer": "full",
    "DynamicSlidingWindowLayer": "sliding",
    "UnlimitedOcrDynamicReferenceSlidingWindowLayer": "sliding",
    "LinearAttentionLayer": "state",
    "LinearAttentionAndFullAttentionLayer": "full+state",
    "LinearAttentionAndSlidingWindowAttentionLayer": "sliding+state",
    "DeepseekV4HCACache": "sliding+compressed",
    "DeepseekV4CSACache": "sliding+compressed",
    "DummyLayer": "none",
}


def model_class(config: Any) -> list[type[PreTrainedModel]]:
    """The classes that can build that config, language-model heads first."""
    model_type = type(config).model_type
    nested = config.get_text_config(decoder=True) is not config and not config.is_encoder_decoder
    mappings = MAPPINGS if not config.is_encoder_decoder else MAPPINGS[3:]
    found = []
    for mapping in mappings if not nested else (*MAPPINGS[1:3], *MAPPINGS):
        names = mapping.get(model_type) or ()
        for name in [names] if isinstance(names, str) else names:
            cls = getattr(transformers, name, None) or from_module(config, name)
            if cls is not None and cls not in found:
                found.append(cls)
    return found


def from_module(config: Any, name: str) -> Any:
    """A class that the package does not export at the top."""
    module = type(config).__module__.replace("configuration_", "modeling_")
    return getattr(importlib.import_module(module), name, None)


def built(config: Any) -> PreTrainedModel:
    """The model on the meta device."""
    error: Exception | None = None
    for cls in model_class(config):
        try:
            with (
                torch.no_grad(),
                init.no_init_weights(),
                torch.device("meta"),
                init.meta_device_safe_creation_ops(),
            ):
                model = cls(copy.deepcopy(config))
            model.tie_weights()
        except Exception as failed:  # noqa: BLE001 - the next class may fit
            error = failed
        else:
            return model
    text = config.get_text_config(decoder=True)
    if text is not config and text.model_type in MAPPINGS[0]:  # its vision part needs another package
        return built(text)
    raise RuntimeError(f"no class builds {type(config).__name__}: {error}")


def decoder_parts(model: PreTrainedModel) -> list[torch.nn.Module]:
    """The text decoder inside a model: all of it, one half, or one submodule."""
    config = model.config
    if config.is_encoder_decoder:
        named = [
            (n, m) for n, m in model.named_modules() if n.split(".")[-1] == "decoder" and n.count(".") < 2
        ]
        return [named[0][1]]
    text = config.get_text_config(decoder=True)
    if text is config:
        return [model]
    inner = [(n, m) for n, m in model.named_modules() if n and isinstance(m, PreTrainedModel)]
    hits = [x for x in inner if x[1].config is text] or [x for x in inner if type(x[1].config) is type(text)]
    return [m for n, m in hits if not any(n.startswith(f"{other}.") for other, _ in hits if other != n)]


def parameters(model: PreTrainedModel) -> int:
    """Values of the decoder and its head, tied ones once, layers that predict ahead left out."""
    sizes: dict[int, int] = {}
    parts = decoder_parts(model)
    head = model.get_output_embeddings()
    for part in [*parts, *([head] if head is not None else [])]:
        for name, value in part.named_parameters():
            if not PREDICTORS.search(name):
                sizes[id(value)] = value.numel()
    return sum(sizes.values())


def layers(config: Any) -> list[list[Any]]:
    """Runs of [how many, kind, window]: what a DynamicCache of that config holds."""
    cache = DynamicCache(config=config)
    kinds = []
    for layer in cache.layers:
        word = WORDS[type(layer).__name__]
        kinds.append((word, getattr(layer, "sliding_window", None) if "sliding" in word else None))
    return [[len(list(run)), *kind] for kind, run in groupby(kinds)]


def row(name: dict[str, Any], config: Any) -> dict[str, Any]:
    """One line of the golden file."""
    config = getattr(config, "thinker_config", config)
    return {**name, "parameters": parameters(built(config)), "layers": layers(config)}


def without_quantization(raw: Any) -> Any:
    """The config with what would make transformers ask for a quantised model removed."""
    if not isinstance(raw, dict):
        return raw
    dropped = {"quantization_config", "compression_config", "attn_implementation", "_attn_implementation"}
    return {k: without_quantization(v) for k, v in raw.items() if k not in dropped}


def minimal(config: Any) -> dict[str, Any]:
    """What must be stated to get that default config: its type, and its decoder's own values."""
    needed = NEEDED.get(config.model_type, {})
    text = config.get_text_config(decoder=True)
    if text is config or config.is_encoder_decoder:
        return {"model_type": config.model_type, **needed}
    usual = type(text)().to_dict()
    derived = ("head_dim", "num_key_value_heads")
    own = {
        k: v
        for k, v in text.to_dict().items()
        if not k.startswith("_") and (usual.get(k, ...) != v or (k in derived and v is not None))
    }
    return {"model_type": config.model_type, "text_config": {**own, "model_type": text.model_type}}


def catalogue_rows() -> list[tuple[dict[str, Any], Any]]:
    """The built-in models of a type that transformers has a class for."""
    found = []
    for line in (FACTS / "models.jsonl").read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        raw = without_quantization(json.loads((FACTS / "models" / entry["file"]).read_text("utf-8")))
        raw["model_type"] = SAME_AS.get(raw.get("model_type"), raw.get("model_type"))
        if raw["model_type"] in CONFIG_MAPPING_NAMES:
            found.append(
                ({"id": entry["id"]}, lambda raw=raw: CONFIG_MAPPING[raw["model_type"]].from_dict(raw))
            )
    return found


def default_rows() -> list[tuple[dict[str, Any], Any]]:
    """The model types kvplan has a file for, with their class defaults."""
    names = sorted(set().union(*MAPPINGS[:5]))
    known = [n for n in names if is_known(n) or is_known(text_types().get(n))]
    return [
        ({"model_type": n}, lambda n=n: CONFIG_MAPPING[n](**copy.deepcopy(NEEDED.get(n, {})))) for n in known
    ]


def main() -> None:
    """Write every row that can be built, and name the others."""
    made, left_out = [], []
    for name, make in [*catalogue_rows(), *default_rows()]:
        try:
            config = make()
            stated = name if "id" in name else {"config": minimal(config)}
            made.append(row(stated, config))
        except Exception as error:  # noqa: BLE001 - said at the end
            left_out.append(f"{next(iter(name.values()))}: {str(error).splitlines()[0][:100]}")
    head = {"source": f"transformers {transformers.__version__}, meta device"}
    GOLDEN.write_text("".join(f"{json.dumps(line)}\n" for line in [head, *made]), encoding="utf-8")
    print(len(made), "rows; left out:", *left_out, sep="\n  ")


if __name__ == "__main__":
    main()
