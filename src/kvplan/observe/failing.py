"""Why a start-up stopped: the line that says it best, with the sizes that stand beside it."""

from __future__ import annotations

from kvplan.observe.forms import Said
from kvplan.observe.observed import Failure
from kvplan.observe.startup import Hit, StartUp

_BESIDE = 12  # lines before and after that belong to one message
_SAYS_LITTLE = ("stopped",)
_MOST_TEXT = 300
# What only one phase can say, whatever was printed before it.
_PHASES = {"not_enough_free": "checking what is free", "warm_up": "warming up the sampler"}


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
        return _untold(startup, marked[-1], ready)
    errors = [hit for hit in startup.hits if hit.form.about == "error"]
    if errors and ready is None and not startup.ready:
        return _untold(startup, errors[-1], ready)
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
    kind = next((k for k in kinds if k not in ("allocation", "out_of_memory")), kinds[0])
    figures: dict[str, Said] = {}
    words: dict[str, str] = {}
    for hit in beside:
        for name, value in hit.values.items():
            if isinstance(value, Said):
                figures.setdefault(name, value)
            else:
                words.setdefault(name, value)
    return Failure(
        kind=kind,
        line=first.line,
        text=_shortened(first),
        when="running" if ready is not None and first.line > ready else "start-up",
        phase=_PHASES.get(kind) or _phase(startup, first.line, phase_at),
        figures=figures,
        words=words,
    )


def _untold(startup: StartUp, hit: Hit, ready: int | None) -> Failure:
    """A stop that no form explains: the last error before the engine gave up."""
    errors = [e for e in startup.hits if e.form.about == "error" and e.line <= hit.line + _BESIDE]
    own = [e for e in errors if "EngineCore" not in str(e.values.get("error"))] or errors
    last = own[-1] if own else hit
    text = str(last.values.get("error") or _shortened(hit))
    running = ready is not None and hit.line > ready
    return Failure("other", last.line, text[:_MOST_TEXT], "running" if running else "start-up")


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
