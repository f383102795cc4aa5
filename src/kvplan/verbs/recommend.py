"""`recommend`: the cheapest deployments that meet the goals, why they do, and what starts each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from kvplan.advise.executor import executor_of, release
from kvplan.advise.families import Space, families
from kvplan.advise.goals import Goals
from kvplan.advise.ledger import Ledger
from kvplan.errors import BadInput, shown
from kvplan.facts import store
from kvplan.facts.accelerators import accelerators, find_accelerator
from kvplan.facts.drafters import keeps
from kvplan.facts.efficiency import serving_fitted_on
from kvplan.facts.engine_versions import find_engine, find_version
from kvplan.facts.flags import checked
from kvplan.facts.flags import flags as known_flags
from kvplan.facts.formats import find_format
from kvplan.facts.kernels import fitted_on
from kvplan.facts.prices import Price, given_prices, price_of
from kvplan.measured.machine import is_machine_file
from kvplan.model.model import Model
from kvplan.serve.load import Load
from kvplan.serve.workload import Workload
from kvplan.verbs.answer import Answer
from kvplan.verbs.asked import ACCEPTANCE
from kvplan.verbs.check import whole
from kvplan.verbs.chosen import chosen_part
from kvplan.verbs.described import only
from kvplan.verbs.given import ModelLike, given_model
from kvplan.verbs.goals import goals_of
from kvplan.verbs.order import Order, Priced
from kvplan.verbs.screening import Want
from kvplan.verbs.search import Question, Report, Search
from kvplan.verbs.workloads import WORKLOAD, workload_of

MOST_ACCELERATORS = 1024
OWN = "own"  # weights as the checkpoint has them
_FRONT = 16  # of the front by arithmetic, simulated at most
_WORKERS = 4096
_SECONDS, _MOST = 60.0, 20_000  # of a rate: how long requests arrive, and how many at most
_MARGIN = 0.05  # of a prompt
_VENDORS = ("nvidia", "amd")  # whose accelerators are searched where none is named


def recommend(
    model: ModelLike,
    *,
    gpu: str | Iterable[str] | None = None,
    engine: str | Iterable[str] | None = None,
    engine_version: str | None = None,
    quantization: str | Iterable[str] | None = None,
    kv_cache_dtype: str | Iterable[str] | None = None,
    max_accelerators: int = 16,
    price: str | Iterable[str] | None = None,
    trace: str | None = None,
    prefix_block_tokens: int | None = None,
    first_seconds: str | float | None = None,
    last_seconds: str | float | None = None,
    rate: float | None = None,
    rate_scale: float | None = None,
    concurrency: int | None = None,
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
    ttft_p99: str | float | None = None,
    tpot_p99: str | float | None = None,
    e2e_p99: str | float | None = None,
    answers: int = 5,
    seed: int = 0,
    workers: int | None = None,
    ray: str | None = None,
    resume: str | None = None,
    report: Report | None = None,
    **flags: Any,
) -> Answer:
    """The cheapest deployments that meet the goals under a load.

    `gpu`, `engine`, `quantization` and `kv_cache_dtype` are what may be used: one, several with commas, or
    a list; all priced accelerators, vLLM, the checkpoint's own weights and their cache where not given. Every
    way to divide the model over up to `max_accelerators` is timed by arithmetic; the cheapest are simulated,
    with two draws of the load, until 99 of 100 requests stay within `ttft_p99`, `tpot_p99` and `e2e_p99`.
    The load is that of `simulate`: a `trace`, a `rate` or a `concurrency`. `price` overrides list prices,
    "h100=2.49". `workers` processes or a `ray` cluster share the work; `resume` names a file of what is
    found, from which an interrupted search goes on. Returns the contract's `recommend` document: times in
    seconds, costs in US dollars. Raises BadInput or UnknownName.
    """
    asked = only(WORKLOAD, locals())
    found = goals_of({"ttft_p99": ttft_p99, "tpot_p99": tpot_p99, "e2e_p99": e2e_p99})
    if not found:
        raise BadInput("--ttft-p99: no goal is given; give one of --ttft-p99, --tpot-p99 and --e2e-p99")
    if trace is None and rate is None and concurrency is None:
        raise BadInput("--rate: no load is given; give requests a second, a --concurrency or a --trace")
    loaded = given_model(model)
    wanted = whole("--answers", answers, 1, 100)
    if workers is not None:
        whole("--workers", workers, 1, _WORKERS)
    prices = given_prices(_several("--price", price))
    engines = list(dict.fromkeys(find_engine(name) for name in _several("--engine", engine) or ["vllm"]))
    space = Space(
        _accelerators(_several("--gpu", gpu), prices),
        engines,
        _weights(loaded, _several("--quantization", quantization)),
        _caches(_several("--kv-cache-dtype", kv_cache_dtype)),
        whole("--max-accelerators", max_accelerators, 1, MOST_ACCELERATORS),
        *_nodes(),
    )
    workloads = _workloads(asked, whole("--seed", seed, 0, 2**31 - 2))
    by_engine = {name: _flags_of(name, flags, engines) for name in engines}
    want = Want(
        mode="concurrency" if workloads[0].users else "rate",
        amount=_amount(workloads[0], asked),
        load=_load(workloads[0], by_engine, shared_prefix_tokens, speculative_tokens, acceptance),
        longest=_longest(workloads[0]),
        goals=Goals(**found),
        most=space.most,
        flags=by_engine,
        versions=_versions(engine_version, engines),
        once=shared_prefix_tokens or system_tokens or 0,
    )
    question = Question(loaded, want, workloads, _routing(want))
    experts = any(w.part == "expert" for _, layer in loaded.grouped() for w in layer.weights)
    grid = families(space, experts=experts)
    ledger = Ledger(resume, question.digest(f"{release()} {serving_fitted_on()} {fitted_on()}"))
    priced = Priced(prices, want.goals)
    with executor_of(question, workers, ray, len(grid)) as by:
        search = Search(question, by, ledger, report)
        screened = search.screen(grid)
        tried = search.simulate(Order(screened, priced, wanted))
        front = search.play(priced.fastest(screened, _FRONT))
    ledger.write()

    served = str(model) if isinstance(model, str) and Path(model).exists() else loaded.id
    part = chosen_part(question, screened, tried, front, priced, wanted, served)
    return Answer(lambda _: part, lambda answer: {"front": answer["front"], "of": loaded.id})


def _several(field: str, given: str | Iterable[str] | None) -> list[str]:
    """Names, from one with commas or from several."""
    if given is None:
        return []
    texts = [given] if isinstance(given, str) or not isinstance(given, Iterable) else list(given)
    for text in texts:
        if not isinstance(text, str):
            raise BadInput(f"{field}: {shown(text)} is not a name; give names, with commas or in a list")
    names = [part.strip() for text in texts for part in text.split(",") if part.strip()]
    if not names:
        raise BadInput(f"{field}: {shown(given)} names nothing; give names, or leave it out")
    return list(dict.fromkeys(names))


def _weights(model: Model, named: list[str]) -> list[str]:
    """Quantisations, "" for the checkpoint's own; raises for one that this model cannot have."""
    found = ["" if name.lower() == OWN else name for name in named or [OWN]]
    for name in found:
        if name:
            given_model(model, "auto", name)
    return found


def _caches(named: list[str]) -> list[str]:
    """Formats of the cache; raises for one that nobody knows."""
    for name in named:
        if name != "auto":
            find_format(name, "--kv-cache-dtype")
    return named or ["auto"]


def _accelerators(named: list[str], prices: Mapping[str, Price]) -> list[str]:
    """Keys of those that are named, or else of all with a price."""
    if named:
        for name in named:
            if is_machine_file(name):
                raise BadInput(
                    f"--gpu: {shown(name)} is a machine that was timed, and the search is over built-in "
                    "ones; ask latency or simulate of it"
                )
        return list(dict.fromkeys(find_accelerator(name).key for name in named))
    found = [a for a in accelerators() if a.vendor in _VENDORS and a.memory_bytes and a.peaks]
    return [a.key for a in found if a.key in prices or price_of(a.key) is not None]


def _nodes() -> tuple[dict[str, int], set[str]]:
    """(accelerators of a node, those whose nodes nothing fast joins: cards on PCIe, nodes of one)."""
    table = store.toml("efficiency/classes.toml")
    node, bridged = table["node"], table["bridged"]["accelerators"]
    sizes = {a.key: int(node["domain"].get(a.key, node["accelerators"])) for a in accelerators()}
    slotted = {a.key for a in accelerators() if a.link_bytes_per_second is None or a.key in bridged}
    return sizes, slotted | {key for key, size in sizes.items() if size == 1}


def _workloads(asked: Mapping[str, Any], seed: int) -> tuple[Workload, ...]:
    """The load, and where it is drawn another draw of it; of a rate a minute and more, where nobody says."""
    if asked["trace"] is not None:
        return (workload_of(asked, seed),)
    first = workload_of(asked, seed)
    if asked["rate"] is not None and asked["requests"] is asked["duration"] is None:
        asked = {**asked, "requests": round(min(max(len(first), _SECONDS * _amount(first, asked)), _MOST))}
        first = workload_of(asked, seed)
    return first, workload_of(asked, seed + 1)


def _amount(workload: Workload, asked: Mapping[str, Any]) -> float:
    """Users of a closed loop, or requests a second: those of the law that draws them, or a trace's mean.

    A conversation's further turns come on top of the arrivals that a rate counts.
    """
    if workload.users:
        return float(workload.users)
    rate = asked["rate"]
    if asked["trace"] is not None or rate is None or str(asked["arrivals"] or "").strip().startswith("ramp"):
        rate = workload.summary().requests_per_second
    if not rate:
        raise BadInput(f"--trace: {workload.source} has no rate: its requests all arrive at one time")
    by_clock = int((~np.isnan(workload.arrival_seconds)).sum())
    return float(rate) * len(workload) / by_clock


def _longest(workload: Workload) -> int:
    return int((workload.prompt_tokens.astype(np.int64) + workload.output_tokens).max())


def _load(
    workload: Workload,
    flags: Mapping[str, Mapping[str, Any]],
    shared: int | None,
    drafts: int | None,
    acceptance: float | None,
) -> Load:
    """Mean lengths, and what a cache that keeps everything would find of a prompt, for arithmetic."""
    prompt = max(1, round(float(workload.prompt_tokens.mean())))
    found = round(prompt * (workload.summary().prefix_hit_share or 0.0))
    config = flags.get("vllm", {}).get("speculative_config") or {}
    count = whole("--speculative-tokens", drafts or config.get("num_speculative_tokens") or 0, 0, 64)
    if acceptance is not None and not count:
        raise BadInput("--acceptance: nothing is drafted; give --speculative-tokens too")
    chance = ACCEPTANCE if acceptance is None else acceptance
    if isinstance(chance, bool) or not isinstance(chance, int | float) or not 0 <= chance <= 1:
        raise BadInput(f"--acceptance: {shown(acceptance)} is not a share; give a number from 0 to 1")
    layers = 0.0 if keeps(str(config.get("method") or "")) == "nothing" else 1.0
    return Load(
        prompt,
        max(1, round(float(workload.output_tokens.mean()))),
        shared=min(max(shared or 0, found), prompt - 1),
        drafts=count,
        acceptance=chance if count else 0.0,
        draft_layers=layers if count else 0,
    )


def _routing(want: Want) -> str:
    """How replicas are dealt requests: where prompts share more than one beginning, by what is cached."""
    return "prefix" if want.load.shared > want.once + _MARGIN * want.load.prompt_tokens else "least-loaded"


def _flags_of(engine: str, flags: Mapping[str, Any], engines: list[str]) -> dict[str, Any]:
    """The settings that belong to that engine; raises for one that belongs to none of those searched."""
    found = {}
    for name, value in flags.items():
        flag = known_flags().get(name)
        if flag is None or not set(flag.engines) & set(engines) or engine in flag.engines:
            found[name] = checked(name, value, engine)
    return {name: value for name, value in found.items() if value is not None}


def _versions(given: str | None, engines: list[str]) -> dict[str, str]:
    if given is None:
        return {}
    if len(engines) > 1:
        raise BadInput(
            f"--engine-version: {shown(given)} is of one engine and {len(engines)} are searched; name one"
        )
    return {engines[0]: find_version(engines[0], given)}
