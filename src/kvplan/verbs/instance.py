"""From a deployment to what the simulator takes: pool, scheduling, step times, replicas."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from kvplan.engines.budget import memory_of
from kvplan.engines.deployment import Deployment
from kvplan.engines.engine import CacheGroup, Capacity
from kvplan.engines.registry import capacity_of
from kvplan.errors import BadInput
from kvplan.facts import store
from kvplan.facts.scheduling import Scheduling, scheduling_of
from kvplan.figure import bare, value_of
from kvplan.serve.load import Load, tokens_a_step
from kvplan.serve.simulation import Fleet, Pool
from kvplan.serve.step_times import StepTimes
from kvplan.serve.tabulate import tabulated
from kvplan.serve.workload import Workload
from kvplan.verbs.timing import UNLIMITED, budget_of, clock_of, dealt
from kvplan.verbs.verdict import LENGTHS, most_running, would_start

_FULL = ("FullAttentionSpec", "MLAAttentionSpec", "full", "kv", "base")
_FEWEST_UNIT_TOKENS = 16
_MOST_BUDGET = 1 << 17  # where an engine names no limit of a step


@dataclass(frozen=True, slots=True)
class Instance:
    """One replica, and how many there are; `front_seconds` is what a request meets before the engine.

    `starts` is False where the engine would refuse to start.
    """

    pool: Pool
    scheduling: Scheduling
    times: StepTimes
    fleet: Fleet
    front_seconds: float
    notes: tuple[str, ...] = ()
    starts: bool | None = None


def instance_of(
    d: Deployment, workload: Workload, load: Load, fleet: Fleet, times: StepTimes | None = None
) -> Instance:
    """What a deployment is to the simulator; `load` says what is drafted.

    Raises BadInput where the deployment holds no cache, or its engine's scheduling is not known.
    """
    s = d.setup
    scheduling = scheduling_of(s.engine, s.version, s.flags, stages=s.pp, drafter=_drafter(d))
    pool, notes = _pool(d, scheduling, workload, load)
    clock = clock_of(d)
    stages = s.pp if s.engine != "llama.cpp" else 1
    longest = int(min(pool.max_model_len, int((workload.prompt_tokens + workload.output_tokens).max())))
    if times is None:
        times = tabulated(clock, pool.budget, pool.max_running, max(2, longest), load, stages)
    front = float(clock.front("request_seconds"))
    started = would_start(d)
    if started is False:
        notes.append(
            f"{s.engine} would not start so (kvplan fit says what is missing): simulated as if it did; "
            f"--{LENGTHS[s.engine].replace('_', '-')} of the longest request may do"
        )
    return Instance(pool, scheduling, times, fleet, front, tuple(notes), started)


def _drafter(d: Deployment) -> str | None:
    config = d.setup.flags.get("speculative_config")
    method = config.get("method") if isinstance(config, dict) else None
    return method if isinstance(method, str) else None


def _pool(d: Deployment, g: Scheduling, workload: Workload, load: Load) -> tuple[Pool, list[str]]:
    """The cache as the engine allocates it, its limits, and what has to be said of both."""
    capacity = capacity_of(d, value_of(memory_of(d, bare)["kv_pool_bytes"]), bare)
    blocks, block_tokens = _blocks(d, capacity)
    groups = dealt(d).groups
    stages = d.setup.pp if d.setup.engine != "llama.cpp" else 1
    positions = int(load.drafts) + 1
    running = int(min(most_running(capacity) or UNLIMITED, blocks)) * groups
    budget = max(positions, min(int(value_of(budget_of(d))), _MOST_BUDGET)) * stages
    full, windows, fixed, notes = _kinds(capacity.groups)
    if groups > 1:
        notes.append(f"{groups} groups that attend apart are taken as one pool")
    caching = finds_prefixes(d) and g.order != "static"
    unit = _unit_tokens(block_tokens, workload)
    return Pool(
        blocks=blocks * groups,
        block_tokens=block_tokens,
        budget=budget,
        max_running=max(1, running),
        max_model_len=d.max_model_len,
        full=full,
        window_blocks=len(windows),
        window_cap=max(windows, default=0),
        fixed=fixed,
        positions=positions,
        gain=float(tokens_a_step(load)) if load.drafts else 1.0,
        caching=caching,
        unit_tokens=unit,
    ), notes


def _blocks(d: Deployment, capacity: Capacity) -> tuple[int, int]:
    """(blocks a request can be given, tokens of one)."""
    blocks, tokens = value_of(capacity.num_blocks), value_of(capacity.block_tokens)
    if blocks is None or tokens is None:
        blocks, tokens = value_of(capacity.kv_tokens), 1
    if not blocks or blocks < 1:
        raise BadInput(
            f"--gpu: {d.model.id} leaves no room for a cache there; kvplan fit says what is missing"
        )
    null = 1 if d.setup.engine == "vllm" else 0  # vLLM never gives its first block to a request
    return max(1, int(blocks) - null), int(tokens)


def _kinds(groups: tuple[CacheGroup, ...]) -> tuple[int, list[int], int, list[str]]:
    """(groups that keep everything, blocks that each windowed one holds at most, blocks of states, notes)."""
    full, windows, fixed = 0, [], 0
    for group in groups:
        most = value_of(group.blocks_per_request)
        if group.kind in _FULL or most is None:
            full += 1
        elif "Mamba" in group.kind or "State" in group.kind:
            fixed += int(most)
        elif group.kind in ("swa", "sliding"):  # counted within the engine's own token budget
            continue
        else:
            windows.append(int(most))
    notes = ["windows and recurrent state are held, and prefixes found, as if layers kept everything"]
    return max(1, full), windows, fixed, notes if windows or fixed else []


def finds_prefixes(d: Deployment) -> bool:
    """Whether prefixes are found again: the engine's flag, else its default."""
    table = store.toml("engines/scheduling.toml")["caching"].get(d.setup.engine)
    if table is None:
        return False
    for name, meaning in table["flags"].items():
        given = d.setup.flags.get(name)
        if given is not None:
            return bool(given) is bool(meaning)
    return bool(table["default"])


def _unit_tokens(block_tokens: int, workload: Workload) -> int:
    """Tokens of a cached unit: a block, or a few where a trace's own blocks are larger."""
    least = _FEWEST_UNIT_TOKENS
    if workload.prefix_start is not None:
        least = max(least, workload.prefix_block_tokens // 8)
    return block_tokens * max(1, -(-least // block_tokens))


def with_pool(instance: Instance, **changed: Any) -> Instance:
    """The same instance with another pool."""
    return replace(instance, pool=replace(instance.pool, **changed))
