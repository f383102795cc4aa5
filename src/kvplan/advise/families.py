"""The grid that is searched: accelerators, engines, number formats, and how ranks divide a model."""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass

_RANKS = (1, 2, 4, 8, 16, 32, 64)
_STAGES = (1, 2, 4)
_DIVIDES = ("vllm", "sglang", "tensorrt-llm")  # engines whose ranks each hold a part of every layer


@dataclass(frozen=True, slots=True, order=True)
class Family:
    """Deployments that differ only in how many replicas there are and what a step may carry.

    `quantization` is "" for the checkpoint's own. `tp` and the other ranks are those of one replica.
    """

    accelerator: str
    engine: str
    quantization: str = ""
    kv_cache_dtype: str = "auto"
    tp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1
    attention_dp: int = 1

    @property
    def ranks(self) -> int:
        """Accelerators of one replica."""
        return self.tp * self.pp * self.dp

    @property
    def name(self) -> str:
        """The family in words, the same for the same family."""
        said = [self.accelerator, self.engine]
        said += [f"{part} {n}" for part in ("tp", "pp", "dp", "ep") if (n := getattr(self, part)) > 1]
        said += [f"attention-dp {self.attention_dp}"] if self.attention_dp > 1 else []
        said += [self.quantization] if self.quantization else []
        said += [f"kv {self.kv_cache_dtype}"] if self.kv_cache_dtype != "auto" else []
        return " ".join(said)


@dataclass(frozen=True, slots=True)
class Space:
    """What may be used: names, and at most how many accelerators in all; `node` is how many one holds.

    A replica on one of those that are `alone` stays within its node: nothing fast joins those.
    """

    accelerators: Sequence[str]
    engines: Sequence[str]
    quantizations: Sequence[str]
    kv_cache_dtypes: Sequence[str]
    most: int
    node: Mapping[str, int]
    alone: Container[str] = ()


def families(space: Space, *, experts: bool) -> list[Family]:
    """Every family of a space; those that share experts among ranks only where a model has `experts`."""
    found = []
    for accelerator, engine in itertools.product(space.accelerators, space.engines):
        node = min(space.most, space.node[accelerator])
        splits = _splits(engine, node, node if accelerator in space.alone else space.most, experts)
        formats = itertools.product(space.quantizations, space.kv_cache_dtypes)
        found += [
            Family(accelerator, engine, *pair, *split) for split, pair in itertools.product(splits, formats)
        ]
    return found


def _splits(engine: str, node: int, most: int, experts: bool) -> Iterator[tuple[int, int, int, int, int]]:
    """(tp, pp, dp, ep, attention_dp) of one replica: tensor parallelism within a node, stages beyond."""
    if engine not in _DIVIDES:
        stages = (n for n in _RANKS if n <= node) if engine == "llama.cpp" else (1,)
        yield from ((1, pp, 1, 1, 1) for pp in stages)
        return
    for tp in (n for n in _RANKS if n <= node):
        for pp in (n for n in _STAGES if tp * n <= most):
            yield tp, pp, 1, 1, 1
            if experts and tp > 1:
                yield tp, pp, 1, tp, 1
    if experts:
        yield from _shared(engine, node, most)


def _shared(engine: str, node: int, most: int) -> Iterator[tuple[int, int, int, int, int]]:
    """Ranks that attend apart, or in groups, and share the experts: within a node and over several."""
    for n in (n for n in _RANKS if 2 <= n <= most):
        if engine != "vllm":
            yield n, 1, 1, n, n
            if engine == "sglang" and n > node:
                yield n, 1, 1, 1, 1
            continue
        groups = (tp for tp in _RANKS if 2 * tp <= n and (n <= node or tp in (1, node)))
        yield from ((tp, 1, n // tp, n, 1) for tp in groups if tp <= node)
