"""Small random cases of a replica that together reach every rule: a workload, an engine, a policy, times."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field

import numpy as np

from plain_simulator import Engine, Policy, Times


@dataclass
class Workload:
    """Requests as arrays; what a workload does not have is None."""

    arrival_seconds: np.ndarray
    prompt_tokens: np.ndarray
    output_tokens: np.ndarray
    after: np.ndarray | None = None
    think_seconds: np.ndarray | None = None
    users: int = 0
    prefix_start: np.ndarray | None = None
    prefix_ids: np.ndarray | None = None
    prefix_block_tokens: int = 512
    stream: np.ndarray | None = None
    stream_tokens: np.ndarray | None = None
    stream_parent: np.ndarray | None = None
    parent_tokens: np.ndarray | None = None


@dataclass
class Case:
    """One random case; `settled` where the rules' text leaves no freedom (see `settled_of`)."""

    seed: int
    workload: Workload
    engine: Engine
    policy: Policy
    times: Times
    settled: bool = field(default=True)


def case(seed: int) -> Case:
    """The case of a seed, always the same."""
    rng = random.Random(seed)  # noqa: S311
    policy = _policy(rng)
    engine = _engine(rng, policy)
    workload = _workload(rng, engine)
    if rng.random() < 0.6:
        _tighten(rng, engine, workload)
    return Case(seed, workload, engine, policy, _times(rng), settled_of(engine, policy))


def settled_of(engine: Engine, policy: Policy) -> bool:
    """Whether the rules say everything about the pair.

    Left open: `ratio` outside prefill-first or with more than one full group, windows or state; who gives way
    to a continued prompt under prefill-first with `step`; static with drafts or caching.
    """
    plain = engine.full == 1 and not engine.window_blocks and not engine.fixed
    if policy.order == "static":
        return engine.positions == 1 and not engine.caching
    if policy.admit == "ratio" and not (policy.order == "prefill-first" and plain):
        return False
    return not (policy.order == "prefill-first" and policy.admit == "step" and policy.chunked)


def cases(count: int, first: int = 0, *, settled: bool | None = None) -> list[Case]:
    """So many cases, all of them or those that are settled."""
    found = (case(seed) for seed in itertools.count(first))
    wanted = (c for c in found if settled is None or c.settled is settled)
    return list(itertools.islice(wanted, count))


def _policy(rng: random.Random) -> Policy:
    order = rng.choice(["decode-first", "decode-first", "prefill-first", "prefill-first", "static"])
    admits = (
        ["step", "prompt", "whole"]
        if order == "decode-first"
        else ["ratio", "ratio", "prompt", "whole", "step"]
    )
    if rng.random() < 0.05:
        admits = ["ratio"]
    start = rng.choice([0.25, 0.5, 1.0])
    return Policy(
        order=order,
        chunked=rng.random() < 0.6,
        admit="whole" if order == "static" else rng.choice(admits),
        victim=rng.choice(["last", "least-made"]),
        lead=rng.choice([0, 1]),
        ratio_start=start,
        ratio_least=start * rng.choice([0.125, 0.5, 1.0]),
        ratio_steps=rng.choice([1, 4, 16]),
        clip_tokens=rng.choice([2, 8, 4096]),
    )


def _engine(rng: random.Random, policy: Policy) -> Engine:
    positions = rng.choice([1, 1, 1, 2, 4])
    block_tokens = rng.choice([1, 2, 4, 16])
    special = rng.random() < 0.4
    return Engine(
        blocks=rng.choice([8, 16, 32, 64, 256, 1024]) * max(1, 4 // block_tokens),
        block_tokens=block_tokens,
        budget=max(positions, rng.choice([4, 8, 16, 64, 512])),
        max_running=rng.choice([1, 2, 3, 8, 64]),
        max_model_len=rng.choice([48, 96, 1000]),
        full=rng.choice([1, 2]) if special else 1,
        window_blocks=rng.choice([0, 1, 2]) if special else 0,
        window_cap=rng.choice([1, 2, 3]) if special else 0,
        fixed=rng.choice([0, 1, 3]) if special else 0,
        positions=positions,
        gain=rng.choice([1.0, 1 + (positions - 1) / 2, 1 + (positions - 1) * 0.3, float(positions)]),
        caching=rng.random() < 0.6,
        cache_block_tokens=block_tokens * rng.choice([1, 1, 2, 3]),
    )


def _workload(rng: random.Random, engine: Engine) -> Workload:
    n = rng.choice([1, 2, 5, 12, 30])
    longest = rng.choice([3, 12, 40, 80])
    prompt = [1 if rng.random() < 0.08 else rng.randint(1, longest) for _ in range(n)]
    output = [1 if rng.random() < 0.08 else rng.randint(1, rng.choice([4, 16, 40])) for _ in range(n)]
    workload = Workload(_arrivals(rng, n), np.array(prompt, np.int32), np.array(output, np.int32))
    _waiting(rng, workload)
    kind = rng.choice(
        ["none", "ids", "stream", "stream", "ids"] if engine.caching else ["none", "ids", "stream"]
    )
    if kind == "ids":
        _prefix_ids(rng, workload, engine)
    elif kind == "stream":
        _streams(rng, workload)
    return workload


def _tighten(rng: random.Random, engine: Engine, workload: Workload) -> None:
    """A pool of about as many blocks as one of its longest requests needs, or two or three."""
    lengths = [int(p + o) for p, o in zip(workload.prompt_tokens, workload.output_tokens, strict=True)]
    longest = sorted(lengths)[-rng.choice([1, 1, 1, min(2, len(lengths))])]
    need = engine.held(longest - 2 + engine.positions)
    engine.blocks = int(need * rng.choice([1.0, 1.2, 1.5, 2.0, 3.0]))
    engine.max_running = rng.choice([2, 3, 8, 64])


def _arrivals(rng: random.Random, n: int) -> np.ndarray:
    """All at once, tied (multiples of 1/8 s), or spread."""
    kind = rng.choice(["once", "tied", "spread"])
    if kind == "once":
        return np.zeros(n)
    gap = rng.choice([0.1, 0.5, 3.0])
    gaps = [rng.expovariate(1 / gap) for _ in range(n)]
    if kind == "tied":
        gaps = [round(8 * one) / 8 for one in gaps]
    return np.cumsum(np.array(gaps))


def _waiting(rng: random.Random, workload: Workload) -> None:
    """An open loop, one whose requests wait for others, or a closed one."""
    n = len(workload.prompt_tokens)
    kind = rng.choice(["open", "open", "after", "closed"])
    if kind == "open":
        return
    workload.think_seconds = np.array([rng.choice([0.0, 0.0, 0.25, rng.random()]) for _ in range(n)])
    if kind == "closed":
        workload.users = rng.randint(1, n)
        workload.arrival_seconds[workload.users :] = np.nan
        return
    after = [rng.randrange(i) if i and rng.random() < 0.6 else -1 for i in range(n)]
    workload.after = np.array(after, np.int32)
    workload.arrival_seconds[workload.after >= 0] = np.nan


def _prefix_ids(rng: random.Random, workload: Workload, engine: Engine) -> None:
    """Chains in a small tree of ids: an id stands for its tokens and all before them."""
    unit = engine.cache_block_tokens
    size = rng.choice([unit, 2 * unit, 4 * unit, max(1, unit // 2), 8])
    children: dict[tuple[int, int], int] = {}
    start, ids = [0], []
    for prompt in workload.prompt_tokens:
        whole, rest = divmod(int(prompt), size)
        at = -1
        for h in range(whole + (rest > 0)):
            partial = rest if h == whole else 0
            branch = (at, rng.choice([0, 0, 0, 1]) * 1000 + partial)
            at = children.setdefault(branch, len(children))
            ids.append(at)
        if whole and rest and rng.random() < 0.3:
            ids.pop()  # the last, partial one has no id
        start.append(len(ids))
    workload.prefix_start = np.array(start, np.int64)
    workload.prefix_ids = np.array(ids, np.int32)
    workload.prefix_block_tokens = size


def _streams(rng: random.Random, workload: Workload) -> None:
    """A few streams, some of which begin as another does."""
    n, streams = len(workload.prompt_tokens), rng.randint(1, 4)
    workload.stream = np.array([rng.randrange(-1, streams) for _ in range(n)], np.int32)
    lengths = []
    for prompt, output in zip(workload.prompt_tokens, workload.output_tokens, strict=True):
        most = int(prompt + output)
        lengths.append(rng.choice([most, rng.randint(0, most), int(prompt)]))
    workload.stream_tokens = np.array(lengths, np.int32)
    workload.stream_parent = np.array([rng.randrange(-1, s) if s else -1 for s in range(streams)], np.int32)
    workload.parent_tokens = np.array([rng.choice([0, 7, 16, 40]) for _ in range(streams)], np.int32)


def constant(seconds: float = 1.0, request_seconds: float = 0.0) -> Times:
    """Every step takes the same time."""
    return Times(
        [0.0], [seconds], [0.0], [0.0], [0.0], [0.0], [[0.0]], [0.0], [0.0], [[0.0]], 0.0, request_seconds
    )


def _times(rng: random.Random) -> Times:
    """Constant, or growing with everything, on grids that end early."""
    request_seconds = rng.choice([0.0, 0.0, 0.5])
    if rng.random() < 0.3:
        return constant(rng.choice([1.0, 0.25]), request_seconds)

    def rising(count: int) -> list[float]:
        return list(itertools.accumulate(rng.random() * 0.1 for _ in range(count)))

    def grid(count: int) -> list[float]:
        return [0.0, *itertools.accumulate(rng.choice([1.0, 2.0, 8.0, 16.0]) for _ in range(count - 1))]

    def table(rows: int, columns: int) -> list[list[float]]:
        across, down = rising(rows), rising(columns)
        return [[a + b + 0.01 * i * j for j, b in enumerate(down)] for i, a in enumerate(across)]

    one, two = rng.randint(2, 5), rng.randint(2, 5)
    return Times(
        token_grid=grid(one),
        token_seconds=rising(one),
        row_grid=grid(two),
        row_seconds=rising(two),
        decode_n_grid=grid(two),
        decode_context_grid=grid(one),
        decode_seconds=table(two, one),
        chunk_grid=grid(one),
        end_grid=grid(two),
        prefill_seconds=table(one, two),
        prompt_launch_seconds=rng.random() * 0.05,
        request_seconds=request_seconds,
    )
