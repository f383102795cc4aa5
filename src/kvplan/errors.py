"""Everything that can go wrong, drawn once.

    KvplanError             one line: what is wrong, where it was read, what to do
    ├─ BadInput             a flag, a file or a config that cannot be used
    │  ├─ BadConfig         a config.json whose content is wrong or incomplete
    │  ├─ NotServed         a model that the engine does not run
    │  └─ UnknownName       a model, accelerator, engine or format that is not known
    └─ Unreachable          something outside this machine did not answer

"Does not fit" is an answer and never raised.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class KvplanError(Exception):
    """The root: its text is one line fit to be shown to a user."""

    def __str__(self) -> str:
        return " ".join(super().__str__().split())


class BadInput(KvplanError):
    """A flag, a file or a config that cannot be used."""


class BadConfig(BadInput):
    """A config.json whose content is wrong or incomplete."""


class NotServed(BadInput):
    """A model that the engine does not run; sizes still hold."""


class UnknownName(BadInput):
    """A name that is not known; suggests what may have been meant."""


class Unreachable(KvplanError):
    """Something outside this machine did not answer."""


def shown(value: object, limit: int = 60) -> str:
    """A value as an error shows it: quoted, one line, never long."""
    text = repr(value)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def did_you_mean(name: str, known: Iterable[str], count: int = 3) -> str:
    """A clause that names the nearest known names, or an empty string."""
    folded = {candidate.lower(): candidate for candidate in known}
    near = difflib.get_close_matches(name.lower(), folded, n=count, cutoff=0.5)
    near += [c for c in folded if name and name.lower() in c and c not in near][: count - len(near)]
    return f"did you mean {' or '.join(folded[n] for n in near)}?" if near else ""
