"""Questions about memory budgets and what engines print of them: figures of `fit`."""

from __future__ import annotations

from typing import Any

from kvplan.cost.weights import weight_bytes
from kvplan.drills.question import Asked
from kvplan.engines.budget import memory_of
from kvplan.engines.deployment import Deployment
from kvplan.errors import KvplanError
from kvplan.figure import Figure, bare, named, sourced, whole
from kvplan.units import bytes_text
from kvplan.verbs.deploy import Size, Split, deployment
from kvplan.verbs.drill_subject import (
    Asker,
    Drawn,
    Unsuitable,
    accelerator,
    check_deployed,
    factor,
    kv,
    subject,
)
from kvplan.verbs.fit import fit_part

_GIB = 2**30


def _deployed(drawn: Drawn, **flags: Any) -> Deployment:
    """The deployment of a draw whose pool, or engine's context, is stated."""
    check_deployed(drawn)
    pool = drawn.get("pool")
    try:
        return deployment(
            subject(drawn["model"]).model,
            engine=drawn.get("engine", "vllm"),
            split=Split(tp=drawn.get("tp", 1)),
            kv_cache_dtype="fp8" if drawn.get("dtype") == "fp8" else "auto",
            measured={"kv_cache_memory_bytes": f"{pool}GiB"} if pool else {},
            flags=flags,
        )
    except KvplanError as error:
        raise Unsuitable(str(error)) from None


def _capacity(drawn: Drawn, **flags: Any) -> dict[str, Any]:
    """The figures of `fit`'s capacity; Unsuitable where it would not start."""
    longest = subject(drawn["model"]).model.max_context
    length = drawn.get("length")
    if length is not None and longest is not None and length > longest:
        raise Unsuitable("longer than the model takes")
    found: dict[str, Any] = fit_part(_deployed(drawn, **flags), None, sourced)["capacity"]
    if found["fits"] is False:
        raise Unsuitable("does not fit")
    return found


def _vllm(drawn: Drawn) -> dict[str, Any]:
    return _capacity(drawn, max_model_len=drawn["length"], block_size=drawn.get("block", 16))


def kv_tokens(drawn: Drawn) -> Asked:
    """Tokens that a pool holds, as vLLM prints them."""
    found = _vllm(drawn)
    tokens = found["kv_tokens"]
    return Asked(
        tokens, _states(drawn), {**_pool_slips(drawn, tokens.value), "blocks": found["num_blocks"].value}
    )


def num_blocks(drawn: Drawn) -> Asked:
    """Blocks that a pool is cut into."""
    found = _vllm(drawn)
    blocks = found["num_blocks"]
    return Asked(
        blocks, _states(drawn), {**_pool_slips(drawn, blocks.value), "tokens": found["kv_tokens"].value}
    )


def bytes_per_block(drawn: Drawn) -> Asked:
    """What one block takes, all layers together."""
    found: Figure = _vllm(drawn)["bytes_per_block"]
    slips = {"keys_only": found.value / 2, "one_layer": found.value / subject(drawn["model"]).attending}
    slips["one_token"] = found.value / drawn.get("block", 16)
    return Asked(found, _states(drawn), slips | _mha(drawn, found.value, up=True))


def max_concurrency(drawn: Drawn) -> Asked:
    """Requests of the longest length that a pool holds, as vLLM prints it."""
    found: Figure = _vllm(drawn)["max_concurrency"]
    return Asked(found, _states(drawn), _pool_slips(drawn, found.value))


def sequences_at_once(drawn: Drawn) -> Asked:
    """Whole sequences of a length that a pool holds."""
    printed = _vllm(drawn)["max_concurrency"]
    found: Any = named("sequences_at_once", "sequence", whole(printed))
    return Asked(found, _states(drawn), _pool_slips(drawn, found.value))


def length_ratio(drawn: Drawn) -> Asked:
    """How many times more tokens a pool holds once the longest sequence is shorter: no more."""
    if drawn["shorter"] >= drawn["length"]:
        raise Unsuitable("not shorter")
    long = named(f"kv_tokens_at_{drawn['length']}", "token", _vllm(drawn)["kv_tokens"])
    short = _vllm({**drawn, "length": drawn["shorter"]})["kv_tokens"]
    short = named(f"kv_tokens_at_{drawn['shorter']}", "token", short)
    times = drawn["length"] / drawn["shorter"]
    return Asked(factor("times_more", short, long), {"times": f"{times:g}"}, given={"times": times})


def _states(drawn: Drawn) -> dict[str, str]:
    return {"each": bytes_text(kv({**drawn, "tokens": 1})["bytes_per_token"].value)}


def _pool_slips(drawn: Drawn, right: float) -> dict[str, float]:
    """Wrong counts of what a pool holds: what costs too little is held too often."""
    tp = drawn.get("tp", 1)
    found = {"keys_only": right * 2, **_mha(drawn, right, up=False)}
    if tp > 1:
        found["all_ranks"] = right / tp
    if drawn.get("dtype") == "fp8":
        found["sixteen_bit"] = right / 2
    return found


def _mha(drawn: Drawn, right: float, *, up: bool) -> dict[str, float]:
    part = kv({**drawn, "tokens": 1})
    times = part["mha_bytes_per_token"].value / part["bytes_per_token"].value
    return {"query_heads": right * times if up else right / times} if times > 1 else {}


def pool(drawn: Drawn) -> Asked:
    """What an engine leaves for the cache of one accelerator."""
    d = _budgeted(drawn, _weights(drawn))
    parts = memory_of(d, sourced)
    found = parts["kv_pool_bytes"]
    asked = float(drawn["utilization"])
    device = parts["accelerator_bytes"].value
    if found.value < 2 * _GIB:
        raise Unsuitable("nothing left")
    slips = {
        "whole_device": found.value + device * (1 - asked),
        "weights_kept": found.value + parts["weight_bytes"].value,
    }
    states = {
        name: bytes_text(parts[f"{name}_bytes"].value) for name in ("accelerator", "weight", "overhead")
    }
    given = {f"{name}_bytes": parts[f"{name}_bytes"].value for name in ("accelerator", "weight", "overhead")}
    return Asked(found, states, slips, given=given)


def pool_ratio(drawn: Drawn) -> Asked:
    """How many times more tokens are held once weights and cache both take 8 bits in place of 16."""
    weights = _weights(drawn)
    wide = named(
        "pool_beside_16_bit_weights", "B", memory_of(_budgeted(drawn, weights), sourced)["kv_pool_bytes"]
    )
    narrow = memory_of(_budgeted(drawn, weights // 2), sourced)["kv_pool_bytes"]
    narrow = named("pool_beside_8_bit_weights", "B", narrow)
    if wide.value < 2 * _GIB:
        raise Unsuitable("nothing left")
    one = named("bytes_per_token_in_16_bit", "B/token", kv({"model": drawn["model"]})["bytes_per_token"])
    half = kv({"model": drawn["model"], "dtype": "fp8"})["bytes_per_token"]
    half = named("bytes_per_token_in_8_bit", "B/token", half)
    grown = factor("pool_grows", narrow, wide)
    cheaper = factor("token_shrinks", one, half)
    found = named("times_more_tokens", "", grown * cheaper)
    slips = {"one_lever": cheaper.value, "added": grown.value + cheaper.value}
    states = {"pool": bytes_text(wide.value), "weight": bytes_text(weights)}
    return Asked(found, states, slips, given={"pool_bytes": wide.value, "weight_bytes": weights})


def _weights(drawn: Drawn) -> int:
    """Bytes of 16-bit weights, rounded as a log prints them."""
    value = int(weight_bytes(subject(drawn["model"]).model, bare))
    return round(round(value / _GIB, 2) * _GIB)


def _budgeted(drawn: Drawn, weights: int) -> Deployment:
    measured: dict[str, Size] = {
        "weights_memory": weights,
        "activation_memory": f"{drawn['activations']}GiB",
        "graph_memory": f"{drawn['graphs']}GiB",
    }
    try:
        return deployment(
            subject(drawn["model"]).model,
            gpu=accelerator(drawn["gpu"]).key,
            measured=measured,
            flags={"gpu_memory_utilization": float(drawn["utilization"])},
        )
    except KvplanError as error:
        raise Unsuitable(str(error)) from None


def llama_cpp_bytes(drawn: Drawn) -> Asked:
    """What llama.cpp prints of its cache at a context."""
    kind = drawn["type"]
    found = _capacity(
        {**drawn, "engine": "llama.cpp", "length": drawn["ctx"]},
        ctx_size=drawn["ctx"],
        cache_type_k=kind,
        cache_type_v=kind,
    )["kv_bytes"]
    slips = {"keys_only": found.value / 2, "one_layer": found.value / subject(drawn["model"]).attending}
    slips |= _mha({"model": drawn["model"]}, found.value, up=True)
    if kind != "f16":
        slips["sixteen_bit"] = found.value * {"q8_0": 32 / 17, "q4_0": 32 / 9}[kind]
        slips["no_scales"] = found.value * {"q8_0": 16 / 17, "q4_0": 8 / 9}[kind]
    return Asked(found, {"each": bytes_text(kv({"model": drawn["model"]})["bytes_per_token"].value)}, slips)


def sglang_tokens(drawn: Drawn) -> Asked:
    """Tokens of SGLang's pool, max_total_num_tokens in its log."""
    found = _capacity({**drawn, "engine": "sglang"})["kv_tokens"]
    return Asked(found, _states(drawn), _pool_slips(drawn, found.value))


def tensorrt_tokens(drawn: Drawn) -> Asked:
    """Tokens of TensorRT-LLM's paged cache."""
    found = _capacity({**drawn, "engine": "tensorrt-llm"})["kv_tokens"]
    return Asked(found, _states(drawn), {**_pool_slips(drawn, found.value), "blocks": found.value / 32})


ASKERS: dict[str, Asker] = {
    "kv_tokens": kv_tokens,
    "num_blocks": num_blocks,
    "bytes_per_block": bytes_per_block,
    "max_concurrency": max_concurrency,
    "sequences_at_once": sequences_at_once,
    "length_ratio": length_ratio,
    "pool": pool,
    "pool_ratio": pool_ratio,
    "llama_cpp_bytes": llama_cpp_bytes,
    "sglang_tokens": sglang_tokens,
    "tensorrt_tokens": tensorrt_tokens,
}
