"""`simulate`: the same deployment under a trace or a drawn load, step by step as its engine schedules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvplan.engines.deployment import Deployment
from kvplan.errors import BadInput
from kvplan.facts.efficiency import serving_fitted_on
from kvplan.figure import Leaf, Number, Source, Trust, bare, formula, named
from kvplan.serve.calibrated import Factors, Observed, calibrate, misses, scaled
from kvplan.serve.load import Load
from kvplan.serve.outcome import KINDS, Seen, duration_seconds, seen, timeline, within
from kvplan.serve.requests_out import check_path, write
from kvplan.serve.runs import measured_run
from kvplan.serve.simulation import Fleet, Outcome
from kvplan.serve.simulation import simulate as run
from kvplan.serve.workload import Workload
from kvplan.units import count_text
from kvplan.verbs import series
from kvplan.verbs.answer import Answer
from kvplan.verbs.asked import draft_layers_of, drafts_of
from kvplan.verbs.check import whole
from kvplan.verbs.deploy import Size
from kvplan.verbs.described import WORDS, described, only
from kvplan.verbs.given import ModelLike
from kvplan.verbs.goals import goals_of
from kvplan.verbs.instance import Instance, instance_of
from kvplan.verbs.latency import deployment_row
from kvplan.verbs.moved import fleet_of
from kvplan.verbs.phases import spread_of
from kvplan.verbs.timing import clock_of, not_calibrated, on_host
from kvplan.verbs.workloads import WORKLOAD, workload_of

MOST_BETWEEN = 20_000  # requests
Report = Callable[[str, int, int], None]


_REST = 0.01  # of requests that may miss a goal on the 99th percentile
_UNMET = 0.25  # of a mean: a calibration that leaves more is none


def simulate(
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
    trace: str | None = None,
    prefix_block_tokens: int | None = None,
    first_seconds: str | float | None = None,
    last_seconds: str | float | None = None,
    rate: float | None = None,
    rate_scale: float | None = None,
    concurrency: int | None = None,
    batch: int | None = None,
    requests: int | None = None,
    duration: str | float | None = None,
    arrivals: str | None = None,
    think: str | float | None = None,
    prompt_tokens: int | str | None = None,
    output_tokens: int | str | None = None,
    shared_prefix_tokens: int | None = None,
    turns: int | str | None = None,
    system_tokens: int | None = None,
    speculative_tokens: int | None = None,
    acceptance: float | None = None,
    routing: str | None = None,
    prefill_replicas: int | None = None,
    calibrate_from: str | None = None,
    ttft_p99: str | float | None = None,
    tpot_p99: str | float | None = None,
    e2e_p99: str | float | None = None,
    seed: int = 0,
    requests_out: str | None = None,
    report: Report | None = None,
    **flags: Any,
) -> Answer:
    """Replay a trace, or a load drawn by `seed`, and say what its users would see.

    The deployment is that of `fit` and `latency`, its `flags` the engine's own. The load is a `trace` (a
    file or a ServeGen folder; `rate` or `rate_scale` speed it up), a `rate` whose `arrivals` are poisson,
    constant, "gamma(2)" or "ramp(20, 300)", a `concurrency` of users who `think` before they ask again, or a
    `batch` at once. Lengths are numbers or distributions, "lognormal(512, 300)"; `turns` make conversations.
    `dp` replicas have requests dealt by `routing`; `prefill_replicas` more compute the prompts apart.
    `calibrate_from` names a measured run whose step times are taken. Goals count `goodput`; `requests_out`
    has a row a request. Returns the contract's `simulate` document: times in seconds, rates a second, of the
    whole deployment, with `timeline`, `workload`, `deployment`, `goals` and `notes` beside it. Raises
    BadInput or UnknownName.
    """
    words = only(WORDS, locals())
    asked = only(WORKLOAD, locals())
    goals = goals_of({"ttft_p99": ttft_p99, "tpot_p99": tpot_p99, "e2e_p99": e2e_p99})
    if requests_out is not None:
        check_path(requests_out)
    d, read = described(model, words, flags)
    if d.setup.dcp > 1:
        raise BadInput(
            f"--dcp: {d.setup.dcp} ranks would share a context, which times do not cover; leave it out"
        )
    load = _drafted(d, speculative_tokens, acceptance)
    fleet = fleet_of(d, routing, prefill_replicas)
    seed = whole("--seed", seed, 0, 2**31 - 1)
    workload = workload_of(asked, seed)
    instance, notes = instance_of(d, workload, load, fleet), list(read.notes)
    if calibrate_from is not None:
        instance, factors, misses = _calibrated(d, load, instance, calibrate_from)
        notes.append(_said(factors, calibrate_from, misses))
    outcome = _run(instance, workload, report)
    found = seen(workload, outcome, instance.front_seconds)
    if requests_out is not None:
        write(requests_out, workload, outcome, found)
        if workload.stream is not None or workload.prefix_ids is not None:
            notes.append(
                "--requests-out: its rows do not say what prompts share; as a trace they share nothing"
            )
    between = None if calibrate_from is not None else _between(d, instance, workload)
    result = _Run(d, workload, instance, outcome, found, goals, between)

    def compute(leaf: Leaf) -> dict[str, Any]:
        part = document(result, leaf)
        part["notes"] = [*notes, *d.model.notes, *workload.notes, *instance.notes, *part["notes"]]
        return part

    def draws(answer: dict[str, Any]) -> dict[str, Any]:
        return {"of": series.deployed(d), "timeline": answer["timeline"]}

    return Answer(compute, draws)


@formula("", "a run, step by step; step times as estimated (1), or a measured run's")
def simulated(value: Number, step_times: Number) -> Number:
    """What came out of a run with these step times."""
    return value * step_times


class _Run:
    """A run and what it was made of."""

    def __init__(
        self,
        d: Deployment,
        workload: Workload,
        instance: Instance,
        outcome: Outcome,
        found: Seen,
        goals: Mapping[str, float],
        between: dict[str, Any] | None,
    ) -> None:
        self.d, self.workload, self.instance = d, workload, instance
        self.outcome, self.found, self.goals, self.between = outcome, found, goals, between


def _drafted(d: Deployment, drafts: int | None, acceptance: float | None) -> Load:
    """What is drafted a step; lengths are the workload's."""
    count, chance, _ = drafts_of(d, drafts, acceptance)
    return Load(0, 1, drafts=count, acceptance=chance, draft_layers=draft_layers_of(d) if count else 0)


def _run(instance: Instance, workload: Workload, report: Report | None = None) -> Outcome:
    told = None if report is None else (lambda done, of: report("requests", done, of))
    return run(workload, instance.pool, instance.scheduling, instance.times, instance.fleet, told)


def _calibrated(
    d: Deployment, load: Load, instance: Instance, path: str
) -> tuple[Instance, Factors, dict[str, float]]:
    """The instance with step times under which this deployment meets a measured run, and by how much not."""
    workload, measured = measured_run(path)
    one = instance_of(d, workload, load, Fleet())
    several = one.pool.max_running * one.pool.positions

    def tried(factors: Factors) -> Observed:
        outcome = run(workload, one.pool, one.scheduling, scaled(one.times, factors, several))
        found = seen(workload, outcome, 0.0)
        return Observed(found.ttft_seconds, found.tpot_seconds, found.e2e_seconds)

    factors = calibrate(tried, measured)
    missed = misses(tried(factors), measured)
    if not missed or max(map(abs, missed.values())) > _UNMET:
        how = ", ".join(f"{kind} {miss:+.0%}" for kind, miss in missed.items()) or "nothing is answered"
        raise BadInput(
            f"--calibrate-from: no step times make this deployment meet {Path(path).name} ({how}); "
            "describe the one it was measured on"
        )
    times = scaled(instance.times, factors, several)
    return replace(instance, times=times), factors, missed


def _between(d: Deployment, instance: Instance, workload: Workload) -> dict[str, Any] | None:
    """Means at both ends of what step times may be: where 80 % of measured tokens' times lie.

    None where no interval is known, or a run is so long that two more would not be worth their time.
    """
    known = spread_of(clock_of(d), "tpot")
    if known is None or len(workload) > MOST_BETWEEN:
        return None
    found: dict[str, Any] = {"step_times": [known.low, known.high]}
    ends = []
    for factor in found["step_times"]:
        times = scaled(instance.times, Factors(factor, factor, factor), instance.pool.max_running)
        outcome = _run(replace(instance, times=times), workload)
        ends.append(seen(workload, outcome, instance.front_seconds))
    for kind in KINDS:
        found[kind] = [end.spread(kind)["mean"] for end in ends]
    return found


def _said(factors: Factors, path: str, missed: Mapping[str, float]) -> str:
    left = ", ".join(f"{kind} {miss:+.1%}" for kind, miss in missed.items())
    return (
        f"step times are those of {Path(path).name}: steps × {factors.step:.3f}, cached tokens × "
        f"{factors.context:.3f}, prompts × {factors.prompt:.3f} of the estimate; its means are met to {left}"
    )


def document(r: _Run, leaf: Leaf = bare) -> dict[str, Any]:
    """The contract's `simulate` document."""
    clock = clock_of(r.d)
    on = serving_fitted_on()
    source = Source(
        Trust.ASSUMED,
        f"from kernels and {on['rows']:,} serving measurements for {clock.engine} on "
        f"{clock.accelerator.name}",
    )
    run = Source(
        Trust.ENGINE_RULE,
        f"a run of {r.outcome.steps:,} steps, each by the engine's scheduling "
        f"({r.instance.scheduling.order})",
    )

    def said(name: str, value: float | None, unit: str) -> Any:
        if value is None or leaf is bare:
            return value
        out = leaf(f"{name}_of_the_run", value, unit, run)
        return named(name, unit, simulated(out, leaf("step_times", 1, "", source)))

    o, seconds = r.outcome, duration_seconds(r.outcome)
    done, rejected = int(r.found.finished.sum()), int(o.rejected.sum())
    made = int(r.workload.output_tokens[r.found.finished].sum())
    good = int(within(r.found, r.goals).sum()) if r.goals else None
    spreads = {kind: r.found.spread(kind) for kind in KINDS}
    return {
        "requests": len(r.workload),
        "completed": done,
        "rejected": rejected,
        "duration_seconds": said("duration_seconds", seconds, "s"),
        "steps": o.steps,
        "preemptions": o.preemptions,
        "prefix_hit_rate": o.hit / o.looked_up if o.looked_up else 0.0,
        "kv_peak_fraction": o.peak_blocks / r.instance.pool.blocks,
        "output_tokens_per_second": said(
            "output_tokens_per_second", made / seconds if seconds else None, "token/s"
        ),
        "requests_per_second": said("requests_per_second", done / seconds if seconds else None, "/s"),
        "goodput_requests_per_second": None if good is None else (good / seconds if seconds else 0.0),
        **{
            kind: {name: said(f"{kind}_{name}", value, "s") for name, value in spread.items()}
            for kind, spread in spreads.items()
        },
        "between": r.between,
        "goals": _against(r.goals, spreads, rejected / max(1, len(r.workload))),
        "timeline": timeline(o, r.instance.pool.blocks),
        "workload": {"source": r.workload.source, **r.workload.summary().document()},
        "deployment": {**deployment_row(r.d), **_fleet(r.instance.fleet), "starts": r.instance.starts},
        "settings": _settings(r.instance),
        "notes": [*not_calibrated(r.d), *on_host(r.d), *_notes(r)],
    }


def _against(
    goals: Mapping[str, float], spreads: Mapping[str, Mapping[str, float | None]], rejected: float
) -> dict[str, Any] | None:
    """Each goal beside the 99th percentile; None without goals. Who is rejected waits for ever."""
    if not goals:
        return None
    met = {
        kind: rejected <= _REST and spreads[kind]["p99"] is not None and (spreads[kind]["p99"] or 0) <= goal
        for kind, goal in goals.items()
    }
    return {"met": all(met.values()), **{f"{kind}_p99_goal": goal for kind, goal in goals.items()}}


def _fleet(fleet: Fleet) -> dict[str, Any]:
    found: dict[str, Any] = {
        "replicas": fleet.replicas,
        "routing": fleet.routing if fleet.replicas > 1 else None,
    }
    return {**found, "prefill_replicas": fleet.prefill} if fleet.prefill else found


def _settings(i: Instance) -> dict[str, Any]:
    """How the engine schedules, as it was simulated."""
    p, g = i.pool, i.scheduling
    return {
        "kv_tokens": p.blocks // p.full * p.block_tokens,
        "max_num_seqs": p.max_running,
        "max_num_batched_tokens": p.budget,
        "order": g.order,
        "admit": g.admit,
        "victim": g.victim,
        "chunked": g.chunked,
        "lead": g.lead,
        "prefix_caching": p.caching,
    }


def _notes(r: _Run) -> list[str]:
    """What a reader must know before using the numbers."""
    notes = []
    rejected = int(r.outcome.rejected.sum())
    if rejected:
        limit = r.instance.pool.max_model_len
        notes.append(
            f"{count_text(rejected)} requests are rejected: longer than {count_text(limit)} tokens, or than "
            "the whole cache"
        )
    if r.d.setup.flags.get("stream_interval"):
        notes.append("--stream-interval: tokens are taken to leave as they are made")
    if r.d.setup.engine == "llama.cpp" and (
        r.workload.stream is not None or r.workload.prefix_ids is not None
    ):
        notes.append("what a slot still has of the request before is not found again here")
    if r.d.setup.pp > 1:
        notes.append(
            f"{r.d.setup.pp} stages are taken as rounds in which each works on its share of the requests"
        )
    return notes
