"""`measure`: rates of this machine and a real model on it, timed, each beside what kvplan says of it."""

from __future__ import annotations

import datetime
import platform as system
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kvplan.cost.weights import weight_bytes
from kvplan.errors import BadInput, shown
from kvplan.facts.reached import Reached
from kvplan.figure import Leaf, Source, Trust, bare, value_of
from kvplan.measured import model_run, rates
from kvplan.measured.arrays import DTYPES, Arrays, arrays_of, device_words, memory_of
from kvplan.measured.clock import Timer, timer
from kvplan.measured.machine import accelerator_of, from_machine
from kvplan.model.locate import load_model
from kvplan.model.model import Model
from kvplan.units import bytes_text, parse_bytes
from kvplan.verbs import measured_model as rows_of
from kvplan.verbs.answer import Answer
from kvplan.verbs.check import whole

Tell = Callable[[str], None]
_MOST = {"batch": 4096, "context": 1 << 20, "prompt_tokens": 1 << 20, "m": 1 << 16}
_DEFAULTS = {
    "batch": (1, 2, 4, 8, 16),
    "context": (128, 256, 512, 1024),
    "prompt_tokens": (64, 128, 256, 512, 1024),
    "m": rates.ROWS,
}
_MOST_SIZE = 2**40
_MORE = 3  # how many times the weights a run may need beside its caches


@dataclass(frozen=True, slots=True)
class _Machine:
    """What was timed without a model, and what it was timed with."""

    arrays: Arrays
    clock: Timer
    document: dict[str, Any]


def measure(
    *,
    model: str | None = None,
    layers: int | None = None,
    dtype: str | None = None,
    device: str | None = None,
    threads: int | None = None,
    dtypes: str | Sequence[str] | None = None,
    size: str | int | Sequence[int] | None = None,
    m: str | Sequence[int] | None = None,
    batch: str | Sequence[int] | None = None,
    context: str | Sequence[int] | None = None,
    prompt_tokens: str | Sequence[int] | None = None,
    rounds: int = 3,
    steps: int = 5,
    report: Tell | None = None,
) -> Answer:
    """Time this machine: reading, copying and adding memory, products in each number format; and a model.

    `device` is cpu or cuda (the GPU where torch sees one), `threads` those of torch on the CPU, `size` the
    arrays' bytes ("64MiB,256MiB"), `m` the rows of products in `dtypes`. `model` is a config (a built-in id,
    a file) that is run with random weights, of its first `layers`, or a folder with its own weights, in
    `dtype`: bytes of its cache, prompts of `prompt_tokens`, decode steps at every `batch` and `context`, the
    shortest of `rounds` × `steps`. Half of the points calibrate the estimate that the others are compared
    with. Returns a document that, kept in a file, is an accelerator: `--gpu FILE.json`. Needs torch and
    transformers (kvplan[measure]) for a model; without torch numpy times what it can. Raises BadInput.
    """
    tell = report or (lambda _: None)
    asked = {"batch": batch, "context": context, "prompt_tokens": prompt_tokens, "m": m}
    grid = {name: _counts(name, value) for name, value in asked.items()}
    limits = {"rounds": whole("--rounds", rounds, 1, 1000), "steps": whole("--steps", steps, 1, 1000)}
    if threads is not None:
        whole("--threads", threads, 1, 4096)
    run = None if model is None else _asked_model(model, layers, dtype)
    if run is not None:
        _check_lengths(run.model, grid, limits["steps"])
    if model is None and layers is not None:
        raise BadInput("--layers: shortens a model; give --model too")
    arrays = arrays_of(device, threads)
    _check_memory(arrays, run)
    found = _machine(arrays, _sizes(size), grid["m"], _dtypes(dtypes, arrays, run), rounds, tell)
    document = found.document
    if run is not None:
        document |= _model_part(run, found, grid, limits, tell)
        document["machine"]["bytes_per_second"] = document.pop("bytes_per_second")
    return Answer(lambda leaf: _sourced(document, leaf))


def _sourced(document: dict[str, Any], leaf: Leaf) -> dict[str, Any]:
    """The document with its rates as measured figures."""
    if leaf is bare:
        return document
    machine = dict(document["machine"])
    source = Source(Trust.MEASURED, f"measured {machine['date']} on {machine['name']}, {machine['library']}")
    machine["bytes_per_second"] = leaf("bytes_per_second", machine["bytes_per_second"], "B/s", source)
    machine["peak_flops_per_second"] = {
        name: leaf(name, value, "FLOP/s", source) for name, value in machine["peak_flops_per_second"].items()
    }
    return {**document, "machine": machine}


@dataclass(frozen=True, slots=True)
class _Run:
    """A model that is to be run: as kvplan reads it, and as transformers does."""

    model: Model
    config: dict[str, Any]
    folder: str | None
    dtype: str


def _asked_model(name: str, layers: int | None, dtype: str | None) -> _Run:
    """The model of that name in that dtype, its config cut to its first layers."""
    kept: dict[str, Any] = {}

    def cut(raw: dict[str, Any]) -> dict[str, Any]:
        kept.update(shortened(raw, layers))
        return dict(kept)

    if not isinstance(name, str):
        raise BadInput(f"--model: {shown(name)} is not a name")
    loaded = load_model(name, ("--layers", cut))
    folder = Path(name).expanduser()
    own = folder.is_dir() and any(folder.glob("*.safetensors"))
    if own and layers is not None:
        raise BadInput("--layers: a folder's own weights are run whole; give its config.json to cut it")
    chosen = dtype or loaded.dtype or "bfloat16"
    if chosen not in DTYPES:
        raise BadInput(f"--dtype: {shown(chosen)} cannot be run here; use one of {', '.join(DTYPES)}")
    model_dtype = {"torch_dtype": chosen, "dtype": chosen}
    plain = load_model({**kept, **model_dtype, "quantization_config": None}) if not own else loaded
    return _Run(replace(plain, id=loaded.id), kept, str(folder) if own else None, chosen)


def shortened(raw: dict[str, Any], layers: int | None) -> dict[str, Any]:
    """The config with its first `layers`; lists with an entry a layer are cut too."""
    if layers is None:
        return dict(raw)
    if isinstance(raw.get("text_config"), dict):
        return {**raw, "text_config": shortened(raw["text_config"], layers)}
    name = next((n for n in ("num_hidden_layers", "n_layer", "num_layers") if n in raw), None)
    if name is None or isinstance(raw[name], bool) or not isinstance(raw[name], int):
        raise BadInput("--layers: the config does not say how many layers it has; leave it out")
    whole("--layers", layers, 1, raw[name])
    return {
        key: value[:layers] if isinstance(value, list) and len(value) == raw[name] > 1 else value
        for key, value in raw.items()
    } | {name: layers}


def _counts(name: str, given: str | Sequence[int] | None) -> tuple[int, ...]:
    """Whole numbers, ascending, of a list such as 1,2,4."""
    if given is None or given == "":
        return _DEFAULTS[name]
    flag = f"--{name.replace('_', '-')}"
    words: Sequence[Any] = given.split(",") if isinstance(given, str) else given
    found = set()
    for word in words:
        text = word.strip() if isinstance(word, str) else word
        number = int(text) if isinstance(text, str) and text.isascii() and text.isdigit() else text
        found.add(whole(flag, number, 1, _MOST[name]))
    if not 1 <= len(found) <= 64:
        raise BadInput(f"{flag}: {len(found)} values; give 1 to 64, such as 1,4,16")
    return tuple(sorted(found))


def _sizes(given: str | int | Sequence[int] | None) -> tuple[int, ...]:
    if given is None or given == "":
        return rates.SIZES
    words: Sequence[Any] = given.split(",") if isinstance(given, str) else [given]
    if not isinstance(given, (str, int)):
        words = list(given)
    found = [parse_bytes(word, "--size") if isinstance(word, str) else word for word in words]
    return tuple(sorted({whole("--size", one, 4, _MOST_SIZE) for one in found}))


def _dtypes(given: str | Sequence[str] | None, arrays: Arrays, run: _Run | None) -> tuple[str, ...]:
    """Number formats of products: those asked for, that of the model always among them."""
    words = [w.strip() for w in given.split(",")] if isinstance(given, str) and given else given
    for word in words or ():
        if word not in DTYPES:
            raise BadInput(f"--dtypes: {shown(word)} is not known; use some of {', '.join(DTYPES)}")
        if word not in arrays.dtypes:
            raise BadInput(f"--dtypes: {arrays.library} has no products in {word}; install torch")
    default: list[str] = [name for name in ("float32", "bfloat16") if name in arrays.dtypes]
    if arrays.platform == "cuda":
        default = list(arrays.dtypes)
    found = list(words or default)
    if run is not None and run.dtype not in found:
        found.append(run.dtype)
    return tuple(dict.fromkeys(found))


def _check_memory(arrays: Arrays, run: _Run | None) -> None:
    """Refuse a model that the device cannot hold, before anything is timed."""
    if run is None:
        return
    model_run.libraries()
    needed, free = int(value_of(weight_bytes(run.model, bare)) or 0), memory_of(arrays)[1]
    if free is not None and _MORE * needed > free:
        raise BadInput(
            f"--model: {bytes_text(needed)} of weights, and {bytes_text(free)} of memory are free; "
            "give fewer --layers"
        )


def _check_lengths(model: Model, grid: dict[str, tuple[int, ...]], steps: int) -> None:
    """Refuse sequences that are longer than the model takes."""
    most = model.max_context
    for name, more in (("context", steps + 1), ("prompt_tokens", 0)):
        if most is not None and grid[name][-1] + more > most:
            flag = f"--{name.replace('_', '-')}"
            raise BadInput(
                f"{flag}: {grid[name][-1]:,} is beyond the {most:,} tokens of {model.id}; give less"
            )


def _machine(
    arrays: Arrays, sizes: Sequence[int], m: Sequence[int], dtypes: Sequence[str], repeats: int, tell: Tell
) -> _Machine:
    """Rates of memory and of products."""
    clock = timer(arrays.threads if _is_torch(arrays) else 0, arrays.wait)
    tell(f"{device_words(arrays)}, {arrays.library}")
    memory = rates.bandwidth(arrays, clock, sizes, 2 + repeats)
    tell("memory timed")
    made = rates.products(arrays, clock, dtypes, m, repeats=repeats)
    tell(f"products in {', '.join(dtypes)} timed")
    rate, whole_memory = rates.best_bandwidth(memory), memory_of(arrays)[0]
    notes = (
        [] if "torch" in arrays.library else ["torch is not installed: numpy times memory and float32 alone"]
    )
    document = {
        "machine": {
            "name": device_words(arrays),
            "platform": arrays.platform,
            "date": datetime.date.today().isoformat(),
            "library": arrays.library,
            "architecture": system.machine(),
            "threads": arrays.threads if arrays.platform == "cpu" else None,
            "timed": clock.says,
            "memory_bytes": whole_memory,
            "bytes_per_second": rate,
            "peak_flops_per_second": rates.peaks(made),
            "source": f"measured {datetime.date.today().isoformat()}",
        },
        "memory": memory,
        "products": made,
        "from_machine": from_machine(made, rate, dtypes[-1], arrays.platform),
        "calibration": None,
        "model": None,
        "cache": [],
        "prefill": [],
        "decode": [],
        "verdict": None,
        "notes": notes,
    }
    return _Machine(arrays, clock, document)


def _is_torch(arrays: Arrays) -> bool:
    return arrays.library.startswith("torch ")


def _model_part(
    run: _Run, machine: _Machine, grid: dict[str, tuple[int, ...]], limits: dict[str, int], tell: Tell
) -> dict[str, Any]:
    """What a model did beside what was predicted, and the calibration."""
    asked = model_run.Asked(
        run.config, run.folder, run.dtype, machine.arrays.platform, grid["batch"], grid["context"],
        grid["prompt_tokens"], limits["rounds"], limits["steps"],
    )  # fmt: skip
    ran = model_run.run(asked, machine.clock, tell)
    rate = _again(machine)
    document = {**machine.document, "machine": {**machine.document["machine"], "bytes_per_second": rate}}
    base = from_machine(document["products"], rate, run.dtype, machine.arrays.platform)
    accelerator = accelerator_of({**document, "from_machine": base})
    start = accelerator.reached
    if start is None:
        raise BadInput("--model: the machine has no rates")
    prompts, steps = rows_of.marked(ran)

    def clock_of(reached: Reached) -> Any:
        return rows_of.clock_with(run.model, run.dtype, accelerator, reached)

    values = rows_of.fit(clock_of, start, [*prompts, *steps])
    words = f"transformers {ran.version}, {run.model.id}, {len(run.model.layers)} layers in {run.dtype}"
    reached = replace(rows_of.with_values(start, values), source=Source(Trust.MEASURED, words), words=words)
    before, after = clock_of(start), clock_of(reached)
    prompts, steps = (rows_of.beside(rows, before, after) for rows in (prompts, steps))
    caches = rows_of.cache_rows(run.model, run.dtype, ran)
    return {
        "bytes_per_second": rate,
        "from_machine": base,
        "calibration": {
            **reached.shares(),
            "overlap": reached.overlap,
            "dtype": run.dtype,
            "rows": base["rows"],
            "words": words,
            "spreads": rows_of.spreads_of(prompts, steps),
        },
        "model": {
            "id": run.model.id,
            "layers": len(run.model.layers),
            "dtype": run.dtype,
            "weight_bytes": int(value_of(weight_bytes(run.model, bare)) or 0),
            "transformers": ran.version,
            "weights": "its own" if run.folder else "random",
        },
        "cache": caches,
        "prefill": prompts,
        "decode": steps,
        "verdict": {
            "cache_agrees": all(row["agrees"] for row in caches),
            "decode": rows_of.verdict(steps),
            "prefill": rows_of.verdict(prompts),
        },
    }


def _again(machine: _Machine) -> float:
    """The best bandwidth of before and after the model ran: a floor takes the machine at its best."""
    document = machine.document
    largest = max(row["bytes"] for row in document["memory"])
    later = rates.bandwidth(machine.arrays, machine.clock, [largest])
    return max(float(document["machine"]["bytes_per_second"]), rates.best_bandwidth(later))
