"""Write facts/class_defaults.json: what transformers' config classes put in place of absent keys.

Run where transformers is installed (`pip install transformers==5.24.0`); torch is not needed.
Only keys that some model type or quantity of kvplan names are kept, so the file stays small.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import pkgutil
import re
import tomllib
from pathlib import Path
from typing import Any

import transformers
from transformers import PretrainedConfig
from transformers.models.auto import modeling_auto as auto

FACTS = Path(__file__).parents[1] / "src" / "kvplan" / "facts"
LAYERS = {"num_hidden_layers", "n_layer", "num_layers", "decoder_layers", "n_layers", "layers_block_type"}
HOLDS_ANOTHER = {"shieldgemma2"}  # a classifier around a whole Gemma 3, whose own rule decides
EXTRA = {"max_position_embeddings", "rope_parameters", "rope_scaling"}


def strings(tree: Any) -> set[str]:
    """Every string in a TOML tree."""
    if isinstance(tree, dict):
        return set().union(*(strings(value) for value in tree.values()), set())
    if isinstance(tree, list):
        return set().union(*(strings(value) for value in tree), set())
    return {tree} if isinstance(tree, str) else set()


def vocabulary() -> set[str]:
    """The config keys that kvplan may read."""
    files = [FACTS / "keys.toml", *sorted((FACTS / "model_types").glob("*.toml"))]
    found = set().union(*(strings(tomllib.loads(f.read_text(encoding="utf-8"))) for f in files))
    for file in (FACTS.parent / "model").glob("*.py"):
        found |= set(re.findall(r'"([A-Za-z_][\w.]+)"', file.read_text(encoding="utf-8")))
    return found | {key.split(".")[0] for key in found} | EXTRA


def config_classes() -> list[type[PretrainedConfig]]:
    """Every config class that transformers ships."""
    found: dict[str, type[PretrainedConfig]] = {}
    for package in pkgutil.iter_modules(transformers.models.__path__, "transformers.models."):
        for module in pkgutil.iter_modules(
            importlib.import_module(package.name).__path__, f"{package.name}."
        ):
            if not module.name.rpartition(".")[2].startswith("configuration_"):
                continue
            for item in vars(importlib.import_module(module.name)).values():
                if isinstance(item, type) and issubclass(item, PretrainedConfig) and item.model_type:
                    found.setdefault(item.model_type, item)
    return [found[name] for name in sorted(found)]


def defaults_of(cls: type[PretrainedConfig], wanted: set[str]) -> dict[str, Any]:
    """The class's own field defaults, before __post_init__ derives one key from another."""
    defaults = {}
    for field in dataclasses.fields(cls):
        value = field.default
        if value is dataclasses.MISSING and field.default_factory is not dataclasses.MISSING:
            value = field.default_factory()
        if field.name in wanted and isinstance(value, (bool, int, float, str, list)):
            defaults[field.name] = value
    for alias, target in cls.attribute_map.items():
        if alias in wanted and target in defaults:
            defaults.setdefault(alias, defaults[target])
    for key in sorted(key for key in wanted if "." in key):
        value = nested(cls, key)
        if value is not None:
            defaults[key] = value
    return defaults


def nested(cls: type[PretrainedConfig], path: str) -> Any:
    """The default of a key inside a part of the config, such as attn_config.kv_n_heads."""
    first = path.split(".")[0]
    part = (cls.sub_configs or {}).get(first)
    if part is None:
        return None
    here: Any = part()
    for step in path.split(".")[1:]:
        here = getattr(here, step, None)
    return here if isinstance(here, (bool, int, float, str)) else None


def decoder_type(cls: type[PretrainedConfig]) -> str | None:
    """The decoder's model type when a multimodal config does not name it."""
    for key in ("text_config", "llm_config", "language_config", "thinker_config"):
        if key not in (cls.sub_configs or {}):
            continue
        try:
            inner = getattr(cls(), key).get_text_config(decoder=True)
        except Exception as error:  # noqa: BLE001 - some classes have no working defaults
            print(cls.model_type, "has no default text config:", str(error).splitlines()[0])
            inner = cls.sub_configs[key]
        name = getattr(inner, "model_type", "")
        if name and name != cls.model_type:
            return str(name)
    return None


def encoders() -> list[str]:
    """Types with a head that fills in masked words and none that continues a text."""
    decoders = (
        auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
        auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    )
    return sorted(set(auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES) - set().union(*decoders))


def main() -> None:
    """Write the file and say how much is in it."""
    wanted = vocabulary()
    types: dict[str, Any] = {}
    text_types: dict[str, str] = {}
    ties: dict[str, bool] = {}
    for cls in config_classes():
        defaults = defaults_of(cls, wanted)
        if LAYERS & {field.name for field in dataclasses.fields(cls)} | LAYERS & set(defaults):
            types[cls.model_type] = defaults
        inner = decoder_type(cls)
        if inner:
            text_types[cls.model_type] = inner
            tie = getattr(cls.sub_configs.get("thinker_config", cls), "tie_word_embeddings", None)
            if isinstance(tie, bool) and cls.model_type not in HOLDS_ANOTHER:
                ties[cls.model_type] = tie
    document = {
        "source": f"transformers {transformers.__version__}",
        "text_types": text_types,
        "wrapper_ties": ties,
        "encoders": encoders(),
        "types": types,
    }
    lines = [f"  {json.dumps(k)}: {json.dumps(v, sort_keys=True)}" for k, v in sorted(types.items())]
    head = json.dumps({k: v for k, v in document.items() if k != "types"}, indent=1)[:-2]
    (FACTS / "class_defaults.json").write_text(head + ',\n "types": {\n' + ",\n".join(lines) + "\n }\n}\n")
    print(len(types), "types,", len(text_types), "wrappers")


if __name__ == "__main__":
    main()
