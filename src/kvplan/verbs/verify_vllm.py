"""vLLM's log beside what kvplan predicts: the capacity of the pool it printed, and the pool itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kvplan.engines.budget import memory_of, profiled_ends, requested_bytes
from kvplan.engines.deployment import Deployment
from kvplan.engines.engine import Capacity
from kvplan.engines.registry import capacity_of
from kvplan.engines.vllm_version import rules_of
from kvplan.facts import store
from kvplan.facts.engine_versions import entry_for
from kvplan.figure import bare, value_of
from kvplan.observe.forms import Said
from kvplan.observe.observed import Observed
from kvplan.units import bytes_text
from kvplan.verbs.verify_check import FLAGS, MEASURED, PARTS, Check, between, exact, found, within
from kvplan.verbs.verify_deployment import Case
from kvplan.verbs.verify_outcome import Compared, explained

WEIGHTS, DEVICE = 0.02, 0.01
_WEIGHTS_WHY = "of the logged weights compared, six in seven are within 2 % (docs/weights.md)"
_PARTS_WHY = "between the ends of what start-up logs showed"
_POOL_WHY = "its interval holds 85 % of the logs compared (docs/agreement.md)"
_SMALLER = 0.03  # ranks' pools in logs that print all differ by up to 2 %
_GROWING = ("kv_tokens", "estimated_max_model_len", "max_concurrency")
_UNITS = {"num_blocks": "block", "max_concurrency": "×", "needed_kv_bytes": "B"}


def compared(case: Case) -> Compared:
    """What the pool that was printed holds, the pool from the flags, and whether the printed parts add up."""
    o = case.observed
    planned, notes = (None, []) if o.platform == "cpu" else case.planned()
    measured, why_not = case.made(_given_pool(case, planned), "the pool's capacity is not predicted")
    notes += [] if measured is None and planned is not None else why_not
    rows, why = [], []
    if measured is not None:
        held, smaller = capacity_checks(o, measured)
        rows += [*held, *layout_checks(o, measured)]
        why += [explained([row.name for row in held], smaller)] if smaller else []
    if planned is not None:
        rows += budget_checks(o, planned)
    return Compared([*rows, *found([parts_check(o)])], measured, planned, notes, why)


def trial(case: Case, **changed: Any) -> Deployment | None:
    """The deployment with something changed, its pool given: for trying what would explain the log."""
    return case.attempt(1 << 30, **changed)


def _given_pool(case: Case, planned: Deployment | None) -> int | None:
    """The bytes given to the cache: as the user states them, else as the log does; None where nobody did."""
    if case.states_pool:
        return None
    said = held_pool(case, planned)
    if said is not None and said.value >= 1:
        return round(said.value)
    return 1 << 30 if planned is None else None  # blocks and lengths need no pool


def held_pool(case: Case, planned: Deployment | None) -> Said | None:
    """The pool that the log states, else the one that its blocks, or its tokens, come to."""
    said = pool_said(case.observed, planned)
    return said if said is not None else _of_blocks(case.observed, planned or trial(case))


def printed(c: Capacity) -> dict[str, Any]:
    """The figures that a start-up prints, as numbers."""
    names = ("num_blocks", "kv_tokens", "max_concurrency", "needed_kv_bytes", "estimated_max_model_len")
    return {name: value_of(getattr(c, name)) for name in names}


def reported(o: Observed) -> dict[str, Said]:
    """The same figures of the log."""
    return {name: o.figures[name] for name in printed(Capacity(None)) if name in o.figures}


def alike(c: Capacity, said: dict[str, Said]) -> bool:
    """Whether a capacity prints as the log did."""
    got = printed(c)
    return all(got[n] is not None and abs(got[n] - s.value) <= s.half * 1.0001 for n, s in said.items())


def pool_said(o: Observed, d: Deployment | None = None) -> Said | None:
    """The pool that the log states; of a refused start the one that was checked, its spare block added.

    A server that states its blocks alone has the bytes that so many of the deployment's blocks come to.
    """
    said = o.figures.get("kv_pool_bytes")
    if said is not None:
        return said
    if o.served:
        return _of_blocks(o, d)
    refused = o.failure.figures.get("kv_checked_bytes") if o.failure else None
    if refused is None or d is None:
        return refused
    spare = int(value_of(capacity_of(d, None, bare).bytes_per_block) or 0)
    held = spare if rules_of(d.setup.version).null_block_in_check else 0
    return Said(refused.value + held, refused.half)


def _of_blocks(o: Observed, d: Deployment | None) -> Said | None:
    """What the blocks that were printed, or of a refused start the tokens, come to."""
    if d is None:
        return None
    c = capacity_of(d, None, bare)
    each, blocks = value_of(c.bytes_per_block), o.value("num_blocks")
    tokens = o.failure.value("kv_tokens") if o.failure is not None else None
    if blocks is None and tokens is not None and c.block_tokens:
        blocks = tokens // c.block_tokens
    if not blocks or not each:
        return None
    return Said(blocks * each + each / 2, each / 2)  # what is left is less than a block


def matching_pool(d: Deployment, said: dict[str, Said], low: int, high: int) -> int | None:
    """A pool between two sizes whose capacity prints as the log did: the largest that was found, or None."""
    for pool in (high, low, (low + high) // 2):
        if alike(capacity_of(d, pool, bare), said):
            return pool
    block = int(value_of(capacity_of(d, high, bare).bytes_per_block) or 0)
    blocks = said.get("num_blocks")
    if not block:
        return None
    if blocks is not None:
        pool = int(blocks.value) * block
        return pool if low - block < pool <= high and alike(capacity_of(d, pool, bare), said) else None
    main = next((n for n in _GROWING if n in said), None)
    if main is None or not _reaches(d, main, said[main], (low, high)):
        return None
    return _bisected(d, said, main, (-(-low // block), high // block), block)


def _reaches(d: Deployment, main: str, said: Said, pools: tuple[int, int]) -> bool:
    """Whether a figure that grows with the pool can be what was printed between two pools."""
    least, most = (printed(capacity_of(d, pool, bare))[main] for pool in pools)
    return most is not None and most >= said.low and (least is None or least <= said.high)


def _bisected(
    d: Deployment, said: dict[str, Said], main: str, span: tuple[int, int], block: int
) -> int | None:
    """The number of blocks at which a figure reaches what was printed; more blocks never print less."""
    low, high = span
    wanted = said[main].low
    while low < high:
        middle = (low + high) // 2
        got = printed(capacity_of(d, middle * block, bare))[main]
        if got is None or got < wanted:
            low = middle + 1
        else:
            high = middle
    for count in range(low, low + 3):
        if alike(capacity_of(d, count * block, bare), said):
            return count * block
    return None


def capacity_checks(o: Observed, d: Deployment) -> tuple[list[Check], str]:
    """What the pool that was printed holds, and what is to be said of the rank that decides."""
    pool, said = pool_said(o, d), reported(o)
    refused = dict(o.failure.figures) if o.failure and o.failure.kind == "one_request_too_long" else {}
    said |= {n: refused[n] for n in ("needed_kv_bytes", "estimated_max_model_len") if n in refused}
    why = f"the log rounds its pool to {bytes_text(2 * pool.half)}" if pool is not None else ""
    why = why if pool is not None and pool.half else "the pool is stated in bytes"
    if "kv_pool_bytes" not in o.figures and o.served and "num_gpu_blocks_override" not in d.setup.flags:
        said.pop("num_blocks", None)  # the pool is made of them
        why = "so many blocks as it states hold it"
    if pool is None or not said:
        return [], ""
    low, high = max(0, round(pool.low)), max(0, round(pool.high))
    at, note = matching_pool(d, said, low, high), ""
    several = d.setup.tp * d.setup.pp
    if at is None and several > o.ranks:
        at = matching_pool(d, said, int(low * (1 - _SMALLER)), low)
        if at is not None:
            less = f"{bytes_text(at)}, {1 - at / pool.value:.1%} less than the one printed"
            note = f"a smaller rank decides: its pool is {less} (the log shows {o.ranks} of {several} ranks)"
    if at is not None:
        found_at = capacity_of(d, at, bare)
        return _rows(said, (found_at, found_at, found_at), why, note), note
    ends = (capacity_of(d, round(pool.value), bare), capacity_of(d, low, bare), capacity_of(d, high, bare))
    return _rows(said, ends, why, ""), ""


def _rows(
    said: dict[str, Said], ends: tuple[Capacity, Capacity, Capacity], why: str, note: str
) -> list[Check]:
    best, low, high = (printed(c) for c in ends)
    rows: list[Check | None] = []
    for name, figure in said.items():
        unit = _UNITS.get(name, "token")
        if name == "needed_kv_bytes":
            rows.append(exact(name, best[name], figure, unit, MEASURED, "printed to 0.01 GiB"))
        else:
            bounds = (low[name], high[name])
            rows.append(between(name, best[name], bounds, figure, unit, MEASURED, why))
    return [row.with_note(note) if note else row for row in found(rows)]


def layout_checks(o: Observed, d: Deployment) -> list[Check]:
    """Lengths and blocks that need no pool."""
    c = capacity_of(d, None, bare)
    length, _ = c.settings.get("max_model_len", (d.setup.flags.get("max_model_len"), ""))
    block, _ = c.settings.get("block_size", (d.setup.flags.get("block_size"), ""))
    fitted = d.setup.flags.get("max_model_len") == -1
    stated = None if fitted else o.figures.get("concurrency_length")
    return found(
        [
            exact("max_model_len", length, stated, "token", FLAGS),
            exact("block_tokens", block, o.figures.get("attention_block_tokens"), "token", FLAGS),
        ]
    )


def budget_checks(o: Observed, d: Deployment) -> list[Check]:
    """The memory of one rank as predicted from the device and the flags, part by part."""
    table, ends, f = memory_of(d, bare), profiled_ends(d), o.figures
    value, low, high = ends["overhead_bytes"]
    weights = table["weight_bytes"]
    rows = [
        within(*_both("accelerator_bytes", table, f), FLAGS, "drivers and ECC take up to 1 % of a device"),
        within(*_both("weight_bytes", table, f), FLAGS, _WEIGHTS_WHY),
        _part("activation_bytes", ends["activation_bytes"], f.get("activation_bytes")),
        _part("overhead_bytes", ends["overhead_bytes"], f.get("non_torch_bytes")),
    ]
    if weights is not None:
        least, most = weights * (1 - WEIGHTS) + low, weights * (1 + WEIGHTS) + high
        rows.append(_part("consumed_bytes", (weights + value, least, most), f.get("consumed_bytes")))
    if ends["graph_bytes"][0]:
        rows.append(_part("graph_bytes", ends["graph_bytes"], f.get("graph_estimate_bytes")))
    return found([*rows, *_pool_rows(o, d, table)])


def _both(
    name: str, table: dict[str, Any], figures: Mapping[str, Said]
) -> tuple[str, Any, float, Said | None, str]:
    """What `within` takes of a figure, up to its unit."""
    return name, table[name], WEIGHTS if name == "weight_bytes" else DEVICE, figures.get(name), "B"


def _part(name: str, ends: tuple[float, float, float], said: Said | None) -> Check | None:
    return between(name, ends[0], (ends[1], ends[2]), said, "B", FLAGS, _PARTS_WHY)


def _pool_rows(o: Observed, d: Deployment, table: dict[str, Any]) -> list[Check | None]:
    pool = pool_said(o, d)
    if "kv_pool_bytes" in d.measured:
        return []
    predicted, low, high = _left(d, table)
    if predicted is None:
        return []
    rows = [between("kv_pool_bytes", predicted, (low, high), pool, "B", FLAGS, _POOL_WHY)]
    tokens = o.figures.get("kv_tokens")
    if tokens is not None and predicted > 0:
        got = [printed(capacity_of(d, max(0, int(p)), bare))["kv_tokens"] for p in (predicted, low, high)]
        ends, why = (got[1], got[2]), "the pool's interval"
        rows.append(between("kv_tokens_from_flags", got[0], ends, tokens, "token", FLAGS, why))
    return rows


def _left(d: Deployment, table: dict[str, Any]) -> tuple[int | None, int, int]:
    """What is left for the cache, at both ends too; below nothing where something is missing."""
    weights = table["weight_bytes"]
    if weights is None:
        return None, 0, 0
    parts = list(profiled_ends(d).values())
    taken = [sum(part[end] for part in parts) for end in range(3)]
    left = [requested_of(d) - weights - part for part in taken]
    return left[0], min(left), max(left)


def share_of(d: Deployment) -> float:
    """The share of the device that the engine may use."""
    given = d.setup.flags.get("gpu_memory_utilization")
    if given is None:
        shares = store.toml("engines/reserve.toml")["vllm"]["gpu_memory_utilization"]
        given = entry_for(shares, d.setup.version)["value"]
    return float(given)


def requested_of(d: Deployment) -> int:
    """The same in bytes."""
    return int(value_of(requested_bytes(d.memory_bytes or 0, share_of(d))))


def parts_check(o: Observed) -> Check | None:
    """The pool by the engine's own rule from the parts that the log prints: whether they add up."""
    f, pool = o.figures, o.figures.get("kv_pool_bytes")
    budget = f.get("requested_bytes")
    if pool is None or budget is None or pool.half == 0:
        return None
    if "consumed_bytes" in f and "activation_bytes" in f:
        parts, rule = [f["consumed_bytes"], f["activation_bytes"]], "consumed memory and the peak"
    elif "peak_torch_bytes" in f and "non_torch_bytes" in f:
        parts, rule = [f["peak_torch_bytes"], f["non_torch_bytes"]], "PyTorch's peak and what lies outside it"
    elif all(name in f for name in ("weight_bytes", "activation_bytes", "non_torch_bytes")):
        parts = [f["weight_bytes"], f["activation_bytes"], f["non_torch_bytes"]]
        rule = "weights, the peak and what lies outside PyTorch"
        if o.graphs_profiled and "graph_estimate_bytes" in f:
            parts, rule = [*parts, f["graph_estimate_bytes"]], f"{rule}, and the graphs' estimate"
    else:
        return None
    predicted = budget.value - sum(part.value for part in parts)
    slack = budget.half + sum(part.half for part in parts) + 0.02 * 2**30
    bounds = (predicted - slack, predicted + slack)
    why = f"every part is printed to 0.01 GiB: the budget less {rule}"
    return between("kv_pool_from_parts", round(predicted), bounds, pool, "B", PARTS, why)


def agrees_with(case: Case) -> Callable[[Deployment], bool]:
    """Whether a deployment's capacity prints as the log did, for trying what would explain it."""
    o = case.observed

    def tried(d: Deployment) -> bool:
        pool, said = pool_said(o, d), reported(o)
        if o.failure and o.failure.kind == "one_request_too_long":
            names = ("needed_kv_bytes", "estimated_max_model_len")
            said |= {n: o.failure.figures[n] for n in names if n in o.failure.figures}
        if pool is None or not said:
            return False
        low, high = max(0, round(pool.low)), max(0, round(pool.high))
        if matching_pool(d, said, low, high) is not None:
            return True
        several = d.setup.tp * d.setup.pp > o.ranks
        return several and matching_pool(d, said, int(low * (1 - _SMALLER)), low) is not None

    return tried
