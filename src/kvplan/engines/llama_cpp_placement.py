"""Where llama.cpp puts a model: weights, caches and buffers by device, and how much of it fits.

Layers are laid out from the end (`-ngl`), experts may stay on the host (`--n-cpu-moe`), several devices share
the layers by their free memory. Sizes of weights and caches are exact for a GGUF file; the compute buffer
is an interval, because it has no closed form. Sources: src/llama-model.cpp load_tensors, common/fit.cpp,
llama.cpp 0c1e57098.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvplan.cost.weights import dtype_of
from kvplan.engines.engine import Setup
from kvplan.engines.llama_cpp import cache_bytes
from kvplan.engines.llama_cpp_compute import Interval, compute_bytes
from kvplan.engines.llama_cpp_memory import Cache, caches_of, states_of
from kvplan.engines.llama_cpp_settings import FACTS, Context, Flags, option, read_context, rule
from kvplan.errors import BadInput
from kvplan.facts import store
from kvplan.figure import bare
from kvplan.model.model import Model, Weight
from kvplan.model.quantization import quantization_of

HOST = "host"
LOGIT_BYTES = 4


@dataclass(frozen=True, slots=True)
class Weights:
    """Bytes of a model's weights as llama.cpp places them; `layers` and `experts` by layer number.

    `tied`: the output is the input's matrix again, which a device with the output layer holds a second time.
    """

    input: int
    output: int
    layers: tuple[int, ...]
    experts: tuple[int, ...]
    tied: bool


@dataclass(frozen=True, slots=True)
class Placed:
    """What one device (or the host) holds, in bytes; the compute buffer between `low` and `high`."""

    device: str
    layers: int
    weight_bytes: int
    cache_bytes: int
    output_bytes: int
    compute: Interval

    @property
    def low_bytes(self) -> int:
        """Everything, the compute buffer at its least."""
        return self.weight_bytes + self.cache_bytes + self.output_bytes + self.compute.low

    @property
    def high_bytes(self) -> int:
        """Everything, the compute buffer at its most."""
        return self.weight_bytes + self.cache_bytes + self.output_bytes + self.compute.high


@dataclass(frozen=True, slots=True)
class Largest:
    """The most that fits: `surely` with the compute buffer at its most, `at_best` with it at its least."""

    flag: str
    surely: int | None
    at_best: int | None


def output_bytes(model: Model, n_seq_max: int) -> int:
    """Logits of one token of each sequence, float32, on the host (src/llama-context.cpp output_reserve)."""
    return LOGIT_BYTES * model.vocab * n_seq_max


def placement(model: Model, setup: Setup, free_bytes: Sequence[int]) -> list[Placed]:
    """What each device of `free_bytes` bytes holds, the host last. Without devices all is the host's."""
    flags = Flags(setup)
    ctx = read_context(model, setup, bare)
    weights = weights_of(model)
    devices = device_of_layers(model, flags, ctx, free_bytes)
    on_host = _experts_on_host(flags, len(model.layers))
    held = [0] * (len(free_bytes) + 1)
    host = len(free_bytes)
    held[host] += weights.input
    for i, (rest, experts) in enumerate(zip(weights.layers, weights.experts, strict=True)):
        held[devices[i]] += rest
        held[host if i in on_host else devices[i]] += experts
    held[devices[-1]] += weights.output
    if weights.tied and devices[-1] != host:
        held[devices[-1]] += weights.input
    cached = [0] * (host + 1)
    for i, size in layer_cache_bytes(model, ctx).items():
        where = devices[min(i, len(devices) - 1)]
        cached[host if flags.yes("no_kv_offload") else where] += size
    moved = [max((weights.experts[i] for i in on_host if devices[i] == d), default=0) for d in range(host)]
    split = len({d for d in devices if d != host}) > 1 and devices[0] != host and not on_host
    return [
        Placed(
            device=HOST if d == host else f"device {d}",
            layers=sum(1 for where in devices if where == d),
            weight_bytes=held[d],
            cache_bytes=cached[d],
            output_bytes=output_bytes(model, int(ctx.n_seq_max)) if d == host else 0,
            compute=compute_bytes(
                model,
                ctx,
                used=d in devices,
                output=d == devices[-1],
                host=d == host,
                moved_bytes=0 if d == host else moved[d],
                pipelined=split,
            ),
        )
        for d in range(host + 1)
    ]


def device_of_layers(model: Model, flags: Flags, ctx: Context, free_bytes: Sequence[int]) -> list[int]:
    """The device of each layer and, last, of the output; `len(free_bytes)` is the host."""
    host, count = len(free_bytes), len(model.layers) + model.mtp_layers
    asked = flags.get("n_gpu_layers")
    if asked is None or str(asked).lower() in ("all", "auto", "-1"):
        on_devices = count + 1
    else:
        on_devices = min(flags.whole("n_gpu_layers", 0) or 0, count + 1)
    if not host:
        return [host] * (len(model.layers) + 1)
    start = max(count + bool(rule("output_layer", ctx.build)["value"]) - on_devices, 0)
    shares = _split(flags, free_bytes)
    numbers = [*range(len(model.layers)), count]
    found = []
    for i in numbers:
        if i < start or i - start >= on_devices:
            found.append(host)
        else:
            found.append(
                next((d for d, end in enumerate(shares) if (i - start) / on_devices < end), host - 1)
            )
    return found


def _split(flags: Flags, free_bytes: Sequence[int]) -> list[float]:
    """Where each device's layers end, as a share of them all: by --tensor-split, else by free memory."""
    given = flags.get("tensor_split")
    parts: Sequence[float] = [float(size) for size in free_bytes]
    if not any(parts):
        parts = [1.0] * len(free_bytes)  # nothing is free anywhere: it will not fit, however it is split
    if given is not None:
        words = re.split(r"[,/]", given) if isinstance(given, str) else list(given)
        try:
            parts = [float(word) for word in words] + [0.0] * (len(free_bytes) - len(words))
        except ValueError:
            raise BadInput(f"--tensor-split: {given!r}; expected numbers, as in 3,1") from None
    total = sum(parts[: len(free_bytes)])
    if not total > 0 or min(parts) < 0:
        raise BadInput(f"{option('tensor_split')}: no device has any share; give one number per device")
    ends, reached = [], 0.0
    for part in parts[: len(free_bytes)]:
        reached += part
        ends.append(reached / total)
    return ends


def _experts_on_host(flags: Flags, layers: int) -> set[int]:
    if flags.yes("cpu_moe"):
        return set(range(layers))
    return set(range(min(flags.whole("n_cpu_moe", 0) or 0, layers)))


def layer_cache_bytes(model: Model, ctx: Context) -> dict[int, int]:
    """Bytes of every layer's caches and states: they lie where the layer lies."""
    found: dict[int, int] = {}
    for cache in caches_of(model, ctx, bare):
        for entry in cache.layers:
            one: Cache = replace(cache, layers=(entry,))
            size = int(cache_bytes(one, "k", ctx, bare, model) + cache_bytes(one, "v", ctx, bare, model))
            found[entry[0]] = found.get(entry[0], 0) + size
    rows = int(ctx.n_seq_max) * (1 + ctx.n_rs_seq) * int(store.toml(FACTS)["state"]["value_bytes"])
    for state in states_of(model):
        found[state.layer] = found.get(state.layer, 0) + rows * (state.r + state.s)
    return found


def weights_of(model: Model) -> Weights:
    """Bytes of the weights by place: a GGUF file's own tensors, else the shapes at the model's formats.

    Raises BadInput where the model's scheme is not known, and with it what a GGUF of it would hold.
    """
    if model.tensors is not None and model.tensors.is_gguf:
        return _file_weights(model)
    q = quantization_of(model)
    if q is not None and q.unknown:
        raise BadInput(
            f"quantization_config: what a GGUF file of weights stored as {q.unknown} in {model.file} holds "
            f"is not known; give the .gguf file"
        )
    layers, experts = [], []
    for i, layer in enumerate(model.layers):
        layers.append(sum(_bytes(model, w, q, i) for w in layer.weights if w.part != "expert"))
        experts.append(sum(_bytes(model, w, q, i) for w in layer.weights if w.part == "expert"))
    outer = {w: _outer_bytes(model, w, q) for w in model.weights}
    first = sum(size for w, size in outer.items() if w.part in ("embedding", "position"))
    tied = not any(w.part == "head" for w in model.weights)
    return Weights(first, sum(outer.values()) - first, tuple(layers), tuple(experts), tied)


def _bytes(model: Model, weight: Weight, q: Any, layer: int) -> int:
    return _stored(model, weight, q.scheme_for(weight, layer) if q else None)


def _outer_bytes(model: Model, weight: Weight, q: Any) -> int:
    return _stored(model, weight, q.outer_scheme(weight) if q else None)


def _stored(model: Model, weight: Weight, scheme: Any) -> int:
    plain = dtype_of(model).block_bytes
    if scheme is None:
        return weight.parameters * plain
    values = weight.copies * weight.outputs * weight.inputs
    scales = weight.copies * int(scheme.scale_bytes(weight.outputs, weight.inputs))
    return (
        values * int(scheme.value_bits) // 8 + scales + weight.copies * weight.outputs * weight.bias * plain
    )


def _file_weights(model: Model) -> Weights:
    names = store.toml(FACTS)["tensors"]
    first, experts = re.compile(names["input"]), re.compile(names["experts"])
    block = re.compile(r"^blk\.(\d+)\.")
    layers, expert = [0] * len(model.layers), [0] * len(model.layers)
    inputs = outputs = 0
    tensors = model.tensors.tensors if model.tensors else ()
    for tensor in tensors:
        found = block.match(tensor.name)
        if found and int(found[1]) < len(layers):
            target = expert if experts.search(tensor.name) else layers
            target[int(found[1])] += tensor.bytes
        elif not found and first.match(tensor.name):
            inputs += tensor.bytes
        elif not found:
            outputs += tensor.bytes
    tied = not any(tensor.name == "output.weight" for tensor in tensors)
    return Weights(inputs, outputs, tuple(layers), tuple(expert), tied)


def margin_bytes(setup: Setup) -> int:
    """What --fit leaves free on every device, in bytes."""
    given = Flags(setup).whole("fit_target", 0)
    return given * 2**20 if given is not None else int(store.toml(FACTS)["fitting"]["target_bytes"])


def largest_offload(model: Model, setup: Setup, free_bytes: Sequence[int]) -> Largest:
    """How many layers may go to the devices with a margin left: the largest -ngl, or None if not even 0 fits.

    A model of experts keeps its layers there and moves experts to the host instead: the smallest --n-cpu-moe.
    """
    moe = any(weights_of(model).experts)
    count = len(model.layers) + model.mtp_layers + 1
    if moe and _fits(model, _with(setup, "n_cpu_moe", len(model.layers)), free_bytes, "low_bytes"):
        ends = [_first(model, setup, free_bytes, end) for end in ("high_bytes", "low_bytes")]
        return Largest("n_cpu_moe", ends[0], ends[1])
    ends = [
        next(
            (
                n
                for n in range(count, -1, -1)
                if _fits(model, _with(setup, "n_gpu_layers", n), free_bytes, end)
            ),
            None,
        )
        for end in ("high_bytes", "low_bytes")
    ]
    return Largest("n_gpu_layers", ends[0], ends[1])


def _first(model: Model, setup: Setup, free_bytes: Sequence[int], end: str) -> int | None:
    tried = range(len(model.layers) + 1)
    return next((n for n in tried if _fits(model, _with(setup, "n_cpu_moe", n), free_bytes, end)), None)


def _with(setup: Setup, flag: str, value: int) -> Setup:
    return replace(setup, flags={**setup.flags, flag: value})


def _fits(model: Model, setup: Setup, free_bytes: Sequence[int], end: str) -> bool:
    margin = margin_bytes(setup)
    placed = placement(model, setup, free_bytes)
    return all(getattr(p, end) + margin <= free for p, free in zip(placed, free_bytes, strict=False))
