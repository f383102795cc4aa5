"""The parameters beside the text decoder: vision and audio towers, encoders, layers that predict ahead.

What each family builds is data: `facts/towers.toml` for what reads images, sound or the input text,
`facts/mtp.toml` for the layers that predict more than the next token.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from kvplan.facts import store
from kvplan.facts.model_types import Spec, overlay, quantities
from kvplan.figure import Source, Trust
from kvplan.model.extras import extra_weights, total_of
from kvplan.model.keys import Keys, Read
from kvplan.model.model import Layer, Model, Origins

_MOST = 2**32  # no width, depth or vocabulary of a tower comes near
_DEPTH = 6


@dataclass(frozen=True, slots=True)
class Beside:
    """Values beside the text decoder; None where the config has a part of a kind that is not known.

    `towers`: vision and audio towers, the encoder of an encoder-decoder, and their projectors.
    `mtp`: layers that predict ahead, each with its projection and norms. `copies`: embeddings and
    heads the checkpoint stores again in those layers, which engines share. `left_out` names parts of
    a checkpoint that answer in sound, which no text engine loads and which are not counted.
    """

    towers: int | None = 0
    mtp: int | None = 0
    copies: int = 0
    origins: Origins = field(default_factory=dict, compare=False)
    left_out: tuple[str, ...] = ()

    @property
    def parameters(self) -> int | None:
        """Towers and layers that predict ahead together, or None when one is not known."""
        return None if self.towers is None or self.mtp is None else self.towers + self.mtp


def beside_parameters(raw: dict[str, Any], model: Model, spec: Spec | None = None) -> Beside:
    """Count what that config has beside `model`, its text decoder.

    `spec`, the model type's own data, may bring a `towers` family or an `mtp` table of its own.
    Raises BadConfig for a value no tower can have; a key that is missing or of another form than
    expected leaves the count None.
    """
    origins: dict[str, Source] = {}
    towers = _towers(raw, model, spec or {}, origins)
    mtp, copies = _mtp(raw, model, spec or {}, origins)
    left_out = tuple(k for k in store.toml("towers.toml")["speech"] if isinstance(raw.get(k), dict))
    return Beside(towers, mtp, copies, origins, left_out)


def _tower_key(raw: dict[str, Any]) -> str | None:
    """The first key that says so: a tower's own table, a tower's name, or an encoder."""
    words: list[str] = store.toml("towers.toml")["tower_keys"]
    for path, table in _tables(raw):
        for key in words:
            if table.get(key) and isinstance(table[key], (dict, str)):
                return path + key
    return "is_encoder_decoder" if raw.get("is_encoder_decoder") is True else None


def _tables(raw: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The config and the tables that hold a whole model, each with its path."""
    here, path = raw, ""
    for _ in range(_DEPTH):
        yield path, here
        name = next((k for k in store.toml("towers.toml")["wrappers"] if isinstance(here.get(k), dict)), None)
        if name is None:
            return
        here, path = here[name], f"{path}{name}."


def _family(model_type: Any, spec: Spec) -> list[dict[str, Any]] | None:
    """The steps that build a family's towers, or None when the family is not known."""
    families = store.toml("towers.toml")["families"]
    found = spec.get("towers") or (families.get(model_type) if isinstance(model_type, str) else None)
    while isinstance(found, dict):
        found = families.get(found["like"])
    return found


def _towers(raw: dict[str, Any], model: Model, spec: Spec, origins: dict[str, Source]) -> int | None:
    steps = _family(raw.get("model_type"), spec)
    if steps is None:
        key = _tower_key(raw)
        if key is None:
            return 0
        origins["towers"] = Source(Trust.STATED, f"{model.file} {key}: a tower of a kind that is not known")
        return None
    known = {"hidden": model.hidden, "vocab": model.vocab}
    total = 0
    read: list[Source] = []
    for step in steps:
        present, table = _at(raw, step.get("at", ""))
        if (step.get("optional") and not table) or not _at(raw, step.get("beside", ""))[0]:
            continue
        if not present and step.get("absent") != "defaults":
            return None
        part = _part(table, step, model.file, known, read)
        if part is None:
            return None
        total += part
    if read:
        origins["towers"] = _together(read)
    return total


def _at(raw: dict[str, Any], path: str) -> tuple[bool, dict[str, Any]]:
    """The table at a dotted path; a path that leads nowhere, or to no table, is absent."""
    here: Any = raw
    for name in path.split(".") if path else ():
        here = here.get(name) if isinstance(here, dict) else None
    return isinstance(here, dict), here if isinstance(here, dict) else {}


def _together(read: list[Source]) -> Source:
    """One source of many: the weakest trust, the distinct places."""
    places = list(dict.fromkeys(source.where for source in read))
    return Source(max(source.trust for source in read), ", ".join(places))


def _part(
    table: dict[str, Any], step: dict[str, Any], file: str, known: dict[str, int], read: list[Source]
) -> int | None:
    """One step of a family: a tower or a projector. What it names, `known` keeps for the next."""
    kind = _kind(table, step)
    if kind is None:
        return None
    path = f"{step['at']}." if step.get("at") else ""
    reading = {"keys": {}, "defaults": kind.get("defaults", {}), "source": kind.get("source", "its family")}
    keys = Keys(table, file, path, reading)
    if not _name_all(keys, kind, known, read):
        return None
    total = sum(_block(keys, block, known) for block in kind.get("blocks", ()))
    return total + sum(w.parameters for w in extra_weights(keys, kind.get("weights", {}), known))


def _kind(table: dict[str, Any], step: dict[str, Any]) -> Spec | None:
    """The step laid over the kind it names, or over the one that the table's own key names."""
    kinds = store.toml("towers.toml")["kinds"]
    name = step.get("kind")
    if "typed" in step:
        name = table.get(step["typed"])
        if not isinstance(name, str) or name not in step["among"]:
            return None
    found = step
    while name is not None:
        under = kinds[name]
        weights = {**under.get("weights", {}), **found.get("weights", {})}  # an entry replaces, whole
        found, name = {**overlay(under, found), "weights": weights}, under.get("like")
    return found


def _name_all(keys: Keys, kind: Spec, known: dict[str, int], read: list[Source]) -> bool:
    """Put every quantity the kind names into `known`; False when the config does not say one."""
    known.update(kind.get("constants", {}))
    for name, spelled in kind.get("names", {}).items():
        found = keys.find(name, spelled)
        if found is None or isinstance(found[1], (list, dict)):
            return False
        known[name] = keys.whole(found[0], found[1], 0, _MOST)
        read.append(found[2])
    for name, key in kind.get("lengths", {}).items():
        listed = keys.list_of(key)
        known[name] = len(listed) if listed is not None else 0
    for name, key in kind.get("inverses", {}).items():
        ratio = keys.real(key, 0.0)
        if not 0 < ratio <= 1:
            return False
        known[name] = round(1 / ratio)
    for name, entry in kind.get("products", {}).items():
        over = math.prod(known[factor] for factor in entry.get("over", ()))
        if over == 0:
            return False
        known[name] = total_of(keys, [entry["of"]], known) // over
    return True


def _block(keys: Keys, block: Spec, known: dict[str, int]) -> int:
    """All layers of one transformer stack: attention, feed-forward, norms, and what is `extra`."""
    width, mlp = known[block.get("width", "width")], known[block.get("mlp", "mlp")]
    inner = known[block["inner"]] if "inner" in block else width
    kv = known[block["kv"]] if "kv" in block else inner
    bias = {name: keys.flag(block.get(f"{name}_bias")) for name in ("qkv", "key", "out", "mlp", "norm")}
    gated = _gated(keys, block.get("gated", False))
    attention = 2 * width * inner + 2 * width * kv
    attention += bias["qkv"] * (inner + kv + bias["key"] * kv) + bias["out"] * width
    feed_forward = (2 + gated) * width * mlp + bias["mlp"] * ((1 + gated) * mlp + width)
    norms = int(block.get("norms", 2)) * width * (1 + bias["norm"])
    extra = total_of(keys, block.get("extra", []), known)
    return known[block.get("depth", "depth")] * (attention + feed_forward + norms + extra)


def _gated(keys: Keys, rule: Any) -> bool:
    """A yes or no, or a rule on the start of a key's text."""
    if isinstance(rule, dict):
        return (keys.text(rule["key"]) or "").startswith(rule["starts"])
    return keys.flag(rule)


def _mtp(raw: dict[str, Any], model: Model, spec: Spec, origins: dict[str, Source]) -> tuple[int | None, int]:
    """The layers that predict ahead, and the stored copies of embedding and head in them."""
    table = _mtp_table(raw, model, spec)
    found = _ahead(raw, model)
    if found is None and table.get("default"):
        found = "mtp layers", table["default"], Source(Trust.ENGINE_RULE, table["source"])
    if found is None or found[1] == 0:
        return 0, 0
    key, stated, origins["mtp"] = found
    if "stored" in table and not table["stored"]:
        origins["mtp"] = Source(Trust.ENGINE_RULE, f"{key}: {table['source']}")
        return 0, 0
    path, decoder = list(_tables(raw))[-1]
    keys = Keys(decoder, model.file, path, {"keys": {}, "defaults": {}})
    one = _one_ahead(keys, table, model) if table else None
    if one is None:
        return None, 0
    count = 1 if keys.flag(table.get("one_when")) else stated
    sizes = {w.name: w.parameters for w in model.weights}
    return count * one, count * sum(sizes.get(name, 0) for name in table.get("copies", ()))


def _mtp_table(raw: dict[str, Any], model: Model, spec: Spec) -> Spec:
    """How the family stores those layers: the spec's own word, the whole model's type, the decoder's."""
    families: Mapping[str, Spec] = store.toml("mtp.toml")["families"]
    outer = raw.get("model_type")
    found: Spec = spec.get("mtp") or families.get(outer if isinstance(outer, str) else "", {})
    found = found or families.get(model.model_type, {})
    return overlay(families[found["like"]], found) if "like" in found else found


def _ahead(raw: dict[str, Any], model: Model) -> Read | None:
    """How many such layers there are, by the key that states most; else by the class default, if any."""
    names = [*quantities()["mtp_layers"]["keys"], *store.toml("mtp.toml")["other_keys"]]
    stated: list[Read] = []
    for path, table in _tables(raw):
        for key in names:
            value = table.get(key)
            if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST:
                stated.append((key, value, Source(Trust.STATED, f"{model.file} {path}{key}")))
    if stated:
        return max(stated, key=lambda read: read[1])
    if model.mtp_layers:
        return "mtp layers", model.mtp_layers, Source(Trust.ENGINE_RULE, f"{model.model_type} class default")
    return None


def _one_ahead(keys: Keys, table: Spec, model: Model) -> int | None:
    """One such layer: a decoder layer (or several words of a pattern), a projection, norms, extras."""
    layers = _shapes(keys, table, model)
    if layers is None:
        return None
    dropped = table.get("drop", ())
    total = sum(w.parameters for layer in layers for w in layer.weights if w.name not in dropped)
    known = {"hidden": model.hidden} | {w.name: w.parameters for w in model.weights}
    total += int(table.get("projections", 2)) * model.hidden**2 + int(table.get("norms", 3)) * model.hidden
    return total + sum(w.parameters for w in extra_weights(keys, table.get("weights", {}), known))


def _shapes(keys: Keys, table: Spec, model: Model) -> list[Layer] | None:
    """The decoder layers that such a layer is shaped like, or None when the decoder has no such layer."""
    words = [table.get("layer", "last")]
    for key in table.get("patterns", ()):
        read = keys.find(key, [key])
        if read is not None and isinstance(read[1], (str, list)) and read[1]:
            words = [str(word) for word in read[1]]
            break
    found = [_like(word, model.layers) for word in words]
    return [layer for layer in found if layer is not None] if None not in found else None


def _like(word: str, layers: tuple[Layer, ...]) -> Layer | None:
    """The last decoder layer of that word, in a model's own letters or ours."""
    tests: dict[str, Callable[[Layer], bool]] = {
        "last": lambda _: True,
        "full": lambda layer: bool(layer.attentions) and "sliding" not in layer.kinds,
        "dense": lambda layer: bool(layer.attentions) and not _routes(layer),
        "attention": lambda layer: bool(layer.attentions),
        "indexed": lambda layer: any(w.part == "indexer" for w in layer.weights),
        "moe": _routes,
        "mamba": lambda layer: bool(layer.states),
        "mlp": lambda layer: not layer.attentions and not layer.states and not _routes(layer),
    }
    letters = {"*": "attention", "E": "moe", "M": "mamba", "-": "mlp"}
    test = tests.get(letters.get(word, word))
    return next((layer for layer in reversed(layers) if test is not None and test(layer)), None)


def _routes(layer: Layer) -> bool:
    return any(w.part == "router" for w in layer.weights)


def tower_values(raw: Mapping[str, Any]) -> int | None:
    """Values of one patch alive at once in a vision tower: twice its width, three times its feed-forward.

    None where no tower's table states its width.
    """
    words = store.toml("towers.toml")["widths"]
    here = next((raw[key] for key in words["tables"] if isinstance(raw.get(key), Mapping)), None)
    if here is None:
        return None
    found = [
        next((here[k] for k in words[name] if _is_width(here.get(k))), None) for name in ("hidden", "inner")
    ]
    if found[0] is None:
        return None
    inner = found[1] if found[1] is not None else words["inner_ratio"] * found[0]
    return int(2 * found[0] + 3 * inner)


def _is_width(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < _MOST
