"""A launch command as a user pastes it: which engine and version, which model, which flags.

`vllm serve …`, `python -m …`, `docker run … IMAGE …`, `trtllm-serve …`, `llama-server …`, `ollama run …` and
what wraps them. Nothing is executed, opened or expanded; what is not known is listed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvplan.engines.command_flags import CONVERT, FACTS, Read, grammar_of, read_flags
from kvplan.engines.command_words import statements
from kvplan.errors import BadInput, shown
from kvplan.facts import store

_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_PYTHON = re.compile(r"python(\d(\.\d+)?)?(\.exe)?")
_VERSION = re.compile(r"v?(\d+\.\d+(?:\.\d+)*(?:\.?post\d+)?)(?![\d.])")
_BUILD = re.compile(r"\bb(\d{3,6})\b")
_SHELLS = ("bash", "sh", "zsh", "ash", "dash", "fish")
_MOST_NESTED = 4


@dataclass(frozen=True, slots=True)
class Command:
    """A launch command, read.

    `setup` holds what belongs to a deployment under kvplan's names (tp, pp, dp, ep, dcp, attention_dp,
    dtype, quantization, kv_cache_dtype); `flags` the engine's own settings with underscores, typed;
    `ignored` flags that are known and do not size memory; `unknown` everything else, as typed.
    `version` is what an image's tag states, None where nothing does; `notes` one sentence each.
    """

    engine: str
    version: str | None
    model: str | None
    setup: Mapping[str, Any] = field(default_factory=dict)
    flags: Mapping[str, Any] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class _Found:
    """A program that was found in the words: its table, and the words after its name."""

    program: Mapping[str, Any]
    rest: list[str]
    environment: dict[str, str]
    version: str | None = None
    notes: list[str] = field(default_factory=list)


def read_command(text: str) -> Command:
    """The launch command in `text`; the first one where there are several.

    Raises BadInput, in one line, when there is none or a flag's value is not of its type.
    """
    found = _search(text, {}, 0)
    if found is None:
        started = shown(" ".join(text.split())[:60])
        raise BadInput(
            f"--command: {started} starts no engine that is known; paste one such as "
            "vllm serve MODEL, python -m sglang.launch_server, trtllm-serve MODEL or llama-server -m FILE"
        )
    return _command(found)


def _command(found: _Found) -> Command:
    engine = str(found.program["engine"])
    verbs = found.program.get("verbs", ())
    words = found.rest[1:] if verbs and found.rest[:1] and found.rest[0] in verbs else found.rest
    read = read_flags(words, grammar_of(engine), positional=bool(found.program["positional"]))
    given = _environment(engine, found, read)
    flags = {**given, **read.flags}
    if "launcher" in found.program:
        flags["launcher"] = str(found.program["launcher"])
    model = read.model if read.model is not None else flags.pop("model", None)
    flags.pop("model", None)
    notes = [*found.notes, *read.notes]
    if model is None:
        notes.append("no model is named in the command")
    elif "$" in model:
        notes.append(f"the model is named by a variable, {model}, which is not expanded")
        model = None
    setup, rest = _split(engine, flags)
    return Command(
        engine,
        found.version,
        model,
        setup,
        rest,
        tuple(dict.fromkeys(read.ignored)),
        tuple(read.unknown),
        tuple(dict.fromkeys(notes)),
    )


def _split(engine: str, flags: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is a deployment's, and what stays the engine's own."""
    table = store.toml(FACTS)["setup"]
    setup = {table[name]: value for name, value in flags.items() if name in table}
    rest = {name: value for name, value in flags.items() if name not in table}
    if (
        engine == "sglang"
        and rest.get("enable_dp_attention")
        and "attention_dp" not in setup
        and "dp" in setup
    ):
        setup["attention_dp"] = setup.pop("dp")
    if engine == "tensorrt-llm" and rest.get("enable_attention_dp") and "tp" in setup:
        setup["attention_dp"] = setup["tp"]
    return setup, rest


def _environment(engine: str, found: _Found, read: Read) -> dict[str, Any]:
    """Variables that change memory, as flags; those of the command line win over them."""
    flags: dict[str, Any] = {}
    for name, entry in store.toml(FACTS)["environment"].items():
        text = found.environment.get(name)
        if text is None or entry["engine"] != engine:
            continue
        if "$" in text:
            read.notes.append(f"{name}={text}: a variable is not expanded; left out")
            continue
        for flag in (entry["flag"], entry.get("also")):
            if flag:
                flags[flag] = CONVERT[entry["type"]](name, text)
        read.notes.append(f"{name}={text} is read from the environment")
    return flags


def _search(text: str, environment: dict[str, str], depth: int) -> _Found | None:
    """The first statement that starts an engine; assignments before it count."""
    seen = dict(environment)
    listed = statements(text)
    for i, words in enumerate(listed):
        if words[0] in ("export", "set") and len(words) > 1:
            seen |= _assignments(words[1:])
            continue
        if all(_ASSIGNMENT.match(word) for word in words):
            seen |= _assignments(words)
            continue
        found = _program(words, seen, depth)
        if found is not None:
            found.notes += [_left_out(after) for after in listed[i + 1 :]]
            return found
    return None


def _left_out(words: list[str]) -> str:
    return f"what follows the engine's command is left out: {shown(' '.join(words)[:60])}"


def _assignments(words: list[str]) -> dict[str, str]:
    return dict(word.split("=", 1) for word in words if _ASSIGNMENT.match(word))


def _program(words: list[str], environment: dict[str, str], depth: int) -> _Found | None:
    """The engine that these words start, behind whatever wraps it."""
    seen, rest = dict(environment), list(words)
    while rest:
        if _ASSIGNMENT.match(rest[0]):
            name, _, value = rest.pop(0).partition("=")
            seen[name] = value
            continue
        base = _base(rest[0])
        wrapper = store.toml(FACTS)["wrappers"].get(base)
        if wrapper is not None and len(rest) > 1:
            rest = _unwrapped(rest[1:], wrapper)
            continue
        if base in store.toml(FACTS)["containers"]["programs"]:
            return _container(rest[1:], seen, depth)
        if base in _SHELLS:
            return _shell(rest[1:], seen, depth)
        return _engine(rest, seen)
    return None


def _base(word: str) -> str:
    """A program's name without its folder and without `.exe`."""
    return re.split(r"[/\\]", word)[-1].removesuffix(".exe")


def _unwrapped(rest: list[str], wrapper: Mapping[str, Any]) -> list[str]:
    """The words behind a wrapper, its own words and options dropped."""
    takes, operands = wrapper.get("takes", ()), int(wrapper.get("operands", 0))
    for word in wrapper.get("words", ()):
        if rest[:1] == [word]:
            rest = rest[1:]
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        if option == "--":
            break
        if option in takes and rest:
            rest.pop(0)
    return rest[operands:]


def _shell(rest: list[str], environment: dict[str, str], depth: int) -> _Found | None:
    """`bash -c "…"`: the text inside, read the same way."""
    if depth >= _MOST_NESTED:
        raise BadInput(f"--command: shells nested more than {_MOST_NESTED} deep; paste the inner command")
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        if not option.startswith("--") and option.endswith("c") and rest:
            return _search(rest[0], environment, depth + 1)
    return None


def _engine(rest: list[str], environment: dict[str, str]) -> _Found | None:
    """The engine whose own program these words start."""
    words, module = list(rest), False
    if _PYTHON.fullmatch(_base(words[0])):
        words = words[1:]
        while words and words[0].startswith("-") and words[0] != "-m":
            words.pop(0)
        if words[:1] == ["-m"]:
            words, module = words[1:], True
        elif words and words[0].endswith(".py"):
            words[0], module = words[0].removesuffix(".py").replace("/", "."), True
        elif words and _base(words[0]) == words[0]:
            return None
        if not words:
            return None
    return _matching(words, module, environment)


def _matching(words: list[str], module: bool, environment: dict[str, str]) -> _Found | None:
    first = words[0] if module else _base(words[0])
    best: tuple[int, Mapping[str, Any]] | None = None
    for program in store.toml(FACTS)["programs"]:
        wanted = program["words"]
        same = first == wanted[0] or (module and first.endswith(f".{wanted[0]}"))
        if bool(program.get("module", False)) != module or not same:
            continue
        if words[1 : len(wanted)] == wanted[1:] and (best is None or len(wanted) > best[0]):
            best = (len(wanted), program)
    if best is None:
        return None
    length, program = best
    if program.get("wraps"):
        return _program(words[length:], environment, 1)
    return _Found(program, words[length:], dict(environment))


def _container(rest: list[str], environment: dict[str, str], depth: int) -> _Found | None:
    """`docker run OPTIONS IMAGE ARGUMENTS`: the engine and version of the image, and what it is given."""
    table = store.toml(FACTS)["containers"]
    while rest and rest[0] not in table["verbs"]:
        rest = rest[1:]
    words, seen, entrypoint = rest[1:], dict(environment), None
    while words and words[0].startswith("-"):
        option, attached = _container_option(words.pop(0))
        if option in table["switches"]:
            continue
        if attached is None:
            if not words:
                raise BadInput(f"{option}: a value is missing in the command, or the image's name")
            attached = words.pop(0)
        if option in table["environment"]:
            seen |= _assignments([attached])
        if option in table["entrypoint"]:
            entrypoint = attached
    if not words:
        raise BadInput("--command: no image is named; paste the whole command, the image and what follows it")
    return _image(words[0], words[1:], entrypoint, seen, depth)


def _container_option(word: str) -> tuple[str, str | None]:
    """An option and the value written with it: `--name=x`, `-p8000:8000`, `-eNAME=x`."""
    table = store.toml(FACTS)["containers"]
    if word in table["switches"]:
        return word, None
    if word.startswith("--"):
        option, _, value = word.partition("=")
        return option, value if "=" in word else None
    return (word[:2], word[2:].removeprefix("=")) if len(word) > 2 else (word, None)


def _image(
    image: str, words: list[str], entrypoint: str | None, environment: dict[str, str], depth: int
) -> _Found | None:
    row = next((r for r in store.toml(FACTS)["images"] if r["match"] in image.lower()), None)
    if entrypoint:
        words = [entrypoint, *words]
    found = _program(words, environment, depth) if words else None
    if found is None and row is not None and row["program"]:
        found = _program([*row["program"], *words], environment, depth)
    if found is None and row is not None:
        raise BadInput(f"--command: the image {shown(image)} is given nothing that starts {row['engine']}")
    if found is None:
        return None
    version, note = version_of(image, str(found.program["engine"]))
    if "launcher" in found.program:
        version, note = (
            None,
            f"the image {image} is {found.program['launcher']}'s; it carries its own llama.cpp",
        )
    found.version = version
    found.notes += [note] if note else []
    return found


def version_of(image: str, engine: str) -> tuple[str | None, str]:
    """The engine's version that an image's tag states, and what to say about it."""
    name = image.split("@")[0]
    tag = name.rpartition(":")[2] if ":" in name.rpartition("/")[2] else ""
    if not tag:
        return None, "the image has no tag: its version is not known"
    if engine == "llama.cpp" and (match := _BUILD.search(tag)):
        return f"b{match.group(1)}", ""
    match = _VERSION.match(tag) or re.search(r"(?:^|[-_])v(\d+\.\d+(?:\.\d+)*(?:\.?post\d+)?)", tag)
    if match is None or _is_date(match.group(1)):
        return None, f"the image's tag {tag} states no version of {engine}"
    rest = tag[match.end() :]
    if re.match(r"[-.]?(rc|a|b|dev)\d", rest):
        return match.group(1), f"the image's tag {tag} is a pre-release of {match.group(1)}"
    return match.group(1), ""


def _is_date(version: str) -> bool:
    """Whether it is a month, as NVIDIA tags its containers: 25.09."""
    return re.fullmatch(r"2\d\.(0[1-9]|1[0-2])", version) is not None
