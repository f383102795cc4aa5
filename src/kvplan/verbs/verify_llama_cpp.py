"""llama.cpp's log beside what kvplan predicts: contexts, caches, states and buffers."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from kvplan.engines.context_budget import placed_on
from kvplan.engines.deployment import Deployment
from kvplan.engines.engine import Capacity
from kvplan.engines.llama_cpp_placement import HOST, Placed, output_bytes
from kvplan.engines.registry import capacity_of
from kvplan.errors import KvplanError
from kvplan.figure import bare, value_of
from kvplan.observe.forms import Said
from kvplan.observe.observed import Observed, Pool
from kvplan.verbs.verify_check import FLAGS, Check, between, exact, found, within
from kvplan.verbs.verify_deployment import Case
from kvplan.verbs.verify_outcome import Compared

_ROUNDED = "printed to 0.01 MiB"
_PADDED_FIRST, _PADDING = 8000, 255
_BUFFER = "it has no closed form: between two bounds"


def compared(case: Case) -> Compared:
    """Every figure of the load; its context decides the cache, so that flags alone give all of them."""
    o, d = case.observed, case.deployment()
    c = capacity_of(d, None, bare)
    rows, notes = _caches(o, c)
    rows = [*_context(o, c), *rows, *_totals(o, c)]
    try:
        rows += _buffers(o, d, c)
    except KvplanError as error:
        notes.append(f"buffers are not compared: {error}")
    return Compared(rows, d, d, notes)


def trial(case: Case, **changed: Any) -> Deployment | None:
    """The deployment with something changed."""
    return case.attempt(None, **changed)


def _context(o: Observed, c: Capacity) -> list[Check]:
    made = {name: value for name, (value, _) in c.settings.items()}
    return found(
        [
            _length(o, "n_ctx", value_of(c.kv_tokens)),
            _length(o, "n_ctx_seq", made.get("n_ctx_seq")),
            exact("max_running_requests", made.get("n_seq_max"), o.figures.get("n_seq_max"), "", FLAGS),
        ]
    )


def _length(o: Observed, name: str, predicted: Any) -> Check | None:
    said = o.figures.get(name)
    build = (o.version or "").removeprefix("b")
    if predicted is None or not build.isdigit() or int(build) >= _PADDED_FIRST:
        return exact(name, predicted, said, "token", FLAGS)
    why = "builds of that age print it before they round it up"
    return between(name, predicted, (predicted - _PADDING, predicted), said, "token", FLAGS, why)


def _caches(o: Observed, c: Capacity) -> tuple[list[Check], list[str]]:
    """Cache by cache, in the order in which llama.cpp makes them."""
    pools = [pool for pool in o.pools if "state" not in pool.name]
    if len(pools) != len(c.groups):
        what = f"{len(pools)} caches in the log, {len(c.groups)} predicted"
        return [], [f"{what}: compared by their sums"] if pools else []
    rows: list[Check | None] = []
    for pool, group in zip(pools, c.groups, strict=True):
        name = group.kind if len(pools) > 1 else "kv"
        rows += [
            exact(f"{name}.cells", group.cells, pool.figures.get("cache_cells"), "cell", FLAGS),
            exact(f"{name}.layers", group.layers, pool.figures.get("cache_layers"), "layer", FLAGS),
            exact(f"{name}.streams", group.streams, pool.figures.get("cache_streams"), "", FLAGS),
            _size(f"{name}.k_bytes", group.k_bytes, pool, "k_bytes"),
            _size(f"{name}.v_bytes", group.v_bytes, pool, "v_bytes"),
        ]
    return found(rows), []


def _size(name: str, predicted: int | None, pool: Pool, figure: str) -> Check | None:
    return exact(name, predicted, pool.figures.get(figure), "B", FLAGS, _ROUNDED)


def _totals(o: Observed, c: Capacity) -> list[Check]:
    keys, values = value_of(c.k_bytes), value_of(c.v_bytes)
    held = sum(value_of(part) or 0 for part in (c.kv_bytes, c.state_bytes))
    ollama = o.figures.get("kv_device_bytes") if "cache_bytes" not in o.figures else None
    return found(
        [
            exact("k_bytes", keys, o.figures.get("k_bytes"), "B", FLAGS, _ROUNDED),
            exact("v_bytes", values, o.figures.get("v_bytes"), "B", FLAGS, _ROUNDED),
            exact("kv_bytes", value_of(c.kv_bytes), o.figures.get("cache_bytes"), "B", FLAGS, _ROUNDED),
            exact("kv_bytes", held, ollama, "B", FLAGS, "Ollama prints one decimal"),
            exact("state_bytes", value_of(c.state_bytes), _states(o), "B", FLAGS, _ROUNDED),
        ]
    )


def _states(o: Observed) -> Said | None:
    return o.figures.get("state_bytes")


def _buffers(o: Observed, d: Deployment, c: Capacity) -> list[Check]:
    slots, _ = c.settings.get("n_seq_max", (1, ""))
    output = output_bytes(d.model, int(slots))
    rows = [exact("output_bytes", output, o.figures.get("output_bytes"), "B", FLAGS, _ROUNDED)]
    on = placed_on(d)
    for name, said in o.figures.items():
        device = name.removeprefix("compute_bytes ")
        if device == name:
            continue
        placed = _placed(on, device)
        if placed is not None:
            bounds = (placed.compute.low, placed.compute.high)
            middle = sum(bounds) // 2
            rows.append(between(f"compute_bytes.{device}", middle, bounds, said, "B", FLAGS, _BUFFER))
    return found([*rows, _weights(o, d, on)])


def _placed(on: list[Placed], device: str) -> Placed | None:
    """What kvplan puts on a device of that name; buffers of pinned host memory are the host's."""
    host = next((p for p in on if p.device == HOST), None)
    if device.endswith("_Host"):
        return None  # graph inputs alone
    if device.startswith(("CPU", "BLAS", "AMX")):
        return host
    number = re.search(r"(\d+)$", device)
    return next((p for p in on if p.device == f"device {number[1] if number else 0}"), None)


def _weights(o: Observed, d: Deployment, on: list[Placed]) -> Check | None:
    """Weights over all devices, where the file's own tensors are known; repacked copies left out."""
    if d.model.tensors is None or not d.model.tensors.tensors:
        return None
    names = [n for n in o.figures if n.startswith("model_bytes ") and "REPACK" not in n]
    sizes = [o.figures[name] for name in names]
    if not sizes:
        return None
    total = Said(sum(s.value for s in sizes), sum(s.half for s in sizes))
    predicted = sum(placed.weight_bytes for placed in on)
    return within("weight_bytes", predicted, 0.01, total, "B", FLAGS, "tensors are aligned on every device")


def agrees_with(case: Case) -> Callable[[Deployment], bool]:
    """Whether a deployment's caches print as the log's did."""

    def tried(d: Deployment) -> bool:
        c = capacity_of(d, None, bare)
        rows, _ = _caches(case.observed, c)
        rows = [*_context(case.observed, c), *rows, *_totals(case.observed, c)]
        return bool(rows) and all(row.agrees for row in rows)

    return tried
