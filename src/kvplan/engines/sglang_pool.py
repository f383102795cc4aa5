"""Pools of one pipeline stage under SGLang: tokens of the full and of the sliding-window pool.

SGLang 0.5.23 model_executor/pool_configurator.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvplan.engines import sglang_compressed
from kvplan.engines.sglang_cell import Kept, cell_of, kept_of
from kvplan.engines.sglang_draft import Draft, draft_of, headroom_tokens, with_draft
from kvplan.engines.sglang_rules import FACTS
from kvplan.engines.sglang_setup import Started, chunked_prefill_size, compressed, share, since, whole
from kvplan.engines.sglang_state import StatePool, state_pool
from kvplan.facts import store
from kvplan.figure import Leaf, Number, Source, Trust, formula, named, total, value_of
from kvplan.figure import whole as floor
from kvplan.model.model import Layer, Model

_RULE = "SGLang 0.5.23 model_executor/pool_configurator.py"


@dataclass(slots=True)
class Stage:
    """One stage's pools: what its layers keep, and the tokens they hold; None where no pool is given.

    `cell` is what one more token of the full pool costs, its share of the window pool included.
    """

    kept: list[Kept]
    draft: Draft
    state: StatePool | None
    cell: Any
    tokens: Any = None
    swa_tokens: Any = None
    two_pools: bool = False
    window: int | None = None


@formula("token", _RULE)
def tokens_in_pool(pool_bytes: Number, cell: Number, page: Number) -> Number:
    """Tokens that fit, in whole pages."""
    return floor(pool_bytes // cell) // page * page


@formula("token", _RULE)
def swa_pool_tokens(full_tokens: Number, swa_full_tokens_ratio: Number, page: Number) -> Number:
    """Tokens of the sliding-window pool: a share of the full pool's, in whole pages."""
    return floor(full_tokens * swa_full_tokens_ratio) // page * page


@formula("B/token", _RULE)
def two_pool_cell(full_bytes: Number, swa_bytes: Number, ratio: Number, draft_bytes: Number) -> Number:
    """One token of the full pool, with its share of the window pool and its draft."""
    return full_bytes + ratio * swa_bytes + draft_bytes


@formula("token", "SGLang 0.5.6 model_executor/model_runner.py set_num_token_hybrid")
def tokens_by_layers(
    tokens: Number, layers: Number, full_layers: Number, swa_layers: Number, ratio: Number
) -> Number:
    """Before 0.5.10: tokens as if all layers were full ones, shared out anew by layers."""
    return floor(tokens * layers / (ratio * swa_layers + full_layers))


def stage_of(
    model: Model, run: Started, layers: Sequence[Layer], pool: Any, cap: int | None, leaf: Leaf
) -> Stage:
    """The pools of these layers in `pool` bytes, at most `cap` tokens."""
    state = state_pool(model, run, layers, pool, leaf)
    rest = state.rest if state is not None else pool
    draft = draft_of(model, run, leaf)
    kept = [] if compressed(model) else kept_of(model, run, tuple(layers), leaf)
    if compressed(model):
        return _compressed(model, run, layers, (rest, cap), (state, draft), leaf)
    if two_pools(model, run):
        return _two_pools(model, run, Stage(kept, draft, state, 0, two_pools=True), rest, cap, leaf)
    cell = named("cell_bytes", "B/token", with_draft(cell_of(kept), kept, draft, run))
    return Stage(kept, draft, state, cell, _capped(_plain(run, rest, cell, leaf), cap, run))


def _page(run: Started, leaf: Leaf) -> Any:
    why = run.settings.get("page_size", (0, "--page-size"))[1]
    return leaf("page_size", run.page, "token", Source(Trust.ENGINE_RULE, why))


def _plain(run: Started, rest: Any, cell: Any, leaf: Leaf) -> Any:
    if rest is None:
        return None
    if not value_of(cell):  # states only: the context's length, or what the user caps
        return run.context or 0
    if value_of(rest) <= 0:
        return 0
    tokens = tokens_in_pool(rest, cell, _page(run, leaf))
    if run.drafts and run.rules["draft_cell"] == "headroom":
        requests = run.requests or 0
        tokens = tokens + headroom_tokens(run, requests)
        run.notes.append("before 0.5.8 tokens for drafts are added to those that fit")
        return tokens // run.page * run.page
    return tokens


def _capped(tokens: Any, cap: int | None, run: Started) -> Any:
    if cap is None:
        return tokens
    if tokens is not None and value_of(tokens) <= cap:
        return tokens
    return cap // run.page * run.page


def two_pools(model: Model, run: Started) -> bool:
    """Whether this version gives sliding-window layers a pool of their own for this model type."""
    layers = [a for layer in model.layers for a in layer.attentions]
    sliding = [a for a in layers if a.kind in ("sliding", "chunked")]
    if not sliding or run.flag("disable_hybrid_swa_memory") or run.rules["swa_split"] == "none":
        return False
    types, off = run.rules["swa_types"], store.toml(FACTS)["swa_disabled"]
    if types == ["*"]:
        return model.model_type not in off["types"]
    if model.model_type in types:
        return True
    run.notes.append(
        f"sliding-window layers of {model.model_type} are charged as full ones: it is not among the "
        f"architectures that SGLang {run.rules.version} gives a second pool"
    )
    return False


def swa_ratio(model: Model, run: Started) -> float:
    """Tokens of the window pool ÷ those of the full pool."""
    special = store.toml(FACTS)["swa_ratio_by_type"].get(model.model_type)
    default = float(special or run.rules.values.get("swa_full_tokens_ratio", 0.8))
    ratio = share(run.setup.flags, "swa_full_tokens_ratio", default, 1.0)
    if run.flag("swa_full_tokens_ratio") is None:
        run.settings["swa_full_tokens_ratio"] = (
            ratio,
            f"SGLang {run.rules.sources['swa_full_tokens_ratio']}",
        )
    return ratio


def _two_pools(model: Model, run: Started, stage: Stage, rest: Any, cap: int | None, leaf: Leaf) -> Stage:
    full = [k for k in stage.kept if k.kind != "swa"]
    swa = [k for k in stage.kept if k.kind == "swa"]
    stage.window = max((k.window or 0 for k in swa), default=0)
    ratio = leaf("swa_full_tokens_ratio", swa_ratio(model, run), "", run.rule("swa_full_tokens_ratio"))
    if not full or not swa:  # a stage of one kind: nothing to relate
        stage.cell = named("cell_bytes", "B/token", cell_of(stage.kept) + _draft_bytes(stage, run, full, swa))
        stage.tokens = _capped(_plain(run, rest, stage.cell, leaf), cap, run)
        stage.swa_tokens = stage.tokens if swa else None
        return stage
    page = _page(run, leaf)
    if run.rules["swa_split"] == "layers":
        return _by_layers(run, stage, (full, swa), rest, cap, (ratio, leaf))
    fixed = _request_cap(run, stage)
    full_bytes = named("full_pool_token_bytes", "B/token", cell_of(full))
    swa_bytes = named("swa_pool_token_bytes", "B/token", cell_of(swa) + _draft_swa_bytes(stage, swa))
    drafts = _draft_full_bytes(stage, run, full)
    stage.cell = two_pool_cell(full_bytes, swa_bytes, 0 if fixed else ratio, drafts)
    if rest is not None:
        room = rest - fixed * swa_bytes if fixed else rest
        stage.tokens = tokens_in_pool(room, stage.cell, page) if value_of(room) > 0 else 0
    stage.tokens = _capped(stage.tokens, cap, run)
    if stage.tokens is not None:
        stage.swa_tokens = fixed or swa_pool_tokens(stage.tokens, ratio, page)
        stage.swa_tokens = min(fixed, cap) if fixed and cap else stage.swa_tokens
    return stage


def _draft_full_bytes(stage: Stage, run: Started, full: list[Kept]) -> Any:
    if run.rules["draft_cell"] in ("none", "headroom") or not stage.draft.layers:
        return 0
    if stage.draft.own:
        return stage.draft.layers * (stage.draft.key_bytes + stage.draft.value_bytes)
    return (stage.draft.layers - stage.draft.swa_layers) * full[0].layer_bytes()


def _draft_swa_bytes(stage: Stage, swa: list[Kept]) -> Any:
    return stage.draft.swa_layers * swa[0].layer_bytes() if stage.draft.swa_layers else 0


def _draft_bytes(stage: Stage, run: Started, full: list[Kept], swa: list[Kept]) -> Any:
    return _draft_full_bytes(stage, run, full or swa)


def _by_layers(
    run: Started, stage: Stage, groups: tuple[list[Kept], list[Kept]], rest: Any, cap: int | None, parts: Any
) -> Stage:
    """Versions before 0.5.10: all layers are priced as full ones, then the tokens are shared out."""
    full, swa = groups
    ratio, leaf = parts
    n_full, n_swa = sum(k.layers for k in full), sum(k.layers for k in swa)
    uniform = [Kept("full", n_full + n_swa, full[0].key_bytes, full[0].value_bytes)]
    stage.cell = named("cell_bytes", "B/token", cell_of(uniform))
    tokens = _capped(_plain(run, rest, stage.cell, leaf), cap, run)
    if tokens is not None:
        stage.tokens = tokens_by_layers(tokens, n_full + n_swa, n_full, n_swa, ratio)
        stage.swa_tokens = floor(stage.tokens * ratio)
    return stage


def _request_cap(run: Started, stage: Stage) -> int:
    """Tokens of the window pool where it follows from requests: radix cache off, requests given.

    SGLang 0.5.23 model_executor/pool_configurator.py compute_swa_request_cap.
    """
    given = whole(run.setup.flags, "max_running_requests")
    if not since(run, "0.5.23") or given is None or not run.flag("disable_radix_cache"):
        return 0
    chunk = chunked_prefill_size(run)
    if chunk <= 0 or not stage.window:
        return 0
    drafts = run.draft_tokens if run.drafts else 1
    overlap = not run.flag("disable_overlap_schedule")
    decode = run.page
    if run.drafts:
        steps = int(run.flag("speculative_num_steps") or 1) * int(run.flag("speculative_eagle_topk") or 1)
        decode = (2 if overlap else 1) * max(steps, drafts)
    one = stage.window + drafts + run.page + decode
    tokens = one * max(1, given // run.attn_dp) + (2 if overlap else 1) * chunk + run.page
    return -(-tokens // run.page) * run.page


def _compressed(
    model: Model, run: Started, layers: Sequence[Layer], room: tuple[Any, int | None], parts: Any, leaf: Leaf
) -> Stage:
    rest, cap = room
    state, draft = parts
    ratio = swa_ratio(model, run)
    tokens, cell = sglang_compressed.full_tokens(model, run, layers, rest, ratio, leaf)
    stage = Stage([], draft, state, cell, _capped(tokens, cap, run), two_pools=True)
    stage.window = sglang_compressed.shape_of(layers).window
    if stage.tokens is not None:
        share_leaf = leaf("swa_full_tokens_ratio", ratio, "", run.rule("swa_full_tokens_ratio"))
        stage.swa_tokens = swa_pool_tokens(stage.tokens, share_leaf, _page(run, leaf))
    return stage


def pool_bytes_of(kept: Sequence[Kept], tokens: Any, page: int) -> tuple[Any, Any]:
    """Bytes allocated for keys and for values: the tokens, and the page kept as padding."""
    slots = tokens + page
    keys = total([k.layers * k.key_bytes + k.index_layers * k.index_bytes for k in kept])
    values = total([k.layers * k.value_bytes for k in kept])
    return slots * keys, slots * values
