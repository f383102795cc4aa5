"""`size`: what one token, one sequence and one batch cost in cache; no hardware needed."""

from __future__ import annotations

from typing import Any

from kvplan.cost import cache
from kvplan.cost.cache import Stored
from kvplan.cost.weights import formula_bytes, header_bytes, parameters, weight_bytes
from kvplan.errors import BadInput, shown
from kvplan.facts.formats import find_format
from kvplan.figure import Leaf, Source, Trust, bare, most, named
from kvplan.model.model import Model
from kvplan.verbs.answer import Answer
from kvplan.verbs.check import whole
from kvplan.verbs.given import ModelLike, given_model
from kvplan.verbs.series import growth_by_kind

MAX_TOKENS = 10**12
MAX_BATCH = 10**9
MAX_TP = 4096
MAX_DIFFERENCE = 0.01


def size(
    model: ModelLike,
    *,
    tokens: int = 1,
    batch: int = 1,
    tp: int = 1,
    kv_cache_dtype: str = "auto",
    dtype: str = "auto",
    quantization: str | None = None,
    image_tokens: int = 0,
    encoder_tokens: int = 0,
) -> Answer:
    """What `tokens` tokens of one sequence, times `batch`, cost in cache on one rank of `tp`.

    `model`: a built-in id, a path, a folder, or a config as a dict. Returns the contract's `size`
    document in bytes; raises BadInput (or a subclass) for anything that cannot be used.
    """
    whole("--tokens", tokens, 1, MAX_TOKENS)
    whole("--batch", batch, 1, MAX_BATCH)
    whole("--tp", tp, 1, MAX_TP)
    crossed = whole("--image-tokens", image_tokens, 0, MAX_TOKENS) + whole(
        "--encoder-tokens", encoder_tokens, 0, MAX_TOKENS
    )
    loaded = given_model(model, dtype, quantization)
    cache.check_split(loaded, tp)
    stored = stored_as(loaded, kv_cache_dtype, tp, dtype)
    if crossed and not cache.groups_of(loaded, ("cross",)):
        field = "--image-tokens" if image_tokens else "--encoder-tokens"
        raise BadInput(f"{field}: this model has no cross-attention; its encoder's tokens count as --tokens")

    def compute(leaf: Leaf) -> dict[str, Any]:
        asked = {"tokens": tokens, "batch": batch, "crossed": crossed}
        return {
            "model": model_part(loaded, leaf),
            "kv": kv_part(loaded, stored, asked, leaf),
            "weights": weights_part(loaded),
            "notes": [*loaded.notes, *weight_notes(loaded)],
        }

    def draws(_: dict[str, Any]) -> dict[str, Any]:
        length = tokens if tokens > 1 else min(loaded.max_context or 32768, 32768)
        return {"growth": growth_by_kind(loaded, stored, length)}

    return Answer(compute, draws)


def stored_as(model: Model, kv_cache_dtype: str, tp: int, dtype: str = "auto") -> Stored:
    """How the cache is stored: the format asked for, else the dtype asked for, else the model's in 16 bit."""
    if not isinstance(kv_cache_dtype, str):
        raise BadInput(f"--kv-cache-dtype: {shown(kv_cache_dtype)} is not a name; give auto or a format")
    name, source = kv_cache_dtype, Source(Trust.STATED, f"--kv-cache-dtype {kv_cache_dtype}")
    if kv_cache_dtype == "auto" and dtype != "auto":
        name, source = model.dtype or dtype, Source(Trust.STATED, f"--dtype {dtype}: the cache follows it")
    elif kv_cache_dtype == "auto":
        name = model.dtype if model.dtype in ("float16", "bfloat16") else "bfloat16"
        why = f"{model.file} dtype {model.dtype or 'absent'}: cache in 16 bit"
        source = Source(Trust.STATED if model.dtype == name else Trust.ASSUMED, why)
    found = find_format(name, "--kv-cache-dtype")
    if found.name not in ("float16", "bfloat16", "float32"):
        source = Source(source.trust, f"{source.where}: {found.source}")
    return Stored(found, tp, source, Source(Trust.STATED, f"--tp {tp}"))


def uncrossed(model: Model) -> list[str]:
    """What a verb without encoder tokens leaves out, said."""
    if not cache.groups_of(model, ("cross",)):
        return []
    return ["sequences are counted without cross-attention; kvplan size --encoder-tokens or --image-tokens"]


def model_part(model: Model, leaf: Leaf) -> dict[str, Any]:
    """The contract's `model` table: the whole model's text decoder."""
    return {
        "id": model.id,
        "model_type": model.model_type,
        "layers": leaf("layers", len(model.layers), "layer", model.origin("layers")),
        "attention_layers": leaf(
            "attention_layers",
            sum(layer.holds_tokens for layer in model.layers),
            "layer",
            model.origin("layer_kinds"),
        ),
        "parameters": parameters(model, leaf),
        "active_parameters": parameters(model, leaf, active=True),
        "other_parameters": _other(model, leaf),
        "weight_bytes": weight_bytes(model, leaf),
        "max_context": model.max_context
        if model.max_context is None
        else leaf("max_context", model.max_context, "token", model.origin("max_context")),
    }


def _other(model: Model, leaf: Leaf) -> Any:
    """Values beside the decoder: towers and layers that predict ahead; None where a part is not known."""
    if model.other_parameters is None:
        return None
    towers = leaf("tower_parameters", model.tower_parameters or 0, "value", model.origin("towers"))
    mtp = leaf("mtp_parameters", model.mtp_parameters or 0, "value", model.origin("mtp"))
    return named("other_parameters", "value", towers + mtp)


def weights_part(model: Model) -> dict[str, Any] | None:
    """The weight files' own bytes beside the formula's; None when only a config was given.

    `formula_bytes` is None for a GGUF file, which mixes types as it likes, and for a scheme not known.
    """
    found = header_bytes(model)
    if found is None or model.tensors is None:
        return None
    by_formula = None if model.tensors.is_gguf else formula_bytes(model, bare)
    return {
        "header_bytes": found,
        "formula_bytes": by_formula,
        "relative_difference": by_formula / found - 1 if found and by_formula is not None else None,
        "by_dtype": model.tensors.bytes_by_dtype(),
        "by_part": model.tensors.bytes_by_part(),
        "files": list(model.tensors.files),
    }


def weight_notes(model: Model) -> list[str]:
    """A sentence where header and formula differ by more than 1 %."""
    part = weights_part(model)
    difference = part["relative_difference"] if part else None
    if difference is None or abs(difference) <= MAX_DIFFERENCE:
        return []
    return [f"the formula is {difference:+.1%} off the bytes that the weight files hold; theirs are used"]


def kv_part(model: Model, stored: Stored, asked: dict[str, int], leaf: Leaf) -> dict[str, Any]:
    """The contract's `kv` table: the architecture's cache on one rank."""
    tokens = leaf("tokens", asked["tokens"], "token", Source(Trust.STATED, "--tokens"))
    batch = leaf("batch", asked["batch"], "sequence", Source(Trust.STATED, "--batch"))
    sequence = cache.bytes_per_sequence(model, stored, tokens, leaf)
    state = cache.state_bytes_per_sequence(model, stored.tp, leaf)
    if asked["crossed"]:
        crossed = leaf(
            "cross_tokens",
            asked["crossed"],
            "token",
            Source(Trust.STATED, "--image-tokens, --encoder-tokens"),
        )
        cross = named("cross_bytes", "B", cache.cross_bytes(model, stored, crossed, leaf))
        sequence, state = sequence + cross, state + cross
    sequence = named("bytes_per_sequence", "B", sequence)
    return {
        "dtype": stored.format.name,
        "bytes_per_token": named(
            "bytes_per_token", "B/token", cache.bytes_per_token(model, stored, leaf, after_windows=False)
        ),
        "bytes_per_token_after_windows": named(
            "bytes_per_token_after_windows",
            "B/token",
            cache.bytes_per_token(model, stored, leaf, after_windows=True),
        ),
        "window_tokens": window_tokens(model, leaf),
        "indexer_bytes_per_token": named(
            "indexer_bytes_per_token", "B/token", cache.indexer_bytes_per_token(model, stored, leaf)
        ),
        "state_bytes_per_sequence": named("state_bytes_per_sequence", "B", state),
        "bytes_per_sequence": sequence,
        "bytes_total": named("bytes_total", "B", batch * sequence),
        "mha_bytes_per_token": named(
            "mha_bytes_per_token", "B/token", cache.mha_bytes_per_token(model, stored, leaf)
        ),
        "layer_kinds": {
            kind: leaf(f"{kind}_layers", n, "layer", model.origin("layer_kinds"))
            for kind, n in layer_kinds(model).items()
        },
    }


def window_tokens(model: Model, leaf: Leaf) -> Any:
    """The longest window of any layer, or None without windows."""
    windows = [
        leaf(
            f"{group.label}_window_tokens", group.attention.window, "token", group.attention.origin("window")
        )
        for group in cache.groups_of(model)
        if group.attention.window
    ]
    return named("window_tokens", "token", most(*windows)) if windows else None


def layer_kinds(model: Model) -> dict[str, int]:
    """How many layers are of each kind; a layer that is two kinds counts under both."""
    counts: dict[str, int] = {}
    for layer in model.layers:
        for kind in dict.fromkeys(layer.kinds):
            counts[kind] = counts.get(kind, 0) + 1
    return counts
