"""`verify`: what was predicted beside what really runs, figure by figure, with what explains the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvplan.errors import BadInput
from kvplan.verbs.answer import Answer
from kvplan.verbs.deploy import Size
from kvplan.verbs.described import WORDS, only
from kvplan.verbs.given import ModelLike
from kvplan.verbs.verify_log import from_log
from kvplan.verbs.verify_outcome import answer_of
from kvplan.verbs.verify_prometheus import from_prometheus
from kvplan.verbs.verify_server import ASKED, asking_of, from_url

_NOT_OF_LOG = "is for a server; a log is read, not asked"


def verify(
    model: ModelLike | None = None,
    *,
    log: Any = None,
    url: str | None = None,
    prometheus: str | None = None,
    selector: str | None = None,
    since: str | float | None = None,
    step: str | float | None = None,
    header: str | list[str] | None = None,
    timeout: str | float | None = None,
    watch: str | float | None = None,
    served: str | None = None,
    probe: bool | None = None,
    probe_concurrency: str | list[int] | None = None,
    probe_requests: int | None = None,
    probe_rate: float | None = None,
    probe_seconds: str | float | None = None,
    prompt_tokens: int | None = None,
    output_tokens: int | None = None,
    report: Callable[[str], None] | None = None,
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
    kv_cache_memory_bytes: Size = None,
    weights_memory: Size = None,
    activation_memory: Size = None,
    graph_memory: Size = None,
    command: str | None = None,
    **flags: Any,
) -> Answer:
    """Every figure that a log or a server states beside the one predicted, with its error and tolerance.

    `log` is a path, `-` for standard input, or an open file; `url` the address of a running server, asked for
    its metrics and settings with `header` ("Name: value", "@FILE"), each page for at most `timeout`; with
    `watch` it is asked twice, so long apart. With `probe` a short load is sent to it and nowhere else, of
    which `report` is told before. `prometheus` is asked for the series that `selector` leaves of the time
    `since` (24h), in steps of `step`. Model, version, accelerator and settings are the source's own; what is
    given besides is taken first, and where the source shows otherwise that is a check which disagrees.
    Returns the contract's `verify` document, with what explains each disagreement, what to change
    in the plan, and of a failed start what was needed, what was there and what fixes it. Raises BadInput for
    a source that cannot be read or whose model is not known, Unreachable for a server that does not answer.
    """
    given = {"log": log, "url": url, "prometheus": prometheus}
    source = _one_of(given)
    asked = {
        "selector": selector,
        "since": since,
        "step": step,
        "header": header,
        "timeout": timeout,
        "watch": watch,
        "served": served,
        "probe": probe,
        "probe_concurrency": probe_concurrency,
        "probe_requests": probe_requests,
        "probe_rate": probe_rate,
        "probe_seconds": probe_seconds,
        "prompt_tokens": prompt_tokens,
        "output_tokens": output_tokens,
    }
    words = only(WORDS, locals())
    if source == "log":
        _refuse(asked, _NOT_OF_LOG)
        return answer_of(from_log(log, model, words, flags))
    if source == "prometheus":
        _refuse({n: asked[n] for n in (*ASKED["url"], *ASKED["probe"])}, "is for --url, a server itself")
        return answer_of(from_prometheus(prometheus, model, words, flags, asking_of(asked), asked))
    _refuse({name: asked[name] for name in ASKED["prometheus"]}, "is for --prometheus")
    if not probe:
        _refuse({name: asked[name] for name in ASKED["probe"]}, "says what --probe sends; give that too")
    return answer_of(from_url(url, model, words, flags, asking_of(asked, report)))


def _refuse(asked: dict[str, Any], why: str) -> None:
    """Raise BadInput for an option that the source has no use for."""
    found = next((name for name, value in asked.items() if value not in (None, "", False)), None)
    if found is not None:
        raise BadInput(f"--{found.replace('_', '-')}: {why}")


def _one_of(given: dict[str, Any]) -> str:
    """The source that was named: exactly one."""
    found = [name for name, value in given.items() if value is not None]
    if not found:
        wanted = " or ".join(f"--{name}" for name in given)
        raise BadInput(f"{wanted}: missing; name what to compare with, such as --log vllm.log")
    if len(found) > 1:
        raise BadInput(f"{' and '.join(f'--{name}' for name in found)}: give one of them")
    return found[0]
