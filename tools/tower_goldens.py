"""Write tests/golden/towers.jsonl: what transformers builds beside the text decoder, by count.

Run where transformers and torch are installed (`pip install transformers==5.24.0 torch`); models are
built on the meta device, so nothing is allocated. One row per built-in model with a tower, an encoder or
a layer that predicts ahead, and one per family of `towers.toml` with its class defaults.
"""

from __future__ import annotations

import copy
import json
import tomllib
from typing import Any

import torch
import transformers
from parameter_goldens import (
    FACTS,
    PREDICTORS,
    ROOT,
    SAME_AS,
    built,
    decoder_parts,
    minimal,
    without_quantization,
)
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.modeling_layers import MtpModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES

GOLDEN = ROOT / "tests" / "golden" / "towers.jsonl"
TOWERS = ("vision_config", "audio_config")


def read_as(raw: dict[str, Any]) -> Any:
    """The type whose class reads that file: ministral3 names the decoder, and files around it too."""
    model_type = raw.get("model_type")
    if model_type == "ministral3" and "vision_config" in raw:
        return "mistral3"
    return SAME_AS.get(model_type, model_type)


def inner(config: Any) -> Any:
    """The part of a config that reads and writes text."""
    return getattr(config, "thinker_config", config)


def beside(model: PreTrainedModel) -> int:
    """Values outside the decoder and its head, layers that predict ahead left out."""
    head = model.get_output_embeddings()
    parts = [*decoder_parts(model), *([head] if head is not None else [])]
    within = {id(value) for part in parts for value in part.parameters()}
    return sum(
        value.numel()
        for name, value in model.named_parameters()
        if id(value) not in within and not PREDICTORS.search(name)
    )


def ahead(model: PreTrainedModel) -> int | None:
    """Values of the layers that predict ahead, or None where transformers cannot build them."""
    text = model.config.get_text_config(decoder=True)
    count = getattr(text, "num_mtp_layers", None)
    if not count:
        return None
    try:
        with torch.no_grad(), init.no_init_weights(), torch.device("meta"):
            layers = MtpModel(model, count)
    except Exception:  # noqa: BLE001 - many classes name the key and build no such layer
        return None
    own = {id(value) for value in model.parameters()}
    return sum(value.numel() for value in layers.parameters() if id(value) not in own)


def row(name: dict[str, Any], config: Any) -> dict[str, Any] | None:
    """One line of the golden file; None for a model that is its decoder and no more."""
    config = inner(config)
    model = built(config)
    towers, mtp = beside(model), ahead(model)
    stated = any(getattr(config, key, None) is not None for key in TOWERS)
    if stated and not towers:
        raise RuntimeError(f"{type(model).__name__} has the decoder only")
    return {**name, "towers": towers, "mtp": mtp} if towers or mtp else None


def stated(model_type: str, config: Any) -> dict[str, Any]:
    """A config that says no more than its class does not: types, and where the wrapper differs."""
    found = minimal(config)
    for key in TOWERS:
        tower = getattr(config, key, None)
        if tower is None:
            continue
        usual = type(tower)().to_dict()
        own = {k: v for k, v in tower.to_dict().items() if not k.startswith("_") and usual.get(k, ...) != v}
        found[key] = {**own, "model_type": tower.model_type}
    return {**found, "model_type": model_type}


def rows() -> list[tuple[dict[str, Any], Any]]:
    """Each row's name, and what makes its config."""
    found: list[tuple[dict[str, Any], Any]] = []
    for line in (FACTS / "models.jsonl").read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        raw = without_quantization(json.loads((FACTS / "models" / entry["file"]).read_text("utf-8")))
        raw["model_type"] = read_as(raw)
        if raw["model_type"] in CONFIG_MAPPING_NAMES:
            make = CONFIG_MAPPING[raw["model_type"]].from_dict
            found.append(({"id": entry["id"]}, lambda make=make, raw=raw: make(raw)))
    families = tomllib.loads((FACTS / "towers.toml").read_text("utf-8"))["families"]
    known = set(families) & set(CONFIG_MAPPING_NAMES)
    names = sorted(name for name in known if f"{name}_thinker" not in known)
    return found + [({"model_type": name}, CONFIG_MAPPING[name]) for name in names]


def main() -> None:
    """Write every row that can be built, and name the others."""
    made, left_out = [], []
    for name, make in rows():
        try:
            config = make()
            whole = name if "id" in name else {"config": stated(config.model_type, config)}
            found = row(whole, copy.deepcopy(config))
        except Exception as error:  # noqa: BLE001 - said at the end
            left_out.append(f"{next(iter(name.values()))}: {str(error).splitlines()[0][:100]}")
            continue
        made += [found] if found else []
    head = {"source": f"transformers {transformers.__version__}, meta device; MtpModel for mtp"}
    GOLDEN.write_text("".join(f"{json.dumps(line)}\n" for line in [head, *made]), encoding="utf-8")
    print(len(made), "rows; left out:", *left_out, sep="\n  ")


if __name__ == "__main__":
    main()
