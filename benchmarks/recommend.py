"""How fast deployments are searched: candidates screened a minute on two cores, and whole searches.

Screening is timed twice: by the processor's clock in one process, which others on the machine do not slow,
and by the wall's with two processes, their start included.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import kvplan
from kvplan.verbs.search import Search

LOAD: dict[str, Any] = {
    "rate": 5, "requests": 300, "prompt_tokens": 1000, "output_tokens": 200, "ttft_p99": "1s",
    "tpot_p99": "50ms",
}  # fmt: skip
GOAL = 100_000  # candidates a minute on two cores
SPACES: dict[str, dict[str, Any]] = {
    "as it comes: every priced accelerator, vLLM, 16 of them": {},
    "wide: three engines, three formats of weights, 64 of them": {
        "engine": "vllm,sglang,tensorrt-llm", "quantization": "own,fp8,awq", "max_accelerators": 64,
    },
    "a mixture of experts: DeepSeek-V3, 64 of them": {"model": "deepseek-v3", "max_accelerators": 64},
}  # fmt: skip


class Watch:
    """Seconds of a search's stages, by the wall's clock and the processor's, and what was screened."""

    def __init__(self) -> None:
        self.wall: dict[str, float] = {}
        self.processor: dict[str, float] = {}
        self.candidates = self.families = 0
        for name in ("screen", "simulate", "play"):
            setattr(Search, name, self.timed(name, getattr(Search, name)))

    def timed(self, name: str, stage: Any) -> Any:
        """That stage with both clocks."""

        def run(search: Search, work: Any) -> Any:
            wall, processor = time.perf_counter(), time.process_time()
            found = stage(search, work)
            self.wall[name] = time.perf_counter() - wall
            self.processor[name] = time.process_time() - processor
            if name == "screen":
                self.families, self.candidates = len(found), sum(one.looked_at for one in found)
            return found

        return run

    def rate(self, seconds: float) -> str:
        """Candidates a minute."""
        return f"{self.candidates / seconds * 60:,.0f}"


def main() -> None:
    """Print the figures, each beside its goal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    workers = parser.parse_args().workers
    watch = Watch()
    kvplan.recommend(**{**LOAD, "model": "llama-3.1-8b", "gpu": "h100"})  # what is compiled is compiled
    for name, words in SPACES.items():
        given = {**LOAD, "model": "llama-3.1-8b", **words}
        kvplan.recommend(**given)
        alone, rest = watch.processor["screen"], watch.processor["simulate"] + watch.processor["play"]
        print(f"{name}: {watch.candidates:,} candidates of {watch.families:,} families")
        print(f"  one process: {alone:.1f} s, {watch.rate(alone)} a minute a core; simulations {rest:.1f} s")
        start = time.perf_counter()
        answer = kvplan.recommend(**given, workers=workers)
        whole, screening = time.perf_counter() - start, watch.wall["screen"]
        print(
            f"  {workers} processes by the clock: {watch.rate(screening)} a minute (goal: {GOAL:,}); "
            f"the whole search, {answer['simulated']} simulated, {whole:.1f} s"
        )


if __name__ == "__main__":
    main()
