"""The deployment behind a log: what it states, with what the user adds or states otherwise."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kvplan.engines.deployment import Deployment
from kvplan.errors import BadConfig, BadInput, KvplanError, shown
from kvplan.facts import schemes
from kvplan.facts.accelerators import find_accelerator
from kvplan.facts.catalogue import find_model
from kvplan.facts.engine_versions import find_engine, find_version, key, versions_of
from kvplan.facts.formats import find_format
from kvplan.model.gguf_model import model_of
from kvplan.model.tensors import TensorList
from kvplan.observe.names import built_in, model_name
from kvplan.observe.observed import Observed
from kvplan.units import parse_bytes
from kvplan.verbs.check import whole
from kvplan.verbs.described import MEASURED, RANKS, WORDS, deployed
from kvplan.verbs.given import ModelLike
from kvplan.verbs.pasted import Pasted, pasted
from kvplan.verbs.size import MAX_TP

_DEVICE = ("gpu", "gpu_memory", "memory_in_use")
_ABOUT = ("engine", "link", "command", "launcher")  # words that are no setting of the start


@dataclass(frozen=True, slots=True)
class Given:
    """What the user gave beside the log: a model, kvplan's words, the engine's flags, a launch command."""

    model: ModelLike | None = None
    words: Mapping[str, Any] = field(default_factory=dict)
    flags: Mapping[str, Any] = field(default_factory=dict)
    command: Pasted = field(default_factory=Pasted)

    @property
    def settings(self) -> list[str]:
        """Names of what was stated of the start."""
        command = (self.command.split, self.command.named, self.command.flags)
        found = [name for part in command for name in part]
        found += [name for name, value in self.words.items() if name in WORDS and value not in (None, "auto")]
        found += [name for name, value in self.flags.items() if value is not None]
        return [name for name in dict.fromkeys(found) if name not in _ABOUT]

    def without(self, name: str) -> Given:
        """The same, one setting not stated."""
        command = replace(
            self.command,
            split=_but(self.command.split, name),
            named=_but(self.command.named, name),
            flags=_but(self.command.flags, name),
        )
        return Given(self.model, _but(self.words, name), _but(self.flags, name), command)

    @property
    def states_device(self) -> bool:
        """Whether an accelerator or its memory was named."""
        return any(self.words.get(name) is not None for name in ("gpu", "gpu_memory"))


def _but(stated: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in stated.items() if key != name}


@dataclass(frozen=True, slots=True)
class Placed:
    """The model and the version taken for a log, and what is to be said of both."""

    model: ModelLike
    version: str | None
    notes: tuple[str, ...] = ()


def given_of(
    o: Observed, model: ModelLike | None, words: Mapping[str, Any], flags: Mapping[str, Any]
) -> Given:
    """What the user gave, its command read; raises BadInput where it is of another engine than the log."""
    plain = {name: value for name, value in words.items() if value is not None}
    stated = plain.get("engine")
    if stated is not None and find_engine(stated) != o.engine:
        raise BadInput(f"--engine: {shown(stated)} is given and the log is one of {o.engine}; drop it")
    _check_words(plain, o.engine)
    command = pasted(plain.get("command"), None)
    if command.engine not in (None, o.engine):
        raise BadInput(f"--command: starts {command.engine} and the log is one of {o.engine}")
    return Given(model, plain, dict(flags), command)


def _check_words(words: Mapping[str, Any], engine: str) -> None:
    """Refuse at once what names nothing, whatever the log says."""
    for name in RANKS:
        if words.get(name) is not None:
            whole(f"--{name.replace('_', '-')}", words[name], 1, MAX_TP)
    gpu, version = words.get("gpu"), words.get("engine_version")
    if gpu is not None and str(gpu).strip().lower() != "cpu":
        find_accelerator(str(gpu))
    if version is not None:
        find_version(engine, version)
    if words.get("kv_cache_dtype", "auto") != "auto":
        find_format(str(words["kv_cache_dtype"]), "--kv-cache-dtype")
    for name in ("gpu_memory", "memory_in_use", *MEASURED):
        if isinstance(words.get(name), str):
            parse_bytes(words[name], f"--{name.replace('_', '-')}")


def placed(o: Observed, given: Given) -> Placed:
    """The model: as given, else the one that the log names; and the version whose rules are taken."""
    version, notes = _version(o, given)
    model = given.model if given.model not in (None, "") else _of_command(given.command.model)
    if model is None:
        model, why = _model(o)
        notes = [*notes, *why]
    return Placed(model, version, tuple(notes))


def _of_command(name: str | None) -> str | None:
    """The model that a command names, where it is built in or lies here: its path is the server's."""
    if not name or not _is_path(name) or _known_model(name):
        return name
    return None


def _is_path(name: str) -> bool:
    return (
        name.startswith(("/", "./", "../", "~")) or name.endswith((".gguf", ".json")) or name.count("/") > 1
    )


def _version(o: Observed, given: Given) -> tuple[str | None, list[str]]:
    """The version to plan with: as stated by the user, else the log's own, else the newest that prints so."""
    stated = given.words.get("engine_version") or given.command.version
    if stated:
        return None, []  # `deployed` resolves it
    known = versions_of(o.engine)
    if o.version:
        return _stated_version(o, known)
    fitting = printing_so(o)
    if not fitting or o.engine == "llama.cpp":
        return None, []
    newest = fitting[-1]
    return newest, [f"the log states no version; the rules of {newest}, the newest that prints so, are taken"]


def printing_so(o: Observed) -> list[str]:
    """The versions known that print such lines."""
    return [
        version
        for version in versions_of(o.engine)
        if (not o.since or key(version) >= key(o.since)) and (not o.until or key(version) < key(o.until))
    ]


def _stated_version(o: Observed, known: list[str]) -> tuple[str | None, list[str]]:
    stated = str(o.version)
    numbers = re.split(r"\+|rc|\.dev|\.post", stated.removeprefix("v"))[0].rstrip(".")
    if o.engine == "llama.cpp" or stated in known:
        return stated, []
    if not numbers or not key(numbers):
        return None, [f"the log's version, {stated}, is none that is known; the newest one's rules are taken"]
    if key(numbers) < key(known[0]):
        return known[0], [f"{stated} is older than any version known: the rules of {known[0]} are taken"]
    if key(numbers)[0] > 1000:  # a date or a commit count
        return None, [f"the log's version, {stated}, is none that is known; the newest one's rules are taken"]
    same = [v for v in known if key(v) <= key(numbers)]
    text = ".".join(str(part) for part in key(numbers)[:3])
    word = "a development build" if "dev" in stated or "+" in stated else "not among the versions known"
    return text, [f"{stated} is {word}: the rules of {same[-1]} are taken"]


def _model(o: Observed) -> tuple[ModelLike, list[str]]:
    """The model that the log names: of a GGUF file by its keys, else built in, else a file that is here."""
    name = model_name(o.model or "")
    if o.metadata:
        try:
            return model_of(TensorList((), (name or "the log",), dict(o.metadata))), []
        except BadConfig as error:
            entry = built_in(str(o.metadata.get("general.name") or "")) or built_in(name)
            if entry is None:
                what = f"MODEL: missing; of the keys in the log: {error}"
                raise BadInput(f"{what}; give the .gguf file") from None
            return entry, [f"MODEL: {entry} by its name; the log does not show all of its keys"]
    entry = built_in(name) if name else None
    if entry is not None:
        said = [] if entry == name else [f"MODEL: the log's {shown(name)} is taken for {entry}"]
        return entry, said
    if name and _is_here(Path(name)):
        return name, [f"MODEL: read from {shown(name)}, which the log names"]
    if not name:
        raise BadInput("MODEL: missing; the log names none; give the model before the options")
    what = f"the log runs {shown(name)}, which is neither built in nor a file here"
    raise BadInput(f"MODEL: missing; {what}; give its config or its id")


def _is_here(path: Path) -> bool:
    """Whether a path that a log names is a checkpoint here: a folder with its config, or a file of one."""
    try:
        return (path / "config.json").is_file() or (path.suffix in (".gguf", ".json") and path.is_file())
    except (OSError, ValueError):
        return False


def deployment_of(o: Observed, given: Given, at: Placed, pool: int | None, **changed: Any) -> Deployment:
    """The deployment as the log and the user have it; with a pool its bytes are those given to the cache.

    `changed` replaces words or flags, for trying what would explain the log. Raises BadInput.
    """
    log = _as_pasted(o)
    command = given.command
    words = {**_device(o, given), **{k: v for k, v in given.words.items() if k not in ("command", "engine")}}
    flags = dict(given.flags)
    version = changed.pop("version", at.version)
    for name, value in changed.items():
        (words if name in WORDS else flags)[name] = value
    if pool is not None:
        words["kv_cache_memory_bytes"] = pool
    both = Pasted(
        engine=o.engine,
        version=command.version,
        split={**log.split, **command.split},
        named={**log.named, **command.named},
        flags={**log.flags, **command.flags},
        pool=command.pool,
        notes=command.notes,
        report=command.report,
    )
    if version is not None:
        words.pop("engine_version", None)
    try:
        found = deployed(at.model, words, flags, both)
    except KvplanError as error:
        if given.words or given.flags or given.model is not None:
            raise
        raise BadInput(f"--log: what it states cannot be planned for: {error}") from None
    return found if version is None else replace(found, setup=replace(found.setup, version=version))


def _as_pasted(o: Observed) -> Pasted:
    """What the log states; a launcher is left out, since the context that it prints is all slots' already."""
    named = dict(o.named)
    quantization = named.get("quantization")
    if quantization is not None and not _is_known(str(quantization)):
        del named["quantization"]
    flags = {**o.flags}
    drafter = flags.get("speculative_config")
    if isinstance(drafter, dict):
        flags["speculative_config"] = _drafter_here(drafter)
        if flags["speculative_config"] is None:
            del flags["speculative_config"]
    path = flags.get("speculative_draft_model_path")
    if path is not None and not _known_model(str(path)):
        del flags["speculative_draft_model_path"]
    return Pasted(o.engine, None, None, dict(o.split), named, flags)


def _is_known(quantization: str) -> bool:
    name = schemes.method_name(quantization)
    return schemes.flag(name) is not None or schemes.method(name) is not None


def _known_model(name: str) -> bool:
    return find_model(model_name(name)) is not None or _is_here(Path(name))


def _drafter_here(stated: Mapping[str, Any]) -> dict[str, Any] | None:
    """A drafter as it can be planned: nothing is fetched because a log names it."""
    found = {k: v for k, v in stated.items() if v is not None and not isinstance(v, dict)}
    name = found.get("model")
    if name is None or _known_model(str(name)):
        return found
    del found["model"]
    if found.get("method") in ("eagle", "eagle3", "dflash", "dspark"):
        return {"layers": 1, **found}
    return found if "mtp" in str(found.get("method")) or found.get("method") in ("ngram", "suffix") else None


def _device(o: Observed, given: Given) -> dict[str, Any]:
    """The accelerator as the log has it, where the user names none."""
    if given.states_device:
        return {}
    if o.platform == "cpu" or (o.engine == "llama.cpp" and not _on_devices(o)):
        return {"gpu": "cpu"}
    total = o.figures.get("accelerator_bytes") or o.figures.get("device_bytes")
    found: dict[str, Any] = {"gpu": o.gpu} if o.gpu else {}
    if total is not None and total.value >= 1:
        found["gpu_memory"] = round(total.value)
    return found


def _on_devices(o: Observed) -> bool:
    weights = [name for name in o.figures if name.startswith("model_bytes ")]
    if not weights:  # it failed before they were placed
        return o.gpu is not None or "device_bytes" in o.figures
    return any("CPU" not in name and "Host" not in name for name in weights)


@dataclass(frozen=True, slots=True)
class Case:
    """A log with what the user gave: deployments of it are made here."""

    observed: Observed
    given: Given
    at: Placed
    overrides: Mapping[str, Any] = field(default_factory=dict)

    def deployment(self, pool: int | None = None, **changed: Any) -> Deployment:
        """The deployment, with a pool as the bytes given to the cache, and words or flags replaced."""
        return deployment_of(self.observed, self.given, self.at, pool, **{**self.overrides, **changed})

    def attempt(self, pool: int | None = None, **changed: Any) -> Deployment | None:
        """The same, or None where it cannot be planned for."""
        try:
            return self.deployment(pool, **changed)
        except KvplanError:
            return None

    def planned(self) -> tuple[Deployment | None, list[str]]:
        """The deployment from the device and the flags alone, or why there is none."""
        if self.states_pool:
            return None, []
        pool = self.observed.figures.get("kv_pool_bytes") if self.observed.pinned else None
        given = None if pool is None else round(pool.value)
        return self.made(given, "nothing is predicted from the device and the flags")

    def made(self, pool: int | None, otherwise: str) -> tuple[Deployment | None, list[str]]:
        """The deployment, or a sentence on why there is none."""
        try:
            return self.deployment(pool), []
        except KvplanError as error:
            return None, [f"{otherwise}: {error}"]

    @property
    def states_pool(self) -> bool:
        """Whether the user gives the bytes of the cache."""
        return (
            self.given.words.get("kv_cache_memory_bytes") is not None or self.given.command.pool is not None
        )

    @property
    def settings(self) -> list[str]:
        """Names of what the user states and could leave to the log; the device where the log names one."""
        kept = () if self.names_device else _DEVICE
        return [name for name in self.given.settings if name not in kept]

    @property
    def names_device(self) -> bool:
        """Whether the log names the device, or its memory."""
        return bool(_device(self.observed, Given()))

    def without(self, names: Collection[str]) -> Case:
        """The same log without settings that the user states."""
        given = self.given
        for name in names:
            given = given.without(name)
        at = placed(self.observed, replace(given, model=self.at.model))
        version = at.version if "engine_version" in names else self.at.version
        return replace(self, given=given, at=Placed(self.at.model, version))

    @property
    def as_logged(self) -> Case:
        """The same log without what the user states of the settings, the model apart."""
        known = _DEVICE if self.names_device else ()
        kept = {k: v for k, v in self.given.words.items() if k in _DEVICE and k not in known}
        alone = Given(self.given.model, kept)
        at = placed(self.observed, Given(self.at.model, kept))
        return Case(self.observed, alone, Placed(self.at.model, at.version))


def case_of(o: Observed, model: ModelLike | None, words: Mapping[str, Any], flags: Mapping[str, Any]) -> Case:
    """What there is to compare; raises BadInput where no model is known, or words contradict the log."""
    given = given_of(o, model, words, flags)
    return Case(o, given, placed(o, given))
