"""SGLang's log beside what kvplan predicts: tokens of the pool it printed, and the pool itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvplan.engines.budget import memory_of
from kvplan.engines.deployment import Deployment
from kvplan.engines.engine import CacheGroup, Capacity
from kvplan.engines.registry import capacity_of
from kvplan.engines.sglang_memory import mem_fraction_static, mm_reserve_bytes, pool_bytes
from kvplan.figure import bare, value_of
from kvplan.observe.forms import Said
from kvplan.observe.observed import Observed, Pool
from kvplan.verbs.verify_check import FLAGS, PARTS, Check, between, exact, found, within
from kvplan.verbs.verify_deployment import Case
from kvplan.verbs.verify_outcome import Compared

AT_TOKENS = "the log's tokens"
FROM_POOL = "the log's pool"
_ROUNDED = "printed to 0.01 GB, which are GiB"
_WEIGHTS = "the drop of free memory while loading: workspaces and other processes count"
_GIB = 2**30


def compared(case: Case) -> Compared:
    """Every figure of the start-up, and the deployment at the log's tokens."""
    o = case.observed
    tokens = o.figures.get("kv_tokens")
    d = trial(case)
    rows = [*_sizes(o, d, tokens), *_from_pool(case, tokens), *_from_free(case, tokens)]
    planned, notes = case.planned()
    if planned is not None:
        rows += _from_flags(o, planned, tokens)
    return Compared(rows, d, planned, notes)


def trial(case: Case, **asked: Any) -> Deployment | None:
    """The deployment whose pools hold what was printed, with something changed where asked."""
    tokens = case.observed.figures.get("kv_tokens")
    changed: dict[str, Any] = {"max_total_tokens": int(tokens.value)} if tokens and tokens.value >= 1 else {}
    states = case.observed.figures.get("max_mamba_cache_size")
    if states is not None and states.value >= 1:
        changed["max_mamba_cache_size"] = int(states.value)
    return case.attempt(1 << 50, **changed, **asked) if changed else None


def _sizes(o: Observed, d: Deployment | None, tokens: Said | None) -> list[Check]:
    """Keys, values and states at the tokens that were printed."""
    if d is None or tokens is None:
        return []
    c = capacity_of(d, None if "max_mamba_cache_size" not in d.setup.flags else 1 << 50, bare)
    groups = {g.kind: g for g in c.groups}
    rows = [row for pool in o.pools for row in _pool(pool, c)]
    length = c.settings.get("context_length", (d.max_model_len, ""))[0]
    rows.append(exact("context_length", length, o.figures.get("context_length"), "token", FLAGS))
    swa, mamba, drafted = (groups.get(kind) for kind in ("swa", "mamba", "mamba_draft"))
    for name, predicted, unit in (
        ("max_running_requests", value_of(c.max_running_requests), ""),
        ("swa_layer_tokens", swa and swa.cells, "token"),
        ("conv_state_bytes", mamba and mamba.k_bytes, "B"),
        ("ssm_state_bytes", mamba and mamba.v_bytes, "B"),
        ("draft_ssm_state_bytes", drafted and drafted.v_bytes, "B"),
    ):
        why = _ROUNDED if unit == "B" else ""
        rows.append(exact(name, predicted, o.figures.get(name), unit, AT_TOKENS, why))
    return found(rows)


def _pool(pool: Pool, c: Capacity) -> list[Check | None]:
    """One allocation beside the group it is: told by its tokens, and of groups with as many by its bytes."""
    group = _group_of(pool, c)
    one = len([g for g in c.groups if g.kind not in ("mamba", "mamba_draft")]) <= 1 or group is None
    name = "" if one or group is None else f"{group.kind}."
    whole = [value_of(part) for part in (c.k_bytes, c.v_bytes, c.kv_bytes)]
    keys, values = (group.k_bytes, group.v_bytes) if group and not one else (whole[0], whole[1])
    both = whole[2] if one or group is None else (group.k_bytes or 0) + (group.v_bytes or 0)
    return [
        exact(f"{name}k_bytes", keys, pool.figures.get("k_bytes"), "B", AT_TOKENS, _ROUNDED),
        exact(f"{name}v_bytes", values, pool.figures.get("v_bytes"), "B", AT_TOKENS, _ROUNDED),
        exact(f"{name}kv_bytes", both, pool.figures.get("kv_bytes"), "B", AT_TOKENS, _ROUNDED),
    ]


def _group_of(pool: Pool, c: Capacity) -> CacheGroup | None:
    sizes = [g for g in c.groups if g.cells is not None and g.kind not in ("mamba", "mamba_draft")]
    said = pool.figures.get("pool_tokens")
    if said is None or not sizes:
        return None
    near = [g for g in sizes if abs((g.cells or 0) - said.value) <= (g.block_tokens or 1)]
    keys = pool.figures.get("k_bytes") or pool.figures.get("kv_bytes")
    return min(near or sizes, key=lambda g: abs((g.k_bytes or 0) - (keys.value if keys else 0)))


def _from_pool(case: Case, tokens: Said | None) -> list[Check]:
    """Tokens of the bytes that keys and values take, with the drafter's, as they are printed."""
    o = case.observed
    if tokens is None or "swa_layer_tokens" in o.figures or "max_total_tokens" in o.flags:
        return []
    names = ("k_bytes", "v_bytes", "kv_bytes")
    sizes = [pool.figures[name] for pool in o.pools for name in names if name in pool.figures]
    states = ("conv_state_bytes", "ssm_state_bytes", "max_mamba_cache_size")
    if not sizes or any(name in o.figures for name in states):
        return []
    total, half = sum(s.value for s in sizes), sum(s.half for s in sizes)
    got = []
    for at in (total, total - half, total + half):
        d = case.attempt(int(at))
        if d is None:
            return []
        found_at = capacity_of(d, int(at), bare)
        if any(group.kind == "mamba" for group in found_at.groups):
            return []  # states take a part that the log does not show
        page = int(value_of(found_at.bytes_per_block) or 0) + 1
        spare = 2 * page if at == total - half else page if at == total else 0  # padding is in the sizes
        got.append(value_of(capacity_of(d, max(0, int(at) - spare), bare).kv_tokens))
    return found([between("kv_tokens", got[0], (got[1], got[2]), tokens, "token", FROM_POOL, _ROUNDED)])


def _from_free(case: Case, tokens: Said | None) -> list[Check]:
    """The pool by SGLang's own rule from what was free before and after the weights."""
    o = case.observed
    before, after = o.figures.get("free_before_bytes"), o.figures.get("free_after_bytes")
    if before is None or after is None or tokens is None or "max_total_tokens" in o.flags:
        return []
    d = case.attempt(1 << 40)
    if d is None:
        return []
    share = d.setup.flags.get("mem_fraction_static") or mem_fraction_static(d.model, d.setup)
    if share is None or "max_mamba_cache_size" in o.figures:
        return []
    reserve = mm_reserve_bytes(d.model, d.setup)
    got = []
    for sign in (0, -1, 1):
        free = (after.value + sign * after.half, before.value - sign * before.half)
        pool = int(value_of(pool_bytes(*free, float(share), reserve)))
        got.append(value_of(capacity_of(d, pool, bare).kv_tokens))
    if any(n is None for n in got):
        return []
    slack = 0.03 * tokens.value
    bounds = (got[1] - slack, got[2] + slack)
    why = "free memory is read again when the pool is sized: up to 3 %"
    return found([between("kv_tokens_from_free_memory", got[0], bounds, tokens, "token", PARTS, why)])


def _from_flags(o: Observed, d: Deployment, tokens: Said | None) -> list[Check]:
    """Weights and pool from the device and the flags."""
    table = memory_of(d, bare)
    weights = o.figures.get("weight_bytes")
    rows = [within("weight_bytes", table["weight_bytes"], 0.05, weights, "B", FLAGS, _WEIGHTS)]
    if tokens is not None and table["kv_pool_bytes"]:
        pools = [int(table[name]) for name in ("kv_pool_bytes", "kv_pool_low_bytes", "kv_pool_high_bytes")]
        got = [value_of(capacity_of(d, pool, bare).kv_tokens) for pool in pools]
        if not any(n is None for n in got):
            ends, why = (got[1], got[2]), "the pool's interval over what start-up logs showed"
            rows.append(between("kv_tokens_from_flags", got[0], ends, tokens, "token", FLAGS, why))
    return found(rows)


def agrees_with(case: Case) -> Callable[[Deployment], bool]:
    """Whether a deployment's pools are of the sizes that the log printed at its tokens."""
    o = case.observed
    tokens = o.figures.get("kv_tokens")

    def tried(d: Deployment) -> bool:
        rows = [row for row in _sizes(o, d, tokens) if row.basis == AT_TOKENS]
        return bool(rows) and all(row.agrees for row in rows)

    return tried
