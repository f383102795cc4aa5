"""What is asked of a deployment: lengths, a load, goals; read from what a user gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvplan.cost import cache
from kvplan.engines.deployment import Deployment
from kvplan.errors import BadInput, shown
from kvplan.facts.drafters import keeps
from kvplan.figure import Leaf, Source, Trust, bare
from kvplan.serve.load import Load
from kvplan.units import parse_seconds
from kvplan.verbs import fit as fitting
from kvplan.verbs.check import whole
from kvplan.verbs.size import MAX_BATCH, MAX_TOKENS
from kvplan.verbs.timing import held_tokens
from kvplan.verbs.verdict import LENGTHS, most_running

DEFAULT_PROMPT, DEFAULT_OUTPUT, DEFAULT_BATCH = 2048, 256, 32
ACCEPTANCE = 0.7
_DRAFTER = Source(
    Trust.ASSUMED, "a drafter of one layer, as EAGLE and MTP, unless --speculative-config names n-grams"
)
_LATER = {
    "trace": "replays a trace in kvplan simulate; give --batch, --concurrency or --rate",
    "seed": "is for kvplan simulate, which draws requests; latency draws none",
    "ttft_p99": "percentiles are for kvplan simulate; latency takes means, --ttft",
    "tpot_p99": "percentiles are for kvplan simulate; latency takes means, --tpot",
    "e2e_p99": "percentiles are for kvplan simulate; latency takes means, --ttft and --tpot",
}


@dataclass(frozen=True, slots=True)
class Asked:
    """A load on the whole deployment: `mode` is batch, concurrency or rate, `amount` how much of it.

    Lengths in tokens; goals in seconds, None for none.
    """

    prompt_tokens: int
    output_tokens: int
    depth: int
    shared: int
    drafts: int
    acceptance: float
    mode: str
    amount: float
    source: Source
    lengths_source: Source
    acceptance_source: Source
    draft_layers: float = 1.0
    ttft: float | None = None
    tpot: float | None = None

    @property
    def length(self) -> int:
        """Tokens that one sequence holds at its end."""
        return self.depth + self.prompt_tokens + self.output_tokens

    def held(self, engine: str) -> int:
        """Tokens that a sequence holds while it runs, as this load and that engine have it."""
        return held_tokens(engine, self.mode, self.length, self.output_tokens)

    def load(self, leaf: Leaf = bare) -> Load:
        """The lengths as the formulas take them."""
        said = self.lengths_source
        return Load(
            leaf("prompt_tokens", self.prompt_tokens, "token", said),
            leaf("output_tokens", self.output_tokens, "token", said),
            leaf("context_depth", self.depth, "token", said) if self.depth else 0,
            leaf("shared_prefix_tokens", self.shared, "token", said) if self.shared else 0,
            leaf("speculative_tokens", self.drafts, "token", said) if self.drafts else 0,
            leaf("acceptance", self.acceptance, "", self.acceptance_source) if self.drafts else 0.0,
            leaf("draft_layers", self.draft_layers, "layer", _DRAFTER) if self.drafts else 0,
        )

    def document(self, leaf: Leaf = bare) -> dict[str, Any]:
        """The load as the answer repeats it: only what is not at its default."""
        load = self.load(leaf)
        more = {
            "context_depth": load.depth,
            "shared_prefix_tokens": load.shared,
            "speculative_tokens": load.drafts,
            "acceptance": load.acceptance,
        }
        return {
            "prompt_tokens": load.prompt_tokens,
            "output_tokens": load.output_tokens,
            self.mode: leaf(self.mode, self.amount, "", self.source),
            **{name: value for name, value in more.items() if value},
        }


def refuse_later(flags: dict[str, Any]) -> None:
    """Raise BadInput for options that belong to `simulate`."""
    for name, why in _LATER.items():
        if flags.get(name) is not None:
            raise BadInput(f"--{name.replace('_', '-')}: {why}")
        flags.pop(name, None)


def at_once(batch: int | None, concurrency: int | None) -> int | None:
    """Sequences that the load wants at once, checked; None where it does not say."""
    for name, value in (("--batch", batch), ("--concurrency", concurrency)):
        if value is not None:
            return whole(name, value, 1, MAX_BATCH)
    return None


LOAD = (
    "prompt_tokens", "output_tokens", "batch", "concurrency", "rate", "context_depth", "shared_prefix_tokens",
    "speculative_tokens", "acceptance", "ttft", "tpot",
)  # fmt: skip


def asked_of(
    d: Deployment,
    *,
    prompt_tokens: int | None = None,
    output_tokens: int | None = None,
    batch: int | None = None,
    concurrency: int | None = None,
    rate: float | None = None,
    context_depth: int | None = None,
    shared_prefix_tokens: int | None = None,
    speculative_tokens: int | None = None,
    acceptance: float | None = None,
    ttft: str | float | None = None,
    tpot: str | float | None = None,
) -> Asked:
    """The load, checked against the deployment; raises BadInput naming the option that cannot be used."""
    if d.setup.dcp > 1:
        raise BadInput(
            f"--dcp: {d.setup.dcp} ranks would share a context, which times do not cover; leave it out, or "
            "ask kvplan fit for the memory"
        )
    output = _tokens("--output-tokens", output_tokens, DEFAULT_OUTPUT, 1)
    depth = _tokens("--context-depth", context_depth, 0, 0)
    prompt = _prompt(d, prompt_tokens, output, depth)
    shared = _tokens("--shared-prefix-tokens", shared_prefix_tokens, 0, 0)
    if shared > prompt:
        raise BadInput(
            f"--shared-prefix-tokens: {shared:,} are more than the prompt's {prompt:,}; shorten them"
        )
    if d.setup.flags.get("enable_prefix_caching") is False:
        shared = 0
    drafts, chance, source = drafts_of(d, speculative_tokens, acceptance)
    mode, amount, said = _amount(d, depth + prompt + output, batch, concurrency, rate)
    return Asked(
        prompt_tokens=prompt,
        output_tokens=output,
        depth=depth,
        shared=min(shared, prompt - 1),
        drafts=drafts,
        acceptance=chance,
        mode=mode,
        amount=amount,
        source=said,
        lengths_source=Source(Trust.STATED, "as asked, or its default"),
        acceptance_source=source,
        draft_layers=draft_layers_of(d),
        ttft=_time("--ttft", ttft),
        tpot=_time("--tpot", tpot),
    )


def _tokens(field: str, value: int | None, default: int, least: int) -> int:
    return default if value is None else whole(field, value, least, MAX_TOKENS)


def _prompt(d: Deployment, prompt: int | None, output: int, depth: int) -> int:
    room = d.max_model_len - output - depth
    if prompt is not None:
        whole("--prompt-tokens", prompt, 1, MAX_TOKENS)
    if room >= 1 and (prompt is None or prompt <= room):
        return min(DEFAULT_PROMPT, room) if prompt is None else prompt
    flag = LENGTHS[d.setup.engine].replace("_", "-")
    before = f" after {depth:,} of context" if depth else ""
    raise BadInput(
        f"--prompt-tokens: {prompt or 1:,}{before} with {output:,} of output are more than the longest "
        f"sequence of {d.max_model_len:,} ({d.context_source.where}); shorten them or give --{flag}"
    )


def drafts_of(d: Deployment, given: int | None, acceptance: float | None) -> tuple[int, float, Source]:
    """Tokens drafted a step, the share of them that stands, and who says so."""
    config = d.setup.flags.get("speculative_config")
    found = given
    if given is None and isinstance(config, dict):
        found = config.get("num_speculative_tokens")
    drafts = whole("--speculative-tokens", found, 0, 64) if found is not None else 0
    if acceptance is None:
        return drafts, ACCEPTANCE, Source(Trust.ASSUMED, "no --acceptance given: 0.7 of drafted tokens")
    if isinstance(acceptance, bool) or not isinstance(acceptance, (int, float)) or not 0 <= acceptance <= 1:
        raise BadInput(f"--acceptance: {shown(acceptance)} is not a share; give a number from 0 to 1")
    if not drafts:
        raise BadInput("--acceptance: nothing is drafted; give --speculative-tokens too")
    return drafts, float(acceptance), Source(Trust.STATED, "--acceptance")


def draft_layers_of(d: Deployment) -> float:
    """Layers that a drafted token passes: one, or none where it is looked up."""
    config = d.setup.flags.get("speculative_config")
    method = config.get("method") if isinstance(config, dict) else None
    return 0.0 if isinstance(method, str) and keeps(method) == "nothing" else 1.0


def _amount(
    d: Deployment, length: int, batch: int | None, concurrency: int | None, rate: float | None
) -> tuple[str, float, Source]:
    given = {"batch": batch, "concurrency": concurrency, "rate": rate}
    said = [name for name, value in given.items() if value is not None]
    if len(said) > 1:
        raise BadInput(
            f"--{said[1]}: --{said[0]} is given too; a load has one of --batch, --concurrency, --rate"
        )
    if not said:
        return "batch", default_batch(d, length), _defaulted()
    name, value = said[0], given[said[0]]
    source = Source(Trust.STATED, f"--{name}")
    if name != "rate":
        return name, whole(f"--{name}", value, 1, MAX_BATCH), source
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not 0 < float(value or 0) < 1e9:
        raise BadInput(
            f"--rate: {shown(value)} is not requests a second; give a number above 0 and below a billion"
        )
    return name, float(value or 0), source


def _defaulted() -> Source:
    return Source(Trust.ASSUMED, f"no --batch given: as many as the pool holds, at most {DEFAULT_BATCH}")


def default_batch(d: Deployment, length: int) -> int:
    """As many sequences of that length as the pool holds, at most 32."""
    each = cache.bytes_per_sequence(d.model, d.stored, length, bare)
    pool = fitting.pool_of(d) or 0
    room = int(pool // each) if each else DEFAULT_BATCH
    limit = most_running(fitting.capacity_numbers(d)) or DEFAULT_BATCH
    return max(1, min(DEFAULT_BATCH, room, limit))


def _time(field: str, given: str | float | None) -> float | None:
    if given is None:
        return None
    seconds = parse_seconds(given, field) if isinstance(given, str) else given
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds < 1e9:
        raise BadInput(f"{field}: {shown(given)} is not a time above 0; write one such as 0.5s or 30ms")
    return float(seconds)
