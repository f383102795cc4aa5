"""SGLang's cache: from the bytes one rank gives to it to the figures its start-up log prints.

`max_total_num_tokens`, `max_running_requests`, K and V sizes, sliding-window and state pools, by version.
"""

from __future__ import annotations

from typing import Any

from kvplan.engines.engine import CacheGroup, Capacity, Setup
from kvplan.engines.sglang_memory import mem_fraction_static
from kvplan.engines.sglang_pool import Stage, pool_bytes_of, stage_of
from kvplan.engines.sglang_rules import defaults, memory_rules
from kvplan.engines.sglang_setup import Started, since, started, whole
from kvplan.engines.sglang_state import states_per_request
from kvplan.figure import Leaf, Number, Source, Trust, bare, ceiling, formula, least, most, named, value_of
from kvplan.figure import whole as floor
from kvplan.model.model import Model

_REQUESTS = "SGLang 0.5.23 mem_cache/kv_cache_configurator.py resolve_max_num_reqs"


@formula("request", _REQUESTS)
def estimated_requests(
    tokens: Number, context_len: Number, scale: Number, low: Number, high: Number
) -> Number:
    """Running requests when none are asked for: tokens ÷ context × a scale, between two bounds."""
    return most(least(floor(tokens / context_len * scale), high), low)


@formula("request", _REQUESTS)
def half_the_tokens(requests: Number, tokens: Number) -> Number:
    """No more requests than half the tokens."""
    return least(requests, tokens // 2)


def capacity(model: Model, setup: Setup, pool_bytes: int | None, leaf: Leaf = bare) -> Capacity:
    """What SGLang prints for `model` when one rank's pool (states included) has that many bytes.

    Without a pool, `max_total_tokens` decides, or the figures that need one are None.
    """
    run = started(model, setup)
    _static_share(model, run)
    pool = None
    if pool_bytes is not None:
        where = Source(Trust.STATED, "bytes given to the cache of one rank")
        pool = leaf("kv_pool_bytes", pool_bytes, "B", where)
    cap = whole(setup.flags, "max_total_tokens")
    stages = stage_layers(len(model.layers), setup.pp)
    layers = [tuple(model.layers[i] for i in span) for span in stages]
    found = [stage_of(model, run, part, pool, cap, leaf) for part in layers]
    held = [s for s in found if value_of(s.cell) or len(found) == 1]
    binding = min(held or found, key=lambda s: _sort(s.tokens))
    tokens = binding.tokens
    if len(found) > 1 and tokens is not None:
        note = f"{len(found)} stages: the one with the fewest tokens decides"
        run.notes.append(note)
    return _answer(model, run, binding, tokens, leaf)


def _static_share(model: Model, run: Started) -> None:
    """The default share of the device among the settings in force, where the device is known."""
    given = run.flag("mem_fraction_static")
    found = mem_fraction_static(model, run.setup) if given is None else None
    if found is not None:
        why = f"SGLang {memory_rules(run.setup.version)['source']}"
        run.settings["mem_fraction_static"] = (found, why)


def _sort(tokens: Any) -> float:
    return float("inf") if tokens is None else float(value_of(tokens))


def stage_layers(count: int, pp: int) -> list[range]:
    """Layers of each pipeline stage: even, the remainder on the last ones.

    SGLang 0.5.23 distributed/utils.py get_pp_indices.
    """
    base, extra = divmod(count, pp)
    sizes = [base + (stage >= pp - extra) for stage in range(pp)]
    return [range(sum(sizes[:stage]), sum(sizes[: stage + 1])) for stage in range(pp)]


def _answer(model: Model, run: Started, stage: Stage, tokens: Any, leaf: Leaf) -> Capacity:
    context = run.context
    length = leaf("context_len", context, "token", model.origin("max_context")) if context else None
    needed = None
    if length is not None:
        one = _whole_bytes(ceiling(length, run.page) * run.page * stage.cell)
        needed = named("needed_kv_bytes", "B", one)
    base: dict[str, Any] = {
        "block_tokens": run.page,
        "bytes_per_block": named("page_bytes", "B", _whole_bytes(stage.cell * run.page)),
        "needed_kv_bytes": needed,
    }
    if tokens is None:
        return Capacity(
            None, **base, groups=_groups(run, stage), settings=run.settings, notes=tuple(run.notes)
        )
    refused = refusal(run, stage)
    if refused:
        run.notes.append(refused)
    printed = tokens
    if run.setup.dcp > 1 and not stage.two_pools and since(run, "0.5.20"):
        printed = tokens * run.setup.dcp
        run.notes.append(f"tokens are of all {run.setup.dcp} ranks that share a context, as printed")
    requests = max_running_requests(model, run, stage, tokens, leaf)
    keys, values, both = _sizes(run, stage)
    if context and not refused and value_of(printed) < context:
        run.notes.append(
            f"a request of the whole context, {context:,} tokens, does not fit {value_of(printed):,}: "
            "SGLang starts all the same and cuts requests off there"
        )
    return Capacity(
        fits=not refused,
        num_blocks=named("pages", "page", tokens // run.page),
        kv_tokens=named("max_total_num_tokens", "token", printed),
        max_concurrency=named("max_concurrency", "request", printed / length) if length is not None else None,
        max_running_requests=requests,
        estimated_max_model_len=least(length, printed) if length is not None else printed,
        kv_bytes=both,
        k_bytes=keys,
        v_bytes=values,
        state_bytes=named("state_bytes", "B", stage.state.bytes) if stage.state is not None else None,
        groups=_groups(run, stage),
        settings=run.settings,
        notes=tuple(run.notes),
        **base,
    )


def _whole_bytes(x: Any) -> Any:
    return floor(x) if isinstance(value_of(x), float) else x


def refusal(run: Started, stage: Stage) -> str:
    """Why SGLang would not start with these pools; empty when it does."""
    if stage.state is not None and value_of(stage.state.slots) <= 0:
        return "refused: no state of a request fits (max_mamba_cache_size is not positive)"
    if stage.tokens is not None and value_of(stage.tokens) <= 0:
        return "refused: Not enough memory. Please try to increase --mem-fraction-static."
    floor_tokens = (stage.window or 0) + run.page
    if stage.swa_tokens is not None and stage.window and floor_tokens >= value_of(stage.swa_tokens):
        what = "refused" if since(run, "0.5.17") else "hangs at warm-up"
        return (
            f"{what}: the sliding-window pool of {value_of(stage.swa_tokens):,} tokens holds no request; "
            f"a window of {stage.window:,} and a page of {run.page:,} need more than {floor_tokens:,}"
        )
    return ""


def max_running_requests(model: Model, run: Started, stage: Stage, tokens: Any, leaf: Leaf) -> Any:
    """Requests one worker runs at once: asked for or estimated, then bounded by tokens and states."""
    table, half = defaults(), run.rules["running_half"]
    rule = Source(Trust.ENGINE_RULE, f"SGLang {table['source']}")
    if run.requests is not None:
        asked = Source(Trust.STATED, f"max_running_requests {run.requests} over {run.attn_dp} workers")
        found: Any = leaf("requested_per_worker", max(1, run.requests // run.attn_dp), "request", asked)
        found = half_the_tokens(found, tokens) if half == "both" else found
    else:
        low, high = int(table["min_requests"]), int(table["max_requests"])
        scale = leaf("request_scale", int(table["request_scale"]), "", rule)
        found = estimated_requests(tokens, run.context or value_of(tokens) or 1, scale, low, high)
        extra = int(run.rules["running_extra"])
        found = half_the_tokens(found + extra if extra else found, tokens)
    if stage.state is not None and value_of(stage.state.slots):
        ratio = leaf("states_per_request", states_per_request(model, run), "slot", rule)
        found = least(found, stage.state.slots // ratio)
        if value_of(found) == value_of(stage.state.slots // ratio):
            run.notes.append(
                f"running requests are bounded by {value_of(stage.state.slots):,} states, "
                f"{value_of(ratio)} for each request"
            )
    return named("max_running_requests", "request", found)


def _sizes(run: Started, stage: Stage) -> tuple[Any, Any, Any]:
    """Bytes of keys, of values and of both, drafts left out; latents have only the sum."""
    if not stage.kept:
        return None, None, named("kv_bytes", "B", _whole_bytes(stage.tokens * stage.cell))
    keys: Any = 0
    values: Any = 0
    for kept, tokens in _pools(stage):
        k, v = pool_bytes_of(kept, tokens, run.page)
        keys, values = keys + k, values + v
    both = named("kv_bytes", "B", keys + values)
    if any(k.latent for k in stage.kept):
        return None, None, both
    return named("k_bytes", "B", keys), named("v_bytes", "B", values), both


def _pools(stage: Stage) -> list[tuple[list[Any], Any]]:
    if not stage.two_pools:
        return [(stage.kept, stage.tokens)]
    full = [k for k in stage.kept if k.kind != "swa"]
    swa = [k for k in stage.kept if k.kind == "swa"]
    return [(part, n) for part, n in ((full, stage.tokens), (swa, stage.swa_tokens)) if part]


def _groups(run: Started, stage: Stage) -> tuple[CacheGroup, ...]:
    """One entry a pool: layers, tokens as `cells`, K and V bytes; then drafts and states."""
    found = []
    context = run.context or 0
    for kept in stage.kept:
        tokens = stage.swa_tokens if stage.two_pools and kept.kind == "swa" else stage.tokens
        k, v = pool_bytes_of([kept], tokens, run.page) if tokens is not None else (None, None)
        length = min(context, (kept.window or context) + run.page) if stage.two_pools else context
        found.append(
            CacheGroup(
                kept.kind,
                kept.layers,
                page_bytes=int(value_of(kept.layer_bytes())) * run.page,
                blocks_per_request=-(-length // run.page) or None,
                block_tokens=run.page,
                cells=None if tokens is None else int(value_of(tokens)),
                k_bytes=None if k is None else int(value_of(k)),
                v_bytes=None if v is None or kept.latent else int(value_of(v)),
            )
        )
    return (*found, *_compressed_groups(run, stage), *_draft_groups(run, stage), *_state_groups(stage))


def _compressed_groups(run: Started, stage: Stage) -> tuple[CacheGroup, ...]:
    if stage.kept or stage.tokens is None or not stage.two_pools:
        return ()
    tokens = (("full", stage.tokens), ("swa", stage.swa_tokens))
    return tuple(CacheGroup(kind, 0, block_tokens=run.page, cells=int(value_of(n))) for kind, n in tokens)


def _draft_groups(run: Started, stage: Stage) -> tuple[CacheGroup, ...]:
    draft = stage.draft
    if not draft.layers or stage.tokens is None or not stage.kept:
        return ()
    first = next((k for k in stage.kept if k.kind != "swa"), stage.kept[0])
    key = draft.key_bytes or first.key_bytes
    value = draft.value_bytes or first.value_bytes
    slots = int(value_of(stage.tokens)) + run.page
    k, v = (int(slots * draft.layers * value_of(side)) for side in (key, value))
    page = int(value_of(key) + value_of(value)) * run.page
    cells = slots - run.page
    return (
        CacheGroup(
            "draft", draft.layers, page, block_tokens=run.page, cells=cells, k_bytes=k, v_bytes=v or None
        ),
    )


def _state_groups(stage: Stage) -> tuple[CacheGroup, ...]:
    """States: `cells` are slots with the padding one, `k_bytes` convolutions, `v_bytes` recurrent states."""
    state = stage.state
    if state is None:
        return ()
    conv, ssm = int(value_of(state.conv)), int(value_of(state.ssm))
    layers = max(1, state.layers)
    found = []
    for kind, cells in (("mamba", state.slots + state.padding), ("mamba_draft", state.drafted)):
        n = int(value_of(cells))
        if n or kind == "mamba":
            page = (conv + ssm) // layers
            found.append(CacheGroup(kind, state.layers, page, cells=n, k_bytes=n * conv, v_bytes=n * ssm))
    return tuple(found)
