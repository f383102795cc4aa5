"""TensorRT-LLM's paged cache (PyTorch backend) at formula level: budget, blocks, windows.

TensorRT-LLM main (2026) tensorrt_llm/_torch/pyexecutor/_util.py and resource_manager.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvplan.engines.engine import CacheGroup, Capacity, Setup
from kvplan.errors import BadInput, shown
from kvplan.facts import store
from kvplan.facts.formats import find_format
from kvplan.figure import (
    Leaf,
    Number,
    Source,
    Trust,
    bare,
    ceiling,
    formula,
    least,
    most,
    named,
    total,
    value_of,
)
from kvplan.figure import whole as floor
from kvplan.model.model import Attention, Model

FACTS = "engines/tensorrt_llm.toml"
_RULE = "TensorRT-LLM main (2026) _torch/pyexecutor"


@dataclass(frozen=True, slots=True)
class Window:
    """Layers that share one attention window: bytes of a token as estimated and as allocated."""

    tokens: int | None
    layers: int
    estimated: Any
    allocated: Any


@dataclass(slots=True)
class Run:
    """A server as started: ranks, block, stored format, and what was filled in."""

    setup: Setup
    tp: int
    block: int
    format: Mapping[str, Any]
    length: int | None
    settings: dict[str, tuple[Any, str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


@formula("B", f"{_RULE}/_util.py KvCacheCreator")
def available_bytes(
    total_bytes: Number, peak_bytes: Number, temporary_bytes: Number, fraction: Number
) -> Number:
    """The cache's share of what a dry run leaves, its own temporary pool given back first."""
    return most(0, floor((total_bytes - peak_bytes + temporary_bytes) * fraction))


@formula("block", f"{_RULE}/_util.py KvCacheCreator")
def temporary_blocks(
    max_num_tokens: Number,
    max_seq_len: Number,
    max_batch_size: Number,
    graph_batch: Number,
    block_tokens: Number,
) -> Number:
    """Blocks of the pool that exists only during the dry run."""
    longest = ceiling(max_seq_len + 1, block_tokens) + graph_batch - 1
    return most(ceiling(max_num_tokens + 1, block_tokens), longest, max_batch_size)


@formula("B/token", f"{_RULE}/_util.py get_cache_size_per_token")
def estimated_layer_bytes(kv_heads: Number, width: Number, tp: Number, value_bytes: Number) -> Number:
    """Keys (or values) of one token in one layer, as the budget counts them: heads × width ÷ tp."""
    return kv_heads * width // tp * value_bytes


@formula("B/token", f"{_RULE}/resource_manager.py")
def allocated_layer_bytes(kv_heads: Number, width: Number, tp: Number, value_bytes: Number) -> Number:
    """The same as allocated: heads of a rank are rounded up."""
    return ceiling(kv_heads, tp) * width * value_bytes


@formula("B/token", f"{_RULE}/resource_manager.py")
def packed_bytes(values: Number, pack: Number, scale_block: Number) -> Number:
    """NVFP4: values packed into bytes, and a byte of scale per block."""
    return values // pack + values // scale_block


@formula("block", f"{_RULE}/resource_manager.py calculate_max_num_blocks")
def blocks_in_pool(tokens: Number, block_tokens: Number) -> Number:
    """Whole blocks of the tokens that fit."""
    return floor(tokens // block_tokens)


def capacity(model: Model, setup: Setup, pool_bytes: int | None, leaf: Leaf = bare) -> Capacity:
    """Blocks and tokens of the paged cache when one rank gives it that many bytes."""
    run = started(model, setup)
    windows = windows_of(model, run, leaf)
    pool = None
    if pool_bytes is not None:
        where = Source(Trust.STATED, "bytes given to the cache of one rank")
        pool = _capped(run, leaf("kv_pool_bytes", pool_bytes, "B", where))
    if any(layer.states for layer in model.layers):
        run.notes.append(
            "recurrent states are kept for every sequence of the batch beside this pool; not counted"
        )
    found = [
        (w, _blocks(run, w, _share(run, pool, i, len(windows)), len(windows), leaf))
        for i, w in enumerate(windows)
    ]
    return _answer(model, run, found, leaf)


def started(model: Model, setup: Setup) -> Run:
    """The server that `setup` starts, defaults filled in."""
    table = store.toml(FACTS)["defaults"]
    block = _whole(setup, "tokens_per_block")
    fmt, why = _format(model, setup)
    run = Run(
        setup,
        1 if setup.attention_dp > 1 or setup.flags.get("enable_attention_dp") else setup.tp,
        block or int(table["tokens_per_block"]),
        fmt,
        _whole(setup, "max_seq_len") or model.max_context,
    )
    run.settings["kv_cache_dtype"] = (why[0], why[1])
    if block is None:
        run.settings["tokens_per_block"] = (run.block, str(table["source"]))
    if setup.flags.get("max_seq_len") is None and run.length:
        run.settings["max_seq_len"] = (run.length, model.origin("max_context").where)
    return run


def _whole(setup: Setup, name: str) -> int | None:
    value = setup.flags.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise BadInput(f"{name}: {shown(value)} cannot be used; give a whole number of at least 1")
    return value


def free_gpu_memory_fraction(setup: Setup, leaf: Leaf = bare) -> Any:
    """The cache's share of what is free: the flag, else the default."""
    table = store.toml(FACTS)["defaults"]
    for name in ("free_gpu_memory_fraction", "kv_cache_free_gpu_memory_fraction"):
        value = setup.flags.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1:
            raise BadInput(f"{name}: {shown(value)} cannot be used; give a number above 0, at most 1")
        return leaf("free_gpu_memory_fraction", float(value), "", Source(Trust.STATED, f"--{name}"))
    source = Source(Trust.ENGINE_RULE, str(table["source"]))
    return leaf("free_gpu_memory_fraction", float(table["free_gpu_memory_fraction"]), "", source)


def _format(model: Model, setup: Setup) -> tuple[Mapping[str, Any], tuple[str, str]]:
    formats = store.toml(FACTS)["formats"]
    name, why = setup.kv_cache_dtype.lower(), f"--kv-cache-dtype {setup.kv_cache_dtype}"
    if name == "auto":
        asked = checkpoint_format(model)
        name, why = (
            asked or setup.dtype,
            "the checkpoint's kv_cache_quant_algo" if asked else "the model's dtype",
        )
    found = find_format(name, "--kv-cache-dtype").name if name != "auto" else "bfloat16"
    if found not in formats:
        raise BadInput(f"--kv-cache-dtype: TensorRT-LLM has no {name} cache; use auto, fp8, int8 or nvfp4")
    return formats[found], (found, why)


def checkpoint_format(model: Model) -> str | None:
    """The cache format that a quantised checkpoint states, or None."""
    q = model.quantization or {}
    inner = q.get("quantization")
    table = inner if isinstance(inner, Mapping) else q
    algo = str(table.get("kv_cache_quant_algo") or "").lower()
    if algo in ("fp8", "nvfp4", "int8"):
        return algo
    scheme = q.get("kv_cache_scheme")
    if isinstance(scheme, Mapping) and scheme.get("type") == "float":
        return {8: "fp8", 4: "nvfp4"}.get(int(str(scheme.get("num_bits") or 0)))
    return None


def windows_of(model: Model, run: Run, leaf: Leaf) -> list[Window]:
    """The layers of the fullest rank by attention window, smallest first; one entry without windows.

    `max_attention_window` is repeated over the layers, as TensorRT-LLM does; a model's own sliding
    windows are charged in full unless the flag names them.
    """
    given = run.setup.flags.get("max_attention_window")
    if given is not None and not (isinstance(given, list) and given and all(_is_count(w) for w in given)):
        raise BadInput(f"max_attention_window: {shown(given)} cannot be used; give a list of tokens")
    local = -(-len(model.layers) // run.setup.pp)
    counts: dict[int | None, dict[Attention, int]] = {}
    for i, layer in enumerate(model.layers[:local] if run.setup.pp > 1 else model.layers):
        window = None
        if given is not None:
            window = int(given[i % len(given)])
            window = min(window, run.length) if run.length else window
        for a in layer.attentions:
            if a.holds and a.kind not in ("cross", "encoder"):
                slot = counts.setdefault(window, {})
                slot[a] = slot.get(a, 0) + 1
    if given is None and any(a.window for by in counts.values() for a in by):
        run.notes.append("sliding windows are charged in full: max_attention_window is not given")
    return [_window(run, w, counts[w], leaf) for w in sorted(counts, key=lambda w: w or 0)]


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _window(run: Run, window: int | None, counts: dict[Attention, int], leaf: Leaf) -> Window:
    estimated, allocated, layers = [], [], 0
    for a, n in counts.items():
        layers += n
        count = leaf("layers", n, "layer", a.origin("kv_heads"))
        estimated.append(count * _layer(run, a, leaf, estimate=True))
        allocated.append(count * _layer(run, a, leaf, estimate=False))
    return Window(
        window,
        layers,
        named("estimated_bytes_per_token", "B/token", total(estimated)),
        named("bytes_per_token", "B/token", total(allocated)),
    )


def _layer(run: Run, a: Attention, leaf: Leaf, *, estimate: bool) -> Any:
    """One token in one layer: latents once and undivided, else keys and values."""
    rule = Source(Trust.ENGINE_RULE, store.toml(FACTS)["rules"]["estimate" if estimate else "allocation"])
    size = leaf("value_bytes", run.format["value_bytes"], "B/value", rule)
    if a.latent is not None:
        rank = leaf("kv_rank", a.latent.kv_rank, "value", a.origin("kv_rank"))
        values = rank + leaf("rope_width", a.latent.rope_width, "value", a.origin("rope_width"))
        return _stored(run, values * size) + _index(a)
    heads = leaf("kv_heads", a.kv_heads, "head", a.origin("kv_heads"))
    count = estimated_layer_bytes if estimate else allocated_layer_bytes
    sides = [
        count(heads, leaf(name, width, "value", a.origin(name)), run.tp, size)
        for name, width in (("key_width", a.key_width), ("value_width", a.value_width))
        if width
    ]
    return total([_stored(run, side) for side in sides])


def _stored(run: Run, values: Any) -> Any:
    if "pack" not in run.format:
        return values
    return packed_bytes(values, run.format["pack"], run.format["scale_block"])


def _index(a: Attention) -> int:
    block = int(store.toml(FACTS)["rules"]["index_block"])
    return a.index_width + a.index_width // block * 4 if a.index_width else 0


def _capped(run: Run, pool: Any) -> Any:
    most_bytes = _whole(run.setup, "max_gpu_total_bytes")
    return pool if most_bytes is None else least(pool, most_bytes)


def _share(run: Run, pool: Any, index: int, count: int) -> Any:
    """Bytes of one window: an equal share, or what `TRTLLM_WINDOW_SIZE_SHARES` states."""
    if pool is None or count == 1:
        return pool
    shares = run.setup.flags.get("TRTLLM_WINDOW_SIZE_SHARES")
    if shares is None:
        return pool / count
    if not isinstance(shares, list) or len(shares) != count or abs(sum(shares) - 1) > 1e-9:
        raise BadInput(
            f"TRTLLM_WINDOW_SIZE_SHARES: {shown(shares)} cannot be used; give {count} shares that add up to 1"
        )
    return pool * shares[index]


def _blocks(run: Run, window: Window, share: Any, count: int, leaf: Leaf) -> Any:
    asked = _whole(run.setup, "max_tokens")
    if count > 1 and asked is not None:
        run.notes.append("max_tokens is ignored with several attention windows")
        asked = None
    block = leaf("tokens_per_block", run.block, "token", Source(Trust.STATED, "tokens_per_block"))
    if share is None:
        return None if asked is None else blocks_in_pool(asked, block)
    if not value_of(window.allocated):
        return None
    tokens = share // window.allocated
    if value_of(window.estimated) != value_of(window.allocated):
        run.notes.append(
            f"{run.tp} ranks share fewer KV heads: the estimate counts {value_of(window.estimated):,} bytes "
            f"a token, {value_of(window.allocated):,} are allocated"
        )
        tokens = least(tokens, share // window.estimated)
    if asked is not None:
        tokens = least(tokens, asked)
    return blocks_in_pool(tokens, block)


def _answer(model: Model, run: Run, found: list[tuple[Window, Any]], leaf: Leaf) -> Capacity:
    length = leaf("max_seq_len", run.length, "token", model.origin("max_context")) if run.length else None
    cell = total([w.allocated for w, _ in found])
    base: dict[str, Any] = {
        "block_tokens": run.block,
        "bytes_per_block": named("bytes_per_block", "B", cell * run.block),
        "needed_kv_bytes": named("needed_kv_bytes", "B", _needed(run, found)) if length is not None else None,
        "groups": tuple(_group(run, w, n) for w, n in found),
        "settings": run.settings,
    }
    if any(n is None for _, n in found) or not found:
        return Capacity(None, **base, notes=tuple(run.notes))
    window, blocks = found[-1]  # the widest window holds a sequence's every token
    tokens = named("max_tokens", "token", blocks * run.block)
    number = named("num_blocks", "block", total([n for _, n in found]))
    if value_of(blocks) < 1:
        run.notes.append("no block fits")
    elif run.length and value_of(tokens) < _held(run, window):
        run.notes.append(f"max_seq_len {run.length:,} is reduced to the {value_of(tokens):,} tokens that fit")
    if len(found) > 1:
        run.notes.append(
            f"the pool is split over {len(found)} attention windows, equally unless shares are given; "
            f"tokens are those of the widest, {window.tokens or 0:,}"
        )
    host = run.setup.flags.get("host_cache_size")
    if isinstance(host, int) and host > 0 and value_of(cell):
        run.notes.append(f"host pool: {int(host // value_of(cell)) // run.block:,} blocks beside these")
    return Capacity(
        fits=value_of(tokens) >= max(1, _held(run, window)),
        num_blocks=number,
        kv_tokens=tokens,
        max_concurrency=named("max_concurrency", "request", tokens / length) if length is not None else None,
        max_running_requests=_requests(run),
        estimated_max_model_len=least(length, tokens) if length is not None else tokens,
        kv_bytes=named("kv_bytes", "B", total([n * run.block * w.allocated for w, n in found])),
        notes=tuple(run.notes),
        **base,
    )


def _requests(run: Run) -> int:
    given = _whole(run.setup, "max_batch_size")
    if given is None:
        table = store.toml(FACTS)["defaults"]
        given = int(table["max_batch_size"])
        run.settings["max_batch_size"] = (given, str(table["source"]))
    return given


def _needed(run: Run, found: list[tuple[Window, Any]]) -> Any:
    parts = []
    for window, _ in found:
        parts.append(-(-_held(run, window) // run.block) * run.block * window.allocated)
    return total(parts)


def _held(run: Run, window: Window) -> int:
    """Tokens of one longest sequence that a window keeps; 0 where no length is known."""
    return min(run.length or 0, window.tokens or run.length or 0)


def _group(run: Run, window: Window, blocks: Any) -> CacheGroup:
    held = _held(run, window)
    tokens = None if blocks is None else int(value_of(blocks)) * run.block
    return CacheGroup(
        "full" if window.tokens is None else f"window_{window.tokens}",
        window.layers,
        page_bytes=int(value_of(window.allocated)) * run.block,
        blocks_per_request=-(-held // run.block) or None,
        block_tokens=run.block,
        cells=tokens,
    )
