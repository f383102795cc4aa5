"""The longest context a config states: the least of its length keys, times its rope scaling.

vLLM 0.32.0 config/model.py `_get_and_verify_max_len`: the smallest of the length keys, replaced by
model_max_length for Cohere; multiplied by the rope scaling factor unless the scaling is su, longrope
or llama3, or the model is Gemma 3; yarn scales original_max_position_embeddings.
"""

from __future__ import annotations

from typing import Any

from kvplan.figure import Source, Trust
from kvplan.model.keys import Keys

_UNSCALED = ("su", "longrope", "llama3", "default", "mrope", "proportional")


def max_context(keys: Keys) -> tuple[int | None, Source]:
    """Tokens, or None when the config states no length; and where it was read."""
    lengths = []
    for key in keys.spellings("context"):
        read = keys.find(key, [key])
        if read is not None and read[1] != 0:
            lengths.append((keys.whole(key, read[1], 0, 2**40), key, read[2]))
    if not lengths:
        return None, Source(Trust.ASSUMED, "no length stated")
    stated = [item for item in lengths if item[2].trust is Trust.STATED]
    lengths = stated or lengths  # a class default under another name gives way to what the file says
    length, key, source = min(lengths, key=lambda item: item[0])
    if keys.spec.get("context_prefers"):
        preferred = keys.spec["context_prefers"]
        length, key, source = next((x for x in lengths if x[1] == preferred), (length, key, source))
    factor, original = _scaling(keys)
    if factor is None:
        return length, source
    scaled = int((original or length) * factor)
    return scaled, Source(source.trust, f"{source.where} × rope scaling factor {factor:g}")


def _scaling(keys: Keys) -> tuple[float | None, int | None]:
    scaling: Any = None
    for key in ("rope_parameters", "rope_scaling"):
        read = keys.find(key, [key])
        if read is None:
            continue
        if not isinstance(read[1], dict):
            raise keys.wrong(key, read[1], "expected an object or null")
        scaling = scaling or read[1]
    if not scaling or keys.spec.get("context_unscaled"):
        return None, None
    kind = next((scaling[k] for k in ("rope_type", "type") if scaling.get(k) is not None), "default")
    factor = scaling.get("factor")
    if not isinstance(kind, str):
        raise keys.wrong("rope_scaling.rope_type", kind, "expected a name in quotes")
    if factor is not None and (isinstance(factor, bool) or not isinstance(factor, (int, float))):
        raise keys.wrong("rope_scaling.factor", factor, "expected a positive factor")
    if kind in _UNSCALED or factor is None:
        return None, None
    original = scaling.get("original_max_position_embeddings") if kind == "yarn" else None
    if not 0 < factor < 1e6:
        raise keys.wrong("rope_scaling", scaling, "expected a positive factor")
    return float(factor), keys.whole("original_max_position_embeddings", original) if original else None
