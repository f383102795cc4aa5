"""How many replicas there are, what deals requests to them, and how a cache moves where prompts are apart."""

from __future__ import annotations

from kvplan.engines.deployment import Deployment
from kvplan.errors import BadInput, shown
from kvplan.facts.kernels import moving_bytes_per_second
from kvplan.serve.apart import prompt_cache_bytes
from kvplan.serve.simulation import ROUTINGS, Fleet
from kvplan.verbs.check import whole
from kvplan.verbs.timing import accelerator_of, dealt, operations

MOST_REPLICAS = 1024
_MOVES = ("vllm", "sglang", "tensorrt-llm")
_SAMPLE_TOKENS = 1024


def fleet_of(d: Deployment, routing: str | None, prefill_replicas: int | None) -> Fleet:
    """The replicas of --dp; with `prefill_replicas` so many more compute the prompts alone.

    A prompt's cache moves over the accelerator's own link, or over one network adapter where it has none.
    Raises BadInput for what cannot be.
    """
    replicas = dealt(d).replicas
    name = routing or "round-robin"
    if name not in ROUTINGS:
        raise BadInput(f"--routing: {shown(routing)} is not known; use one of {', '.join(ROUTINGS)}")
    if prefill_replicas is None:
        return Fleet(replicas, name)
    if d.setup.engine not in _MOVES:
        raise BadInput(f"--prefill-replicas: {d.setup.engine} moves no caches; leave it out")
    count = whole("--prefill-replicas", prefill_replicas, 1, MOST_REPLICAS)
    link = moving_bytes_per_second(accelerator_of(d))
    moved = float(prompt_cache_bytes(operations(d), _SAMPLE_TOKENS)) / _SAMPLE_TOKENS
    return Fleet(replicas, name, count, 0.0, moved / link)
