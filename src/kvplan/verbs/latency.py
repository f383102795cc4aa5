"""`latency`: how long prefill and decode take, what binds them, and what users see at a load."""

from __future__ import annotations

from typing import Any

from kvplan.cost.estimate import Clock
from kvplan.cost.weights import step_compute
from kvplan.engines.budget import memory_of
from kvplan.engines.deployment import Deployment
from kvplan.engines.registry import CONTEXT_DECIDES
from kvplan.errors import BadInput
from kvplan.facts.efficiency import is_measured, serving_fitted_on
from kvplan.facts.kernels import fitted_on
from kvplan.facts.reached import Reached
from kvplan.figure import Leaf, Source, Trust, bare, ceiling, least, most, named, value_of
from kvplan.serve import steady
from kvplan.serve.load import Load, Policy, plain, tokens_a_step
from kvplan.serve.steady import Served
from kvplan.units import bytes_text, count_text
from kvplan.verbs import series
from kvplan.verbs.answer import Answer
from kvplan.verbs.asked import LOAD, Asked, asked_of, at_once, refuse_later
from kvplan.verbs.batches import batches_part
from kvplan.verbs.deploy import Size, with_flags
from kvplan.verbs.described import WORDS, described, only
from kvplan.verbs.given import ModelLike
from kvplan.verbs.phases import interval, operations_part, phase, phase_part, phase_times, ridge, spread_of
from kvplan.verbs.timing import clock_of, dealt, not_calibrated, on_host, policy_of

FIGURES = (
    "ttft_seconds",
    "tpot_seconds",
    "e2e_seconds",
    "output_tokens_per_second",
    "total_tokens_per_second",
    "decode_tokens_per_second",
    "requests_per_second",
)
_NO_PHASE = ("seconds", "lower_bound_seconds", "low_seconds", "high_seconds")


def latency(
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
    **flags: Any,
) -> Answer:
    """Seconds of prefill and of a decode step, and means over the requests of a load in steady state.

    The load is a `batch` that starts together, a `concurrency` of users who ask again as soon as they are
    answered, or a `rate` of requests a second that arrive at random; without one, as many sequences as
    the cache holds, at most 32. `ttft` and `tpot` are goals ("0.5s" or seconds): the answer then names the
    largest batch that meets them. `flags` are the engine's own settings, `command` a launch command.
    Returns the contract's `latency` document with `operations`, `batches`, `load` and `notes` beside it:
    times in seconds, rates a second, of the whole deployment in `serving`. What is not known, or does not
    fit, is None. Raises BadInput or UnknownName for anything that cannot be used.
    """
    refuse_later(flags)
    words = only(WORDS, locals())
    if isinstance(gpu, str) and gpu.strip().lower() == "cpu":
        raise BadInput("--gpu: times need an accelerator with known peaks; kvplan fit answers for the CPU")
    d, read = described(model, words, flags, at_once(batch, concurrency))
    asked = asked_of(d, **only(LOAD, locals()))

    def compute(leaf: Leaf) -> dict[str, Any]:
        part = latency_part(d, asked, leaf)
        part["deployment"] = deployment_row(d)
        part["notes"] = [*read.notes, *d.model.notes, *part["notes"]]
        return part

    def draws(answer: dict[str, Any]) -> dict[str, Any]:
        return {"of": series.deployed(d), "curve": answer["batches"]["curve"]}

    return Answer(compute, draws)


def deployment_row(d: Deployment) -> dict[str, Any]:
    """What is deployed, in names."""
    s = d.setup
    inside = s.engine == "sglang" and dealt(d).replicas == 1  # SGLang's attention groups are within tp
    return {
        "model": d.model.id,
        "accelerator": d.accelerator.key if d.accelerator else None,
        "accelerators": s.tp * s.pp * (1 if inside else s.dp),
        "engine": s.engine,
        "engine_version": s.version,
    }


def latency_part(d: Deployment, asked: Asked, leaf: Leaf) -> dict[str, Any]:
    """The contract's `latency` document of a deployment under a load, with what goes beside it."""
    clock, load = clock_of(d), asked.load(leaf)
    policy = policy_of(d, asked.held(d.setup.engine), leaf, asked.shared)
    replicas = dealt(d).replicas
    prompts, running, found = _loaded(d, clock, load, policy, asked, leaf)
    busy = dealt_out(asked, replicas)[1]
    prefill = phase_part(clock, load, policy, prompts, "prefill", leaf)
    decode = phase_part(clock, load, policy, running, "decode", leaf)
    floors = least_times(load, prefill, decode, policy, prompts)
    serving = serving_part(clock, found, asked.mode, floors, leaf, busy) if found else _nothing()
    if asked.output_tokens == 1:  # there is no further token
        for part in (serving, serving["low"], serving["high"]):
            part["tpot_seconds"] = None
    if asked.mode != "rate":
        serving["concurrency"] = leaf(asked.mode, asked.amount, "sequence", asked.source)
    simple, rule = plain(load), plain(policy)
    return {
        "prefill": prefill,
        "decode": decode,
        "ridge_point": ridge(clock, step_compute(d.model), leaf),
        "serving": serving,
        "operations": {
            "prefill": operations_part(clock, simple, rule, value_of(prompts), "prefill"),
            "decode": operations_part(clock, simple, rule, value_of(running), "decode"),
        },
        "batches": batches_part(clock, load, policy, asked, replicas, leaf),
        "load": {**asked.document(leaf), "prompts": named("prompts", "prompt", prompts)},
        "basis": _basis(d, clock, asked.mode),
        "notes": _notes(d, asked, found, rule),
    }


def _loaded(
    d: Deployment, clock: Clock, load: Load, policy: Policy, asked: Asked, leaf: Leaf
) -> tuple[Any, Any, Served | None]:
    """(prompts of the prefill, sequences of a decode step, what is served) of one replica."""
    replicas = dealt(d).replicas
    amount = leaf(asked.mode, asked.amount, "", asked.source)
    share = amount
    if replicas > 1:
        dp = leaf("replicas", replicas, "", Source(Trust.STATED, f"--dp {d.setup.dp}"))
        share = ceiling(amount, dp) if asked.mode == "batch" else amount / dp
        share = named("replica_share", "", most(1, share) if asked.mode == "concurrency" else share)
    found = served(clock, load, policy, asked.mode, share, leaf) if room(d, policy, asked.length) else None
    if asked.mode == "batch":
        return share, share, found
    one = leaf("prompts", 1, "prompt", Source(Trust.STATED, "requests of a steady load prefill one by one"))
    return one, most(1, least(found.concurrency, policy.running)) if found else 1, found


def dealt_out(asked: Asked, replicas: int) -> tuple[float, float]:
    """(what of the load one replica has, replicas that have as much): some have nothing where it is small."""
    if asked.mode == "rate":
        return asked.amount / replicas, replicas
    share = -(-asked.amount // replicas) if asked.mode == "batch" else max(1, asked.amount / replicas)
    return share, replicas if share * replicas == asked.amount else asked.amount / share


def room(d: Deployment, policy: Policy, length: int) -> bool:
    """Whether the deployment holds its weights and one sequence of that length."""
    if d.setup.engine in CONTEXT_DECIDES:
        if d.setup.engine == "transformers" and "max_length" not in d.setup.flags:
            d = with_flags(d, max_length=length)  # its cache grows with the sequence
        left = memory_of(d, bare)["headroom_bytes"]
        return left is None or bool(left >= 0)
    return bool(policy.running >= 1)


def served(clock: Clock, load: Load, policy: Policy, mode: str, amount: Any, leaf: Leaf = bare) -> Served:
    """What a load sees: `mode` is concurrency, rate, batch, saturated, prefill or decode."""
    if mode == "concurrency":
        return steady.closed_loop(clock, load, policy, amount, leaf)
    if mode == "rate":
        return steady.open_loop(clock, load, policy, amount, leaf)
    if mode == "saturated":
        return steady.saturated(clock, load, policy, leaf)
    return steady.together(clock, load, policy, amount, leaf)


def case_answer(clock: Clock, load: Load, policy: Policy, mode: str, amount: float | None) -> dict[str, Any]:
    """One case's `latency` document, bare numbers."""
    if not load.prompt_tokens and load.output_tokens <= 1:
        raise BadInput(f"isl: 0 with osl {load.output_tokens:g} leaves nothing to compute; give one of them")
    batch = 1.0 if mode in ("concurrency", "rate") or amount is None else amount
    found = served(clock, load, policy, mode, amount)
    running = found.concurrency if mode in ("concurrency", "rate", "saturated") else batch
    running = min(running, policy.running)
    prefill: dict[str, Any] = dict.fromkeys(_NO_PHASE)
    if load.prompt_tokens:
        seconds, floor, _ = phase(clock, load, policy, batch, "prefill")
        prefill = phase_times(clock, "prefill", seconds, floor)
    seconds, floor, _ = phase(clock, load, policy, running, "decode")
    decode = phase_times(clock, "decode", seconds, floor)
    floors = least_times(load, prefill, decode, policy, batch)
    return {
        "prefill": prefill,
        "decode": decode,
        "serving": serving_part(clock, found, mode, floors),
    }


def least_times(
    load: Load, prefill: dict[str, Any], decode: dict[str, Any], policy: Policy, prompts: Any
) -> dict[str, Any]:
    """What no request is served below: the floors of its prompts and of a decode step's tokens."""
    token = decode["lower_bound_seconds"]
    token = token / tokens_a_step(load) if load.drafts else token
    first = prefill["lower_bound_seconds"]
    if first is not None and value_of(prompts) > policy.running:  # they take turns
        first = first * (policy.running / prompts)
    return {"ttft_seconds": first, "tpot_seconds": token}


def serving_part(
    clock: Clock,
    found: Served,
    mode: str,
    floors: dict[str, Any],
    leaf: Leaf = bare,
    replicas: float = 1,
) -> dict[str, Any]:
    """The contract's `serving` with its 80 % interval; rates are those of all `replicas`.

    First tokens and tokens take no less than their `floors`.
    """
    values: dict[str, Any] = {}
    low: dict[str, Any] = dict.fromkeys(FIGURES)
    high: dict[str, Any] = dict.fromkeys(FIGURES)
    for name in FIGURES:
        value = getattr(found, name)
        unit = "s" if name.endswith("_seconds") and not name.endswith("per_second") else "/s"
        if value is not None and replicas > 1 and name.endswith("per_second"):
            value = value * leaf("replicas", replicas, "", Source(Trust.STATED, "--dp"))
        least_seconds = floors.get(name)
        if value is not None and least_seconds is not None and value_of(value) < value_of(least_seconds):
            value = most(value, least_seconds)
        values[name] = named(name, unit, value)
        known = interval(clock, kind_of(name, mode), leaf)
        if value is not None and known is not None:
            lowest = value * known[0]
            if least_seconds is not None and value_of(lowest) < value_of(least_seconds):
                lowest = most(lowest, least_seconds)
            low[name], high[name] = named(name, unit, lowest), named(name, unit, value * known[1])
    users = ceiling(found.concurrency * replicas if replicas > 1 else found.concurrency, 1)
    return {"concurrency": named("concurrency", "sequence", users), **values, "low": low, "high": high}


def _nothing() -> dict[str, Any]:
    empty = dict.fromkeys(FIGURES)
    return {"concurrency": None, **empty, "low": dict(empty), "high": dict(empty)}


def kind_of(figure: str, mode: str) -> str:
    """The kind of spread that belongs to a figure under a load."""
    batch = mode in ("batch", "prefill", "decode")
    if figure == "ttft_seconds":
        return "prefill" if batch else "ttft"
    if figure == "tpot_seconds":
        return "decode" if batch else "tpot"
    if batch:
        return "batch"
    return "tpot" if figure == "e2e_seconds" or mode == "concurrency" else "throughput"


def _notes(d: Deployment, asked: Asked, found: Served | None, policy: Policy) -> list[str]:
    """What a reader must know before using the numbers, most pressing first."""
    notes = [*not_calibrated(d), *on_host(d)]
    if found is None:
        memory = memory_of(d, bare)
        pool = bytes_text(memory["kv_pool_bytes"] or 0)
        notes.append(
            f"does not fit: the cache has {pool} a rank, not enough for one sequence of "
            f"{count_text(asked.length)} tokens; times are of a rank that held it"
        )
    elif found.note:
        notes.append(f"{found.note}; requests queue without end, so ttft and e2e are not known")
    elif asked.mode != "rate" and asked.amount / dealt(d).replicas > policy.running:
        held = count_text(int(policy.running) * dealt(d).replicas)
        notes.append(f"{count_text(asked.amount)} sequences are asked and {held} run at once: the rest wait")
    if asked.drafts:
        notes.append(
            "a drafted token is taken to pass one decoder layer and the head, as under EAGLE and MTP"
        )
    return notes


def _timed_basis(d: Deployment, reached: Reached) -> list[str]:
    """The same on a machine that was timed."""
    found = [f"estimates: {reached.source.where}"]
    if reached.layer_seconds is None:
        found.append(
            f"assumed: no model was run: what {d.setup.engine} adds is taken from other machines; "
            "kvplan measure --model calibrates it"
        )
    elif d.setup.engine != "transformers":
        found.append(f"assumed: {d.setup.engine} takes what transformers took beside its arithmetic")
    if "decode" in reached.spreads:
        found.append(f"intervals of decode steps: 80 % of {reached.spreads['decode'][2]} steps kept apart")
    return found


def _basis(d: Deployment, clock: Clock, mode: str) -> list[str]:
    """What the estimates were measured on, and what their intervals are."""
    if clock.reached is not None:
        return _timed_basis(d, clock.reached)
    on, name = serving_fitted_on(), f"{d.setup.engine} on {clock.accelerator.name}"
    measured = is_measured(clock.engine, clock.accelerator.key)
    kernels = fitted_on()["package"].split(" (")[0]
    found = [f"estimates: kernels of {kernels} and {on['rows']:,} serving measurements"]
    if measured:
        found[0] += f"; {name} is among them"
    else:
        found.append(
            f"assumed: {name} was never measured; its nearest relatives stand in, and intervals are wider"
        )
    spread = spread_of(clock, kind_of("tpot_seconds", mode))
    if spread is not None:
        without = "architecture" if measured else "generation of accelerators"
        found.append(
            f"intervals: 80 % of {spread.rows:,} measurements lie within, predicted without their {without} "
            "(docs/accuracy.md)"
        )
    return found
