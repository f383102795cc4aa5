"""How an engine gives turns: its scheduling policy, by version and settings, from engines/scheduling.toml."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvplan.errors import BadInput, UnknownName, shown
from kvplan.facts import store
from kvplan.facts.engine_versions import key

FACTS = "engines/scheduling.toml"


@dataclass(frozen=True, slots=True)
class Scheduling:
    """A scheduling policy; the ratio and its clip count where `admit` is "ratio" alone."""

    order: str
    chunked: bool
    admit: str
    victim: str
    lead: int
    ratio_start: float = 0.0
    ratio_least: float = 0.0
    ratio_steps: int = 1
    clip_tokens: int = 0
    sources: Mapping[str, str] = field(default_factory=dict, compare=False)

    def source(self, name: str) -> str:
        """Where a field was read, or which setting it follows."""
        return self.sources.get(name, "")


class _Draft:
    """A policy in the making: its values, and where each was read."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.sources: dict[str, str] = {}

    def put(self, values: Mapping[str, Any], source: str) -> None:
        self.values.update(values)
        self.sources.update(dict.fromkeys(values, source))


def scheduling_of(
    engine: str,
    version: str,
    flags: Mapping[str, Any],
    *,
    stages: int = 1,
    drafter: str | None = None,
) -> Scheduling:
    """The policy of an engine's version with the settings given.

    `stages` of the pipeline and the method of the `drafter` (if any) turn some defaults off; a setting given
    goes before them. Raises BadInput for a setting whose policy is not simulated.
    """
    table = store.toml(FACTS).get(engine)
    if table is None:
        raise UnknownName(f"--engine: how {shown(engine)} schedules is not known")
    draft = _Draft()
    for change in table["change"]:
        if key(version) >= key(change["from"]):
            draft.put(change["set"], change["source"])
    if not draft.values:
        oldest = table["change"][0]["from"]
        raise UnknownName(f"--engine-version: {engine} {shown(version)} is older than {oldest}")
    for rule in table.get("unless", []):
        if _holds(rule, version, stages, drafter):
            draft.put(rule["set"], rule["source"])
    for flag in table.get("flag", []):
        if key(version) >= key(flag.get("since", "0")):
            _apply(draft, flag, _given(flags, flag["name"]))
    return _finished(draft)


def _holds(rule: Mapping[str, Any], version: str, stages: int, drafter: str | None) -> bool:
    if key(version) < key(rule.get("from", "0")) or ("below" in rule and key(version) >= key(rule["below"])):
        return False
    if rule.get("stages"):
        return stages > 1
    return drafter is not None and (not rule["drafters"] or drafter in rule["drafters"])


def _given(flags: Mapping[str, Any], name: str) -> Any:
    """What the user gave for a setting, a `no_` before it being its denial."""
    if flags.get(name) is not None:
        return flags[name]
    denied = flags.get(f"no_{name}")
    return None if denied is None else not denied


def _apply(draft: _Draft, flag: Mapping[str, Any], given: Any) -> None:
    if given is None:
        return
    source = f"--{flag['name'].replace('_', '-')} {given}: {flag['source']}"
    if "times" in flag:
        name = flag["times"]
        draft.put({name: min(flag["most"], draft.values[name] * _factor(flag["name"], given))}, source)
    elif "words" in flag:
        draft.put(_word(flag, given), source)
    else:
        draft.put(flag["yes" if given else "no"], source)


def _factor(name: str, given: Any) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given < float("inf"):
        raise BadInput(f"--{name.replace('_', '-')}: {shown(given)} is no factor; give a number such as 1.0")
    return float(given)


def _word(flag: Mapping[str, Any], given: Any) -> Mapping[str, Any]:
    words: Mapping[str, Mapping[str, Any]] = flag["words"]
    found = words.get(str(given).lower())
    if found is not None:
        return found
    if "others" in flag:
        option = flag["name"].replace("_", "-")
        raise BadInput(f"--{option}: {shown(given)}: {flag['others']}; use {' or '.join(words)}")
    return {}


def _finished(draft: _Draft) -> Scheduling:
    values, sources = dict(draft.values), dict(draft.sources)
    if "ratio_least_factor" in values:
        values["ratio_least"] = values["ratio_start"] * values.pop("ratio_least_factor")
        sources["ratio_least"] = sources.pop("ratio_least_factor")
    return Scheduling(**values, sources=sources)
