"""Changes to a start that ran out of memory, judged by the bytes that they free against what was short.

A plan by which it would have started cannot say what helps: what a change frees there still can.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from kvplan.cost import cache
from kvplan.engines.budget import memory_of
from kvplan.engines.context_budget import placed_on
from kvplan.engines.deployment import Deployment
from kvplan.engines.llama_cpp_placement import HOST
from kvplan.engines.registry import capacity_of
from kvplan.errors import KvplanError
from kvplan.figure import bare, value_of
from kvplan.units import bytes_text
from kvplan.verbs.deploy import with_flags, with_quantization, with_tp
from kvplan.verbs.verify_fixes import Failed, fits, held_by_others, row

_RANKS = (2, 4, 8, 16, 32, 64)
_STEP = 256  # cells in which llama.cpp rounds a context up
_NARROW = ("q8_0", "q4_0")
_UNKNOWN = "not known: by the plan it starts as it is"
Change = Callable[[], Deployment]


def lighter(at: Failed, parts: Sequence[str], short: float | None) -> list[dict[str, Any]]:
    """Narrower weights and more ranks, where `parts` of a rank's memory were too large.

    Enough is what frees at least `short`, or whose plan starts where the plan as it was does not.
    """
    d = _beside_others(at)
    if d is None:
        return []
    starts, before = fits(d), _held(d, parts)
    rows = []
    if not d.model.quantization:
        narrower = partial(with_quantization, d, "fp8")
        rows.append(_judged("--quantization", "fp8", narrower, parts, (starts, before, short)))
    ranks = [n for n in _RANKS if n > d.tp and _splits(d, n)]
    tried = [_judged("--tp", n, partial(with_tp, d, n), parts, (starts, before, short)) for n in ranks]
    best = next((one for one in tried if one["fits"]), None) or next(iter(tried), None)
    return [*rows, *([best] if best else [])]


def _beside_others(at: Failed) -> Deployment | None:
    """The plan, with what other processes hold by PyTorch's message."""
    held = held_by_others(at.failure)
    return at.planned if held is None or at.planned is None else at.case.attempt(memory_in_use=held)


def _held(d: Deployment, parts: Sequence[str]) -> float:
    table = memory_of(d, bare)
    return float(sum(value_of(table[name]) or 0 for name in parts))


def _splits(d: Deployment, ranks: int) -> bool:
    try:
        cache.check_split(d.model, ranks)
    except KvplanError:
        return False
    return True


def _judged(
    flag: str, value: Any, change: Change, parts: Sequence[str], was: tuple[bool, float, float | None]
) -> dict[str, Any]:
    starts, before, short = was
    try:
        changed = change()
        freed, then = before - _held(changed, parts), fits(changed)
    except KvplanError:
        return row(flag, None, False, "cannot be planned for")
    note = f"about {bytes_text(max(0, round(freed)))} less on a rank"
    if not then:
        return row(flag, None, False, f"{note}: the plan does not start then either")
    if short is not None:
        ok = freed >= short
        return row(flag, value if ok else None, ok, note if ok else f"{note}: too little")
    return row(flag, value, None, f"{note}; {_UNKNOWN}") if starts else row(flag, value, True, note)


def smaller(at: Failed, d: Deployment, short: float, host: bool) -> list[dict[str, Any]]:
    """llama.cpp: a shorter context, narrower caches, smaller batches, layers elsewhere: what frees enough.

    `host`: the host ran out, so that layers go to the devices; else they leave them. A compute buffer is as
    large as it was asked for, and falls as the plan's does.
    """
    tried = at.failure.value("tried_bytes")
    scale = 1.0
    if at.failure.kind == "compute_allocation" and tried:
        planned = _middle(d, host)
        scale = tried / planned if planned else 1.0
    before = _on(d, host, scale)
    if before is None:
        return []
    if before < short:
        note = f"not known: the plan has only {bytes_text(round(before))} there"
        return [row(flag, None, None, note) for flag in ("--ctx-size", "--n-gpu-layers")]
    freed, moved = partial(_freed, d, host, scale), partial(_freed, d, host, 0.0)
    made = {name: value for name, (value, _) in capacity_of(d, None, bare).settings.items()}
    found = [_context(d, freed, short), *_narrower(d, freed, short), _layers(d, moved, short, host)]
    if at.failure.kind == "compute_allocation":
        found.append(_batch(d, freed, short, int(made.get("n_ubatch") or 512)))
    return [one for one in found if one is not None]


def _freed(d: Deployment, host: bool, scale: float, change: Change) -> float:
    try:
        before, after = _on(d, host, scale), _on(change(), host, scale)
    except KvplanError:
        return 0.0
    return 0.0 if after is None or before is None else before - after


def _parts_on(d: Deployment, host: bool) -> Iterator[Any]:
    placed = [p for p in placed_on(d) if (p.device == HOST) == host]
    if placed:
        yield placed[0] if host else max(placed, key=lambda p: p.high_bytes)


def _middle(d: Deployment, host: bool) -> float:
    return next(((p.compute.low + p.compute.high) / 2 for p in _parts_on(d, host)), 0.0)


def _on(d: Deployment, host: bool, scale: float) -> float | None:
    """Bytes on the host, or on the fullest device."""
    for p in _parts_on(d, host):
        compute = scale * (p.compute.low + p.compute.high) / 2
        return float(p.weight_bytes + p.cache_bytes + p.output_bytes + compute)
    return None


def _context(d: Deployment, freed: Callable[[Change], float], short: float) -> dict[str, Any] | None:
    cells = value_of(capacity_of(d, None, bare).kv_tokens)
    if not cells:
        return None
    slots = int(d.setup.flags.get("parallel") or 1)
    low, high = 0, (int(cells) - 1) // (_STEP * slots)
    while low < high:
        middle = (low + high + 1) // 2
        enough = freed(partial(with_flags, d, ctx_size=middle * _STEP * slots)) >= short
        low, high = (middle, high) if enough else (low, middle - 1)
    if not low:
        return row("--ctx-size", None, False, "no shorter context frees enough")
    return row("--ctx-size", low * _STEP * slots, True, "the longest that frees what was short")


def _narrower(d: Deployment, freed: Callable[[Change], float], short: float) -> Iterator[dict[str, Any]]:
    flag = "--cache-type-k and --cache-type-v"
    if any(d.setup.flags.get(f"cache_type_{letter}") not in (None, "f16", "bf16", "f32") for letter in "kv"):
        return
    for kind in _NARROW:
        size = freed(partial(with_flags, d, cache_type_k=kind, cache_type_v=kind))
        if size >= short:
            yield row(flag, kind, True, f"about {bytes_text(round(size))} less")
            return
    yield row(flag, None, False, "frees too little alone")


def _batch(d: Deployment, freed: Callable[[Change], float], short: float, now: int) -> dict[str, Any]:
    for size in (now >> steps for steps in range(1, 6)):
        if size >= 32 and freed(partial(with_flags, d, ubatch_size=size)) >= short:
            return row("--ubatch-size", size, True, "prompts in smaller pieces, and slower")
    return row("--ubatch-size", None, False, "at no size of a batch")


def _layers(
    d: Deployment, freed: Callable[[Change], float], short: float, host: bool
) -> dict[str, Any] | None:
    """Layers on the devices: the most that leave room there, or the fewest that leave it here.

    Its compute buffer counts as unchanged.
    """
    if d.memory_bytes is None or d.setup.platform == "cpu":
        return None
    count = len(d.model.layers) + 1
    tried = range(1, count + 1) if host else range(count - 1, 0, -1)
    for layers in tried:
        if freed(partial(with_flags, d, n_gpu_layers=layers)) >= short:
            where = "the fewest there that free it here" if host else "the most that free it there"
            return row("--n-gpu-layers", layers, True, f"layers on the devices: {where}")
    return row("--n-gpu-layers", None, False, "with no number of layers")
