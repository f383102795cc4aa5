"""`plan`: the one-page answer for a model on accelerators."""

from __future__ import annotations

from typing import Any

from kvplan.cost import cache
from kvplan.cost.weights import step_compute
from kvplan.engines.deployment import Deployment
from kvplan.errors import BadInput
from kvplan.figure import Leaf, bare, value_of
from kvplan.units import bytes_text, count_text, seconds_text
from kvplan.verbs import fit as fitting
from kvplan.verbs import series, size
from kvplan.verbs.answer import Answer
from kvplan.verbs.asked import LOAD, Asked, asked_of, at_once, refuse_later
from kvplan.verbs.deploy import Size
from kvplan.verbs.described import WORDS, described, only
from kvplan.verbs.given import ModelLike
from kvplan.verbs.latency import deployment_row, latency_part
from kvplan.verbs.launch import launch_notes
from kvplan.verbs.launched import Start, launch_part
from kvplan.verbs.levers import levers_part
from kvplan.verbs.manifests import check_form
from kvplan.verbs.phases import peaks
from kvplan.verbs.timing import clock_of, policy_of
from kvplan.verbs.verdict import sequences_of

CONTEXTS = (2048, 8192, 32768, 131072, 262144, 1048576)


def plan(
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
    launch_as: str | None = None,
    **flags: Any,
) -> Answer:
    """Memory, capacity, times of prefill and decode, what holds the deployment back, and its launch.

    The load is that of `latency`: its lengths, and one of `batch`, `concurrency` and `rate`; with either of
    the first two, that many sequences of prompt and output must fit. `ttft` and `tpot` are goals, `flags` the
    engine's own settings, `command` a launch command. With `launch_as` (command, compose, kubernetes, yaml)
    the document has `launch_text`, the launch in that form.
    Returns the contract's `plan` document: bytes, tokens and seconds; `latency` is that of the verb. What
    is not known is None. Raises BadInput or UnknownName for anything that cannot be used.
    """
    if isinstance(gpu, str) and gpu.strip().lower() == "cpu":
        raise BadInput("--gpu: times need an accelerator with known peaks; kvplan fit answers for the CPU")
    refuse_later(flags)
    form = check_form(launch_as) if launch_as is not None else None
    wanted = at_once(batch, concurrency)
    words = only(WORDS, locals())
    d, read = described(model, words, flags, wanted)
    start = Start(
        model if model not in (None, "") else read.model,
        words["dtype"] or read.named.get("dtype") or "auto",
        words["quantization"] or read.named.get("quantization"),
    )
    asked = asked_of(d, **only(LOAD, locals()))

    def compute(leaf: Leaf) -> dict[str, Any]:
        fit = fitting.fit_part(d, wanted, leaf, asked.length)
        times = latency_part(d, asked, leaf)
        said = [*read.notes, *fit.pop("notes"), *times.pop("notes")]
        held_back = _limits(d, fit, said, times, asked)
        return {
            "size": _size_part(d, leaf),
            "fit": fit,
            "latency": times,
            "contexts": _contexts(d, value_of(fit["memory"]["kv_pool_bytes"])),
            "limits": [*_goals(times, asked), *held_back],
            "levers": levers_part(d, asked) if leaf is bare else [],
            **(launch_part(d, fit, start, form, held_back) if leaf is bare else {}),
            "load": asked.document(leaf),
            "deployment": deployment_row(d),
            "notes": [
                *dict.fromkeys(said),
                *size.weight_notes(d.model),
                *size.uncrossed(d.model),
                *launch_notes(d, start.quantization),
                *_undrafted(d, asked),
            ],
        }

    def draws(answer: dict[str, Any]) -> dict[str, Any]:
        memory, clock = answer["fit"]["memory"], clock_of(d)
        peak, rate = peaks(clock, step_compute(d.model))
        policy = policy_of(d, asked.held(d.setup.engine), shared=asked.shared)
        return {
            "of": series.deployed(d),
            "memory": series.memory_parts(memory),
            "growth": series.growth_by_kind(d.model, d.stored, d.max_model_len),
            "decode": series.decode_over_batch(d, clock, asked.load(), policy, memory["kv_pool_bytes"] or 0),
            "roofline": {"points": series.roofline_points(answer["latency"]), "peak": peak, "rate": rate},
        }

    return Answer(compute, draws)


def _undrafted(d: Deployment, asked: Asked) -> list[str]:
    """The launch names no drafter that was not named."""
    if not asked.drafts or d.setup.flags.get("speculative_config"):
        return []
    return ["times have drafted tokens and the launch names no drafter; add one, as in --speculative-config"]


def _size_part(d: Deployment, leaf: Leaf) -> dict[str, Any]:
    asked = {"tokens": d.max_model_len, "batch": 1, "crossed": 0}
    return {"model": size.model_part(d.model, leaf), "kv": size.kv_part(d.model, d.stored, asked, leaf)}


def _contexts(d: Deployment, pool_bytes: int | None) -> list[dict[str, Any]]:
    """How many sequences fit at several lengths, as the engine keeps them: what people read first."""
    rows = []
    for tokens in [*(n for n in CONTEXTS if n < d.max_model_len), d.max_model_len]:
        each, held = cache.bytes_per_sequence(d.model, d.stored, tokens, bare), None
        if pool_bytes is not None:
            held = sequences_of(d, pool_bytes, tokens)
            held = pool_bytes / each if held is None and each else held
        count = None if held is None or not each else int(held)
        rows.append({"tokens": tokens, "bytes_per_sequence": each, "sequences": count})
    return rows


def _limits(
    d: Deployment, fit: dict[str, Any], notes: list[str], times: dict[str, Any], asked: Asked
) -> list[str]:
    """What holds the deployment back, most pressing first, in a sentence each."""
    found = _memory_limits(d, fit, notes, asked)
    repeated = [g.label for g in cache.groups_of(d.model) if d.tp > g.attention.kv_heads]
    if d.tp > 1 and repeated:
        found.append(
            f"the {', '.join(repeated)} cache has fewer heads than ranks: every rank repeats it, "
            f"so more ranks free weights but do not divide the cache"
        )
    return [*found, *_time_limits(times, asked)]


def _goals(times: dict[str, Any], asked: Asked) -> list[str]:
    """Each goal beside what the load sees."""
    goals = {"ttft_seconds": asked.ttft, "tpot_seconds": asked.tpot}
    found = []
    for name, goal in goals.items():
        seen = value_of(times["serving"][name])
        if goal is None or (name == "tpot_seconds" and asked.output_tokens == 1):
            continue
        word = name.removesuffix("_seconds").upper()
        verdict = "not known" if seen is None else f"{'within' if seen <= goal else 'over'} it"
        shown = "" if seen is None else f" {seconds_text(seen)},"
        found.append(f"{word} {_under(asked)}:{shown} {verdict} (goal {seconds_text(goal)})")
    batch = value_of((times["batches"]["goal"] or {}).get("batch"))
    if found:
        most_users = f"up to {count_text(batch)} users" if batch else "no number of users"
        found.append(f"{most_users} can be served within the goals")
    return found


def _time_limits(times: dict[str, Any], asked: Asked) -> list[str]:
    decode = {key: value_of(value) for key, value in times["decode"].items()}
    about = f"about {seconds_text(decode['step_seconds'])} a step"
    if decode["low_seconds"] is not None:
        about += f", {seconds_text(decode['low_seconds'])} to {seconds_text(decode['high_seconds'])}"
    least = seconds_text(decode["lower_bound_seconds"])
    found = [f"decode {_under(asked)} is {decode['bound']}-bound: {about}; at best {least}"]
    batches = times["batches"]
    crossing, turned = (
        value_of(batches[name]) for name in ("compute_bound_batch", "weights_compute_bound_batch")
    )
    if crossing:
        return [*found, f"from batch {count_text(crossing)} on decode is compute-bound"]
    from_there = f"; weights alone compute for longer from batch {count_text(turned)} on" if turned else ""
    return [*found, f"decode stays bandwidth-bound at any batch{from_there}"]


def _under(asked: Asked) -> str:
    """The load, as words that follow."""
    if asked.mode == "rate":
        return f"at {asked.amount:g} requests a second"
    count = count_text(asked.amount)
    return f"with {count} users" if asked.mode == "concurrency" else f"at batch {count}"


def _memory_limits(d: Deployment, fit: dict[str, Any], notes: list[str], asked: Asked) -> list[str]:
    memory = {key: value_of(value) for key, value in fit["memory"].items()}
    capacity = {key: value_of(value) for key, value in fit["capacity"].items()}
    if memory["kv_pool_bytes"] == 0:
        missing = memory["budget_bytes"] - memory["accelerator_bytes"]
        if missing > 0:
            return [f"does not fit: {bytes_text(missing)} a rank are missing before any cache"]
        return ["does not fit: weights and reserve leave nothing of the engine's share for the cache"]
    if capacity["fits"] is None and capacity["kv_tokens"] is None:
        return [note for note in notes if "does not serve" in note]
    if capacity["fits"] is not False:
        return []
    longest, needed = capacity["estimated_max_model_len"], capacity["needed_kv_bytes"]
    counted = asked.mode != "rate"
    if counted and needed is not None and needed <= (memory["kv_pool_bytes"] or 0):
        held = sequences_of(d, memory["kv_pool_bytes"], asked.length)
        if held is not None and held < asked.amount:
            wanted = f"{count_text(asked.amount)} sequences of {count_text(asked.length)} tokens are wanted"
            return [f"{wanted} and {held:.2f} fit at once"]
    advice = f"; --max-model-len {longest} fits" if longest else ""
    wants = bytes_text(needed) if needed is not None else "more"
    return [
        f"one sequence of {count_text(d.max_model_len)} tokens needs {wants} "
        f"and the pool has {bytes_text(memory['kv_pool_bytes'] or 0)}{advice}"
    ]
