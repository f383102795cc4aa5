"""`verify --url`: what a running server says of itself, beside what kvplan predicts for its deployment."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kvplan.engines.deployment import Deployment
from kvplan.engines.registry import capacity_of
from kvplan.errors import BadInput, KvplanError, shown
from kvplan.facts.engine_versions import find_engine
from kvplan.figure import bare, value_of
from kvplan.observe.address import Secrets, address_of, headers_of
from kvplan.observe.forms import Said
from kvplan.observe.http import Client, Limits
from kvplan.observe.observed import Observed
from kvplan.observe.served import observed_of
from kvplan.observe.server import Server, read_server, watch
from kvplan.observe.traffic import Traffic, traffic_of
from kvplan.units import parse_seconds
from kvplan.verbs.given import ModelLike
from kvplan.verbs.verify_check import FLAGS, Check, exact, found
from kvplan.verbs.verify_deployment import Case, case_of
from kvplan.verbs.verify_engines import compared
from kvplan.verbs.verify_log import changes_of, observed_document, settled
from kvplan.verbs.verify_outcome import Compared, Outcome
from kvplan.verbs.verify_probe import Probe, probed
from kvplan.verbs.verify_stated import stated_checks
from kvplan.verbs.verify_times import Timed, traffic_times
from kvplan.verbs.verify_why import reasons

_SECONDS = 10.0
ASKED = {
    "probe": (
        "probe_concurrency", "probe_requests", "probe_rate", "probe_seconds", "prompt_tokens",
        "output_tokens",
    ),
    "url": ("watch", "served", "probe"),
    "prometheus": ("selector", "since", "step"),
}  # fmt: skip
_MOST_WATCHED = 3600.0


@dataclass(frozen=True, slots=True)
class Asking:
    """How a server is asked: headers, seconds for each request, seconds to watch it, which of its models.

    `probe` is a load to send; `tell` is called with what it will send, before it does.
    """

    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    seconds: float = _SECONDS
    watch: float | None = None
    served: str | None = None
    probe: Probe | None = None
    tell: Callable[[str], None] | None = None


def client_of(url: Any, asking: Asking, flag: str) -> Client:
    """Who asks the server at that address. Raises BadInput for what is none."""
    limits = Limits(seconds=asking.seconds, all_seconds=6 * asking.seconds)
    return Client(address_of(url, flag), asking.headers, limits, flag)


def from_url(
    url: Any,
    model: ModelLike | None,
    words: Mapping[str, Any],
    flags: Mapping[str, Any],
    asking: Asking,
) -> Outcome:
    """Every figure that a server states of its cache and of its requests, with its prediction.

    Raises Unreachable where it cannot be asked, BadInput where no model is known or words contradict it.
    """
    client = client_of(url, asking, "--url")

    def work() -> Outcome:
        stated = words.get("engine")
        server = read_server(client, find_engine(stated) if stated else None, asking.served)
        traffic = _traffic(client, server, asking)
        outcome = outcome_of(observed_of(server), traffic, model, words, flags, {"kind": "server"})
        sent = probed(client, server, asking.probe, outcome.deployment, asking.tell) if asking.probe else None
        named = {**outcome.source, "name": server.url}
        return replace(_with_probe(outcome, sent), source=named)

    return without_secrets(client.secrets, work)


def _traffic(client: Client, server: Server, asking: Asking) -> Traffic | None:
    """The requests since the engine's start, or those while it is watched."""
    if asking.watch:
        reading, seconds = watch(client.with_limits(), server, min(asking.watch, _MOST_WATCHED))
        if reading is not None:
            return traffic_of(reading, seconds)
        raise client.unreachable(
            server.url,
            "did not give its metrics twice",
            "drop --watch: what it counts since its start is taken",
        )
    return traffic_of(server.reading) if server.reading is not None else None


def without_secrets(secrets: Secrets, work: Callable[[], Outcome], flag: str = "--url") -> Outcome:
    """The outcome, and every error, with each credential masked that a server may have repeated."""
    try:
        outcome = work()
    except KvplanError as error:
        raise type(error)(in_server_words(secrets.masked(str(error)), flag)) from None

    def plain(tree: Any) -> Any:
        return _worded(secrets.out_of(tree))

    return replace(
        outcome,
        source=plain(outcome.source),
        observed=plain(outcome.observed),
        explanations=plain(list(outcome.explanations)),
        changes=plain(list(outcome.changes)),
        notes=plain(list(outcome.notes)),
        checks=[_plain_check(check, plain) for check in outcome.checks],
    )


def _plain_check(c: Check, plain: Callable[[Any], Any]) -> Check:
    return replace(
        c, reported=plain(c.reported), basis=plain(c.basis), reason=plain(c.reason), note=plain(c.note)
    )


def _worded(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _worded(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_worded(value) for value in tree]
    return in_server_words(tree) if isinstance(tree, str) else tree


def in_server_words(text: str, flag: str = "--url") -> str:
    """What is said of a log, said of a server: both are read into the same record."""
    plain = re.sub(r"\bthe log\b", "the server", re.sub(r"\ba log\b", "a server", text))
    return plain.replace("--log:", f"{flag}:")


def outcome_of(
    o: Observed,
    traffic: Traffic | None,
    model: ModelLike | None,
    words: Mapping[str, Any],
    flags: Mapping[str, Any],
    source: dict[str, Any],
) -> Outcome:
    """What a server, asked itself or known from a Prometheus, comes to beside the plan."""
    before, case = o, _case(o, model, words, flags)
    o, got = case.observed, compared(case)
    circular = _circular(before, case)
    got = replace(got, checks=[row for row in got.checks if row.name not in circular])
    stated, unseen = stated_checks(case, got.measured or got.planned)
    d = got.measured or got.planned
    timed = traffic_times(traffic, got.planned or d) if traffic is not None else Timed()
    sizes = [*got.checks, *_file_checks(o, d), *stated]
    rows = [*sizes, *timed.checks]
    why, _ = reasons(case, got, sizes)
    document = observed_document(o, got)
    if traffic is not None:
        document["traffic"] = {**traffic.document(), "predicted_for": timed.load}
    return Outcome(
        source=source,
        observed=document,
        checks=rows,
        explanations=why,
        changes=changes_of(why),
        deployment=d,
        notes=[*_notes(case, got, timed, unseen, traffic), *_untold(case, sizes)],
    )


def _circular(o: Observed, case: Case) -> list[str]:
    """Figures that the plan takes from the server itself: they would agree whatever runs."""
    stated = "kv_pool_bytes" in o.figures or "num_gpu_blocks_override" in case.given.settings
    found = [] if stated else ["num_blocks"]
    if o.engine == "llama.cpp" and not {"ctx_size", "parallel"} & set(case.given.settings):
        found += ["n_ctx", "n_ctx_seq", "max_running_requests"]
    return found


def _case(o: Observed, model: ModelLike | None, words: Mapping[str, Any], flags: Mapping[str, Any]) -> Case:
    """The case, its pool put in where blocks alone are known."""
    if str(words.get("gpu") or "").strip().lower() == "cpu":
        o = replace(o, platform="cpu")
    given = {name: value for name, value in words.items() if name != "engine"}
    case = settled(case_of(o, model, given, flags))
    return replace(case, observed=_with_pool(case))


def _with_pool(case: Case) -> Observed:
    """TensorRT-LLM states its blocks and no bytes: then blocks say them."""
    o = case.observed
    blocks = o.figures.get("num_blocks")
    if o.engine != "tensorrt-llm" or blocks is None or "kv_pool_bytes" in o.figures:
        return o
    d = case.attempt(1 << 40)
    each = value_of(capacity_of(d, 1 << 40, bare).bytes_per_block) if d is not None else None
    if not each:
        return o
    pool = Said(blocks.value * each + each / 2, each / 2)  # what is left is less than a block
    return replace(o, figures={**o.figures, "kv_pool_bytes": pool})


def _file_checks(o: Observed, d: Deployment | None) -> list[Check]:
    """What llama-server says of its file: parameters, and bytes of all tensors."""
    if d is None or o.engine != "llama.cpp":
        return []
    tensors = d.model.tensors
    if tensors is None or not tensors.is_gguf or not tensors.tensors:
        return []
    rows = (("tensor_bytes", tensors.bytes, "B"), ("parameters", tensors.values, ""))
    return found(
        exact(n, ours, o.figures.get(n), unit, FLAGS, "the file's tensors") for n, ours, unit in rows
    )


def _with_probe(outcome: Outcome, sent: Any) -> Outcome:
    """The outcome with the rows of a load that was sent."""
    if sent is None:
        return outcome
    return replace(
        outcome,
        observed={**outcome.observed, "probe": sent.document},
        checks=[*outcome.checks, *sent.checks],
        notes=[*outcome.notes, *sent.notes],
    )


def _notes(
    case: Case, got: Compared, timed: Timed, unseen: Sequence[str], traffic: Traffic | None
) -> list[str]:
    o = case.observed
    notes = [*o.notes, *case.at.notes, *case.given.command.notes, *got.notes, *timed.notes]
    if unseen:
        notes.append(f"the server does not show {', '.join(unseen)}: taken as you state it")
    if o.engine == "vllm" and "tp" not in unseen and case.given.words.get("tp") is None:
        notes.append("vLLM's metrics do not say how it is divided: one rank is taken; --tp states another")
    return list(dict.fromkeys([*notes, *(_pressed(traffic) if traffic is not None else [])]))


def _untold(case: Case, sizes: Sequence[Check]) -> list[str]:
    """That no figure tells the user's model from another, where the server's name for it does not."""
    told = {"parameters", "tensor_bytes", "model"} & {row.name for row in sizes}
    if (
        told
        or case.given.model in (None, "")
        or not case.observed.model
        or case.observed.engine != "llama.cpp"
    ):
        return []
    what = f"the server's {shown(case.observed.model)} is taken for the model that you state"
    return [f"{what}: nothing that it shows tells them apart; its log does (--log)"]


def _pressed(traffic: Traffic) -> list[str]:
    """What the counts say of a cache that is too small."""
    counts, gauges, found = traffic.reading.counters, traffic.reading.gauges, []
    preempted = counts.get("preemptions", 0.0)
    if preempted:
        found.append(f"{preempted:,.0f} preemptions: the cache was full, and requests were computed anew")
    if gauges.get("waiting") and gauges.get("usage", 0.0) > 0.9:
        found.append(f"{gauges['waiting']:,.0f} requests wait and the cache is {gauges['usage']:.0%} full")
    return found


def asking_of(given: Mapping[str, Any], tell: Callable[[str], None] | None = None) -> Asking:
    """How to ask, of what a user gave: header, timeout, watch, served, probe and its limits."""

    def seconds(name: str, default: float | None, most: float) -> float | None:
        value = given.get(name)
        if value in (None, ""):
            return default
        read = parse_seconds(value, f"--{name}") if isinstance(value, str) else value
        if isinstance(read, bool) or not isinstance(read, (int, float)) or not 0 < read <= most:
            raise BadInput(f"--{name}: {shown(value)} is not a time up to {most:g} s; write one such as 30s")
        return float(read)

    return Asking(
        headers=headers_of(given.get("header"), "--header"),
        seconds=seconds("timeout", _SECONDS, 600.0) or _SECONDS,
        watch=seconds("watch", None, _MOST_WATCHED),
        served=given.get("served") or None,
        probe=Probe.of(given) if given.get("probe") else None,
        tell=tell,
    )
