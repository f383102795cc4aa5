"""The ways a config spells what its layers are. Each rule is a small function; which rules a model
type uses, in which order and with which keys, is data (`facts/model_types/*.toml`).

A rule returns one word per layer, or None when the config does not use that spelling.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvplan.errors import shown
from kvplan.figure import Source, Trust
from kvplan.model.keys import Keys

Rule = dict[str, Any]
Words = list[str]


def spell(rules: list[Rule], keys: Keys, count: int) -> tuple[Words, Source]:
    """One word per layer by the first rule that applies, and where that was read."""
    for rule in rules:
        if not _applies(rule, keys):
            continue
        words = _RULES[rule["rule"]](rule, keys, count)
        if words is not None:
            return _with_ends(rule, words), _said_by(rule, keys)
    return ["full"] * count, Source(Trust.ENGINE_RULE, f"no layer pattern in {keys.file}: all alike")


def _with_ends(rule: Rule, words: Words) -> Words:
    """The rule's own words for the first layers (one word or a list) and the last."""
    first = rule.get("first", [])
    first = [first] if isinstance(first, str) else first
    ended = [*first, *words[len(first) :]][: len(words)]
    return [*ended[:-1], rule.get("last", ended[-1])]


def _said_by(rule: Rule, keys: Keys) -> Source:
    named = [rule[k] for k in ("key", "period_key", "step_key", "start_key") if k in rule]
    stated = [key for key in named if keys.stated(key)]
    if stated:
        return Source(Trust.STATED, f"{keys.file} {keys.path}{', '.join(stated)}")
    if rule["rule"] == "all":
        return Source(Trust.STATED, f"{keys.file} num_hidden_layers: {keys.spec.get('source', '')}")
    return Source(Trust.ENGINE_RULE, f"{keys.spec.get('source', 'model type')}")


def _applies(rule: Rule, keys: Keys) -> bool:
    if "when" in rule and not keys.flag(rule["when"], bool(rule.get("when_default", False))):
        return False
    if "when_stated" in rule and keys.find(rule["when_stated"], [rule["when_stated"]]) is None:
        return False
    return not ("unless" in rule and keys.flag(rule["unless"]))


def _all(rule: Rule, _keys: Keys, count: int) -> Words | None:
    return [str(rule["kind"])] * count


def _list(rule: Rule, keys: Keys, count: int) -> Words | None:
    """One entry per layer, words or numbers; `names` translates them."""
    listed = keys.list_of(rule["key"])
    if listed is None:
        return None
    if rule.get("repeats"):
        listed = (listed * count)[:count]
    if len(listed) < count or (len(listed) > count and not rule.get("longer")):
        raise keys.wrong(
            rule["key"],
            f"{len(listed)} entries",
            f"num_hidden_layers says {count} layers; one entry per layer is needed",
        )
    return [_word(rule, keys, item) for item in listed[:count]]


def _string(rule: Rule, keys: Keys, count: int) -> Words | None:
    """One letter per layer, such as M-M*; a shorter string with `repeats` starts over."""
    text = keys.text(rule["key"])
    if not text:
        return None
    if rule.get("repeats"):
        text = (text * count)[:count]
    if len(text) != count:
        raise keys.wrong(rule["key"], text, f"num_hidden_layers says {count} letters are needed")
    return [_word(rule, keys, letter) for letter in text]


def _word(rule: Rule, keys: Keys, item: Any) -> str:
    names: dict[str, str] = rule.get("names") or keys.spec["names"]
    word = names.get(str(item).lower() if isinstance(item, bool) else str(item))
    if word is None:
        raise keys.wrong(rule["key"], item, f"a layer is one of {', '.join(names)}")
    return word


def _every(rule: Rule, keys: Keys, count: int) -> Words | None:
    """Layer i is `kind` where i modulo the period is `at` (−1 the last of each period)."""
    period = _number(rule, "period", keys)
    at = _number(rule, "at", keys)
    if not period:
        return None
    if at is None or at < 0:
        at = period - 1
    until = _number(rule, "until", keys)
    until = count if until is None else until
    words = [
        rule["kind"] if i % period == at % period and i < until else rule["otherwise"] for i in range(count)
    ]
    return words[::-1] if rule.get("from_end") else words


def _pattern(rule: Rule, _keys: Keys, count: int) -> Words | None:
    """The words given, over and over."""
    words: Words = rule["words"]
    return (words * count)[:count]


def _number(rule: Rule, name: str, keys: Keys) -> int | None:
    key = rule.get(f"{name}_key")
    read = keys.find(key, [key]) if key else None
    if read is None:
        return rule.get(name)
    if not isinstance(read[1], int):
        return None  # the same key spelt another way (a string pattern): another rule's
    if name == "end" and read[1] == -1:
        return None
    keys.used.add(read[0])
    return keys.whole(read[0], read[1], 0, 4096)


def _before(rule: Rule, keys: Keys, count: int) -> Words | None:
    """The first `key` layers are `kind`."""
    bound = _number({**rule, "bound_key": rule["key"]}, "bound", keys)
    if bound is None:
        return None
    return [rule["kind"] if i < bound else rule["otherwise"] for i in range(count)]


def _numbers(rule: Rule, keys: Keys, text: str) -> list[int]:
    """The numbers of a comma-joined string."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
        raise keys.wrong(rule["key"], text, "expected layer numbers joined by commas")
    return [int(part) for part in parts]


def _indices(rule: Rule, keys: Keys, count: int) -> Words | None:
    """The layers listed are `kind`; `base` is the index of the first layer."""
    text = keys.text(rule["key"]) if rule.get("commas") else None
    listed = _numbers(rule, keys, text) if text else keys.list_of(rule["key"])
    if listed is None:
        return None
    base = rule.get("base", 0)
    chosen = {keys.whole(rule["key"], item, base, count - 1 + base) - base for item in listed}
    return [rule["kind"] if i in chosen else rule["otherwise"] for i in range(count)]


def _steps(rule: Rule, keys: Keys, count: int) -> Words | None:
    """`kind` from layer `start` to `end`, at every `step`th, except those in the list `skip`.

    Layers are counted from 0 plus `shift`; with `offset`, those before layer `offset` are `kind` too.
    """
    start, step = _number(rule, "start", keys) or 0, _number(rule, "step", keys)
    end = _number(rule, "end", keys)
    if step is None:
        step = 1
    if end is None or end >= count:
        end = count - 1
    listed = (keys.list_of(rule["skip"]) or []) if "skip" in rule else []
    skipped = {keys.whole(rule["skip"], item, 0, 4096) for item in listed}
    offset = _number(rule, "offset", keys)
    shift = rule.get("shift", 0) if offset is None else 1 - offset
    return [
        rule["kind"]
        if start <= i <= end and step and max(i + shift, 0) % step == 0 and i not in skipped
        else rule["otherwise"]
        for i in range(count)
    ]


def _halves(rule: Rule, keys: Keys, count: int) -> Words | None:
    """Layers before the middle `plus` some by the rule `before`, the rest by the rule `after`."""
    words = [_RULES[rule[part]["rule"]](rule[part], keys, count) for part in ("before", "after")]
    if words[0] is None or words[1] is None:
        return None
    middle = count // 2 + int(rule.get("plus", 0))
    return [*words[0][:middle], *words[1][middle:]]


def _blocks(rule: Rule, keys: Keys, count: int) -> Words | None:
    """One table per layer (nemotron-nas); the words carry what differs: heads in group and width."""
    blocks = keys.list_of(rule["key"])
    if blocks is None:
        return None
    if len(blocks) != count:
        raise keys.wrong(rule["key"], f"{len(blocks)} entries", f"{count} layers need one each")
    words = []
    for block in blocks:
        if not isinstance(block, dict):
            raise keys.wrong(rule["key"], shown(block), "expected a table for each layer")
        attention, ffn = block.get("attention") or {}, block.get("ffn") or {}
        words.append(f"block:{_block_attention(attention)}:{_block_ffn(ffn)}")
    return words


def _block_attention(block: dict[str, Any]) -> str:
    if block.get("replace_with_linear"):
        return "linear"
    return "none" if block.get("no_op") else str(block.get("n_heads_in_group") or 1)


def _block_ffn(block: dict[str, Any]) -> str:
    if block.get("replace_with_linear"):
        return "linear"
    return "none" if block.get("no_op") else str(block.get("ffn_mult") or 0)


_RULES: dict[str, Callable[[Rule, Keys, int], Words | None]] = {
    "all": _all,
    "list": _list,
    "string": _string,
    "every": _every,
    "pattern": _pattern,
    "before": _before,
    "indices": _indices,
    "steps": _steps,
    "halves": _halves,
    "blocks": _blocks,
}
