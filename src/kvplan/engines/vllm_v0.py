"""vLLM before 0.8: one pool of blocks, every layer keeping every token.

vLLM 0.6.6.post1 worker/cache_engine.py, worker/worker.py, executor/executor_base.py.
"""

from __future__ import annotations

from dataclasses import replace

from kvplan.engines.vllm_specs import CHUNKED, FULL, MAMBA, SLIDING, CacheLayer


def v0_layers(layers: tuple[CacheLayer, ...]) -> tuple[CacheLayer, ...]:
    """The layers that V0 gives blocks: all as full attention; states live elsewhere and have none."""
    kinds = {SLIDING: FULL, CHUNKED: FULL}
    return tuple(
        replace(m, spec=replace(m.spec, kind=kinds.get(m.spec.kind, m.spec.kind), window=None, chunk=None))
        for m in layers
        if m.spec.kind != MAMBA
    )
