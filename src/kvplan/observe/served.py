"""What a running server says of its deployment, in the words that a start-up log's reader uses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kvplan.observe.exposition import MOST_VALUE, number
from kvplan.observe.forms import Said
from kvplan.observe.observed import Observed, Pool
from kvplan.observe.server import Server, walked, whole
from kvplan.observe.settings import Sorted

_GIB = 2**30
_LEAST_SHARE = 1e-3  # of a device: less is no setting of anyone's
_SET_BY_USER = ("num_gpu_blocks_override", "mamba_cache_mode", "mamba_cache_dtype", "mamba_ssm_cache_dtype")
_NOTHING = ("", "None", "auto", "none", "null")


def observed_of(server: Server) -> Observed:
    """The deployment and the figures that a server states."""
    found = _ENGINES[server.engine](server)
    return replace(found, served=True, notes=(*found.notes, *server.notes))


def model_of(server: Server) -> str | None:
    """The model as the server names it: where it was loaded from, else what it is served as."""
    for entry in server.models:
        if entry.get("parent") in (None, ""):  # adapters have one
            for key in ("root", "id"):
                if isinstance(entry.get(key), str) and entry[key]:
                    return str(entry[key])
    return server.reading.model if server.reading else None


def served_as(server: Server) -> str | None:
    """What requests must call the model."""
    for entry in server.models:
        if entry.get("parent") in (None, "") and isinstance(entry.get("id"), str) and entry["id"]:
            return str(entry["id"])
    return server.reading.model if server.reading else None


def _vllm(server: Server) -> Observed:
    infos = server.reading.infos.get("cache", ()) if server.reading else ()
    info = _smallest(infos)
    found, figures = Sorted(), _vllm_figures(info)
    length = _length(server, figures)
    given: dict[str, Any] = {"max_model_len": length} if length else {}
    given |= {name: _plain(info[name]) for name in _SET_BY_USER if info.get(name) not in (None, *_NOTHING)}
    if info.get("user_specified_block_size") == "True":
        given["block_size"] = whole(info.get("block_size"))
    if (share := number(info.get("gpu_memory_utilization"))) is not None and _LEAST_SHARE <= share <= 1:
        given["gpu_memory_utilization"] = share
    if info.get("enable_prefix_caching") in ("True", "False"):
        given["enable_prefix_caching"] = info["enable_prefix_caching"] == "True"
    if info.get("cache_dtype") not in (None, *_NOTHING):
        given["kv_cache_dtype"] = info["cache_dtype"]
    found.take("vllm", given)
    replicas = server.reading.replicas if server.reading else 1
    if len(infos) > 1:
        found.split.setdefault("dp", len(infos))
    return Observed(
        engine="vllm",
        version=server.version,
        model=model_of(server),
        split=found.split,
        named=found.named,
        flags=found.flags,
        shown=_in_force(info),
        pinned="kv_pool_bytes" in figures,
        figures=figures,
        ranks=max(1, replicas),
        notes=tuple(_unusable(found)),
    )


def _in_force(info: Mapping[str, str]) -> dict[str, Any]:
    """What vLLM's settings of its cache say that it took by itself."""
    block, stored = whole(info.get("block_size")), info.get("cache_dtype")
    return {
        **({"block_size": block} if block else {}),
        **({"kv_cache_dtype": stored} if stored == "auto" else {}),
    }


def _smallest(infos: tuple[Mapping[str, str], ...]) -> Mapping[str, str]:
    """Of several engines' settings those of the one with the fewest blocks, which decides."""
    sized = [info for info in infos if (whole(info.get("num_gpu_blocks")) or 0) > 0]
    return min(sized, key=lambda info: whole(info["num_gpu_blocks"]) or 0) if sized else next(iter(infos), {})


def _vllm_figures(info: Mapping[str, str]) -> dict[str, Said]:
    found: dict[str, Said] = {}
    names = {
        "num_gpu_blocks": "num_blocks",
        "kv_cache_size_tokens": "kv_tokens",
        "kv_cache_memory_bytes": "kv_pool_bytes",
        "effective_attention_block_size": "attention_block_tokens",
    }
    for theirs, ours in names.items():
        value = whole(info.get(theirs))
        if value is not None and value > 0:
            found[ours] = Said(float(value))
    block = whole(info.get("block_size"))
    if block and "attention_block_tokens" not in found:
        found["attention_block_tokens"] = Said(float(block))
    most = number(info.get("kv_cache_max_concurrency"))
    if most is not None and most > 0:
        found["max_concurrency"] = Said(most, 1e-9 * most)
    return found


def _length(server: Server, figures: Mapping[str, Said]) -> int | None:
    """The longest sequence: as /v1/models says, else what tokens and concurrency come to."""
    stated = [whole(entry.get("max_model_len")) for entry in server.models]
    known = next((value for value in stated if value and value > 0), None)
    if known is not None or not {"kv_tokens", "max_concurrency"} <= figures.keys():
        return known
    tokens, most = figures["kv_tokens"].value, figures["max_concurrency"].value
    low, high = tokens / most, (tokens + 1) / most  # tokens are rounded down
    if not high <= MOST_VALUE:
        return None
    near = round((low + high) / 2)
    return near if low * (1 - 1e-9) <= near <= high * (1 + 1e-9) else None


def _sglang(server: Server) -> Observed:
    info, gauges = server.settings, server.reading.gauges if server.reading else {}
    found = Sorted()
    found.take("sglang", {n: value for n, value in info.items() if n != "device" and not _absurd(value)})
    if info.get("enable_dp_attention") and found.split.get("dp", 1) > 1:
        found.split["attention_dp"] = found.split.pop("dp")
    for name in ("ep", "dcp"):
        if found.split.get(name) == 1:
            del found.split[name]
    figures, pools = _sglang_figures(info, gauges)
    return Observed(
        engine="sglang",
        version=server.version,
        model=str(info.get("model_path") or model_of(server) or "") or None,
        split=found.split,
        named={k: v for k, v in found.named.items() if v != "auto"},
        flags=found.flags,
        whole=bool(info),
        figures=figures,
        pools=pools,
        platform=str(info["device"]) if isinstance(info.get("device"), str) else None,
        drafting=bool(info.get("speculative_algorithm")),
        notes=tuple(_unusable(found)),
    )


def _sglang_figures(
    info: Mapping[str, Any], gauges: Mapping[str, float]
) -> tuple[dict[str, Said], tuple[Pool, ...]]:
    """Tokens and lengths; sizes are printed to 0.01 GB, which are GiB."""
    found: dict[str, Said] = {}
    tokens = gauges.get("kv_tokens") or next(walked(dict(info), "max_total_num_tokens"), None)
    for name, value in (
        ("kv_tokens", whole(tokens)),
        ("context_length", whole(gauges.get("context_length"))),
        ("max_running_requests", next(walked(dict(info), "effective_max_running_requests_per_dp"), None)),
    ):
        size = whole(value)
        if size is not None and size > 0:
            found[name] = Said(float(size))
    usage = next(walked(dict(info), "memory_usage"), None)
    usage = usage if isinstance(usage, dict) else {}
    weights, cache = number(usage.get("weight")), number(usage.get("kvcache"))
    if weights and weights > 0:
        found["weight_bytes"] = Said(weights * _GIB, 0.005 * _GIB)
    if not cache or cache < 0:
        return found, ()
    return found, (Pool("pool", {"kv_bytes": Said(cache * _GIB, 0.005 * _GIB)}),)


def _tensorrt_llm(server: Server) -> Observed:
    gauges = server.reading.gauges if server.reading else {}
    stats = server.settings.get("kvCacheStats")
    stats = stats if isinstance(stats, dict) else {}
    blocks = whole(gauges.get("num_blocks", stats.get("maxNumBlocks")))
    block = whole(gauges.get("block_tokens", stats.get("tokensPerBlock")))
    figures: dict[str, Said] = {}
    if blocks and blocks > 0:
        figures["num_blocks"] = Said(float(blocks))
        if block and 0 < blocks * block <= MOST_VALUE:
            figures["kv_tokens"] = Said(float(blocks * block))
    flags = {"tokens_per_block": block} if block and block > 0 else {}
    return Observed(
        engine="tensorrt-llm", version=server.version, model=model_of(server), flags=flags, figures=figures
    )


def _llama_cpp(server: Server) -> Observed:
    props = server.settings
    settings = props.get("default_generation_settings")
    length = whole(settings.get("n_ctx")) if isinstance(settings, dict) else None
    slots = whole(props.get("total_slots"))
    figures, flags = {}, {}
    if length and length > 0:
        figures["n_ctx_seq"] = Said(float(length))
    if slots and slots > 0:
        figures["n_seq_max"] = Said(float(slots))
        flags["parallel"] = slots
        if length and 0 < length * slots <= MOST_VALUE:
            flags["ctx_size"] = length * slots
    for theirs, ours in (("n_params", "parameters"), ("size", "tensor_bytes")):
        value = next((whole(meta[theirs]) for e in server.models if (meta := _meta(e)).get(theirs)), None)
        if value is not None and value > 0:
            figures[ours] = Said(float(value))
    path = props.get("model_path")
    name = path if isinstance(path, str) and path else model_of(server)
    return Observed(engine="llama.cpp", version=server.version, model=name, flags=flags, figures=figures)


def _meta(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    found = entry.get("meta")
    return found if isinstance(found, dict) else {}


def _absurd(value: Any) -> bool:
    """Whether it is a number that no setting has."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and number(value) is None


def _plain(text: str) -> Any:
    return found if (found := whole(text)) is not None else text


def _unusable(found: Sorted) -> list[str]:
    names = ", ".join(f"--{name.replace('_', '-')}" for name in found.unusable)
    return [f"of the server's settings, left out since their values cannot be used: {names}"] if names else []


_ENGINES = {"vllm": _vllm, "sglang": _sglang, "tensorrt-llm": _tensorrt_llm, "llama.cpp": _llama_cpp}
