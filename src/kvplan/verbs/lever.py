"""A lever: a change to a deployment or its load and what it leaves, with its words from facts/levers.toml."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kvplan.engines.deployment import Deployment
from kvplan.errors import KvplanError
from kvplan.facts import store
from kvplan.verbs.asked import Asked


@dataclass(frozen=True, slots=True)
class Lever:
    """A change of some `kind`, under the names that `fit` and `latency` take where they have them.

    `d` is None where it cannot be made, and `refused` says why. `because` explains figures that come out
    equal. `times` says where times come from: served (as `latency` has them), apart, host, or none.
    `fields` fill the words of its kind.
    """

    kind: str
    change: Mapping[str, Any]
    d: Deployment | None
    asked: Asked
    fields: Mapping[str, Any] = field(default_factory=dict)
    because: str = ""
    refused: str = ""
    times: str = "served"

    @property
    def entry(self) -> dict[str, Any]:
        """Its kind's words."""
        return words(self.kind)

    @property
    def name(self) -> str:
        """What a table calls it; in plain words where there is no change to name."""
        name = self.entry["name"]
        return str(name if self.change else self.entry.get("plain", name)).format_map(self.fields)

    @property
    def note(self) -> str:
        """What has to be said beside its figures."""
        return str(self.entry.get("note", "")).format_map(self.fields)


def words(kind: str) -> dict[str, Any]:
    """The words of one kind of lever, or of one more table of them."""
    found: dict[str, Any] = store.toml("levers.toml")[kind]
    return found


def unchanged(key: str) -> str:
    """Why a lever of any kind may change nothing: `otherwise`, or `room`."""
    return str(words("unchanged")[key])


def none(kind: str, key: str, **fields: Any) -> str:
    """Why a lever of that kind may change nothing."""
    return str(words(kind)["none"][key]).format_map(fields)


def refused(
    kind: str, change: Mapping[str, Any], asked: Asked, why: str, fields: Mapping[str, Any] | None = None
) -> Lever:
    """A lever that engine or device does not take."""
    return Lever(kind, change, None, asked, fields or {}, refused=why)


def refusal(kind: str, key: str, **fields: Any) -> str:
    """Why engine or device does not take a lever of that kind."""
    return str(words(kind)["refused"][key]).format_map(fields)


def tried(
    kind: str,
    change: Mapping[str, Any],
    asked: Asked,
    make: Callable[[], Deployment],
    fields: Mapping[str, Any] | None = None,
    because: str = "",
    times: str = "served",
) -> Lever:
    """The lever whose deployment `make` makes; where kvplan or the engine refuses it, in their words."""
    try:
        found = make()
    except KvplanError as error:
        return refused(kind, change, asked, " ".join(str(error).split()), fields)
    return Lever(kind, change, found, asked, fields or {}, because, times=times)
