"""What practice questions are about: models and accelerators of the catalogue, in the words of a question."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kvplan.cost import cache
from kvplan.cost.cache import Group, Stored
from kvplan.drills.question import Asked
from kvplan.errors import KvplanError
from kvplan.facts.accelerators import Accelerator, find_accelerator
from kvplan.figure import Figure, bare, named, sourced
from kvplan.model.model import Model
from kvplan.units import bytes_text, count_text
from kvplan.verbs import size
from kvplan.verbs.given import given_model

Drawn = Mapping[str, Any]
Asker = Callable[[Drawn], Asked]
_SHORT = {"bfloat16": "bf16", "float16": "fp16"}
_LEAST_PARAMETERS = 3e9  # of one rank: smaller shares are not what people deploy


class Unsuitable(KvplanError):
    """A draw that makes no sensible question; another is taken."""


@dataclass(frozen=True)
class Subject:
    """A model, and how a question speaks of it."""

    id: str
    model: Model

    @property
    def name(self) -> str:
        """The id without its owner."""
        return self.id.rpartition("/")[2]

    @functools.cached_property
    def group(self) -> Group:
        """Its first kind of cache: the only one, or that of its windows."""
        return cache.groups_of(self.model)[0]

    @functools.cached_property
    def attending(self) -> int:
        """Layers that keep keys and values."""
        return sum(layer.holds_tokens for layer in self.model.layers)

    @functools.cached_property
    def shape(self) -> str:
        """Layers, heads and widths in words: all that the arithmetic of its cache needs."""
        groups, a, layers = cache.groups_of(self.model), self.group.attention, len(self.model.layers)
        if a.latent is not None:
            kept = f"{a.latent.kv_rank} + {a.latent.rope_width} values"
            return f"{layers} layers, each with one latent of {kept} a token for all {a.query_heads} heads"
        heads = f"{a.query_heads} query heads and {_kv_heads(a.kv_heads, a.query_heads)}, {a.key_width} wide"
        if cache.model_has_state(self.model):
            state = bytes_text(cache.state_bytes_per_sequence(self.model, 1, bare))
            return (
                f"{layers} layers of which {self.attending} attend, with {heads}; the others keep a state "
                f"of {state} a sequence"
            )
        windows = [g for g in groups if g.attention.window is not None]
        if not windows:
            return f"{layers} layers, {heads}"
        some = "all" if len(groups) == 1 else str(windows[0].layers)
        return f"{layers} layers, {heads}; {some} of them with a window of {a.window:,} tokens"


def _kv_heads(kv_heads: int, query_heads: int) -> str:
    if kv_heads == query_heads:
        return "as many KV heads"
    return "1 KV head" if kv_heads == 1 else f"{kv_heads} KV heads"


@functools.cache
def subject(id: str, quantization: str | None = None) -> Subject:
    """The model of that id, loaded once."""
    return Subject(id, given_model(id, "auto", quantization))


@functools.cache
def accelerator(key: str) -> Accelerator:
    """The accelerator of that key."""
    return find_accelerator(key)


@functools.cache
def stored(id: str, dtype: str, tp: int = 1) -> Stored:
    """How a model's cache is stored; Unsuitable where it cannot be split so."""
    model = subject(id).model
    try:
        cache.check_split(model, tp)
        return size.stored_as(model, dtype, tp)
    except Unsuitable:
        raise
    except KvplanError as error:
        raise Unsuitable(str(error)) from None


def kv(drawn: Drawn, **changed: Any) -> dict[str, Any]:
    """The figures of `size` for what was drawn: `kv` of the contract's document."""
    d: dict[str, Any] = {"tokens": 1, "batch": 1, "tp": 1, "dtype": "bfloat16", **drawn, **changed}
    return _kv(d["model"], d["dtype"], d["tp"], d["tokens"], d["batch"])


@functools.lru_cache(64)
def _kv(id: str, dtype: str, tp: int, tokens: int, batch: int) -> dict[str, Any]:
    asked = {"tokens": tokens, "batch": batch, "crossed": 0}
    return size.kv_part(subject(id).model, stored(id, dtype, tp), asked, sourced)


def check_deployed(drawn: Drawn) -> None:
    """Unsuitable where so many ranks would never hold so small a model, or repeat its heads."""
    tp = drawn.get("tp", 1)
    if tp > 1 and subject(drawn["model"]).model.parameters / tp < _LEAST_PARAMETERS:
        raise Unsuitable("too small a share")


def check_length(drawn: Drawn, tokens: int) -> None:
    """Unsuitable where a sequence is longer than the model was made for."""
    longest = subject(drawn["model"]).model.max_context
    if longest is not None and tokens > longest:
        raise Unsuitable("longer than the model takes")


def words(drawn: Drawn) -> dict[str, str]:
    """The words for a question's blanks that a draw alone gives."""
    found = {name: _word(value) for name, value in drawn.items()}
    if "model" in drawn:
        who = subject(drawn["model"])
        found |= {"model": who.name, "shape": who.shape}
        found["rank"] = f" on one rank of tp {drawn['tp']}" if drawn.get("tp", 1) > 1 else ""
    for name in ("second", "third"):
        if name in drawn:
            found[name] = subject(drawn[name]).name
    for name in ("gpu", "other_gpu"):
        if name in drawn:
            found[name] = accelerator(drawn[name]).name
    for name in ("dtype", "other"):
        if name in drawn:
            found[name] = _SHORT.get(drawn[name], str(drawn[name]))
    return found


def _word(value: Any) -> str:
    return count_text(value) if isinstance(value, int) else str(value)


def factor(name: str, above: Any, below: Any) -> Figure:
    """How many times one figure is another, as a figure of its own."""
    found: Figure = named(name, "", above / below)
    return found
