"""Why a start-up stopped: the line that says it best, with the sizes that stand beside it."""

from __future__ import annotations

import re

from kvplan.observe.forms import Said
from kvplan.observe.observed import Failure
from kvplan.observe.startup import Hit, StartUp

_BESIDE = 12  # lines before and after that belong to one message
_SAYS_LITTLE = ("stopped",)
_MOST_TEXT = 300
_SAYS_LESS = ("allocation", "out_of_memory")  # than a kind that stands beside them
# What only one phase can say, whatever was printed before it.
_PHASES = {
    "not_enough_free": "checking what is free",
    "unbalanced": "checking what is free",
    "one_request_too_long": "making the cache",
    "warm_up": "warming up the sampler",
}
# An error that tells of another's.
_OF_OTHERS = re.compile(r"EngineCore|Engine core initialization failed")
# An error of no form that is a lack of memory all the same.
_FULL = re.compile(r"out of memory|OutOfMemory|OUT_OF_MEMORY|CUBLAS_STATUS_ALLOC_FAILED", re.IGNORECASE)


def failure_of(startup: StartUp, phase_at: dict[str, str] | None = None) -> Failure | None:
    """The failure of a start-up, or of the running engine after it; None where it runs.

    `phase_at`: for each figure, what the engine is at once it has printed it; the last printed before the
    failure names the phase.
    """
    ready = next((hit.line for hit in startup.hits if hit.form.marks == "ready"), None)
    marked = [hit for hit in startup.hits if hit.form.marks == "failure"]
    ready_again = max((hit.line for hit in startup.hits if hit.form.marks == "ready"), default=-1)
    telling = [hit for hit in marked if hit.form.failure not in _SAYS_LITTLE]
    recovered = [hit for hit in telling if ready is not None and hit.line < ready]
    telling = [hit for hit in telling if hit not in recovered] or ([] if ready_again >= 0 else telling)
    if telling:
        return _told(startup, telling, ready, phase_at or {})
    if marked and not recovered:
        return _untold(startup, marked[-1], ready, phase_at or {})
    errors = [hit for hit in startup.hits if hit.form.about == "error"]
    if errors and ready is None and not startup.ready:
        return _untold(startup, errors[-1], ready, phase_at or {})
    return None


def _told(startup: StartUp, telling: list[Hit], ready: int | None, phase_at: dict[str, str]) -> Failure:
    first = telling[0]
    group = [hit for hit in telling if abs(hit.line - first.line) <= _BESIDE]
    beside = [
        hit
        for hit in startup.hits
        if abs(hit.line - first.line) <= _BESIDE and (hit.form.about == "failure" or hit in group)
    ]
    kinds = [hit.form.failure for hit in group]
    kind = next((k for k in kinds if k not in _SAYS_LESS), kinds[0])
    figures: dict[str, Said] = {}
    words: dict[str, str] = {}
    for hit in beside:
        for name, value in hit.values.items():
            if isinstance(value, Said):
                figures.setdefault(name, value)
            else:
                words.setdefault(name, value)
    _derive(figures, beside)
    running = ready is not None and first.line > ready
    return Failure(
        kind=kind,
        line=first.line,
        text=_shortened(first),
        when="running" if running else "start-up",
        phase="" if running else _PHASES.get(kind) or _phase(startup, first.line, phase_at),
        figures=figures,
        words=words,
    )


def _derive(figures: dict[str, Said], beside: list[Hit]) -> None:
    """What a message states by other figures: the longest sequence in blocks, which process is the own."""
    blocks, tokens = figures.get("blocks_per_sequence"), figures.get("tokens_per_block")
    if "max_model_len" not in figures and blocks is not None and tokens is not None:
        beams = figures.get("beam_width", Said(1)).value
        figures["max_model_len"] = Said(blocks.value * tokens.value * beams)
    own = _own_process(figures, beside)
    if own is not None:
        figures.setdefault("process_bytes", own)


def _own_process(figures: dict[str, Said], beside: list[Hit]) -> Said | None:
    """Of the processes that one message lists, the smallest that can hold what PyTorch has given out.

    It is the engine's own: what it holds is at least what PyTorch has, and little more.
    """
    said = next((hit for hit in beside if "allocated_bytes" in hit.values), None)
    if said is None:
        return None
    listed = [hit for hit in beside if "each_process_bytes" in hit.values]
    listed = [hit for hit in listed if hit.line == said.line] or listed
    least = figures["allocated_bytes"].low + figures.get("reserved_bytes", Said(0)).low
    sizes = [
        v for hit in listed if isinstance(v := hit.values["each_process_bytes"], Said) and v.high >= least
    ]
    return min(sizes, key=lambda size: size.value, default=None)


def _untold(startup: StartUp, hit: Hit, ready: int | None, phase_at: dict[str, str]) -> Failure:
    """A stop that no form explains: the last error before the engine gave up, and whether it names memory."""
    errors = [e for e in startup.hits if e.form.about == "error" and e.line <= hit.line + _BESIDE]
    own = [e for e in errors if not _OF_OTHERS.search(str(e.values.get("error")))] or errors
    last = own[-1] if own else hit
    text = str(last.values.get("error") or _shortened(hit))
    when = "running" if ready is not None and hit.line > ready else "start-up"
    near = (e for e in reversed(errors) if last.line - e.line <= _BESIDE)
    full = next((e for e in near if _FULL.search(str(e.values.get("error")))), None)
    if full is None:
        return Failure("other", last.line, text[:_MOST_TEXT], when)
    phase = _phase(startup, full.line, phase_at) if when == "start-up" else ""
    return Failure("out_of_memory", full.line, str(full.values.get("error"))[:_MOST_TEXT], when, phase)


def _shortened(hit: Hit) -> str:
    match = hit.form.pattern.search(hit.text)
    whole = " ".join(hit.text[match.start() if match else 0 :].split())
    cut = whole[:_MOST_TEXT].rpartition(" ")[0]
    return whole if len(whole) <= _MOST_TEXT or not cut else f"{cut} …"


def _phase(startup: StartUp, line: int, phase_at: dict[str, str]) -> str:
    phase = next(iter(phase_at.values()), "")
    for hit in startup.hits:
        if hit.line >= line:
            break
        phase = next((phase_at[name] for name in hit.values if name in phase_at), phase)
    return phase
