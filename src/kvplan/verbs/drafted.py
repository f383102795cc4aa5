"""The drafter that `--speculative-config`, or SGLang's flags, describe: checked, its model read.

vLLM 0.32.0 config/speculative.py __post_init__.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvplan.engines.loaded import as_loaded
from kvplan.errors import BadInput, KvplanError, UnknownName, Unreachable, shown
from kvplan.facts import drafters
from kvplan.model.model import Model
from kvplan.verbs.check import whole
from kvplan.verbs.given import DTYPES, given_model

_FLAG = "--speculative-config"
_PATHS = (".", "/", "~")
_HEADS = ("eagle", "eagle3")


@dataclass(frozen=True, slots=True)
class Drafter:
    """What `Setup.drafter` takes, and what is to be said of it."""

    setting: Mapping[str, Any] | None = None
    notes: tuple[str, ...] = ()


def drafter_of(flags: Mapping[str, Any], engine: str, target: Model, tp: int) -> Drafter:
    """The drafter of an engine's flags; raises BadInput for one that the engine would not start."""
    given = flags.get("speculative_config")
    if engine == "sglang":
        return _sglang(flags, target)
    if given is None or engine != "vllm":
        return Drafter(given if isinstance(given, Mapping) else None)
    if not isinstance(given, Mapping):
        raise BadInput(f"{_FLAG}: {shown(given)} is not a JSON object")
    return _vllm(given, target, tp)


def _vllm(given: Mapping[str, Any], target: Model, tp: int) -> Drafter:
    name = given.get("model")
    if name is not None and (not isinstance(name, str) or not name.strip()):
        raise BadInput(f"{_FLAG} model: {shown(name)} is not a name; give a draft's id, path or repository")
    numbers = _numbers(given, tp)
    method = _stated_method(given, name)
    kind = drafters.keeps(method)
    rest = {k: v for k, v in given.items() if k not in ("model", "method", *numbers)}
    setting = {**rest, **numbers, "method": method}
    notes: tuple[str, ...] = ()
    if kind == "nothing":
        if method in ("medusa", "mlp_speculator"):
            notes = (f"{_FLAG}: the weights of a {method} drafter are not counted",)
    elif name is not None:
        more, notes = _with_model(name, method, given, target)
        setting |= more
    elif kind == "model" or (kind == "head" and method in (*_HEADS, "dflash") and "layers" not in given):
        raise BadInput(f"{_FLAG} model: missing; method {method} drafts with one, so name it")
    if method == "extract_hidden_states":
        notes = (f"{_FLAG}: the states that {method} keeps are counted as one layer like the target's",)
    if setting["method"] in ("mtp", "dspark"):
        _predicts_ahead(setting.get("ahead_of", target), setting)
    setting["num_speculative_tokens"] = _tokens(given, setting, target)
    return Drafter(setting, notes)


def _numbers(given: Mapping[str, Any], tp: int) -> dict[str, int | None]:
    """The whole numbers of the setting beside its tokens."""
    limits = drafters.table()["numbers"]
    found: dict[str, int | None] = {}
    for key in limits["names"]:
        if given.get(key) is not None:
            found[key] = _whole(key, given[key])
        elif key in given:
            found[key] = None
    ranks = found.get("draft_tensor_parallel_size")
    if ranks is not None and ranks not in (1, tp):
        fit = "1" if tp == 1 else f"1 or {tp}"
        raise BadInput(f"{_FLAG} draft_tensor_parallel_size: {ranks}; vllm takes {fit} with --tp {tp}")
    return found


def _whole(key: str, value: object) -> int:
    """A whole number, as pydantic reads one: in digits or with a fraction of zero too."""
    if isinstance(value, str) and value.strip().isascii() and value.strip().isdigit() and len(value) < 20:
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 2**63:
        raise BadInput(f"{_FLAG} {key}: the number has too many digits; give a small whole number")
    return whole(f"{_FLAG} {key}", value, 1, drafters.table()["numbers"]["most"])


def _stated_method(given: Mapping[str, Any], name: str | None) -> str:
    """The method given, or the one that vLLM takes before it reads the draft's config."""
    if given.get("method") is not None:
        return drafters.checked_method(f"{_FLAG} method", given["method"])
    return "ngram" if name in ("ngram", "[ngram]") else "draft_model"


def _tokens(given: Mapping[str, Any], setting: Mapping[str, Any], target: Model) -> int:
    """Draft tokens of a step: as given, else what the method or the draft's config says."""
    stated = given.get("num_speculative_tokens")
    if stated is not None:
        return _whole("num_speculative_tokens", stated)
    ahead = setting.get("ahead_of", target)
    if setting["method"] == "mtp" and ahead.mtp_layers:
        return int(ahead.mtp_layers)
    if setting["method"] == "suffix":
        return int(setting.get("suffix_decoding_max_tree_depth") or drafters.table()["suffix"]["tokens"])
    raise BadInput(f"{_FLAG} num_speculative_tokens: missing; give a whole number of 1 or more")


def _predicts_ahead(model: Model, setting: Mapping[str, Any]) -> None:
    """Refuse MTP, and DSpark from the target itself, for a model without such layers, as vLLM does."""
    method, draft = setting["method"], setting.get("model")
    if "layers" in setting or (isinstance(draft, Model) and (method == "dspark" or _assists(draft))):
        return
    if isinstance(draft, Model):
        model = draft
    known = model.mtp_parameters == 0 and ("mtp" not in model.origins or model.tensors is not None)
    if known and not model.mtp_layers:
        raise BadInput(
            f"{_FLAG} method: {method!r} needs layers that predict ahead, and {model.id} has none; "
            f"name another method, such as draft_model"
        )


def _assists(draft: Model) -> bool:
    """Whether a checkpoint is a drafter by its own type."""
    return draft.outer_type.endswith(("_assistant", "_mtp"))


def _with_model(
    name: str, method: str, given: Mapping[str, Any], target: Model
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """What a draft that is named adds to the setting, and what is to be said of it."""
    if drafters.keeps(method) != "head":
        method = drafters.method_named(name, method)
    quantization = given.get("quantization")
    if quantization is not None and not isinstance(quantization, str):
        raise BadInput(f"{_FLAG} quantization: {shown(quantization)} is not a word; give one such as fp8")
    try:
        draft = _read(name, target, quantization, f"{_FLAG} model")
    except (UnknownName, Unreachable, BadInput):
        if method not in _HEADS or name.startswith(_PATHS) or quantization is not None:
            raise
        return {"method": method}, (_stands_in(name, _FLAG),)
    if drafters.keeps(method) != "head" and _ahead(draft, method, target):
        return {"method": "mtp", "ahead_of": draft}, ()
    notes: tuple[str, ...] = ()
    if method == "draft_model" and draft.vocab != target.vocab and not given.get("use_heterogeneous_vocab"):
        sizes = f"{draft.vocab:,} and {target.vocab:,}"
        notes = (f"{_FLAG}: vllm refuses a draft model of another vocabulary ({sizes} tokens)",)
    return {"method": method, "model": draft}, notes


def _ahead(draft: Model, method: str, target: Model) -> bool:
    """Whether what is named is a checkpoint whose layers that predict ahead draft for the target."""
    holds = bool(draft.mtp_layers or draft.mtp_parameters)
    return (holds or draft.id == target.id) if method == "mtp" else holds and draft.hidden == target.hidden


def _stands_in(name: str, flag: str) -> str:
    return f"{flag} model: the config of {shown(name)} is not known; counted as one layer like the target's"


def _read(name: str, target: Model, quantization: str | None, field: str) -> Model:
    """The draft of that name, in the dtype of its target; errors name the flag it came with."""
    dtype = target.dtype if target.dtype in DTYPES else "auto"
    try:
        return as_loaded(given_model(name, dtype, quantization), "vllm")
    except KvplanError as error:
        text = str(error).removeprefix("MODEL: ")
        if text.startswith("--quantization: "):
            raise type(error)(text.replace("--", f"{_FLAG} ", 1)) from None
        held = "" if name in text else f"{shown(name)}: "
        raise type(error)(f"{field}: {held}{text}") from None


def _sglang(flags: Mapping[str, Any], target: Model) -> Drafter:
    """SGLang's drafter: its algorithm, and its draft's config where that is known."""
    algorithm = str(flags.get("speculative_algorithm") or "").upper()
    method = drafters.table()["sglang"]["algorithms"].get(algorithm)
    name = flags.get("speculative_draft_model_path")
    if method is None:
        return Drafter()
    if not isinstance(name, str) or not name.strip():
        return Drafter({"method": "mtp" if target.mtp_layers else method})
    field = "--speculative-draft-model-path"
    try:
        draft = _read(name, target, None, field)
    except (UnknownName, Unreachable, BadInput):
        if method not in _HEADS or name.startswith(_PATHS):
            raise
        return Drafter({"method": method}, (_stands_in(name, field),))
    if draft.id == target.id or (method == "mtp" and draft.mtp_layers):
        return Drafter({"method": "mtp", "ahead_of": draft})
    return Drafter({"method": method, "model": draft, "layers": len(draft.layers)})
