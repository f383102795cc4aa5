"""What a deployment will print at start-up: the engine's own lines with the figures that are predicted."""

from __future__ import annotations

from collections.abc import Mapping
from string import Formatter
from typing import Any

from kvplan.engines.deployment import Deployment
from kvplan.facts import launching
from kvplan.units import bytes_text

_GIB, _MIB = 2**30, 2**20


def expected_lines(d: Deployment, fit: Mapping[str, Any]) -> list[str]:
    """The lines of one engine's start, from the `fit` of the deployment in bare numbers.

    Each is the fixed part of a line, to be found in the log. What is not known has no line.
    """
    forms = launching.printed_by(d.setup.engine, d.setup.version)
    if not forms or not fit["capacity"]["kv_tokens"]:
        return []
    known = _figures(d, fit)
    lines = [_filled(form, known) for form in forms["lines"]]
    if "each" in forms:
        caches = [group for group in fit["capacity"]["groups"] if group.get("cells")]
        lines += [_filled(forms["each"], known | _cache(group)) for group in caches]
    if "state" in forms and fit["capacity"]["state_bytes"]:
        lines.append(_filled(forms["state"], known))
    return list(dict.fromkeys(line for line in lines if line))


def spread(d: Deployment, fit: Mapping[str, Any]) -> tuple[str, ...]:
    """How far the pool may lie from what is predicted, and what then; empty where it follows exactly."""
    memory = fit["memory"]
    low, high = memory["kv_pool_low_bytes"], memory["kv_pool_high_bytes"]
    if "kv_pool_bytes" in d.measured or low is None or high is None or low == high:
        return ()
    return (
        f"The pool is a prediction: {bytes_text(low)} to {bytes_text(high)} over the assumptions' ranges.",
        "Put the printed one in (kvplan fit … --kv-cache-memory-bytes), and the other figures are exact.",
    )


def _filled(form: str, known: Mapping[str, Any]) -> str:
    """A line with its figures; empty where one of them is not known."""
    wanted = [name for _, name, _, _ in Formatter().parse(form) if name]
    return "" if any(known.get(name) is None for name in wanted) else form.format(**known)


def _figures(d: Deployment, fit: Mapping[str, Any]) -> dict[str, Any]:
    capacity, memory = fit["capacity"], fit["memory"]
    settings = fit["engine"]["settings"]
    pool = memory["kv_pool_bytes"] if "kv_pool_bytes" not in d.measured else None
    one_pool = len({g["kind"] for g in capacity["groups"] if g.get("cells")} & {"full", "swa"}) == 1
    return {
        **{name: capacity[name] for name in ("kv_tokens", "num_blocks", "block_tokens", "max_concurrency")},
        "device": {"cuda": "GPU", "rocm": "GPU"}.get(d.setup.platform, d.setup.platform.upper()),
        "max_model_len": d.max_model_len,
        "max_running_requests": capacity["max_running_requests"],
        "pool_gib": None if pool is None else pool / _GIB,
        "pool_gib_short": None if pool is None else round(pool / _GIB, 2),
        "pool_tokens": capacity["kv_tokens"] if one_pool and d.setup.dcp == 1 else None,
        **{
            f"{name}_gib": capacity[f"{name}_bytes"] and capacity[f"{name}_bytes"] / _GIB
            for name in ("kv", "k", "v")
        },
        "state_mib": capacity["state_bytes"] and capacity["state_bytes"] / _MIB,
        "sequences": settings.get("n_seq_max"),
        "slot_tokens": settings.get("n_ctx_seq"),
        "unified": str(bool(settings.get("kv_unified"))).lower(),
        **{f"type_{side}": _cache_type(d, settings, side) for side in ("k", "v")},
    }


def _cache_type(d: Deployment, settings: Mapping[str, Any], side: str) -> str | None:
    """llama.cpp's name of a cache's type: the flag, --kv-cache-dtype for both, else the default."""
    given = settings.get(f"cache_type_{side}")
    both = d.setup.kv_cache_dtype.lower()
    if d.setup.engine != "llama.cpp" or (given is None and both == "auto"):
        return None if given is None else str(given).lower()
    spelt = launching.how("llama.cpp")["cache_dtypes"]
    return str(given).lower() if given is not None else str(spelt.get(both, both))


def _cache(group: Mapping[str, Any]) -> dict[str, Any]:
    """One of llama.cpp's caches as its line says it."""
    k, v = group.get("k_bytes") or 0, group.get("v_bytes") or 0
    return {
        **{name: group.get(name) for name in ("cells", "layers", "streams")},
        "mib": (k + v) / _MIB,
        "k_mib": k / _MIB,
        "v_mib": v / _MIB,
    }
