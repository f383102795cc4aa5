"""Logged weight figures beside predicted ones, for the test that holds them and the page that shows them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from conftest import lines
from kvplan.cost.weights import Split
from kvplan.engines.loaded import as_loaded, weights_on_rank
from kvplan.figure import bare
from kvplan.model.model import Model
from kvplan.verbs.given import given_model

GiB = 2**30
TOLERANCE = 0.02

# What --quantization stands for where a log's words differ from the flag's.
FLAGS = {
    "compressed-tensors fp8": "fp8",
    "fp8 (online)": "fp8",
    "fp8": "fp8",
    "nvfp4": "nvfp4",
    "awq": "awq",
    "bitsandbytes 4bit": "bitsandbytes",
    "fbgemm_fp8": "fbgemm_fp8",
    "gguf q8_0": "q8_0",
}

# How checkpoints that are not built in are quantised, where a published log prints it.
CHECKPOINTS: dict[str, dict[str, Any]] = {
    "unsloth/qwen2.5-0.5b-instruct-unsloth-bnb-4bit": {
        "quant_method": "bitsandbytes",
        "load_in_4bit": True,
        "bnb_4bit_use_double_quant": True,
        "llm_int8_skip_modules": [
            "lm_head",
            "multi_modal_projector",
            "merger",
            "modality_projection",
            "model.layers.0.self_attn",
            "model.layers.0.mlp",
            "model.layers.2.mlp",
            "model.layers.3.mlp",
            "model.layers.21.mlp",
            "model.layers.0.self_attn.q_proj",
        ],
    }
}
# What should be known of an agreement.
REMARKS = {
    "vllm-0042": "the modules left in 16 bit are those that vLLM 0.10.0's log of this checkpoint prints; "
    "Unsloth turns vLLM's unpacking of doubly quantised constants off (0.0132 GiB less) and loads a LoRA "
    "adapter's buffers (rank not logged), so agreement shows the modules right and not the constants",
    "vllm-0142": "as vllm-0042: the same checkpoint and figure (0.5151 GiB) on another machine",
}
# Misses, each with its reason.
REASONS = {
    "vllm-0061": "vLLM 0.10.1 used Marlin kernels on this H100, which pad hidden width too; 0.11 does not",
    "vllm-0073": "another repository's NVFP4; which modules it leaves in 16 bit is not known, and an MTP "
    "drafter (4.7 GiB in 16 bit) is loaded beside the model",
    "vllm-0089": "not stated which of two pipeline stages it is; they have 38.4 and 40.9 GiB",
    "vllm-0129": "four ranks is a guess of the record; the checkpoint's 156.3 GiB are 6.9 more than counted",
    "vllm-0130": "a drafter is loaded beside the model; its size is not known",
    "sg-032": "SGLang prints the drop of free memory while loading, workspaces included",
}
# Facts a record leaves out and its notes give.
STATED_IN_NOTES: dict[str, dict[str, Any]] = {"vllm-0129": {"tp": 4}, "vllm-0130": {"tp": 4}}


@dataclass(frozen=True)
class Compared:
    """One record: predicted and logged GiB of weights on a rank."""

    row: dict[str, Any]
    predicted_gib: float

    @property
    def error(self) -> float:
        return self.predicted_gib / float(self.row["weights_gib"]) - 1

    @property
    def agrees(self) -> bool:
        return abs(self.error) <= TOLERANCE


def arch_of(row: dict[str, Any]) -> str:
    return "sm80" if "A100" in (row["gpu"] or "") else "sm90"


def model_of(row: dict[str, Any]) -> Model:
    """The model of a record's config, quantised as the record says, as its engine loads it."""
    checkpoint = CHECKPOINTS.get(row["as_logged"])
    if checkpoint is None:
        model = given_model(row["model"], quantization=FLAGS.get(row["quantization"]))
    else:
        model = replace(given_model(row["model"]), quantization=checkpoint)
    return as_loaded(model, row["engine"])


def compare() -> list[Compared]:
    """Every record that states its weights and whose config is built in: none is left out."""
    found = []
    for row in lines("weights_logged.jsonl"):
        row = {**row, **STATED_IN_NOTES.get(row["id"], {})}
        model = model_of(row)
        tp, pp = row["tp"] or 1, row["pp"] or 1
        stages = [Split(tp=tp, pp=pp, stage=stage) for stage in range(pp)]
        fullest = max(weights_on_rank(model, split, bare, arch_of(row)) for split in stages)
        found.append(Compared(row, fullest / GiB))
    return found
