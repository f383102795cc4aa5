"""vLLM: from the bytes that a rank gives to its cache to what the engine prints.

Blocks, tokens, concurrency and the start check, by version; the rules of a version are data in
facts/engines/vllm.toml. Read from `setup.flags`: max_model_len (-1: fit), block_size,
max_num_batched_tokens, max_num_seqs, num_gpu_blocks_override, enable_prefix_caching,
enable_chunked_prefill, disable_hybrid_kv_cache_manager, async_scheduling (each also with no_),
mamba_cache_mode, mamba_block_size, mamba_cache_dtype, mamba_ssm_cache_dtype, performance_mode,
usage_context (llm or server), max_num_encoder_input_tokens, VLLM_PP_LAYER_PARTITION and
VLLM_ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from kvplan.cost.weights import stage_layers
from kvplan.engines.engine import CacheGroup, Capacity, Setup
from kvplan.engines.vllm_blocks import settle_block_sizes
from kvplan.engines.vllm_check import Check, longest, needed_bytes, start_check
from kvplan.engines.vllm_defaults import Settings, settings_of, whole_flag
from kvplan.engines.vllm_drafter import drafter_layers
from kvplan.engines.vllm_groups import Refused, bytes_per_block, groups_of, on_stage
from kvplan.engines.vllm_layers import Rank, layers_of, rank_of
from kvplan.engines.vllm_printed import Printed, printed
from kvplan.engines.vllm_request import Request, blocks_of_group
from kvplan.engines.vllm_specs import CIRCULAR, MLA, SLIDING_MLA, CacheLayer, Group
from kvplan.engines.vllm_v0 import v0_layers
from kvplan.engines.vllm_version import Rules, rules_of
from kvplan.errors import BadInput, shown
from kvplan.figure import Leaf, bare
from kvplan.model.model import Model

Groups = tuple[Group, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """The groups of the whole model and of each pipeline stage, and the request they are checked for."""

    rank: Rank
    layers: tuple[CacheLayer, ...]
    groups: Groups
    stages: tuple[Groups, ...]
    numbers: tuple[range, ...]
    request: Request

    @property
    def rules(self) -> Rules:
        """The version's switches."""
        return self.rank.rules


def capacity(model: Model, setup: Setup, pool_bytes: int | None, leaf: Leaf = bare) -> Capacity:
    """The figures that this version prints for the pool of one rank; without a pool only what needs none."""
    rules = rules_of(setup.version)
    settings = settings_of(model, setup, rules)
    rank = rank_of(model, setup, settings, rules)
    settle_block_sizes(rank)
    try:
        plan = plan_of(rank)
    except Refused as refused:
        return Capacity(
            fits=False,
            block_tokens=settings.block_size,
            settings=_settings(settings),
            notes=(str(refused), *settings.notes),
        )
    if not plan.layers:
        return _without_cache(plan)
    return _answer(plan, pool_bytes, leaf)


def plan_of(rank: Rank) -> Plan:
    """Specs, groups and stages of the model."""
    s, rules, setup = rank.settings, rank.rules, rank.setup
    own = layers_of(rank, s.block_size)
    layers = own + drafter_layers(rank, s.block_size)
    if rules.planner == "v0":
        layers = v0_layers(layers)
    outermost = any(m.spec.kind in (SLIDING_MLA, CIRCULAR) for m in layers)
    numbers = _stage_numbers(len(rank.model.layers), setup)
    groups = groups_of(layers, rules, hybrid=s.hybrid_manager, block_outermost=outermost)
    stages = tuple(_stage_groups(groups, layers, n, rank, outermost) for n in numbers)
    encoder = whole_flag(setup.flags, "max_num_encoder_input_tokens") or s.max_num_batched_tokens
    request = Request(s.max_model_len, s.in_flight_tokens, encoder, setup.dcp, rules)
    return Plan(rank, layers, groups, stages, numbers, request)


def _stage_groups(
    groups: Groups, layers: tuple[CacheLayer, ...], numbers: range, rank: Rank, outermost: bool
) -> Groups:
    """A stage's groups: the whole model's, projected; before 0.11 each worker made its own."""
    if rank.rules.uniform_type or rank.setup.pp == 1:
        return on_stage(groups, numbers)
    mine = tuple(m for m in layers if m.number in numbers)
    return groups_of(mine, rank.rules, hybrid=rank.settings.hybrid_manager, block_outermost=outermost)


def _stage_numbers(count: int, setup: Setup) -> tuple[range, ...]:
    """Which layers each pipeline stage has; the drafter's are on the last."""
    given = setup.flags.get("VLLM_PP_LAYER_PARTITION")
    if given is None or setup.pp == 1:
        stages = [stage_layers(count, setup.pp, i) for i in range(setup.pp)]
    else:
        sizes = [int(part) for part in str(given).split(",") if part.strip().isdigit()]
        if len(sizes) != setup.pp or sum(sizes) != count:
            raise BadInput(
                f"VLLM_PP_LAYER_PARTITION: {shown(given)}; give {setup.pp} numbers that add up to {count}"
            )
        starts = [sum(sizes[:i]) for i in range(setup.pp)]
        stages = [range(a, a + n) for a, n in zip(starts, sizes, strict=True)]
    stages[-1] = range(stages[-1].start, count + 1)
    return tuple(stages)


def _without_cache(plan: Plan) -> Capacity:
    settings = plan.rank.settings
    note = "no layer of this model keeps a cache in vllm: one block, no token line"
    return Capacity(
        fits=True,
        num_blocks=1,
        block_tokens=settings.block_size,
        settings=_settings(settings),
        notes=(note, *settings.notes),
    )


def _answer(plan: Plan, pool: int | None, leaf: Leaf) -> Capacity:
    rules, settings = plan.rules, plan.rank.settings
    override = whole_flag(plan.rank.setup.flags, "num_gpu_blocks_override")
    notes = list(settings.notes)
    if pool is not None and settings.auto_fit:
        fitted = _fitted_length(plan, pool, override)
        if fitted < plan.request.max_model_len:
            notes.append(f"max_model_len: reduced from {plan.request.max_model_len:,} to {fitted:,} to fit")
            settings.fill("max_model_len", fitted, f"fitted to the pool: {rules.source('auto_fit')}")
            plan = replace(plan, request=plan.request.of_length(fitted))
    check = _check(plan, pool, override) if pool is not None else None
    shown_as = printed(plan.stages, plan.groups, plan.request, settings, pool, override, leaf)
    return _capacity(plan, check, shown_as, tuple(notes))


def _available(pool: int, groups: Groups, rules: Rules, override: int | None) -> int:
    """What the check may spend: the pool, or the override's, less the null block where it is held back."""
    block = bytes_per_block(groups, rules)
    if override is not None and rules.override_in_check:
        pool = override * block
    return pool - block if rules.null_block_in_check else pool


def _checked(plan: Plan) -> list[tuple[Groups, tuple[CacheLayer, ...]]]:
    if plan.rules.check_on == "model":
        return [(plan.groups, plan.layers)]
    return [
        (groups, tuple(m for m in plan.layers if m.number in numbers))
        for groups, numbers in zip(plan.stages, plan.numbers, strict=True)
    ]


def _check(plan: Plan, pool: int, override: int | None) -> Check:
    found = [
        start_check(groups, layers, _available(pool, groups, plan.rules, override), plan.request, plan.rules)
        for groups, layers in _checked(plan)
    ]
    return next((c for c in found if not c.fits), found[0])


def _fitted_length(plan: Plan, pool: int, override: int | None) -> int:
    """The longest length that fits on every rank: max_model_len −1."""
    lengths = [_longest_on(plan, groups, layers, pool, override) for groups, layers in _checked(plan)]
    if min(lengths) <= 0:
        raise BadInput("--max-model-len: auto finds no length that fits; the pool holds not one token")
    return min(lengths)


def _longest_on(
    plan: Plan, groups: Groups, layers: tuple[CacheLayer, ...], pool: int, override: int | None
) -> int:
    room = _available(pool, groups, plan.rules, override)

    def fits(length: int) -> bool:
        return needed_bytes(groups, layers, plan.request.of_length(length), plan.rules) <= room

    return longest(fits, plan.request.max_model_len)


def _capacity(plan: Plan, check: Check | None, shown_as: Printed, notes: tuple[str, ...]) -> Capacity:
    rules = plan.rules
    estimate = check.estimated_length if check and not check.fits else None
    if check and check.no_memory:
        notes = ("vllm says: No available memory for the cache blocks", *notes)
    elif estimate is not None and not rules.estimate_printed:
        notes = (f"vllm {rules.version} computes the estimated length but does not print it", *notes)
    if rules.planner == "v0" and check and shown_as.kv_tokens is not None:
        check = replace(check, fits=bool(shown_as.kv_tokens >= plan.request.max_model_len))
    return Capacity(
        fits=check.fits if check else None,
        num_blocks=shown_as.num_blocks,
        block_tokens=min(g.spec.block_size for g in plan.groups),
        bytes_per_block=shown_as.bytes_per_block,
        kv_tokens=shown_as.kv_tokens,
        max_concurrency=shown_as.max_concurrency,
        needed_kv_bytes=check.needed_bytes if check else _needed(plan),
        estimated_max_model_len=estimate,
        kv_bytes=shown_as.kv_bytes,
        groups=tuple(_group(g, plan.request) for g in plan.groups),
        settings=_settings(plan.rank.settings),
        notes=notes,
    )


def _needed(plan: Plan) -> int:
    return max(needed_bytes(g, layers, plan.request, plan.rules) for g, layers in _checked(plan))


def _group(group: Group, request: Request) -> CacheGroup:
    return CacheGroup(
        kind=request.rules.latent_kind if group.kind == MLA else group.kind,
        layers=len(group.members),
        page_bytes=group.page_bytes,
        blocks_per_request=int(blocks_of_group(group, request)),
        block_tokens=group.spec.block_size,
    )


def _settings(settings: Settings) -> dict[str, tuple[Any, str]]:
    return {name: (getattr(settings, name), source) for name, source in settings.sources.items()}
