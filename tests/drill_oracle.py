"""The answer to every practice question from first principles: plain arithmetic on config fields.

One short function for each question of a deck, by topic and name. Nothing of kvplan is imported.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from drill_geometry import VALUE_BYTES, Geometry, bandwidth, geometry, peak, weights

Given = dict[str, Any]
GIB = 2**30


def g_of(g: Given) -> Geometry:
    return geometry(g["model"])


def dt(g: Given) -> str:
    return str(g.get("dtype", "bfloat16"))


def token(g: Given) -> Fraction:
    return g_of(g).token(dt(g), g.get("tp", 1))


def sequence(g: Given, tokens: int | None = None) -> Fraction:
    return g_of(g).sequence(g["tokens"] if tokens is None else tokens, dt(g), g.get("tp", 1))


def less_than_mha(g: Given) -> Fraction:
    return g_of(g).mha_token(dt(g)) / g_of(g).token(dt(g))


def ratio_of_formats(g: Given) -> Fraction:
    return VALUE_BYTES[g["dtype"]] / VALUE_BYTES[g["other"]]


def ratio_of_ranks(g: Given) -> Fraction:
    return Fraction(g_of(g).layer_values(g["tp"]), g_of(g).layer_values(g["more"]))


def ratio_of_lengths(g: Given) -> Fraction:
    return sequence(g, g["longer"]) / sequence(g)


def saved(g: Given) -> Fraction:
    wide, narrow = (g_of(g).sequence(g["tokens"], name) for name in (g["dtype"], g["other"]))
    return g["batch"] * (wide - narrow)


def binary(g: Given) -> Fraction:
    power = {"MB": 2, "GB": 3, "TB": 4}[g["unit"]]
    return Fraction(g["amount"] * 1000**power, 1024**power)


def prefilled(g: Given) -> Fraction:
    return g.get("batch", 1) * sequence(g, g["prompt"])


def decoded(g: Given) -> Fraction:
    return g.get("batch", 1) * sequence(g, g["prompt"] + g["output"]) - prefilled(g)


def decode_share(g: Given) -> Fraction:
    return decoded(g) / (decoded(g) + prefilled(g))


def left_in_step(g: Given) -> int:
    return int(g["chunk"]) - int(g.get("decoding", 0))


def steps(g: Given) -> int:
    return math.ceil(Fraction(g.get("prompts", 1) * g["prompt"], left_in_step(g)))


def vllm(g: Given, length: int | None = None) -> tuple[int, int, Fraction]:
    """(bytes of a block, blocks, requests of the longest length that they hold)."""
    size = g.get("block", 16)
    block = token(g) * size
    count = int(g["pool"] * GIB // block)
    return int(block), count, Fraction(count, math.ceil(Fraction(length or g["length"], size)))


def vllm_tokens(g: Given, length: int | None = None) -> int:
    return int(vllm(g, length)[2] * (length or g["length"]))


def longest_ratio(g: Given) -> Fraction:
    return Fraction(vllm_tokens(g, g["shorter"]), vllm_tokens(g))


def pool(g: Given, weight: float | None = None) -> float:
    held = [float(g[name]) * GIB for name in ("activations", "graphs")]
    share = float(g["utilization"]) * g["accelerator_bytes"]
    return share - (g["weight_bytes"] if weight is None else weight) - sum(held) - g["overhead_bytes"]


def pool_gain(g: Given) -> float:
    """Half the weights freed, then half the bytes a token."""
    return 2 * (g["pool_bytes"] + g["weight_bytes"] / 2) / g["pool_bytes"]


def llama_cpp(g: Given) -> Fraction:
    cells = math.ceil(g["ctx"] / 256) * 256
    return g_of(g).attending * cells * g_of(g).layer_values() * VALUE_BYTES[g["type"]]


def step_bytes(g: Given, batch: int | None = None) -> Fraction:
    tp = g.get("tp", 1)
    one = g_of(g).sequence(g["context"], dt(g), tp)
    return Fraction(2 * weights(g["model"]).read, tp) + (g["batch"] if batch is None else batch) * one


def step_seconds(g: Given, batch: int | None = None) -> float:
    return float(step_bytes(g, batch)) / bandwidth(g["gpu"])


def rate(g: Given, batch: int | None = None) -> float:
    count = g["batch"] if batch is None else batch
    return float(count / step_seconds(g, count))


def within_goal(g: Given) -> int:
    room = g["goal"] / 1000 * bandwidth(g["gpu"]) - float(step_bytes(g, 0))
    return int(room / float(g_of(g).sequence(g["context"], dt(g), g.get("tp", 1))))


def ceiling_rate(g: Given) -> float:
    return bandwidth(g["gpu"]) / float(g_of(g).sequence(g["context"], dt(g), g.get("tp", 1)))


def multiplied(g: Given) -> int:
    """Parameters that a token being decoded passes, the head included."""
    return weights(g["model"]).token + weights(g["model"]).head


def batch_intensity(g: Given) -> float:
    return g["batch"] * 2 * multiplied(g) / (2 * weights(g["model"]).read)


def attention_intensity(g: Given) -> float:
    """Each key and value of a group's head meets all its query heads: a multiply and an add."""
    return float(Fraction(2 * g_of(g).query_heads, g_of(g).kv_heads) / VALUE_BYTES[dt(g)])


def crossing(g: Given) -> int:
    """The first whole batch whose arithmetic takes longer than reading the weights."""
    turning = peak(g["gpu"]) / bandwidth(g["gpu"]) * 2 * weights(g["model"]).read / (2 * multiplied(g))
    return math.floor(turning) + 1


def of_ridge(g: Given) -> float:
    tokens = g.get("prompt", g.get("batch", 1))
    w = weights(g["model"])
    return tokens * 2 * w.token / (2 * w.read) / (peak(g["gpu"]) / bandwidth(g["gpu"]))


def prompt_flops(g: Given, tokens: int | None = None) -> int:
    """Every token through the layers, the last through the head."""
    w = weights(g["model"])
    return 2 * w.token * (g["prompt"] if tokens is None else tokens) + 2 * w.head


def prompt_seconds(g: Given) -> float:
    one = prompt_flops(g, g["prompt"] - g.get("cached", 0)) / g.get("tp", 1) / peak(g["gpu"])
    return (1 + g.get("ahead", 0)) * one


def longest_prompt(g: Given) -> int:
    return int(g["goal"] / 1000 * peak(g["gpu"]) * g.get("tp", 1) / (2 * weights(g["model"]).token))


def attention_share(g: Given) -> float:
    """Causal: on average half of the prompt before a token; scores, then weighted values."""
    n, shape = g["prompt"], g_of(g)
    pairs = n * (n + 1) // 2
    scores = shape.layers * shape.query_heads * 2 * 2 * shape.width * pairs
    return scores / (scores + prompt_flops(g))


def shared(g: Given) -> Fraction:
    once = sequence(g, g["shared"])
    return once + g["batch"] * (sequence(g) - once)


def left_by_each(g: Given) -> list[Fraction]:
    """One sequence's bytes on a rank: in fp8, cut short, over more ranks, and with narrower weights."""
    own = g_of(g)
    return [
        own.sequence(g["tokens"], "fp8"),
        own.sequence(g["tokens"] // g["cut"], "bfloat16"),
        own.sequence(g["tokens"], "bfloat16", g["more"]),
        own.sequence(g["tokens"], "bfloat16"),
    ]


NUMBERS: dict[str, Callable[[Given], Any]] = {
    "first-numbers/token": token,
    "first-numbers/prompt": prefilled,
    "first-numbers/output": decoded,
    "first-numbers/share": decode_share,
    "first-numbers/batch-8-bit": lambda g: g["batch"] * sequence(g),
    "first-numbers/batch-16-bit": lambda g: g["batch"] * sequence(g),
    "first-numbers/twice-the-tokens": ratio_of_formats,
    "first-numbers/how-much-grouped": less_than_mha,
    "first-numbers/a-whole-sequence": sequence,
    "first-numbers/a-rank": token,
    "bytes-per-token/many-heads": token,
    "bytes-per-token/grouped": token,
    "bytes-per-token/one-head": token,
    "bytes-per-token/latent": token,
    "bytes-per-token/windows": token,
    "bytes-per-token/windows-full": lambda g: g_of(g).token(dt(g), full=True),
    "bytes-per-token/hybrid": token,
    "bytes-per-token/smaller": less_than_mha,
    "sequences-and-batches/sequence": sequence,
    "sequences-and-batches/batch": lambda g: g["batch"] * sequence(g),
    "sequences-and-batches/latent-batch": lambda g: g["batch"] * sequence(g),
    "sequences-and-batches/window-sequence": sequence,
    "sequences-and-batches/only-windows": sequence,
    "sequences-and-batches/hybrid-sequence": sequence,
    "sequences-and-batches/longer": ratio_of_lengths,
    "sequences-and-batches/decimal": binary,
    "cache-precision/token": token,
    "cache-precision/batch": lambda g: g["batch"] * sequence(g),
    "cache-precision/saved": saved,
    "cache-precision/blocks": ratio_of_formats,
    "prefill-and-decode/prompt": prefilled,
    "prefill-and-decode/output": decoded,
    "prefill-and-decode/share": decode_share,
    "prefill-and-decode/windowed-share": decode_share,
    "prefill-and-decode/windowed-output": decoded,
    "chunked-prefill/steps": steps,
    "chunked-prefill/beside-decoding": steps,
    "chunked-prefill/several": steps,
    "chunked-prefill/last": lambda g: g["prompt"] - (steps(g) - 1) * g["chunk"],
    "chunked-prefill/claims": lambda g: sequence(g, g["chunk"]),
    "memory-budget/pool": pool,
    "memory-budget/sequences": lambda g: int(vllm(g)[2]),
    "memory-budget/sequences-8-bit": lambda g: int(vllm(g)[2]),
    "memory-budget/tokens": vllm_tokens,
    "decode-step/weights": lambda g: 2 * weights(g["model"]).read / g["tp"] / bandwidth(g["gpu"]),
    "decode-step/batch": step_seconds,
    "decode-step/caches": lambda g: 1 - step_bytes(g, 0) / step_bytes(g),
    "decode-step/another-gpu": lambda g: bandwidth(g["other_gpu"]) / bandwidth(g["gpu"]),
    "intensity/ridge": lambda g: peak(g["gpu"], g["compute"]) / bandwidth(g["gpu"]),
    "intensity/batch": batch_intensity,
    "intensity/attention": attention_intensity,
    "intensity/crossing": crossing,
    "throughput/rate": rate,
    "throughput/gain": lambda g: rate(g) / rate(g, 1),
    "throughput/within": within_goal,
    "throughput/ceiling": ceiling_rate,
    "time-to-first-token/operations": prompt_flops,
    "time-to-first-token/prompt": prompt_seconds,
    "time-to-first-token/queue": prompt_seconds,
    "time-to-first-token/prefix": prompt_seconds,
    "time-to-first-token/within": longest_prompt,
    "time-to-first-token/attention": attention_share,
    "levers/heads-and-format": lambda g: g_of(g).mha_token(g["dtype"]) / g_of(g).token(g["other"]),
    "levers/format-and-ranks": lambda g: g_of(g).token("bfloat16") / g_of(g).token(g["other"], g["tp"]),
    "levers/window-and-length": ratio_of_lengths,
    "levers/weights-and-cache": pool_gain,
    "levers/prefix": shared,
    "engines/vllm-tokens": vllm_tokens,
    "engines/vllm-concurrency": lambda g: vllm(g)[2],
    "engines/vllm-blocks": lambda g: vllm(g)[1],
    "engines/vllm-block-bytes": lambda g: vllm(g)[0],
    "engines/llama-cpp": llama_cpp,
    "engines/sglang": lambda g: g["pool"] * GIB // token(g),
    "engines/tensorrt-llm": lambda g: g["pool"] * GIB // token(g) // 32 * 32,
}
# Statements that name a number: what it is, had it been stated rightly.
CLAIMS: dict[str, Callable[[Given], Any]] = {
    "bytes-per-token/stated": token,
    "cache-precision/stated": saved,
    "memory-budget/stated": lambda g: int(vllm(g)[2]),
    "misconceptions/gb-are-gib": binary,
    "misconceptions/layers-that-keep": lambda g: g_of(g).attending,
}


def about(value: Any, wanted: float, share: float = 0.05) -> bool:
    return abs(float(value) / wanted - 1) < share


# Statements that hold or do not.
TRUTHS: dict[str, Callable[[Given], bool]] = {
    "cache-precision/weights-apart": lambda g: False,
    "prefill-and-decode/mostly-decode": lambda g: g["output"] > g["prompt"],
    "chunked-prefill/same-in-all": lambda g: False,
    "decode-step/twice-the-batch": lambda g: about(
        step_seconds(g, g["bigger"]) / step_seconds(g), g["bigger"] / g["batch"]
    ),
    "intensity/decode-waits": lambda g: of_ridge(g) < 1,
    "intensity/prefill-waits": lambda g: of_ridge(g) > 1,
    "throughput/for-free": lambda g: about(rate(g) / rate(g, 1), g["batch"], 0.1),
    "levers/substitute": lambda g: about(ratio_of_lengths(g), g["longer"] / g["tokens"]),
    "levers/multiply-or-not": lambda g: ratio_of_ranks(g) * g["tp"] == g["more"],
    "misconceptions/fp8-weights": lambda g: False,
    "misconceptions/fp8-weights-alone": lambda g: True,
    "misconceptions/tp-halves": lambda g: ratio_of_ranks(g) * g["tp"] == g["more"],
    "misconceptions/latent-heads": lambda g: less_than_mha(g) == 1,
    "misconceptions/twice-as-long": lambda g: about(ratio_of_lengths(g), g["longer"] / g["tokens"]),
    "misconceptions/shorter-max-len": lambda g: about(longest_ratio(g), g["length"] / g["shorter"]),
    "misconceptions/same-tokens": lambda g: about(longest_ratio(g), 1),
    "misconceptions/step-grows": lambda g: about(
        step_seconds(g, g["bigger"]) / step_seconds(g), g["bigger"] / g["batch"]
    ),
    "misconceptions/faster-gpu": lambda g: about(
        bandwidth(g["other_gpu"]) / bandwidth(g["gpu"]), peak(g["other_gpu"]) / peak(g["gpu"])
    ),
    "misconceptions/decode-claims-most": lambda g: g["output"] > g["prompt"],
    "misconceptions/chunks-save": lambda g: False,
    "misconceptions/chunks-same": lambda g: True,
    "misconceptions/reads-everything": lambda g: weights(g["model"]).read / weights(g["model"]).total > 0.5,
    "misconceptions/memory-bound": lambda g: of_ridge(g) > 1,
    "engines/longest-does-not-count": lambda g: about(longest_ratio(g), g["length"] / g["shorter"]),
}
# Choices between texts: words that only the right one has.
WORDS = {
    "first-numbers/what-8-bit-shows": "in proportion to the bytes of a value",
    "first-numbers/why-grouped": "one key and one value for each KV head",
    "levers/drafts-and-batch": "the two substitute",
}
# Choices between figures: what each is worth, in the order of the deck; the least is right.
OPTIONS: dict[str, Callable[[Given], list[Any]]] = {
    "bytes-per-token/cheapest": lambda g: [
        geometry(g[name]).token("bfloat16") for name in ("model", "second", "third")
    ],
    "levers/strongest": left_by_each,
}
