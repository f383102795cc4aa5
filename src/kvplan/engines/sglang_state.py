"""Recurrent states under SGLang: a pool of slots, sized before the tokens' pool.

SGLang 0.5.23 mem_cache/kv_cache_configurator.py _handle_max_mamba_cache; earlier rules in
facts/engines/sglang.toml under `state_slots`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvplan.engines.sglang_rules import FACTS, defaults
from kvplan.engines.sglang_setup import Started, share, since, whole
from kvplan.errors import BadInput, shown
from kvplan.facts import store
from kvplan.figure import Leaf, Number, Source, Trust, formula, least, most, named, total, value_of
from kvplan.figure import whole as floor
from kvplan.model.model import Layer, Model, State

_SHAPES = "SGLang 0.5.23 configs/mamba_utils.py Mamba2StateShape.create"
_WIDTHS = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True)
class StatePool:
    """The states of one rank: slots (one more is padding), and what is left of the pool for tokens.

    `conv` and `ssm` are bytes of one slot in all layers; `drafted` states are kept for draft tokens.
    """

    layers: int
    slots: Any
    padding: int
    conv: Any
    ssm: Any
    drafted: Any
    rest: Any

    @property
    def bytes(self) -> Any:
        """Everything the states take."""
        return (self.slots + self.padding + self.drafted) * (self.conv + self.ssm)


@formula("B", _SHAPES)
def conv_bytes(channels: Number, columns: Number, value_bytes: Number) -> Number:
    """Last columns of a convolution's input, of one request in one layer."""
    return channels * columns * value_bytes


@formula("B", _SHAPES)
def ssm_bytes(values: Number, value_bytes: Number) -> Number:
    """A recurrent state of one request in one layer."""
    return values * value_bytes


@formula("B", "SGLang 0.5.23 mem_cache/kv_cache_configurator.py _handle_max_mamba_cache")
def state_budget_bytes(pool_bytes: Number, mamba_full_memory_ratio: Number) -> Number:
    """The share of the pool that goes to states, in whole bytes: states ÷ tokens is the ratio."""
    return floor(pool_bytes * mamba_full_memory_ratio / (1 + mamba_full_memory_ratio))


@formula("slot", "SGLang 0.5.23 mem_cache/kv_cache_configurator.py _handle_max_mamba_cache")
def state_slots(budget_bytes: Number, request_bytes: Number, padding: Number) -> Number:
    """States that fit the budget, beside the padding slot."""
    return most(0, floor((budget_bytes - padding * request_bytes) // request_bytes))


@formula("slot", "SGLang 0.5.23 mem_cache/kv_cache_configurator.py _handle_max_mamba_cache")
def drafting_slots(
    budget_bytes: Number, request_bytes: Number, padding: Number, draft_tokens: Number, per_request: Number
) -> Number:
    """The same when every running request also keeps a state for each draft token."""
    spare = budget_bytes - padding * request_bytes * (1 + draft_tokens)
    return most(0, floor(spare // (request_bytes * (1 + draft_tokens / per_request))))


def states_per_request(model: Model, run: Started) -> int:
    """Slots that one running request takes: its own, and those that prefix caching keeps."""
    table = store.toml(FACTS)["states_per_request"]
    if run.flag("disable_radix_cache"):
        return int(table["radix_off"])
    given = run.flag("mamba_radix_cache_strategy") or run.flag("mamba_scheduler_strategy") or "auto"
    name = str(given)
    if name == "auto":
        supports = model.model_type in table["extra_buffer_types"] and since(run, table["extra_buffer_from"])
        wanted = not run.flag("disable_overlap_schedule") or run.page > 1
        name = "extra_buffer" if supports and wanted else "no_buffer"
        run.settings["mamba_radix_cache_strategy"] = (name, f"SGLang {table['source']}")
    if name == "extra_buffer" and not run.flag("disable_overlap_schedule"):
        name = "extra_buffer_overlap"
    if name not in table or isinstance(table[name], list):
        raise BadInput(
            f"mamba_radix_cache_strategy: {shown(given)} is not known; "
            "use auto, no_buffer, extra_buffer or extra_buffer_lazy"
        )
    return int(table[name])


def state_pool(
    model: Model, run: Started, layers: Sequence[Layer], pool: Any, leaf: Leaf
) -> StatePool | None:
    """The states' pool of these layers; None where no layer of the model keeps any."""
    if not any(layer.states for layer in model.layers):
        return None
    count = sum(bool(layer.states) for layer in layers)
    conv, ssm = _request_bytes(model, run, layers, leaf)
    one = named("state_request_bytes", "B", conv + ssm)
    padding = int(run.rules["state_padding"])
    if pool is None or not value_of(one):
        return StatePool(count, _explicit(run) or 0, padding, conv, ssm, 0, pool)
    if run.rules["state_slots"] == "joint":
        return _joint(model, run, count, (conv, ssm, one), pool, leaf)
    return _before_joint(run, count, (conv, ssm, one), pool, leaf)


def _explicit(run: Started) -> int | None:
    """Slots that follow from flags alone."""
    given = whole(run.setup.flags, "max_mamba_cache_size")
    if given is not None:
        return max(1, given // run.attn_dp)
    if run.flag("disable_radix_cache") and run.requests is not None:
        return max(1, run.requests // run.attn_dp)
    return None


def _running(run: Started) -> int:
    return max(1, (run.requests or int(defaults()["draft_requests"])) // run.attn_dp)


def _joint(
    model: Model, run: Started, count: int, sizes: tuple[Any, Any, Any], pool: Any, leaf: Leaf
) -> StatePool:
    conv, ssm, one = sizes
    padding, ratio = int(run.rules["state_padding"]), states_per_request(model, run)
    drafts = run.draft_tokens if run.drafts else 0
    explicit = _explicit(run)
    slots: Any
    if explicit is not None:
        slots = leaf("max_mamba_cache_size", explicit, "slot", Source(Trust.STATED, "by flags"))
    else:
        budget = _budget(run, pool, leaf)
        slots = (
            drafting_slots(budget, one, padding, drafts, ratio)
            if drafts
            else state_slots(budget, one, padding)
        )
    capped = least(_running(run), slots // ratio) if whole(run.setup.flags, "max_mamba_cache_size") else None
    if capped is None:
        capped = slots if explicit is not None else least(_running(run), slots // ratio)
    drafted = (capped + padding) * drafts if drafts else 0
    rest = named("token_pool_bytes", "B", pool - (slots + padding + drafted) * one)
    return StatePool(count, slots, padding, conv, ssm, drafted, rest)


def _before_joint(run: Started, count: int, sizes: tuple[Any, Any, Any], pool: Any, leaf: Leaf) -> StatePool:
    conv, ssm, one = sizes
    drafts = run.draft_tokens if run.drafts else 0
    drafted: Any = 0
    per_slot = one
    if run.rules["state_slots"] == "times_drafts":
        per_slot = one * (1 + drafts) if drafts else one
    elif drafts:
        drafted = _running(run) * drafts
        pool = pool - drafted * one
    explicit = _explicit(run)
    if explicit is None and run.flag("disable_radix_cache"):
        explicit = (
            int(run.rules["state_default_slots"] if "state_default_slots" in run.rules.values else 0) or None
        )
    if explicit is not None:
        slots: Any = leaf("max_mamba_cache_size", explicit, "slot", Source(Trust.STATED, "by flags"))
    else:
        slots = state_slots(_budget(run, pool, leaf), per_slot, 0)
    rest = named("token_pool_bytes", "B", pool - slots * per_slot)
    if run.rules["state_slots"] == "times_drafts" and drafts:
        drafted = slots * drafts
    return StatePool(count, slots, 0, conv, ssm, drafted, rest)


def _budget(run: Started, pool: Any, leaf: Leaf) -> Any:
    rules = run.rules.values
    default = float(rules.get("mamba_full_memory_ratio", 0.9))
    ratio = share(run.setup.flags, "mamba_full_memory_ratio", default)
    if run.flag("mamba_full_memory_ratio") is None:
        run.settings["mamba_full_memory_ratio"] = (
            ratio,
            f"SGLang {run.rules.sources['mamba_full_memory_ratio']}",
        )
    where = Source(Trust.ENGINE_RULE, "mamba_full_memory_ratio")
    return state_budget_bytes(pool, leaf("mamba_full_memory_ratio", ratio, "", where))


def _request_bytes(model: Model, run: Started, layers: Sequence[Layer], leaf: Leaf) -> tuple[Any, Any]:
    """Bytes of one request's states in these layers: convolutions and recurrent states."""
    counts: dict[State, int] = {}
    for layer in layers:
        for state in layer.states:
            counts[state] = counts.get(state, 0) + 1
    table, width = defaults(), _ssm_width(run)
    rule = Source(Trust.ENGINE_RULE, f"SGLang {table['source']}")
    conv, ssm = [], []
    for state, n in counts.items():
        where = Source(
            Trust.STATED, f"{model.file} {state.mixer}" + (f" ÷ {run.attn_tp}" if run.attn_tp > 1 else "")
        )
        count = leaf(f"{state.mixer}_layers", n, "layer", model.origin("layer_kinds"))
        channels = channels_on_rank(state, run.attn_tp)
        if channels and state.columns:
            parts = (
                leaf(f"{state.mixer}_channels", channels, "value", where),
                leaf(f"{state.mixer}_columns", state.columns, "column", where),
                leaf("conv_value_bytes", int(table["conv_value_bytes"]), "B/value", rule),
            )
            conv.append(count * conv_bytes(*parts))
        if state.values:
            values = leaf(f"{state.mixer}_values", state.values // run.attn_tp, "value", where)
            ssm.append(count * ssm_bytes(values, leaf("state_value_bytes", width, "B/value", rule)))
    return total(conv), total(ssm)


def channels_on_rank(state: State, tp: int) -> int:
    """Convolution channels of one rank; groups that the ranks do not divide are repeated."""
    groups = 0
    if state.groups:
        groups = state.groups // tp if state.groups % tp == 0 else 1
    return state.channels // tp + groups * state.group_channels


def _ssm_width(run: Started) -> int:
    name = run.flag("mamba_ssm_dtype")
    if name is None:
        return int(defaults()["state_value_bytes"])
    if str(name) not in _WIDTHS:
        raise BadInput(f"mamba_ssm_dtype: {shown(name)} is not known; use float32, bfloat16 or float16")
    return _WIDTHS[str(name)]
