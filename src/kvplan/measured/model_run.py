"""A real model of transformers on this machine: bytes of its caches, times of prompts and decode steps."""

from __future__ import annotations

import copy
import functools
import importlib
import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kvplan.errors import BadInput, shown
from kvplan.measured.clock import Timer, shortest

_PIECE = 512  # tokens of a prompt that are computed at once where only its cache is wanted
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Asked:
    """What is run: a config with random weights or a folder's own, in which dtype, over which grid."""

    config: dict[str, Any]
    folder: str | None
    dtype: str
    device: str
    batches: Sequence[int]
    contexts: Sequence[int]
    prompts: Sequence[int]
    rounds: int
    steps: int


@dataclass(frozen=True, slots=True)
class Ran:
    """What came out: rows of plain numbers, and the library's version."""

    version: str
    cache: list[dict[str, Any]]
    prefill: list[dict[str, Any]]
    decode: list[dict[str, Any]]


def libraries() -> tuple[Any, Any]:
    """(torch, transformers); raises BadInput where one is missing."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # a local folder or a config: nothing is fetched
    try:
        return importlib.import_module("torch"), importlib.import_module("transformers")
    except (ImportError, OSError):
        raise BadInput(
            "--model: runs a model in transformers, which is not installed; pip install 'kvplan[measure]'"
        ) from None


def run(asked: Asked, clock: Timer, tell: Tell) -> Ran:
    """Run the model over its grid. Raises BadInput where transformers cannot make or run it."""
    torch, transformers = libraries()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            model = _model(torch, transformers, asked)
            with torch.inference_mode():
                return _Runs(torch, transformers, model, asked, clock, tell).all()
        except MemoryError:
            raise BadInput(
                "--batch: no memory for that many sequences; give fewer, or fewer --layers"
            ) from None
        except (RuntimeError, ValueError, TypeError, KeyError, AttributeError, OSError, ImportError) as error:
            first = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
            raise BadInput(
                f"--model: transformers {transformers.__version__} cannot run it: {first}"
            ) from None


def _model(torch: Any, transformers: Any, asked: Asked) -> Any:
    torch.manual_seed(0)
    dtype = getattr(torch, asked.dtype)
    auto = transformers.AutoModelForCausalLM
    if asked.folder is not None:
        made = auto.from_pretrained(asked.folder, dtype=dtype, local_files_only=True)
    else:
        given = dict(asked.config)
        kind = given.pop("model_type", None)
        if not isinstance(kind, str):
            raise BadInput(f"--model: model_type {shown(kind)} names no model of transformers")
        for name in ("quantization_config", "architectures", "auto_map", "dtype", "torch_dtype"):
            given.pop(name, None)
        config = transformers.AutoConfig.for_model(kind, **given)
        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            made = auto.from_config(config, dtype=dtype)
        finally:
            torch.set_default_dtype(before)
    return made.to(asked.device).eval()


class _Runs:
    """One loaded model and what it is run with."""

    def __init__(
        self, torch: Any, transformers: Any, model: Any, asked: Asked, clock: Timer, tell: Tell
    ) -> None:
        self.torch, self.transformers, self.model = torch, transformers, model
        self.asked, self.clock, self.tell = asked, clock, tell
        self.words = int(model.config.get_text_config().vocab_size)

    def all(self) -> Ran:
        """Caches first, then prompts, then decode steps."""
        few, short = min(self.asked.batches), min(self.asked.contexts)
        shapes = [(b, short) for b in self.asked.batches] + [(few, n) for n in self.asked.contexts]
        cache = [self._held(b, n) for b, n in dict.fromkeys(shapes)]
        self.tell(f"caches after {len(cache)} prompts counted")
        prefill = [self._prompt(n) for n in self.asked.prompts]
        self.tell(f"{len(prefill)} prompts timed")
        decode = self._decode(cache)
        return Ran(str(self.transformers.__version__), cache, prefill, decode)

    def _ids(self, batch: int, tokens: int) -> Any:
        return self.torch.randint(3, self.words, (batch, tokens), device=self.asked.device)

    def _empty(self) -> Any:
        return self.transformers.DynamicCache(config=self.model.config)

    def _filled(self, batch: int, tokens: int) -> Any:
        """A cache of so many tokens: prompts in pieces."""
        cache = self._empty()
        for start in range(0, tokens, _PIECE):
            self._step(self._ids(batch, min(_PIECE, tokens - start)), cache)
        return cache

    def _repeated(self, one: Any, batch: int, tokens: int) -> Any:
        """The cache of one sequence for so many; a layer that cannot be repeated is computed for all."""
        if batch == 1:
            return copy.deepcopy(one)
        if not all(hasattr(layer, "batch_repeat_interleave") for layer in one.layers):
            return self._filled(batch, tokens)
        again = copy.deepcopy(one)
        again.batch_repeat_interleave(batch)
        return again

    def _step(self, ids: Any, cache: Any) -> None:
        self.model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)

    def _held(self, batch: int, tokens: int) -> dict[str, Any]:
        """Bytes of every tensor of a cache after a prompt of `tokens` for `batch` sequences."""
        counted = held(self._filled(batch, tokens), self.torch.Tensor)
        return {"batch": batch, "tokens": tokens, "prompt_tokens": tokens, **counted}

    def _prompt(self, tokens: int) -> dict[str, Any]:
        ids = self._ids(1, tokens)
        seconds = shortest(lambda: self._step(ids, self._empty()), self.clock, self.asked.rounds)
        return {"batch": 1, "prompt_tokens": tokens, "seconds": seconds}

    def _decode(self, counted: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Every cell once a round, so that a slow minute does not fall on one alone; the shortest counts.

        What caches hold after the steps of the first round is added to those `counted`.
        """
        best: dict[tuple[int, int], float] = {}
        for number in range(self.asked.rounds):
            for context in self.asked.contexts:
                one = self._filled(1, context)
                for batch in self.asked.batches:
                    cache = self._repeated(one, batch, context)
                    ids = self._ids(batch, 1)
                    self._step(ids, cache)
                    step = functools.partial(self._step, ids, cache)
                    times = [self.clock.seconds(step) for _ in range(self.asked.steps)]
                    key = (batch, context)
                    best[key] = min(best.get(key, float("inf")), *times)
                    if not number:
                        grown = {"batch": batch, "tokens": context + 1 + len(times), "prompt_tokens": context}
                        counted.append(grown | held(cache, self.torch.Tensor))
            self.tell(f"round {number + 1} of {self.asked.rounds}: {len(best)} decode steps timed")
        return [{"batch": b, "context": c, "seconds": s} for (b, c), s in sorted(best.items())]


def held(cache: Any, tensor: type) -> dict[str, int]:
    """Bytes of the tensors of all layers: keys and values, and states that do not grow."""
    kv = state = 0
    for layer in cache.layers:
        for name, value in vars(layer).items():
            if name.startswith("_sliding") or "position" in name:
                continue
            for one in _tensors(value, tensor):
                size = one.numel() * one.element_size()
                if "state" in name:
                    state += size
                else:
                    kv += size
    return {"kv_bytes": kv, "state_bytes": state}


def _tensors(value: Any, tensor: type) -> list[Any]:
    if isinstance(value, tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [x for one in value for x in _tensors(one, tensor)] if isinstance(value, (list, tuple)) else []
