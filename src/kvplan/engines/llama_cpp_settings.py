"""llama-server's settings as given and defaulted: context, sequences, batch, cache types.

Names are llama.cpp's own (`n_ctx`, `n_seq_max`, `n_ubatch`, …). What a flag defaults to and which rule a
build follows is data with its source: facts/engines/llama_cpp.toml. The arithmetic is that of
src/llama-context.cpp (llama_context::llama_context) at 0c1e57098.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvplan.engines.engine import Setup
from kvplan.errors import BadInput, shown
from kvplan.facts import store
from kvplan.figure import Leaf, Number, Source, Trust, ceiling, formula, least, named, value_of
from kvplan.model.ggml import GgmlType, find_ggml_type
from kvplan.model.model import Model

FACTS = "engines/llama_cpp.toml"
_YES, _NO = ("on", "true", "1", "yes", "enabled"), ("off", "false", "0", "no", "disabled")


@formula("cell", "llama.cpp 0c1e57098 src/llama-context.cpp GGML_PAD")
def padded(tokens: Number, padding: Number) -> Number:
    """Rounded up to whole paddings."""
    return ceiling(tokens, padding) * padding


@formula("cell", "llama.cpp 0c1e57098 src/llama-context.cpp n_ctx_seq")
def n_ctx_seq(n_ctx: Number, n_seq_max: Number, padding: Number) -> Number:
    """A sequence's share of the context when each has cells of its own, rounded up."""
    return ceiling(n_ctx // n_seq_max, padding) * padding


@formula("token", "llama.cpp 0c1e57098 src/llama-context.cpp n_batch, n_ubatch")
def n_ubatch_of(n_ubatch: Number, n_batch: Number, n_ctx_given: Number) -> Number:
    """Tokens of one pass: not more than a batch, which is not more than the context asked for."""
    return least(n_ubatch, n_batch, n_ctx_given)


@dataclass(frozen=True, slots=True)
class Context:
    """A llama_context's parameters. `n_ctx`, `n_ctx_seq`, `n_ubatch` and `n_seq_max` may be figures.

    `streams` is how many sequences have cells of their own; `flash` whether flash attention is not off.
    """

    build: int
    n_ctx: Any
    n_ctx_seq: Any
    n_seq_max: Any
    streams: Any
    n_batch: int
    n_ubatch: Any
    type_k: GgmlType
    type_v: GgmlType
    flash: bool
    unified: bool
    swa_full: bool
    n_rs_seq: int
    mtp_layers: int
    draft_type: GgmlType
    settings: Mapping[str, tuple[Any, str]] = field(default_factory=dict)


def build_of(version: str) -> int:
    """The build number that a version names (`b5427`, `5427`); the newest for an empty one."""
    text = version.strip().lower() or str(store.toml(FACTS)["newest"])
    match = re.fullmatch(r"b?(\d{1,6})", text)
    if match is None:
        known = ", ".join(store.toml(FACTS)["versions"])
        raise BadInput(
            f"--engine-version: {shown(version)} is no llama.cpp build; give bNNNN; known: {known}"
        )
    return int(match.group(1))


def rule(name: str, build: int) -> dict[str, Any]:
    """The entry of that rule which a build follows, with its source."""
    entries: list[dict[str, Any]] = store.toml(FACTS)[name]
    return next(entry for entry in entries if build >= entry["from"])


class Flags:
    """The flags a user gave, found under every spelling; what was filled in is kept for the answer."""

    def __init__(self, setup: Setup) -> None:
        aliases = store.toml(FACTS)["aliases"]
        names = {alias: flag for flag, found in aliases.items() for alias in found}
        self._given: dict[str, Any] = {}
        for flag, value in setup.flags.items():
            plain = flag.lstrip("-").replace("-", "_")
            if value is not None:
                self._given[names.get(plain, plain)] = value
        self.settings: dict[str, tuple[Any, str]] = {}

    def get(self, flag: str) -> Any:
        """The value given, or None."""
        return self._given.get(flag)

    def fill(self, flag: str, value: Any, source: str) -> Any:
        """Remember a default that was taken, and return it."""
        self.settings[flag] = (value, source)
        return value

    def whole(self, flag: str, low: int) -> int | None:
        """A whole number of at least `low`, or None when the flag was not given."""
        value = self.get(flag)
        if value is None:
            return None
        try:
            number = int(value)
        except (TypeError, ValueError):
            number = low - 1
        if isinstance(value, bool) or number < low or number > 2**31 - 1:
            raise BadInput(f"{option(flag)}: {shown(value)}; expected a whole number of {low} or more")
        return number

    def yes(self, flag: str) -> bool | None:
        """True or False, or None when the flag was not given; a bare flag is true."""
        value = self.get(flag)
        if value is None or isinstance(value, bool):
            return value
        text = str(value).strip().lower()
        if text in ("", *_YES):
            return True
        if text in _NO:
            return False
        raise BadInput(f"{option(flag)}: {shown(value)}; expected on or off")


def option(flag: str) -> str:
    """A flag as it is typed."""
    return f"--{flag.replace('_', '-')}"


def launcher_of(setup: Setup, flags: Flags) -> dict[str, Any]:
    """What the program that starts llama.cpp sets by itself; empty for llama-server."""
    table = store.toml(FACTS)["launcher"]
    name = str(flags.get("launcher") or setup.engine).lower().replace(" ", "").replace("-", "")
    found: dict[str, Any] = table.get(name, {})
    if flags.get("launcher") and not found:
        raise BadInput(f"--launcher: {shown(flags.get('launcher'))}; known: {', '.join(table)}")
    return found


def read_context(model: Model, setup: Setup, leaf: Leaf, n_ctx: int | None = None) -> Context:
    """The context that llama.cpp makes of a setup. `n_ctx` replaces the context asked for, in tokens.

    Raises BadInput for a flag that llama.cpp would refuse.
    """
    flags = Flags(setup)
    launcher = launcher_of(setup, flags)
    build = build_of(setup.version or str(launcher.get("build", "")))
    flash = _flash(flags, build)
    slots, unified = _sequences(model, flags, launcher, build)
    asked = _asked(model, setup, flags, launcher, build, slots, leaf, n_ctx)
    padding = rule("padding", build)
    pad = leaf("n_pad", padding["flash" if flash else "plain"], "cell", _engine(padding["source"]))
    n_seq_max = leaf("n_seq_max", slots, "sequence", _stated(flags, "parallel"))
    whole_ctx = named("n_ctx", "cell", padded(asked, pad))
    own = rule("streams", build)["value"] and not unified
    share, n_ctx_cells = whole_ctx, whole_ctx
    if own and slots > 1:
        share = n_ctx_seq(whole_ctx, n_seq_max, pad)
        n_ctx_cells = named("n_ctx", "cell", share * n_seq_max)
    n_batch = _filled(flags, "batch_size", build)
    n_ubatch = _filled(flags, "ubatch_size", build)
    type_k, type_v = _types(setup, flags)
    if type_v.block > 1 and not flash:
        raise BadInput(f"--cache-type-v: {type_v.name.lower()} needs flash attention, which is off; use f16")
    return Context(
        build=build,
        n_ctx=n_ctx_cells,
        n_ctx_seq=share,
        n_seq_max=n_seq_max,
        streams=n_seq_max if own else 1,
        n_batch=min(n_batch, int(value_of(asked))),
        n_ubatch=n_ubatch_of(
            leaf("n_ubatch", n_ubatch, "token", _stated(flags, "ubatch_size")),
            leaf("n_batch", n_batch, "token", _stated(flags, "batch_size")),
            asked,
        ),
        type_k=type_k,
        type_v=type_v,
        flash=flash,
        unified=unified,
        swa_full=_swa_full(flags, launcher),
        n_rs_seq=_rollback(model, setup, flags),
        mtp_layers=model.mtp_layers if "mtp" in _draft_kind(setup, flags) else 0,
        draft_type=find_ggml_type(str(flags.get("spec_draft_type_k") or "f16"), "--spec-draft-type-k"),
        settings=flags.settings,
    )


def _engine(source: str) -> Source:
    return Source(Trust.ENGINE_RULE, source)


def _stated(flags: Flags, flag: str) -> Source:
    if flag in flags.settings:
        return _engine(flags.settings[flag][1])
    return Source(Trust.STATED, option(flag))


def _filled(flags: Flags, flag: str, build: int) -> int:
    given = flags.whole(flag, 1)
    if given is not None:
        return given
    entry = rule(flag, build)
    return int(flags.fill(flag, entry["value"], entry["source"]))


def _flash(flags: Flags, build: int) -> bool:
    """Whether the cache is laid out for flash attention: `auto` is until a backend refuses it."""
    given = flags.get("flash_attn")
    if given is None:
        entry = rule("flash_attn", build)
        return bool(flags.fill("flash_attn", entry["value"], entry["source"]) != "off")
    return str(given).strip().lower() in ("auto", "-1") or bool(flags.yes("flash_attn"))


def _sequences(model: Model, flags: Flags, launcher: Mapping[str, Any], build: int) -> tuple[int, bool]:
    """n_seq_max and whether the sequences share one cache: `-np` given turns the sharing off."""
    entry = {**rule("parallel", build), **{k: launcher[k] for k in ("parallel", "source") if k in launcher}}
    given = flags.whole("parallel", -1)
    unified = flags.yes("kv_unified")
    if unified is None and flags.yes("no_kv_unified"):
        unified = False
    if given is None or given < 0:
        given = int(flags.fill("parallel", entry.get("parallel", entry["value"]), entry["source"]))
        default = bool(launcher.get("kv_unified", entry["unified"]))
        if unified is None or (default and not launcher):  # llama-server's auto wins over the flag
            unified = bool(flags.fill("kv_unified", default, entry["source"]))
    most = int(store.toml(FACTS)["limits"]["sequences"])
    if not 1 <= given <= most:
        raise BadInput(f"--parallel: {given}; expected 1 to {most} sequences")
    if model.model_type in launcher.get("one_slot", ()) and given > 1:
        given = int(flags.fill("parallel", 1, launcher["source"]))
    if unified is None:
        unified = bool(flags.fill("kv_unified", launcher.get("kv_unified", False), entry["source"]))
    return given, unified


def _asked(
    model: Model,
    setup: Setup,
    flags: Flags,
    launcher: Mapping[str, Any],
    build: int,
    slots: int,
    leaf: Leaf,
    n_ctx: int | None,
) -> Any:
    """The context asked for, before it is padded: the flag, else the launcher's or the model's own."""
    if n_ctx is not None:
        return leaf("ctx_size", n_ctx, "token", _engine(str(store.toml(FACTS)["fitting"]["source"])))
    given = flags.whole("ctx_size", 0)
    if launcher and "kv_unified" in launcher and launcher.get("build") and given:
        given *= slots  # Ollama passes num_ctx for each of its slots
    if given:
        return leaf("ctx_size", given, "token", Source(Trust.STATED, "--ctx-size"))
    per_slot = flags.whole("kv_unified_per_slot", 0)
    if per_slot and given is None:
        return leaf(
            "ctx_size", per_slot * slots, "token", Source(Trust.STATED, "--kv-unified-per-slot × -np")
        )
    trained = model.max_context
    if given is None and launcher.get("ctx_size"):
        tiers, memory = launcher["ctx_size"], setup.memory_bytes or 0
        tier = next(int(t["value"]) for t in tiers if memory >= t["at_least_bytes"])
        value = min(tier, trained or tier) * (slots if launcher.get("build") else 1)
        return leaf("ctx_size", flags.fill("ctx_size", value, launcher["source"]), "token", _launch(launcher))
    entry = rule("ctx_size", build)
    if given is None and entry["value"]:
        value = flags.fill("ctx_size", entry["value"], entry["source"])
        return leaf("ctx_size", value, "token", _engine(entry["source"]))
    if not trained:
        raise BadInput(f"--ctx-size: not given, and {model.file} states no context; give one")
    flags.fill("ctx_size", trained, f"{entry['source']}: the model's own context")
    return leaf("ctx_size", trained, "token", model.origin("max_context"))


def _launch(launcher: Mapping[str, Any]) -> Source:
    return _engine(str(launcher["source"]))


def _types(setup: Setup, flags: Flags) -> tuple[GgmlType, GgmlType]:
    """Cache types of keys and values; --kv-cache-dtype stands for both."""
    table = store.toml(FACTS)["cache_types"]
    both = setup.kv_cache_dtype.lower()
    both = {"float16": "f16", "fp16": "f16", "bfloat16": "bf16", "float32": "f32"}.get(both, both)
    found = []
    for flag in ("cache_type_k", "cache_type_v"):
        name = flags.get(flag)
        if name is None and both != "auto":
            name = both
        if name is None:
            name = flags.fill(flag, table["default"], table["source"])
        if str(name).lower() not in table["allowed"]:
            raise BadInput(f"{option(flag)}: {shown(name)}; expected one of {', '.join(table['allowed'])}")
        found.append(find_ggml_type(str(name), option(flag)))
    return found[0], found[1]


def _swa_full(flags: Flags, launcher: Mapping[str, Any]) -> bool:
    given = flags.yes("swa_full")
    return bool(launcher.get("swa_full", False)) if given is None else given


def _draft_kind(setup: Setup, flags: Flags) -> str:
    drafter = setup.drafter or {}
    return str(flags.get("spec_type") or drafter.get("method") or drafter.get("type") or "").lower()


def _rollback(model: Model, setup: Setup, flags: Flags) -> int:
    """n_rs_seq: copies of a state for draft tokens that may be taken back (common/common.h need_n_rs_seq)."""
    if not any(word in _draft_kind(setup, flags) for word in ("mtp", "eagle3", "dflash", "dspark")):
        return 0
    if model.model_type not in store.toml(FACTS)["arch"]["rollback"]:
        return 0
    given = flags.whole("spec_draft_n_max", 0)
    if given is None:
        given = (setup.drafter or {}).get("num_speculative_tokens")
    entry = store.toml(FACTS)["drafting"]
    return int(
        given if given is not None else flags.fill("spec_draft_n_max", entry["n_max"], entry["source"])
    )
