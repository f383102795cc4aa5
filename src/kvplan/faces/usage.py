"""How words on the command line go wrong, in one line; and `--explain` without a name."""

from __future__ import annotations

from kvplan.errors import shown

ALL = "*"


def with_optional_name(arguments: list[str]) -> list[str]:
    """`--explain` alone means all: give it its value where the next word is another option."""
    found = []
    for i, word in enumerate(arguments):
        alone = i + 1 == len(arguments) or arguments[i + 1].startswith("-")
        found.append(f"--explain={ALL}" if word == "--explain" and alone else word)
    return found


def one_line(error: Exception, words: list[str]) -> str:
    """One line for a misused option: the flag, the value it was given, and where to look."""
    context, parameter = getattr(error, "ctx", None), getattr(error, "param", None)
    hint = f"see {context.command_path} --help" if context is not None else "see kvplan --help"
    flags = getattr(parameter, "opts", [])
    value = next((_written(flag, words) for flag in flags if _written(flag, words) is not None), None)
    if value is not None:
        return f"{flags[0]}: {shown(value)} cannot be used: {error}; {hint}"
    message = getattr(error, "format_message", lambda: str(error))()
    if "MODEL" in message and any(word.startswith("--explain") for word in words):
        hint = "write MODEL before --explain, or --explain=NAME"
    return f"{message.rstrip('.')}; {hint}"


def _written(flag: str, words: list[str]) -> str | None:
    for i, word in enumerate(words):
        if word.startswith(f"{flag}="):
            return word.partition("=")[2]
        if word == flag and i + 1 < len(words):
            return words[i + 1]
    return None
