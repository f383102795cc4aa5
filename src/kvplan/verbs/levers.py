"""`levers`: every change to a deployment or its load side by side, each through the same arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from kvplan.engines.deployment import Deployment
from kvplan.errors import BadInput, shown
from kvplan.facts.prices import given_prices
from kvplan.figure import Leaf, bare
from kvplan.units import parse_bytes
from kvplan.verbs import lever_changes as changes
from kvplan.verbs import lever_load as loads
from kvplan.verbs import lever_models as models
from kvplan.verbs import lever_ranks as ranks
from kvplan.verbs import series
from kvplan.verbs.answer import Answer
from kvplan.verbs.asked import LOAD, Asked, asked_of, at_once, refuse_later
from kvplan.verbs.check import whole
from kvplan.verbs.deploy import Size
from kvplan.verbs.described import WORDS, described, only
from kvplan.verbs.given import ModelLike
from kvplan.verbs.latency import deployment_row
from kvplan.verbs.lever import Lever, words
from kvplan.verbs.lever_rows import Binds, Priced, binds, compared, ordered, row_of

Kind = Callable[[Deployment, Asked], Iterator[Lever]]
KINDS: dict[str, Kind] = {
    "kv_cache_dtype": changes.kv_cache_dtype,
    "kv_heads": models.kv_heads,
    "mha": models.mha,
    "window": models.window,
    "quantization": changes.quantization,
    "tp": ranks.tp,
    "tp_as_replicas": ranks.tp_as_replicas,
    "tp_as_stages": ranks.tp_as_stages,
    "pp": ranks.pp,
    "dp": ranks.dp,
    "ep": ranks.ep,
    "attention_dp": ranks.attention_dp,
    "dcp": ranks.dcp,
    "max_model_len": changes.max_model_len,
    "smaller_steps": changes.smaller_steps,
    "larger_steps": changes.larger_steps,
    "running": changes.running,
    "drafts": loads.drafts,
    "undrafted": loads.undrafted,
    "prefix": loads.prefix,
    "apart": loads.apart,
    "host_cache": loads.host,
    "bigger": ranks.bigger,
    "smaller": ranks.smaller,
    "engine": ranks.engine,
}
_OUTPUT = ("ttft_seconds", "tpot_seconds", "output_tokens_per_second", "running_at_once", "max_concurrency")


def levers(
    model: ModelLike | None = None,
    *,
    gpu: str | None = None,
    engine: str | None = None,
    engine_version: str | None = None,
    tp: int | None = None,
    pp: int | None = None,
    dp: int | None = None,
    ep: int | None = None,
    dcp: int | None = None,
    attention_dp: int | None = None,
    dtype: str | None = None,
    quantization: str | None = None,
    kv_cache_dtype: str | None = None,
    gpu_memory: Size = None,
    memory_in_use: Size = None,
    link: Size = None,
    kv_cache_memory_bytes: Size = None,
    weights_memory: Size = None,
    activation_memory: Size = None,
    graph_memory: Size = None,
    command: str | None = None,
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
    prefix_hit_rate: float | None = None,
    host_cache: Size = None,
    price: str | Sequence[str] | None = None,
    **flags: Any,
) -> Answer:
    """What every lever gives against the deployment as it is, and what it costs in quality or trouble.

    The deployment and its load are those of `latency`. `prefix_hit_rate`: the share of prompt tokens that is
    found in a cache, as stated or measured; half where none is given. `host_cache`: bytes of host memory for
    caches, all ranks together. `price`: dollars an hour of an accelerator, such as "h100=2.49".
    Returns the contract's `levers` document, rows in the order of what helps what binds: bytes of one rank,
    seconds, rates of the whole deployment, dollars a million output tokens, and ratios to the baseline.
    A row whose `effect` is "none" says why, one that is "refused" who refuses it, its figures null.
    Raises BadInput or UnknownName for anything that cannot be used.
    """
    refuse_later(flags)
    priced = Priced(given_prices(price or ()))
    hits, memory = _share("--prefix-hit-rate", prefix_hit_rate), _bytes("--host-cache", host_cache)
    words = only(WORDS, locals())
    if isinstance(gpu, str) and gpu.strip().lower() == "cpu":
        raise BadInput("--gpu: times need an accelerator with known peaks; kvplan fit answers for the CPU")
    d, read = described(model, words, flags, at_once(batch, concurrency))
    if d.accelerator is None:
        raise BadInput("--gpu: missing; levers are timed on an accelerator, see kvplan accelerators")
    asked = asked_of(d, **only(LOAD, locals()))

    def compute(leaf: Leaf) -> dict[str, Any]:
        base = row_of(_baseline(d, asked), priced, leaf)
        found: dict[str, Any] = {"baseline": base, "levers": []}
        if leaf is bare:
            found |= _beside(d, asked, base, priced, kinds_with(hits, memory))
        found |= {"deployment": deployment_row(d), "load": asked.document(leaf)}
        return found | {"notes": [*read.notes, *d.model.notes]}

    def draws(_: dict[str, Any]) -> dict[str, Any]:
        return {"of": series.deployed(d)}

    return Answer(compute, draws)


def kinds_with(hits: float | None = None, memory: int | None = None) -> dict[str, Kind]:
    """Every kind of lever, with the hit rate and the host memory that are stated."""
    own: dict[str, Kind] = {
        "prefix": partial(loads.prefix, rate=hits),
        "host_cache": partial(loads.host, rate=hits, given=memory),
    }
    return {name: own.get(name, kind) for name, kind in KINDS.items()}


def _baseline(d: Deployment, asked: Asked) -> Lever:
    return Lever("baseline", {}, d, asked)


def _beside(
    d: Deployment, asked: Asked, base: dict[str, Any], priced: Priced, kinds: dict[str, Kind]
) -> dict[str, Any]:
    """The rows beside the baseline, what they are ordered by, and which make fit what does not."""
    base["effect"] = "baseline"
    binding = binds(base, asked) if base["accelerators"] else Binds("fits", words("binds")["fits"])
    rows = ordered(rows_of(d, asked, base, priced, kinds), base, binding)
    for row in rows:
        row["gain"] = binding.gain(row, base)
    short = binding.figure == "fits"
    fitting = [r["name"] for r in rows if short and r["fits"] and r["output_tokens_per_second"] is not None]
    return {
        "levers": rows,
        "binds": {"figure": binding.figure, "says": binding.says},
        "makes_it_fit": fitting,
    }


def rows_of(
    d: Deployment, asked: Asked, base: dict[str, Any], priced: Priced, kinds: dict[str, Kind]
) -> list[dict[str, Any]]:
    """A row for every lever of these kinds, compared with the baseline."""
    found = [lever for kind in kinds.values() for lever in kind(d, asked)]
    return [compared(row_of(lever, priced), base, lever) for lever in found]


def levers_part(d: Deployment, asked: Asked) -> list[dict[str, Any]]:
    """The short list of `plan`: levers worth pulling, in the order they are listed."""
    priced = Priced({})
    base = row_of(_baseline(d, asked), priced)
    if base["effect"] == "refused":
        return []
    kinds = {name: kind for name, kind in KINDS.items() if words(name).get("plan")}
    return [row for row in rows_of(d, asked, base, priced, kinds) if _worth(row, base)]


def _worth(row: dict[str, Any], base: dict[str, Any]) -> bool:
    """Whether it makes anything better: fits, runs more at once, comes sooner or makes more."""
    if row["effect"] != "changed":
        return False
    if base["fits"] is False or base["output_tokens_per_second"] is None:
        return row["fits"] is not False or (row["kv_tokens"] or 0) > (base["kv_tokens"] or 0)
    for name in _OUTPUT:
        ratio = row["ratios"][name]
        if ratio is not None and (ratio < 1 if name.endswith("_seconds") else ratio > 1):
            return True
    return False


def _share(field: str, value: float | None) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise BadInput(f"{field}: {shown(value)} is not a share; give a number from 0 to 1")
    return float(value)


def _bytes(field: str, value: Size) -> int | None:
    if value is None:
        return None
    return whole(field, parse_bytes(value, field) if isinstance(value, str) else value, 1, 2**60)
