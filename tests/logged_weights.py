"""Logged weight figures beside predicted ones, for the test that holds them and the page that shows them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from conftest import lines
from kvplan.cost.weights import Split
from kvplan.engines.loaded import weights_on_rank
from kvplan.figure import bare
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

# Records that are not of a catalogue model: another repository's own choice of what to quantise.
OTHER_CHECKPOINT = {
    "vllm-0042": "a dynamic bitsandbytes checkpoint that leaves some layers in 16 bit, not known which",
    "vllm-0142": "the same checkpoint on another machine",
    "vllm-0073": "another repository's NVFP4 with more layers in 16 bit, and an MTP drafter loaded",
}
# Misses, each with its reason.
REASONS = {
    "vllm-0061": "vLLM 0.10.1 used Marlin kernels on this H100, which pad hidden width too; 0.11 does not",
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


def compare() -> list[Compared]:
    """Every record that names a catalogue model."""
    found = []
    for row in lines("weights_logged.jsonl"):
        if row["id"] in OTHER_CHECKPOINT:
            continue
        row = {**row, **STATED_IN_NOTES.get(row["id"], {})}
        model = given_model(row["model"], quantization=FLAGS.get(row["quantization"]))
        tp, pp = row["tp"] or 1, row["pp"] or 1
        stages = [Split(tp=tp, pp=pp, stage=stage) for stage in range(pp)]
        fullest = max(weights_on_rank(model, split, bare, arch_of(row)) for split in stages)
        found.append(Compared(row, fullest / GiB))
    return found
