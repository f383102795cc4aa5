"""Changes to what requests cost: prefixes found, tokens drafted, prompts apart, caches on the host."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from kvplan.cost import cache, host_cache
from kvplan.engines.deployment import Deployment
from kvplan.engines.registry import CONTEXT_DECIDES
from kvplan.facts.engine_versions import key
from kvplan.facts.kernels import host_bytes_per_second, moving_bytes_per_second
from kvplan.figure import bare
from kvplan.serve.apart import Apart, ServedApart, Side, at_concurrency, at_rate, prompt_cache_bytes
from kvplan.serve.load import Load
from kvplan.serve.prompt import prompt_seconds
from kvplan.serve.steady import Served
from kvplan.units import bytes_text, count_text, decimal_text, seconds_text
from kvplan.verbs import fit as fitting
from kvplan.verbs.asked import ACCEPTANCE, Asked
from kvplan.verbs.deploy import with_drafter, with_flags
from kvplan.verbs.latency import dealt_out, room, served
from kvplan.verbs.lever import Lever, none, refusal, refused, tried, words
from kvplan.verbs.lever_ranks import experts_of
from kvplan.verbs.timing import accelerator_of, clock_of, dealt, policy_of

DRAFTS = 3
_HALF = 0.5


def share_found(asked: Asked, rate: float | None) -> tuple[int, str]:
    """(tokens of a prompt that are found at that hit rate, what the rate is); half where none is given."""
    tokens = min(int(asked.prompt_tokens * (_HALF if rate is None else rate)), asked.prompt_tokens - 1)
    return tokens, words("prefix")["assumed" if rate is None else "stated"].format(rate=rate)


def prefix(d: Deployment, asked: Asked, rate: float | None = None) -> Iterator[Lever]:
    """Prompts that begin alike, at a hit rate."""
    tokens, said = share_found(asked, rate)
    fields = {"share": "half" if rate is None else f"{rate:.0%}", "said": said, "tokens": tokens}
    fields |= {"prompt": asked.prompt_tokens}
    if rate is None and asked.shared:
        return  # the load says what is shared
    if tokens == asked.shared:
        why = none("prefix", "same" if tokens else "short", prompt=asked.prompt_tokens)
        yield Lever("prefix", {"shared_prefix_tokens": tokens}, d, asked, fields, why)
        return
    change: dict[str, Any] = {"shared_prefix_tokens": tokens}
    off = d.setup.flags.get("enable_prefix_caching") is False
    if off:
        change["enable_prefix_caching"] = True
    found = with_flags(d, enable_prefix_caching=True) if off else d
    yield Lever("prefix", change, found, replace(asked, shared=tokens), fields)


def drafts(d: Deployment, asked: Asked) -> Iterator[Lever]:
    """Tokens drafted: by the layers of the model that predict ahead, else by a head of one layer."""
    if asked.drafts:
        return
    flags, method = _drafter(d)
    change: dict[str, Any] = {**flags}
    if "speculative_config" not in flags:
        change |= {"speculative_tokens": DRAFTS, "acceptance": ACCEPTANCE}
    then = replace(asked, drafts=DRAFTS, acceptance=ACCEPTANCE, draft_layers=1.0)
    memory = f"; memory of {method} is counted" if flags else "; the drafter's own memory is left out"
    fields = {"drafts": DRAFTS, "s": "s", "acceptance": ACCEPTANCE, "memory": memory}
    make = partial(with_drafter, d, **flags) if flags else lambda: d
    why = none("drafts", "single") if asked.output_tokens == 1 else ""
    yield tried("drafts", change, then, make, fields, why)


def _drafter(d: Deployment) -> tuple[dict[str, Any], str]:
    """(flags of the drafter that the model would have, what it is)."""
    ahead = bool(d.model.mtp_layers)
    what = "the model's own layers that predict ahead" if ahead else "an EAGLE head"
    if not ahead and experts_of(d):  # heads for such models are dense and of no known shape
        return {}, what
    if d.setup.engine == "vllm":
        own = {"method": "mtp"} if ahead else {"method": "eagle3", "layers": 1}
        return {"speculative_config": {**own, "num_speculative_tokens": DRAFTS}}, what
    if d.setup.engine == "sglang":
        return {
            "speculative_algorithm": "NEXTN" if ahead else "EAGLE3",
            "speculative_num_steps": DRAFTS,
            "speculative_eagle_topk": 1,
            "speculative_num_draft_tokens": DRAFTS + 1,
        }, what
    return {}, what


def undrafted(d: Deployment, asked: Asked) -> Iterator[Lever]:
    """Nothing drafted, where something is."""
    if not asked.drafts:
        return
    given = [name for name in d.setup.flags if name.startswith("speculative_")]
    make = partial(with_drafter, d, **dict.fromkeys(given))
    why = none("undrafted", "single") if asked.output_tokens == 1 else ""
    yield tried("undrafted", {"speculative_tokens": 0}, replace(asked, drafts=0), make, because=why)


def apart(d: Deployment, asked: Asked) -> Iterator[Lever]:
    """Prompts on one such deployment, decoding on another."""
    asked_again = ""
    if asked.mode == "batch":
        asked_again = f"; {count_text(asked.amount)} users who ask again once answered"
    change = {"prefill_workers": dealt(d).replicas, "decode_workers": dealt(d).replicas}
    fields = {"asked": asked_again}
    if d.setup.engine in CONTEXT_DECIDES:
        yield refused("apart", change, asked, refusal("apart", "engine", engine=d.setup.engine), fields)
        return
    policy = policy_of(d, asked.held(d.setup.engine), shared=asked.shared)
    if not room(d, policy, asked.length):
        yield refused("apart", change, asked, refusal("apart", "room"), fields)
        return
    yield Lever("apart", change, d, asked, fields, times="apart")


def apart_times(d: Deployment, asked: Asked) -> ServedApart:
    """Both sides as many replicas as the deployment has, joined by its own link, else by the network."""
    clock, policy = clock_of(d), policy_of(d, asked.held(d.setup.engine), shared=asked.shared)
    workers, link = dealt(d).replicas, moving_bytes_per_second(clock.accelerator)
    both = Apart(Side(clock, policy, workers), Side(clock, policy, workers), link)
    if asked.mode == "rate":
        return at_rate(both, asked.load(), asked.amount)
    return at_concurrency(both, asked.load(), asked.amount)


@dataclass(frozen=True, slots=True)
class OnHost:
    """What the host's memory holds of one rank, and what a found prefix takes either way."""

    bytes: int
    tokens: int
    found: int
    fetch_seconds: float
    recompute_seconds: float

    def document(self) -> dict[str, Any]:
        """As the answer repeats it."""
        names = ("bytes", "tokens", "fetch_seconds", "recompute_seconds")
        return {"found_tokens": self.found, **{name: getattr(self, name) for name in names}}


def host(d: Deployment, asked: Asked, rate: float | None = None, given: int | None = None) -> Iterator[Lever]:
    """Prefixes kept in host memory; `given` bytes of all ranks together, else twice the device's cache."""
    engine, table = d.setup.engine, words("host_cache")["defaults"]
    link, why = host_bytes_per_second(accelerator_of(d)), ""
    pool, each = fitting.pool_of(d), cache.bytes_per_token(d.model, d.stored, bare, after_windows=False)
    if engine in CONTEXT_DECIDES:
        why = refusal("host_cache", "engine", engine=engine)
    elif engine == "vllm" and key(d.setup.version) < key(table["since"]):
        why = refusal("host_cache", "version", since=table["since"])
    elif link is None:
        why = refusal("host_cache", "link", accelerator=accelerator_of(d).name)
    elif not pool or not each:
        why = refusal("host_cache", "room")
    if why or link is None or not pool:
        yield refused("host_cache", {}, asked, why)
        return
    ranks = d.setup.tp * d.setup.pp
    held = int(host_cache.host_bytes(pool, table["ratio"]))
    if given is not None:
        held = given // (ranks * dealt(d).replicas)
    change, changed = _kept(d, held, held * ranks)
    tokens, said = share_found(asked, rate)
    found = on_host(changed, asked, held, tokens)
    fields = {
        "bytes": bytes_text(held),
        "tokens": found.tokens,
        "found": tokens,
        "fetch": seconds_text(found.fetch_seconds),
        "recompute": seconds_text(found.recompute_seconds),
        "link": f"{decimal_text(link, 'B/s')} from the host",
        "said": said,
        "on_host": found,
    }
    why = none("host_cache", "found" if asked.shared else "same")
    yield Lever("host_cache", change, changed, asked, fields, why, times="host")


def _kept(d: Deployment, rank_bytes: int, all_bytes: int) -> tuple[dict[str, Any], Deployment]:
    """(the engine's own flags, the deployment that they leave)."""
    if d.setup.engine == "vllm":
        connector = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both"}
        return {"kv_offloading_size": round(all_bytes / 2**30, 2)}, with_flags(
            d, kv_transfer_config=connector
        )
    if d.setup.engine == "sglang":
        return {"enable_hierarchical_cache": True, "hicache_size": max(1, round(rank_bytes / 1e9))}, d
    return {"host_cache_size": rank_bytes}, with_flags(d, host_cache_size=rank_bytes)


def on_host(d: Deployment, asked: Asked, held: int, found: int) -> OnHost:
    """What `held` bytes a rank give: tokens, and a prefix of `found` tokens fetched or computed."""
    clock = clock_of(d)
    each = cache.bytes_per_token(d.model, d.stored, bare, after_windows=False)
    rate = host_bytes_per_second(clock.accelerator) or 1.0
    prefix = prompt_cache_bytes(clock.ops, found) if found else 0
    policy = policy_of(d, asked.held(d.setup.engine))
    computed = float(prompt_seconds(clock, Load(found, 1), policy)) if found else 0.0
    fetched = float(host_cache.fetch_seconds(prefix, rate))
    return OnHost(held, int(host_cache.host_tokens(held, each)), found, fetched, computed)


def host_times(d: Deployment, asked: Asked, on: OnHost) -> dict[str, Any]:
    """TTFT with the prefix fetched in place of computed; what runs at once is the device's as before."""
    clock, policy = clock_of(d), policy_of(d, asked.held(d.setup.engine))
    if not room(d, policy, asked.length) or on.found <= asked.shared:
        return {}
    share, busy = dealt_out(asked, dealt(d).replicas)
    load = replace(asked, shared=on.found).load()
    found: Served = served(clock, load, policy, asked.mode, share)
    together = min(share, policy.running) if asked.mode == "batch" else 1
    wait = on.fetch_seconds * together
    times: dict[str, Any] = {
        "ttft_seconds": found.ttft_seconds,
        "tpot_seconds": found.tpot_seconds if asked.output_tokens > 1 else None,
        "e2e_seconds": found.e2e_seconds,
        "output_tokens_per_second": found.output_tokens_per_second * busy,
    }
    if found.ttft_seconds is None:
        return times
    times["ttft_seconds"] += wait
    times["e2e_seconds"] += wait
    if asked.mode != "rate":  # users ask again so much later
        times["output_tokens_per_second"] *= found.e2e_seconds / times["e2e_seconds"]
    return times
