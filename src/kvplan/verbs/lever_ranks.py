"""Changes to the ranks a model is divided over, to the accelerator, and to the engine itself."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from kvplan.cost import cache
from kvplan.engines.deployment import Deployment
from kvplan.engines.registry import CONTEXT_DECIDES
from kvplan.errors import KvplanError
from kvplan.facts.accelerators import Accelerator, accelerators
from kvplan.facts.runs_on import method_of
from kvplan.verbs import fit as fitting
from kvplan.verbs.asked import Asked
from kvplan.verbs.deploy import Split, deployment, with_accelerator, with_split
from kvplan.verbs.lever import Lever, none, refusal, refused, tried, words
from kvplan.verbs.lever_changes import unmeasured
from kvplan.verbs.timing import dealt
from kvplan.verbs.verdict import LENGTHS

_MOST_TP = 128
_MORE = 1.25  # memory of a bigger accelerator, as a multiple
_AS_MUCH = 1.05
_SLOTS = 4  # llama-server's own, where a rate says no number
_LENGTHS = tuple(LENGTHS.values())


def experts_of(d: Deployment) -> bool:
    """Whether the model has routed experts."""
    return any(w.part == "expert" for _, layer in d.model.grouped() for w in layer.weights)


def tp(d: Deployment, asked: Asked) -> Iterator[Lever]:
    """Twice the ranks or, where this does not fit, the fewest on which one sequence does."""
    wider = _wider(d)
    if wider is None:
        why = refusal("tp", "most")
        yield refused("tp", {"tp": d.tp * 2}, asked, why, {"tp": d.tp * 2})
        return
    yield Lever("tp", _ranks(d, wider), wider, asked, {"tp": wider.tp})


def _wider(d: Deployment) -> Deployment | None:
    found = None
    while (found or d).tp < _MOST_TP:
        try:
            found = with_split(unmeasured(d), tp=(found or d).tp * 2)
        except KvplanError:
            return None
        enough = fitting.concurrency_of(found)
        if enough is None or enough >= 1:
            return found
    return None


def _ranks(d: Deployment, changed: Deployment) -> dict[str, int]:
    """The ranks that differ."""
    parts = Split.__slots__
    return {
        part: getattr(changed.setup, part)
        for part in parts
        if getattr(changed.setup, part) != getattr(d.setup, part)
    }


def _split(kind: str, d: Deployment, asked: Asked, fields: dict[str, Any], **ranks: int) -> Lever:
    """The lever of other ranks; a vLLM mixture of experts deals its experts over all replicas' ranks."""
    s = d.setup
    shares = s.engine == "vllm" and ranks.get("dp", s.dp) > 1 and experts_of(d)
    if shares and "ep" not in ranks:
        ranks["ep"] = ranks.get("tp", s.tp) * ranks.get("dp", s.dp)
    fields = {**fields, "sharing": " sharing experts" if shares else " replicas"}
    return tried(kind, ranks, asked, partial(with_split, unmeasured(d), **ranks), fields)


def tp_as_replicas(d: Deployment, asked: Asked) -> Iterator[Lever]:
    """The same accelerators as twice the replicas of half the ranks."""
    if d.tp % 2 == 0 and d.setup.attention_dp == 1:
        half, dp = d.tp // 2, d.setup.dp * 2
        yield _split("tp_as_replicas", d, asked, {"tp": half, "replicas": dp}, tp=half, dp=dp)


def tp_as_stages(d: Deployment, asked: Asked) -> Iterator[Lever]:
    """The same accelerators as twice the pipeline stages of half the ranks."""
    if d.tp % 2 == 0 and d.setup.attention_dp == 1:
        half, pp = d.tp // 2, d.setup.pp * 2
        yield _split("tp_as_stages", d, asked, {"tp": half, "stages": pp}, tp=half, pp=pp)


def pp(d: Deployment, asked: Asked) -> Iterator[Lever]:
    """Twice the pipeline stages."""
    stages = d.setup.pp * 2
    yield _split("pp", d, asked, {"stages": stages}, pp=stages)


def dp(d: Deployment, asked: Asked) -> Iterator[Lever]:
    """Twice the replicas."""
    replicas = d.setup.dp * 2
    yield _split("dp", d, asked, {"replicas": replicas}, dp=replicas)


def ep(d: Deployment, asked: Asked) -> Iterator[Lever]:
    """Whole experts dealt over all ranks."""
    ranks = d.tp * d.setup.dp if d.setup.engine == "vllm" else d.tp
    fields = {"ranks": ranks}
    if not experts_of(d):
        why = none("ep", "dense", engine=d.setup.engine)
        yield Lever("ep", {}, d, asked, fields, why)
    elif ranks == 1:
        yield Lever("ep", {}, d, asked, fields, none("ep", "alone"))
    else:
        make = partial(with_split, unmeasured(d), ep=ranks)
        yield tried("ep", {"ep": ranks}, asked, make, fields, none("ep", "same"))


def attention_dp(d: Deployment, asked: Asked) -> Iterator[Lever]:
    """Attention by groups of one rank, the experts still shared by all."""
    s, groups = d.setup, d.tp
    fields = {"groups": groups}
    if s.engine in CONTEXT_DECIDES:
        why = refusal("attention_dp", "engine", engine=s.engine)
        yield refused("attention_dp", {}, asked, why, fields)
    elif groups == 1:
        word = "same" if dealt(d).groups > 1 else "alone"
        yield Lever("attention_dp", {}, d, asked, {"groups": dealt(d).groups}, none("attention_dp", word))
    elif s.engine != "vllm":
        make = partial(with_split, unmeasured(d), attention_dp=groups)
        change, why = {"attention_dp": groups}, none("attention_dp", "same")
        yield tried("attention_dp", change, asked, make, fields, why)
    elif experts_of(d):
        ranks = groups * s.dp
        yield _split("attention_dp", d, asked, {"groups": ranks}, tp=1, dp=ranks, ep=ranks)
    else:
        yield Lever("attention_dp", {}, d, asked, fields, none("attention_dp", "dense"))


def dcp(d: Deployment, asked: Asked) -> Iterator[Lever]:
    """Each context divided over ranks: what it frees of the cache."""
    s = d.setup
    if d.tp == 1:
        yield Lever("dcp", {}, d, asked, {}, none("dcp", "alone"))
        return
    groups = cache.groups_of(d.model)
    heads = max((g.attention.kv_heads for g in groups), default=1)
    latent = any(g.attention.latent for g in groups)
    most = d.tp if latent else d.tp // heads
    ranks = max(2, most)
    change, fields = {"dcp": ranks}, {"ranks": ranks}
    if s.engine not in ("vllm", "sglang"):
        yield refused("dcp", change, asked, refusal("dcp", "engine", engine=s.engine), fields)
    elif most < 2:
        yield refused("dcp", change, asked, refusal("dcp", "heads", tp=d.tp, heads=heads), fields)
    else:
        make = partial(with_split, unmeasured(d), dcp=ranks)
        yield tried("dcp", change, asked, make, fields, times="none")


def bigger(d: Deployment, asked: Asked) -> Iterator[Lever]:
    """The next accelerator with more memory."""
    yield _instead("bigger", d, asked, next_bigger(d.accelerator) if d.accelerator else None)


def smaller(d: Deployment, asked: Asked) -> Iterator[Lever]:
    """The next accelerator with less."""
    yield _instead("smaller", d, asked, next_smaller(d.accelerator) if d.accelerator else None)


def _instead(kind: str, d: Deployment, asked: Asked, other: Accelerator | None) -> Lever:
    mine = d.accelerator
    if other is None:
        known = mine is not None and mine.memory_bytes
        fields = {"accelerator": mine.name if mine else "", "vendor": mine.vendor if mine else ""}
        why = refusal(kind, "most" if known else "unknown", **fields)
        return refused(kind, {}, asked, why)
    make = partial(
        with_accelerator, unmeasured(d, "kv_pool_bytes", "activation_bytes", "graph_bytes"), other.key
    )
    return tried(kind, {"gpu": other.key}, asked, make, {"accelerator": other.key})


def next_bigger(mine: Accelerator) -> Accelerator | None:
    """Of the same vendor, the least with a quarter more memory that is no slower; its own line first."""
    more = [
        a
        for a in _peers(mine)
        if a.memory_bytes >= _MORE * (mine.memory_bytes or 0)
        and a.bytes_per_second >= mine.bytes_per_second
        and _peak(a) >= _peak(mine)
    ]
    return min(_line(more, mine), key=_size, default=None)


def next_smaller(mine: Accelerator) -> Accelerator | None:
    """Of the same vendor, the greatest with no more of memory, bandwidth and arithmetic; its line first."""
    fewer = [
        a
        for a in _peers(mine)
        if a.memory_bytes <= _AS_MUCH * (mine.memory_bytes or 0)
        and a.bytes_per_second <= mine.bytes_per_second
        and _peak(a) <= _peak(mine)
        and _size(a) < _size(mine)
    ]
    return max(_line(fewer, mine), key=lambda a: (*_size(a), _peak(a)), default=None)


def _peers(mine: Accelerator) -> list[Any]:
    if not mine.memory_bytes:
        return []
    return [a for a in accelerators() if a.vendor == mine.vendor and a.memory_bytes and a.key != mine.key]


def _line(found: list[Any], mine: Accelerator) -> list[Any]:
    """Those for the same use: cards for games, or for servers."""
    alike = [a for a in found if ("geforce" in a.name.lower()) == ("geforce" in mine.name.lower())]
    return alike or found


def _size(a: Any) -> tuple[float, float]:
    return a.memory_bytes * a.bytes_per_second, a.bytes_per_second


def _peak(a: Accelerator) -> float:
    return a.peak("bf16") or a.peak("fp16") or 0.0


def engine(d: Deployment, asked: Asked) -> Iterator[Lever]:
    """The same model, ranks and cache format on every other engine, its settings at their defaults."""
    for other in words("engine")["others"][d.setup.engine]:
        fields, length = {"engine": other}, _length(d, asked, other)
        change: dict[str, Any] = {"engine": other, **length}
        if d.setup.engine == "llama.cpp" and method_of(d.model.quantization) == "gguf":
            yield refused("engine", change, asked, refusal("engine", "files", engine=other), fields)
            continue
        if other == "tensorrt-llm" and d.setup.platform != "cuda":
            yield refused("engine", change, asked, refusal("engine", "vendor", engine=other), fields)
            continue
        yield tried("engine", change, asked, partial(_on_engine, d, other, length), fields)


def _length(d: Deployment, asked: Asked, engine: str) -> dict[str, int]:
    """The longest sequence under the other engine's flag, where one was stated or it is needed."""
    if engine == "llama.cpp":
        slots = _SLOTS if asked.mode == "rate" else int(asked.amount)
        stages = (
            {"tp": 1, "pp": d.tp * d.setup.pp} if d.tp > 1 else {}
        )  # it splits by layers unless told else
        return {**stages, "parallel": slots, "ctx_size": slots * asked.length}
    stated = any(d.setup.flags.get(name) for name in _LENGTHS)
    if d.setup.engine == "llama.cpp":
        return {
            LENGTHS[engine]: max(asked.length, min(d.max_model_len, d.model.max_context or d.max_model_len))
        }
    return {LENGTHS[engine]: d.max_model_len} if stated or d.model.max_context is None else {}


def _on_engine(d: Deployment, engine: str, changed: dict[str, int]) -> Deployment:
    s, a = d.setup, d.accelerator
    formats = words("kv_cache_dtype")["formats"][engine]
    stored = s.kv_cache_dtype if s.kv_cache_dtype in (*formats, "fp8", "bfloat16", "float16") else "auto"
    return deployment(
        d.model,
        gpu=a.key if a else None,
        engine=engine,
        split=Split(**{part: changed.get(part, getattr(s, part)) for part in Split.__slots__}),
        kv_cache_dtype=stored,
        gpu_memory=d.memory_bytes if d.memory_source.where == "--gpu-memory" else None,
        memory_in_use=d.in_use_bytes or None,
        link=int(a.stated_link_bytes_per_second) if a and a.stated_link_bytes_per_second else None,
        flags={name: value for name, value in changed.items() if name not in Split.__slots__},
    )
