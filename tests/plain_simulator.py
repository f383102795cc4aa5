"""One replica of a serving engine, step by step, in the plainest Python: the kernel is compared with it.

Every pool block is an entry of an ordered free queue or is in a request's hands; nothing is counted that
could be looked at. It is slow and meant to be read beside the rules.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import OrderedDict, deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

NAN = math.nan


@dataclass
class Engine:
    """What an engine's instance can hold and carry."""

    blocks: int
    block_tokens: int
    budget: int
    max_running: int
    max_model_len: int
    full: int = 1
    window_blocks: int = 0
    window_cap: int = 0
    fixed: int = 0
    positions: int = 1
    gain: float = 1.0
    caching: bool = False
    cache_block_tokens: int = 16

    def held(self, tokens: int) -> int:
        """Pool blocks that a request of so many tokens holds."""
        return self.full * self.tables(tokens) + self.beside(tokens)

    def tables(self, tokens: int) -> int:
        """Blocks of one attention group that keeps everything."""
        return -(-tokens // self.block_tokens)

    def beside(self, tokens: int) -> int:
        """Blocks of windows and of recurrent state."""
        return self.window_blocks * min(self.tables(tokens), self.window_cap) + self.fixed


@dataclass
class Policy:
    """Who has its turn."""

    order: str = "decode-first"
    chunked: bool = True
    admit: str = "step"
    victim: str = "last"
    lead: int = 0
    ratio_start: float = 0.7
    ratio_least: float = 0.098
    ratio_steps: int = 600
    clip_tokens: int = 4096


@dataclass
class Times:
    """Step seconds on grids."""

    token_grid: Sequence[float]
    token_seconds: Sequence[float]
    row_grid: Sequence[float]
    row_seconds: Sequence[float]
    decode_n_grid: Sequence[float]
    decode_context_grid: Sequence[float]
    decode_seconds: Sequence[Sequence[float]]
    chunk_grid: Sequence[float]
    end_grid: Sequence[float]
    prefill_seconds: Sequence[Sequence[float]]
    prompt_launch_seconds: float = 0.0
    request_seconds: float = 0.0


@dataclass
class Logged:
    """One step as it was."""

    start: float
    seconds: float
    running: int
    waiting: int
    held: int
    tokens: int


@dataclass
class Result:
    """What became of every request, and the totals."""

    admitted: list[float]
    first_token: list[float]
    finish: list[float]
    preempted: list[int]
    hit_tokens: list[int]
    rejected: list[bool]
    steps: int = 0
    preemptions: int = 0
    total_hit_tokens: int = 0
    looked_up_tokens: int = 0
    end: float = 0.0
    log: list[Logged] = field(default_factory=list)


@dataclass(eq=False)
class Unit:
    """The blocks of one cached unit of tokens: registered under a key, or kept for one request."""

    blocks: list[int]
    key: Hashable | None = None
    holders: int = 0
    alive: bool = True


@dataclass(eq=False)
class Request:
    """One request on its way."""

    index: int
    prompt: int
    output: int
    keys: list[Hashable]
    made: int = 0
    computed: int = 0
    goal: int = 0
    base: int = 0
    decode_steps: int = 0
    done: bool = False
    arrived: float = NAN
    units: list[Unit] = field(default_factory=list)  # registered, the leading ones
    tail: list[int] = field(default_factory=list)  # the other blocks that keep everything, in order
    beside: list[int] = field(default_factory=list)  # windows and recurrent state
    kept: dict[int, Unit] = field(default_factory=dict)  # after a preemption, until taken

    @property
    def decoding(self) -> bool:
        return self.computed >= self.goal

    @property
    def whole(self) -> int:
        return self.prompt + self.output - 1


class Pool:
    """Blocks: a free queue in order, each with what it still contains, and the registry of keys."""

    def __init__(self, blocks: int) -> None:
        self.size = blocks
        self.queue: OrderedDict[int, Unit | None] = OrderedDict((block, None) for block in range(blocks))
        self.registry: dict[Hashable, Unit] = {}

    @property
    def free(self) -> int:
        return len(self.queue)

    def take(self, count: int) -> list[int]:
        """Blocks from the head; what they contained is forgotten."""
        taken = []
        for _ in range(count):
            block, unit = self.queue.popitem(last=False)
            if unit is not None and unit.alive:
                unit.alive = False
                if unit.key is not None:
                    del self.registry[unit.key]
            taken.append(block)
        return taken

    def append(self, blocks: list[int], content: Unit | None = None) -> None:
        for block in blocks:
            assert block not in self.queue
            self.queue[block] = content

    def unused(self, blocks: list[int]) -> None:
        """Back to those never used, at the head."""
        self.append(blocks)
        for block in blocks:
            self.queue.move_to_end(block, last=False)

    def out(self, unit: Unit) -> None:
        """A unit found again leaves the queue."""
        for block in unit.blocks:
            assert self.queue[block] is unit
            del self.queue[block]

    def hold(self, unit: Unit) -> None:
        if unit.holders == 0:
            self.out(unit)
        unit.holders += 1

    def drop(self, unit: Unit) -> None:
        unit.holders -= 1
        if unit.holders == 0:
            self.append(unit.blocks, unit)


@dataclass
class Step:
    """What one step carries."""

    decodes: list[Request] = field(default_factory=list)
    places: list[Request] = field(default_factory=list)  # static: finished, still counted
    chunks: list[tuple[Request, int]] = field(default_factory=list)
    preempted: bool = False

    def scheduled(self, request: Request) -> bool:
        return any(request is other for other in itertools.chain(self.decodes, (r for r, _ in self.chunks)))

    @property
    def empty(self) -> bool:
        return not self.decodes and not self.chunks


def optional(workload: Any, name: str) -> Any:
    """An attribute that may be missing or None."""
    return getattr(workload, name, None)


def keys_of(workload: Any, index: int, unit: int) -> list[Hashable]:
    """The identity of each leading whole cached unit of a request, as far as it has one."""
    prompt, output = int(workload.prompt_tokens[index]), int(workload.output_tokens[index])
    if optional(workload, "prefix_start") is not None:
        start, stop = int(workload.prefix_start[index]), int(workload.prefix_start[index + 1])
        ids, size = workload.prefix_ids[start:stop], int(workload.prefix_block_tokens)
        known = min(prompt, len(ids) * size)
        return [("id", int(ids[(end - 1) // size]), end) for end in range(unit, known + 1, unit)]
    if optional(workload, "stream") is None or workload.stream[index] < 0:
        return []
    known = min(int(workload.stream_tokens[index]), prompt + output)
    stream = int(workload.stream[index])
    return [("stream", _elder(workload, stream, end), end) for end in range(unit, known + 1, unit)]


def _elder(workload: Any, stream: int, end: int) -> int:
    """The eldest stream whose first `end` tokens these are."""
    parents = optional(workload, "stream_parent")
    while parents is not None and parents[stream] >= 0 and end <= workload.parent_tokens[stream]:
        stream = int(parents[stream])
    return stream


class Simulation:
    """The state of one replica."""

    def __init__(self, workload: Any, engine: Engine, policy: Policy, times: Times) -> None:
        self.workload, self.engine, self.policy, self.times = workload, engine, policy, times
        assert engine.budget >= engine.positions
        assert engine.cache_block_tokens % engine.block_tokens == 0
        self.unit_blocks = engine.full * engine.cache_block_tokens // engine.block_tokens
        n = len(workload.prompt_tokens)
        self.requests = [self._request(i) for i in range(n)]
        self.pool = Pool(engine.blocks)
        self.queue: deque[Request] = deque()
        self.running: list[Request] = []
        self.coming: list[tuple[float, int]] = []
        self.clock, self.start_before, self.busy = 0.0, 0.0, False
        self.ratio = policy.ratio_start
        self.arrived = self.finished = self.refused = 0
        self.result = Result([NAN] * n, [NAN] * n, [NAN] * n, [0] * n, [0] * n, [False] * n)
        self._first_arrivals(n)

    def _request(self, i: int) -> Request:
        keys = keys_of(self.workload, i, self.engine.cache_block_tokens) if self.engine.caching else []
        return Request(i, int(self.workload.prompt_tokens[i]), int(self.workload.output_tokens[i]), keys)

    # Arrivals

    def _first_arrivals(self, n: int) -> None:
        self.users = int(optional(self.workload, "users") or 0)
        self.unsent = min(self.users, n)
        after = optional(self.workload, "after")
        self.followers: dict[int, list[int]] = {}
        for i in range(n):
            if self.users:
                if i < self.users:
                    self.coming.append((float(self.workload.arrival_seconds[i]), i))
            elif after is not None and after[i] >= 0:
                self.followers.setdefault(int(after[i]), []).append(i)
            else:
                self.coming.append((float(self.workload.arrival_seconds[i]), i))
        heapq.heapify(self.coming)

    def arrive(self) -> None:
        """Everyone who has arrived by now joins the queue, or is refused."""
        engine = self.engine
        while self.coming and self.coming[0][0] <= self.clock:
            when, i = heapq.heappop(self.coming)
            request = self.requests[i]
            request.arrived = when
            self.arrived += 1
            longest = request.whole + engine.positions - 1
            if request.prompt + request.output > engine.max_model_len or engine.held(longest) > engine.blocks:
                self.result.rejected[i] = True
                self.refused += 1
                self.ended(i, when)
            else:
                self.queue.append(request)

    def ended(self, index: int, when: float) -> None:
        """A request is over: those who wait for it come after their think time."""
        if self.users:
            waiting = [self.unsent] if self.unsent < len(self.requests) else []
            self.unsent += len(waiting)
        else:
            waiting = self.followers.get(index, [])
        think = optional(self.workload, "think_seconds")
        for i in waiting:
            heapq.heappush(self.coming, (when + (0.0 if think is None else float(think[i])), i))

    # Blocks

    def holds(self, request: Request) -> int:
        return len(request.units) * self.unit_blocks + len(request.tail) + len(request.beside)

    def need(self, request: Request, tokens: int) -> int:
        return self.engine.held(request.computed + tokens) - self.holds(request)

    def allocate(self, request: Request, tokens: int) -> None:
        """Blocks for the step's tokens; the units they fill are registered, or shared if already there."""
        reach, engine, pool = request.computed + tokens, self.engine, self.pool
        shared = len(request.units) * self.unit_blocks
        request.tail += pool.take(engine.full * engine.tables(reach) - shared - len(request.tail))
        request.beside += pool.take(engine.beside(reach) - len(request.beside))
        for key in request.keys[len(request.units) : reach // engine.cache_block_tokens]:
            own, request.tail = request.tail[: self.unit_blocks], request.tail[self.unit_blocks :]
            unit = pool.registry.get(key)
            if unit is None:
                unit = pool.registry[key] = Unit(own, key, holders=1)
            else:
                pool.hold(unit)
                pool.unused(own)
            request.units.append(unit)

    def release(self, request: Request) -> None:
        """Blocks go back: those without content, those kept (last to first), those registered (likewise)."""
        size = self.unit_blocks
        first = len(request.units)
        whole = (
            max(0, request.computed // self.engine.cache_block_tokens - first) if self.engine.caching else 0
        )
        self.pool.append(request.beside)
        self.pool.append(request.tail[whole * size :][::-1])
        for u in reversed(range(whole)):
            unit = Unit(request.tail[u * size : (u + 1) * size])
            request.kept[first + u] = unit
            self.pool.append(unit.blocks, unit)
        for unit in reversed(request.units):
            self.pool.drop(unit)
        request.units, request.tail, request.beside = [], [], []

    def hits(self, request: Request) -> tuple[list[Unit], list[Unit]]:
        """The leading units found: registered, then its own kept ones."""
        if not self.engine.caching:
            return [], []
        limit = (request.prompt + request.made - 1) // self.engine.cache_block_tokens
        shared: list[Unit] = []
        for key in request.keys[:limit]:
            if key not in self.pool.registry:
                return shared, []
            shared.append(self.pool.registry[key])
        units = (request.kept.get(u) for u in range(len(shared), limit))
        return shared, list(itertools.takewhile(lambda unit: unit is not None and unit.alive, units))

    # Who goes, who comes

    def preempt(self, step: Step, victim: Request) -> None:
        self.running.remove(victim)
        self.release(victim)
        victim.computed = victim.goal = victim.decode_steps = 0
        self.queue.appendleft(victim)
        step.preempted = True
        self.result.preempted[victim.index] += 1
        self.result.preemptions += 1

    def victim(self, step: Step) -> Request:
        open_ones = [r for r in self.running if not r.done]
        if self.policy.victim == "last":
            return open_ones[-1]
        order = {id(r): place for place, r in enumerate(self.running)}
        candidates = [r for r in open_ones if not step.scheduled(r)]
        return min(candidates, key=lambda r: (r.made, -r.prompt, -order[id(r)]))

    def grow(self, step: Step, request: Request, tokens: int) -> bool:
        """Blocks for one running request's tokens, from others if need be; False if it had to go itself."""
        while self.need(request, tokens) > self.pool.free:
            victim = self.victim(step)
            self.preempt(step, victim)
            if victim is request:
                return False
        self.allocate(request, tokens)
        return True

    def heads(self, step: Step, left: int) -> None:
        """The queue's heads, as long as tokens, places and blocks are left."""
        horizon = self.start_before if self.policy.lead and self.busy else self.clock
        while self.queue and left > 0 and len(self.running) < self.engine.max_running:
            head = self.queue[0]
            if head.arrived > horizon:
                return
            hit_tokens, goal = self.hit_tokens(head), head.prompt + head.made
            tokens = min(goal - hit_tokens, left)
            if tokens < goal - hit_tokens and not self.policy.chunked:
                if not step.empty:
                    return
                tokens = goal - hit_tokens
            if not self.admissible(head, tokens, self.policy.admit):
                return
            self.join(self.queue.popleft())
            self.allocate(head, tokens)
            step.chunks.append((head, tokens))
            left -= tokens

    def hit_tokens(self, request: Request) -> int:
        return sum(len(units) for units in self.hits(request)) * self.engine.cache_block_tokens

    def join(self, head: Request) -> None:
        """The head becomes the last running one, with what it found."""
        result, i = self.result, head.index
        shared, kept = self.hits(head)
        head.goal = head.prompt + head.made
        head.computed = self.hit_tokens(head)
        for unit in shared:
            self.pool.hold(unit)
        for unit in kept:
            self.pool.out(unit)
        head.units, head.tail, head.kept = shared, [b for unit in kept for b in unit.blocks], {}
        self.running.append(head)
        if math.isnan(result.admitted[i]):
            result.admitted[i] = self.clock
            result.hit_tokens[i] = head.computed
            result.total_hit_tokens += head.computed
            result.looked_up_tokens += head.goal

    def admissible(self, head: Request, tokens: int, admit: str) -> bool:
        """Whether what must be free to admit the head is free."""
        engine, goal = self.engine, head.prompt + head.made
        shared, kept = self.hits(head)
        found = (len(shared) + len(kept)) * self.unit_blocks
        free = self.pool.free - self.unit_blocks * (len(kept) + sum(unit.holders == 0 for unit in shared))
        hit_tokens = self.hit_tokens(head)
        if admit == "step":
            return engine.held(hit_tokens + tokens) - found <= free
        if admit == "whole":
            others = sum(max(0, engine.held(r.whole) - self.holds(r)) for r in self.running)
            return engine.held(head.whole) - found + others <= free
        fits = engine.held(goal) - found <= free
        if admit == "prompt" or not self.running:
            return fits
        ahead = sum(min(r.output - r.made, self.policy.clip_tokens) * self.ratio for r in self.running)
        wanted = goal - hit_tokens + min(head.output - head.made, self.policy.clip_tokens)
        return fits and free * engine.block_tokens / engine.full - ahead >= wanted

    # A step of each order

    def plan(self) -> Step:
        step = Step()
        match self.policy.order:
            case "decode-first":
                self.decode_first(step)
            case "prefill-first":
                self.prefill_first(step)
            case _:
                self.static(step)
        if step.preempted:
            self.ratio = self.policy.ratio_start
        elif step.decodes:
            fall = (self.policy.ratio_start - self.policy.ratio_least) / self.policy.ratio_steps
            self.ratio = max(self.policy.ratio_least, self.ratio - fall)
        return step

    def decode_first(self, step: Step) -> None:
        left = self.engine.budget
        for request in list(self.running):
            if left <= 0:
                break
            if not any(request is other for other in self.running):
                continue  # preempted
            decoding = request.decoding
            tokens = self.engine.positions if decoding else min(request.goal - request.computed, left)
            if tokens > left:
                continue
            if not self.grow(step, request, tokens):
                continue
            if decoding:
                step.decodes.append(request)
            else:
                step.chunks.append((request, tokens))
            left -= tokens
        if not step.preempted:
            self.heads(step, left)

    def prompts(self, step: Step) -> int:
        """Partly computed prompts go on; what is left of the budget."""
        left = self.engine.budget
        for request in [r for r in self.running if not r.decoding]:
            tokens = min(request.goal - request.computed, left)
            if tokens > 0 and self.grow(step, request, tokens):
                step.chunks.append((request, tokens))
                left -= tokens
        return left

    def prefill_first(self, step: Step) -> None:
        left = self.prompts(step)
        if not step.preempted:
            self.heads(step, left)
        if not step.chunks:
            self.decode_all(step)

    def decode_all(self, step: Step) -> None:
        """Everyone decodes who is not over; preempt until there are blocks for all."""
        while True:
            going = [r for r in self.running if not r.done]
            if sum(self.need(r, self.engine.positions) for r in going) <= self.pool.free:
                break
            self.preempt(step, self.victim(step))
        for request in going:
            self.allocate(request, self.engine.positions)
        step.decodes += going
        step.places += [r for r in self.running if r.done]

    def static(self, step: Step) -> None:
        if not self.running:
            horizon = self.start_before if self.policy.lead and self.busy else self.clock
            while self.queue and len(self.running) < self.engine.max_running:
                head = self.queue[0]
                if head.arrived > horizon or not self.admissible(head, head.prompt, "whole"):
                    break
                self.join(self.queue.popleft())
        self.prompts(step)
        if not step.chunks:
            self.decode_all(step)
            if step.empty and self.running:  # all that were not over had to go
                self.release_places()
                self.static(step)

    def release_places(self) -> None:
        for request in self.running:
            self.release(request)
        self.running = []

    # Time

    def seconds(self, step: Step) -> float:
        times, slots = self.times, step.decodes + step.places
        rows = len(slots) * self.engine.positions + sum(r.computed + q == r.goal for r, q in step.chunks)
        total = along(times.token_grid, times.token_seconds, self.tokens(step))
        total += along(times.row_grid, times.row_seconds, rows)
        if slots:
            context = sum(r.computed for r in slots) / len(slots)
            total += across(
                times.decode_n_grid, times.decode_context_grid, times.decode_seconds, len(slots), context
            )
        for r, q in step.chunks:
            total += across(times.chunk_grid, times.end_grid, times.prefill_seconds, q, r.computed + q)
        return total + (times.prompt_launch_seconds if step.chunks else 0.0)

    def tokens(self, step: Step) -> int:
        decoding = len(step.decodes) + len(step.places)
        return decoding * self.engine.positions + sum(q for _, q in step.chunks)

    def progress(self, step: Step) -> None:
        """What the step made, and who is over, in the order of the running list."""
        chunks = {id(r): q for r, q in step.chunks}
        decodes = {id(r) for r in step.decodes}
        for request in list(self.running):
            if id(request) in chunks:
                self.prefilled(request, chunks[id(request)])
            elif id(request) in decodes:
                request.decode_steps += 1
                made = request.base + math.floor(request.decode_steps * self.engine.gain + 1e-9)
                request.made = min(request.output, made)
                request.computed = request.prompt + request.made - 1
            if request.made == request.output and not request.done:
                self.over(request)
        if self.policy.order == "static" and all(r.done for r in self.running):
            self.release_places()

    def prefilled(self, request: Request, tokens: int) -> None:
        request.computed += tokens
        if request.computed == request.goal:
            request.made += 1
            request.base, request.decode_steps = request.made, 0
            if request.made == 1:
                self.result.first_token[request.index] = self.clock + self.times.request_seconds

    def over(self, request: Request) -> None:
        request.done = True
        self.finished += 1
        self.result.finish[request.index] = self.clock + self.times.request_seconds
        if self.policy.order != "static":
            self.running.remove(request)
            self.release(request)
        self.ended(request.index, self.clock)

    def run(self, *, log: bool) -> Result:
        while True:
            self.arrive()
            step = self.plan()
            if step.empty:
                assert not self.running
                if self.busy:  # nothing was known a step ahead; now the engine is idle
                    self.busy = False
                elif self.coming:
                    assert self.coming[0][0] > self.clock
                    self.clock = self.coming[0][0]
                else:
                    break
                continue
            seconds = self.seconds(step)
            assert seconds >= 0
            self.check()
            if log:
                self.result.log.append(self._logged(step, seconds))
            self.start_before, self.busy = self.clock, True
            self.clock += seconds
            self.progress(step)
            self.result.steps += 1
            self.check()
        assert not self.queue
        assert self.pool.free == self.pool.size
        self.result.end = self.clock
        return self.result

    def _logged(self, step: Step, seconds: float) -> Logged:
        held = self.pool.size - self.pool.free
        return Logged(self.clock, seconds, len(self.running), len(self.queue), held, self.tokens(step))

    def check(self) -> None:
        """Nothing is lost: blocks, requests."""
        held = {b for r in self.running for b in r.tail + r.beside}
        loose = sum(len(r.tail) + len(r.beside) for r in self.running)
        units = {id(unit): unit for r in self.running for unit in r.units}
        shared = {b for unit in units.values() for b in unit.blocks}
        assert len(held) == loose
        assert not held & shared
        assert not (held | shared) & self.pool.queue.keys()
        assert len(held) + len(shared) + self.pool.free == self.pool.size
        for unit in units.values():
            assert unit.alive
            assert unit.holders == sum(unit is other for r in self.running for other in r.units)
        going = sum(not r.done for r in self.running)
        assert self.arrived == len(self.queue) + going + self.finished + self.refused


def along(grid: Sequence[float], values: Sequence[float], x: float) -> float:
    """Between grid points linearly, beyond them as between the last two."""
    if len(grid) == 1:
        return float(values[0])
    i = _left_of(grid, x)
    share = (x - grid[i]) / (grid[i + 1] - grid[i])
    return float(values[i] + (values[i + 1] - values[i]) * share)


def across(
    rows: Sequence[float], columns: Sequence[float], values: Sequence[Sequence[float]], x: float, y: float
) -> float:
    """The same in two directions."""
    return along(rows, [along(columns, line, y) for line in values], x)


def _left_of(grid: Sequence[float], x: float) -> int:
    inside = [i for i in range(len(grid) - 1) if grid[i] <= x]
    return inside[-1] if inside else 0


def simulate(workload: Any, engine: Engine, policy: Policy, times: Times, *, log: bool = False) -> Result:
    """Every request of a workload through one replica; NaN where a request never came so far."""
    return Simulation(workload, engine, policy, times).run(log=log)
