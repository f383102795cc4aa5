"""What the compiled functions work on: requests, rules, times and the state of replicas, as arrays."""

from __future__ import annotations

from typing import Any, NamedTuple

NEW, WAITING, RUNNING, OVER, REJECTED, MOVING, PLACE = range(7)  # what a request is doing
DECODE_FIRST, PREFILL_FIRST, STATIC = range(3)
STEP, PROMPT, WHOLE, RATIO = range(4)
LAST, LEAST_MADE = range(2)
ARRIVES, IS_PREFILLED, IS_MOVED = range(3)  # kinds of events
BOTH, PREFILLS, DECODES = range(3)  # what a replica does


class Rules(NamedTuple):
    """One replica's numbers: its pool, what a step may carry, and who has its turn (all int but ratios)."""

    blocks: int
    block_tokens: int
    full: int
    window_blocks: int
    window_cap: int
    fixed: int
    budget: int
    max_running: int
    max_model_len: int
    positions: int
    gain: float
    caching: bool
    unit_tokens: int
    unit_blocks: int
    order: int
    chunked: bool
    admit: int
    victim: int
    lead: int
    ratio_start: float
    ratio_least: float
    ratio_fall: float
    clip_tokens: int


class Times(NamedTuple):
    """Step seconds on grids, piecewise linear (serve/step_times.py)."""

    token_grid: Any
    token_seconds: Any
    row_grid: Any
    row_seconds: Any
    decode_n_grid: Any
    decode_context_grid: Any
    decode_seconds: Any
    chunk_grid: Any
    end_grid: Any
    prefill_seconds: Any
    prompt_launch_seconds: float


REQUEST = [  # what is asked, and what became of it; times in seconds, NaN for never
    ("arrival", "f8"),
    ("think", "f8"),
    ("arrived", "f8"),
    ("admitted", "f8"),
    ("first", "f8"),
    ("finish", "f8"),
    ("prompt", "i4"),
    ("output", "i4"),
    ("child", "i4"),  # the first that waits for this one; -1: none
    ("sibling", "i4"),  # the next that waits for the same
    ("stream", "i4"),
    ("stream_tokens", "i4"),
    ("replica", "i8"),
    ("made", "i4"),
    ("base", "i4"),  # made when its prompt was done
    ("computed", "i4"),
    ("goal", "i4"),
    ("decoded", "i4"),  # decode steps since its prompt was done
    ("held", "i4"),  # pool blocks
    ("room", "i4"),  # tokens for which they suffice; 0: not known
    ("units", "i4"),  # registered or shared leading units
    ("kept", "i8"),  # the node that keeps its blocks after a preemption; -1: none
    ("planned", "i4"),  # tokens in the step being made
    ("following", "i4"),  # the next in the queue
    ("preempted", "i4"),
    ("hits", "i4"),  # tokens found when it was first admitted
    ("source", "i8"),  # the replica that computed its prompt, while that holds its blocks; -1: none
    ("moved_blocks", "i4"),  # what it holds there
    ("moved_units", "i4"),
    ("status", "i4"),
]
REPLICA = [  # who runs, who waits, and what is free
    ("clock", "f8"),
    ("start", "f8"),  # of the step before
    ("ratio", "f8"),
    ("link", "f8"),  # when its link is free
    ("sample_at", "f8"),
    ("sample_gap", "f8"),
    ("busy", "?"),
    ("stalled", "?"),  # nothing to do before something happens
    ("count", "i8"),
    ("first", "i8"),
    ("last", "i8"),
    ("waiting", "i8"),
    ("free", "i8"),
    ("fresh", "i8"),
    ("head", "i8"),
    ("tail", "i8"),
    ("spares", "i8"),
    ("role", "i8"),
    ("sampled", "i8"),
]


class Links(NamedTuple):
    """Lists and queues. Per replica, first index, but for events."""

    running: Any
    after: Any  # links of the free queue: keys first, then runs of one request's blocks
    before: Any
    holders: Any  # of a key: how many hold it; -1: not registered
    run_blocks: Any
    run_units: Any
    run_owner: Any
    spare: Any  # nodes for runs that are not in use
    totals: Any  # steps, preemptions, hit tokens, looked-up tokens, peak of held blocks
    samples: Any
    event_at: Any  # a heap of what happens next, by time
    event: Any
    counters: Any  # events in the heap, next unsent, replica dealt last


class Deal(NamedTuple):
    """How requests are dealt to replicas, and what passes between them."""

    routing: int
    users: int
    block_tokens_of_ids: int  # tokens of a prefix block
    keys_per_id: int
    entangled: bool  # what ends on one replica may come to another
    ids_start: Any  # of each request, and the end of the last; one number where there are none
    ids: Any
    stream_base: Any  # first key of each stream; empty where there are none
    stream_parent: Any
    parent_tokens: Any
    move_seconds: float  # a transfer's start
    move_seconds_per_token: float
