"""Number formats: how many bytes hold how many values."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from kvplan.errors import BadInput, UnknownName, did_you_mean, shown
from kvplan.facts import store


@dataclass(frozen=True, slots=True)
class Format:
    """A number format: `block_values` values take `block_bytes` bytes.

    `head_bytes` are kept once per vector of one head (per-token, per-head scales).
    `latent_bytes` fixes the bytes of a whole MLA latent (packed layouts), and `index_head_bytes`
    are the scale bytes of an index key beside such a layout. `compute` names the arithmetic peak.
    """

    name: str
    block_values: int
    block_bytes: int
    source: str
    use: tuple[str, ...]
    compute: str
    head_bytes: int = 0
    latent_bytes: int | None = None
    index_head_bytes: int = 0

    @property
    def bits(self) -> float:
        """Bits per value, block scales included."""
        return 8 * self.block_bytes / self.block_values


@functools.cache
def _known() -> dict[str, str]:
    """Every spelling of a format, to its name."""
    spellings: dict[str, str] = {}
    for name, entry in store.toml("formats.toml").items():
        for spelling in (name, *entry.get("aliases", ())):
            spellings[spelling.lower()] = name
    return spellings


def find_format(name: str, field: str, use: str = "kv") -> Format:
    """The format of that name or alias; raises when unknown or not usable for `use`."""
    known = _known().get(name.lower().removeprefix("torch."))
    if known is None:
        raise UnknownName(
            f"{field}: {shown(name)} is not a known number format; "
            f"{did_you_mean(name, _known()) or 'known: ' + ', '.join(format_names(use))}"
        )
    found = _format(known)
    if use not in found.use:
        raise BadInput(f"{field}: {known} cannot hold {use}; it holds {' and '.join(found.use)}")
    return found


@functools.cache
def _format(name: str) -> Format:
    entry = {k: v for k, v in store.toml("formats.toml")[name].items() if k != "aliases"}
    return Format(name=name, **{**entry, "use": tuple(entry["use"])})


def format_names(use: str = "kv") -> list[str]:
    """The names of every format that can hold `use`."""
    return [name for name, entry in store.toml("formats.toml").items() if use in entry["use"]]
