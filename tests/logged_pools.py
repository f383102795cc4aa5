"""Start-up logs that print their whole budget, and the pool that `fit` predicts from GPU and flags alone."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kvplan
from kvplan.errors import BadInput, KvplanError
from kvplan.facts.engine_versions import find_version, versions_of

LOGS = Path(__file__).parent / "golden/vllm_budgets.jsonl"
GIB = 2**30
_QUANTIZATIONS = {
    "compressed-tensors fp8": "fp8",
    "fp8": "fp8",
    "fp8 (online)": "fp8",
    "nvfp4": "nvfp4",
    "bitsandbytes 4bit": "bitsandbytes",
    "gguf q8_0": "q8_0",
}
# Logs whose pool lies outside the stated interval, each with what is known of it.
OUTSIDE = {
    "vllm-0039": "it printed a peak of 9.37 GiB, seven times what its batch and vocabulary explain",
    "vllm-0054": "its tensors take 6.9 GiB more than their stated formats, over both ranks",
    "vllm-0060": "its peak was not printed; 1.5 GiB more than predicted at 1,024 tokens a step",
    "vllm-0147": "ROCm kept 6.07 GiB outside PyTorch, and online fp8 left 19 GiB of peak",
}


@dataclass(frozen=True, slots=True)
class Pool:
    """One log: what it printed and what was predicted, in GiB, or why nothing could be."""

    id: str
    model: str
    gpu: str
    version: str
    reported: float
    predicted: float | None = None
    low: float | None = None
    high: float | None = None
    why: str = ""

    @property
    def error(self) -> float:
        """Relative error of the prediction."""
        assert self.predicted is not None
        return self.predicted / self.reported - 1

    @property
    def inside(self) -> bool:
        """Whether the stated interval holds the reported pool."""
        assert self.low is not None
        assert self.high is not None
        return self.low <= self.reported <= self.high


def pools() -> list[Pool]:
    """Every log, predicted where its GPU, version and share of the device are known."""
    return [_pool(json.loads(line)) for line in LOGS.read_text().splitlines()]


def _pool(record: dict[str, Any]) -> Pool:
    known = (record["id"], record["config_id"], record["gpu"] or "", record["version"] or "")
    pool = record["pool_gib"]
    why = _left_out(record)
    if why:
        return Pool(*known, pool, why=why)
    try:
        memory = kvplan.fit(record["config_id"], **_settings(record))["memory"]
    except KvplanError as error:
        return Pool(*known, pool, why=str(error))
    found = [memory[f"kv_pool{end}_bytes"] / GIB for end in ("", "_low", "_high")]
    return Pool(*known, pool, *found)


def _left_out(record: dict[str, Any]) -> str:
    if "ROW DOES NOT ADD UP" in (record["notes"] or ""):
        return "the row does not add up"
    if record["pool_gib"] <= 0:
        return "no pool: it did not start"
    if record["gpu_memory_utilization"] is None:
        return "share of the device not stated"
    if _version(record) is None:
        return "version not stated"
    if "encoder profiled" in (record["other_flags"] or ""):
        return "an encoder's profile is part of the peak"
    if "cpu-offload" in (record["other_flags"] or ""):
        return "weights are kept in host memory"
    return ""


def _version(record: dict[str, Any]) -> str | None:
    match = re.match(r"~?(0\.\d+)(\.\d+)*", record["version"] or "")
    if match is None:
        return None
    known = versions_of("vllm")
    whole = match[0].removeprefix("~")
    return whole if whole in known else find_version("vllm", match[1])


def _settings(record: dict[str, Any]) -> dict[str, Any]:
    flags = ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "enforce_eager")
    found = {name: record[name] for name in flags if record[name] is not None}
    found |= {"tp": record["tp"] or 1, "pp": record["pp"] or 1, "engine_version": _version(record)}
    found["gpu_memory_utilization"] = record["gpu_memory_utilization"]
    name = (record["gpu"] or "").split(" (")[0]
    printed = re.search(r"\(([\d.]+) GiB\)", record["gpu"] or "")
    try:
        kvplan.fit(record["config_id"], gpu=name, engine_version="0.11", max_model_len=1024)
        found["gpu"] = name
    except KvplanError:
        # a card whose name the log leaves open, but whose memory it prints
        if not printed and not record["total_gib"]:
            raise BadInput("device not known") from None
        found["gpu_memory"] = f"{printed[1] if printed else record['total_gib']}GiB"
    if record["quantization"] in _QUANTIZATIONS:
        found["quantization"] = _QUANTIZATIONS[record["quantization"]]
    return found
