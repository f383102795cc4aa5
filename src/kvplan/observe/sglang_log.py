"""What a start-up log of SGLang says. Its "GB" are 2^30 bytes."""

from __future__ import annotations

from kvplan.observe.failing import failure_of
from kvplan.observe.forms import Said
from kvplan.observe.literals import arguments
from kvplan.observe.names import gpu_key
from kvplan.observe.observed import Observed, Pool
from kvplan.observe.settings import Sorted
from kvplan.observe.startup import Hit, StartUp
from kvplan.observe.text import Rank

_PLAIN = (
    "full_layer_tokens", "swa_layer_tokens", "swa_pools_bytes", "max_mamba_cache_size", "conv_state_bytes",
    "ssm_state_bytes", "draft_ssm_state_bytes", "draft_conv_state_bytes", "max_running_requests",
    "free_at_end_bytes", "profiled_tokens", "init_bytes", "rest_bytes", "free_after_pool_bytes",
    "graph_bytes",
)  # fmt: skip
_PHASES = {
    "arguments": "loading the weights",
    "free_before_bytes": "loading the weights",
    "free_after_bytes": "making the pools",
    "pool_tokens": "capturing graphs",
    "kv_tokens": "running",
}


def observed(startup: StartUp) -> Observed:
    """The deployment and the figures of a start-up of SGLang."""
    stated = startup.last("arguments")
    given = arguments(stated) if stated else {}
    found = Sorted()
    found.take("sglang", {name: value for name, value in given.items() if name != "device"})
    if given.get("enable_dp_attention") and found.split.get("dp", 1) > 1:
        found.split["attention_dp"] = found.split.pop("dp")
    for name in ("ep", "dcp"):
        if found.split.get(name) == 1:
            del found.split[name]
    rank = _deciding(startup)
    figures = _figures(startup, rank)
    model = given.get("model_path")
    notes = [f"of the log's arguments, left out: {', '.join(found.unusable)}"] if found.unusable else []
    return Observed(
        engine="sglang",
        version=startup.last("version") or None,
        model=str(model) if model else None,
        architecture=next(iter(startup.texts("architecture")), None),
        split=found.split,
        named={k: v for k, v in found.named.items() if v != "auto"},
        flags=found.flags,
        none=frozenset(found.none),
        whole=bool(stated),
        figures=figures,
        ranks=max(1, len(startup.ranks("pool_tokens") or startup.ranks("free_after_bytes"))),
        ranks_differ=_apart(startup),
        pools=tuple(_pools(startup, rank)),
        gpu=next((key for text in startup.texts("gpu_name") if (key := gpu_key(text))), None),
        platform=str(given["device"]) if given.get("device") else None,
        drafting=bool(given.get("speculative_algorithm")),
        failure=failure_of(startup, _PHASES),
        notes=tuple(notes),
    )


def _deciding(startup: StartUp) -> Rank | None:
    """The rank with the fewest tokens, or the first that printed a pool."""
    tokens = {hit.rank: hit.values["pool_tokens"] for hit in reversed(list(startup.of("pool_tokens")))}
    sizes = {rank: said.value for rank, said in tokens.items() if isinstance(said, Said)}
    return min(sizes, key=lambda rank: sizes[rank], default=None)


def _pools(startup: StartUp, rank: Rank | None) -> list[Pool]:
    """The pools of the rank that decides, in the order in which they were made: a drafter's come last."""
    found = []
    for hit in startup.of("pool_tokens"):
        if hit.rank == rank:
            sizes = {name: value for name, value in hit.values.items() if isinstance(value, Said)}
            found.append(Pool("pool", sizes))
    return found


def _figures(startup: StartUp, rank: Rank | None) -> dict[str, Said]:
    found: dict[str, Said] = {}
    for name in _PLAIN:
        said = startup.figure(name)
        if said is not None:
            found[name] = said
    tokens = list(startup.ranks("kv_tokens").values())
    if tokens:
        found["kv_tokens"] = min(tokens, key=lambda said: said.value)
    elif "full_layer_tokens" in found:
        found["kv_tokens"] = found["full_layer_tokens"]
    elif pools := _pools(startup, rank):
        found["kv_tokens"] = pools[0].figures["pool_tokens"]
    context = startup.figure("context_length")
    if context is not None:
        found["context_length"] = context
    for name in ("free_before_bytes", "free_after_bytes"):
        first = _first_of_each(startup, name)
        if first:
            found[name] = min(first, key=lambda said: said.value)
    weights = _first_of_each(startup, "weight_bytes")
    if weights:
        found["weight_bytes"] = max(weights, key=lambda said: said.value)
    return found


def _first_of_each(startup: StartUp, name: str) -> list[Said]:
    """What each rank stated first: a drafter is loaded after its target."""
    found: dict[Rank, Said] = {}
    hits: list[Hit] = list(startup.of(name))
    for hit in hits:
        value = hit.values[name]
        if isinstance(value, Said):
            found.setdefault(hit.rank, value)
    return list(found.values())


def _apart(startup: StartUp) -> float:
    values = [said.value for said in startup.ranks("free_after_bytes").values()]
    return (max(values) - min(values)) / max(values) if values and max(values) > 0 else 0.0
