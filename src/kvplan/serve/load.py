"""What is asked of a deployment, and how its engine takes it."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from kvplan.cost.step import is_some
from kvplan.figure import Number, formula, most, power, total, value_of

Record = TypeVar("Record", "Load", "Policy")


@dataclass(frozen=True, slots=True)
class Load:
    """Requests of stated lengths. Numbers, figures or numpy arrays (drafts: no array).

    `depth` tokens of a request are cached before its prompt (an earlier turn), `shared` of the prompt are
    found in the cache. `drafts` tokens are drafted a step, each accepted with probability `acceptance` and
    passing `draft_layers` decoder layers and the head (serve/draft.py; 0: made for nothing, as n-grams).
    """

    prompt_tokens: Any
    output_tokens: Any
    depth: Any = 0
    shared: Any = 0
    drafts: Any = 0
    acceptance: Any = 0.0
    draft_layers: Any = 0

    @property
    def new_tokens(self) -> Any:
        """Prompt tokens that have to be computed: at least the last one."""
        return most(1, self.prompt_tokens - self.shared) if is_some(self.shared) else self.prompt_tokens

    @property
    def cached(self) -> Any:
        """Tokens that stand in the cache before the first one to compute."""
        return self.depth + self.prompt_tokens - self.new_tokens

    @property
    def middle_context(self) -> Any:
        """The context halfway through the output: attention's cost is linear in it but for windows."""
        return self.depth + self.prompt_tokens + self.output_tokens / 2


@dataclass(frozen=True, slots=True)
class Policy:
    """How the engine schedules: what one step may carry, and how many sequences run at once.

    `budget` tokens a step; `running` sequences at once (its own limit and what the cache holds);
    `mixes` prompts with decoding in one step, else they wait for one another; of `pp` stages each works
    on a batch of its own where `microbatches`, and a prompt's chunks follow one another through them as
    far as `overlap` says; `interval` tokens leave together.
    """

    budget: Any
    running: Any
    mixes: bool = True
    pp: int = 1
    microbatches: bool = True
    overlap: float = 1.0
    interval: int = 1

    def stage_share(self, sequences: Any) -> Any:
        """Sequences of one step: a stage's batch, where stages work on batches of their own."""
        if self.pp == 1 or not self.microbatches:
            return sequences
        return most(1, sequences / self.pp)


def plain(record: Record) -> Record:
    """The same record with the bare values of its figures."""
    return replace(record, **{f.name: value_of(getattr(record, f.name)) for f in fields(record)})


@formula("token", "Leviathan, Kalman and Matias 2023 (arXiv 2211.17192), equation 1")
def accepted_tokens(acceptance: Number, drafts: Number) -> Number:
    """Tokens that one verification yields on average, the one that is always right included."""
    return (1 - power(acceptance, drafts + 1)) / (1 - acceptance)


def tokens_a_step(load: Load) -> Any:
    """Tokens a decoding sequence gains in one step."""
    if not load.drafts:
        return 1.0
    if hasattr(load.acceptance, "dtype"):  # some may be 1, where the closed form divides by 0
        return total([power(load.acceptance, n) for n in range(load.drafts + 1)])
    if load.acceptance >= 1:
        return load.drafts + 1.0
    return accepted_tokens(load.acceptance, load.drafts)
