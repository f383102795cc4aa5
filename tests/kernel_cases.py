"""Shapes that kernels were timed with, as operations of the product, and its clock without fitted scales."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from kvplan.cost.estimate import Clock
from kvplan.cost.operations import Attend, Exchange, Experts, Matmul, Operations, Ranks
from kvplan.cost.step import Step
from kvplan.facts import store
from kvplan.facts.accelerators import find_accelerator
from kvplan.model.model import Attention

TIMINGS = Path(__file__).parent / "data" / "kernel_timings.csv"
NOTHING: dict[str, tuple[Any, ...]] = dict.fromkeys(
    ("matmuls", "experts", "attends", "recurs", "exchanges", "pointwise"), ()
)


@dataclass(frozen=True)
class Timing:
    """One published timing."""

    accelerator: str
    operation: str
    shape: dict[str, int]
    seconds: float


def read() -> list[Timing]:
    """The published timings kept here."""
    lines = [line for line in TIMINGS.read_text("utf-8").splitlines() if not line.startswith("#")]
    return [
        Timing(
            row["accelerator"],
            row["operation"],
            {name: int(value) for name, value in (word.split("=") for word in row["shape"].split())},
            float(row["microseconds"]) / 1e6,
        )
        for row in csv.DictReader(lines)
    ]


ROWS = read()


class Unscaled(Clock):
    """A clock of kernels alone: every fitted scale is 1."""

    def fit(self, quantity: str, format: str = "", *, shared: bool = False) -> float:
        return 1.0


@cache
def clock_of(accelerator: str, **operations: Any) -> Unscaled:
    """A clock of these operations."""
    ops = Operations(**{**NOTHING, **operations}, layers=1, ranks=Ranks())
    return Unscaled(ops, find_accelerator(accelerator), "vllm")


def attend(s: dict[str, int]) -> dict[str, Any]:
    heads, kv_heads, width = s["num_heads"], s["num_key_value_heads"], s["head_dim"]
    window = s.get("window_size") or None
    at = Attention("sliding" if window else "full", heads, kv_heads, width, width, window)
    slot = kv_heads * 2 * width * 2
    return {"attends": (Attend("a", 1, at, heads, kv_heads, slot, 0, slot, 0, "bf16", "bf16"),)}


def product(s: dict[str, int], form: str) -> dict[str, Any]:
    scheme = store.toml("quantization.toml")["schemes"].get(form, {})
    width = scheme.get("value_bits", 16) / 8
    compute = scheme.get("compute", "bf16")
    return {"matmuls": (Matmul("m", 1, s["n"], s["k"], int(s["n"] * s["k"] * width), form, compute),)}


def experts(s: dict[str, int]) -> dict[str, Any]:
    parameters = 3 * s["hidden_size"] * s["inter_size"] // s["moe_tp_size"]
    return {
        "experts": (
            Experts("e", 1, s["num_experts"], s["topk"], s["moe_ep_size"], parameters, 2 * parameters,
                    s["hidden_size"], "bfloat16", "bf16"),
        )
    }  # fmt: skip


def seconds_of(accelerator: str, operation: str, s: dict[str, int], form: str = "bfloat16") -> float:
    """What the product says that this kernel takes."""
    if operation == "matmul":
        operations, step = product(s, form), Step(prompts=1, chunk=s["m"])
    elif operation == "experts":
        operations, step = experts(s), Step(prompts=1, chunk=s["num_tokens"])
    elif operation == "attention_prefill":
        operations, step = attend(s), Step(prompts=s["batch_size"], chunk=s["isl"])
    elif operation == "attention_decode":
        operations, step = attend(s), Step(decoding=s["batch_size"], context=s["step"] + 1)
    else:
        operations = {"exchanges": (Exchange("x", 1, operation, s["num_gpus"], 2),)}
        step = Step(prompts=1, chunk=s["message_size"])
    (timed,) = clock_of(accelerator, **operations).timed(step)
    return float(timed.seconds)
