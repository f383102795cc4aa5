"""What a log of llama.cpp says, started by llama-server, Ollama or another program.

A context is made for every model, and once without memory where parameters are fitted: such a dry run's
caches are of 0.00 MiB, and are left out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from kvplan.engines.command import read_command
from kvplan.errors import KvplanError
from kvplan.observe.failing import failure_of
from kvplan.observe.forms import Said
from kvplan.observe.llama_cpp_metadata import metadata_of
from kvplan.observe.names import gpu_key
from kvplan.observe.observed import Observed, Pool
from kvplan.observe.settings import Sorted
from kvplan.observe.startup import Hit, StartUp

_PHASES = {
    "model": "loading the weights",
    "model_bytes": "loading the weights",
    "context_key": "making the context",
    "cache_bytes": "making the context",
    "compute_bytes": "warming up",
}
_DEVICE = re.compile(r"(?:CUDA|ROCm|Vulkan|SYCL|MUSA|CANN|HTP|MTL|OpenCL|GPUOpenCL|RPC)\d+")
_CONTEXT = {"n_seq_max": "parallel", "n_ctx": "ctx_size", "n_batch": "batch_size", "n_ubatch": "ubatch_size"}


@dataclass(slots=True)
class _Context:
    """The lines of one llama_context."""

    hits: list[Hit] = field(default_factory=list)

    def says(self, key: str) -> str:
        """A parameter as printed, or nothing."""
        found = [h.values["context_value"] for h in self.hits if h.values.get("context_key") == key]
        return str(found[-1]) if found else ""

    def sum_of(self, name: str) -> Said | None:
        """A size summed over devices and caches."""
        found = [v for h in self.hits if isinstance(v := h.values.get(name), Said)]
        return Said(sum(v.value for v in found), sum(v.half for v in found)) if found else None

    @property
    def dry(self) -> bool:
        """Whether nothing was allocated for its caches."""
        sizes = [
            v for h in self.hits for n in ("kv_buffer_bytes", "rs_buffer_bytes", "kv_device_bytes")
            if isinstance(v := h.values.get(n), Said)
        ]  # fmt: skip
        return bool(sizes) and not any(v.value for v in sizes)


def observed(startup: StartUp) -> Observed:
    """The deployment and the figures of a load of llama.cpp."""
    contexts = [c for c in _contexts(startup) if not c.dry]
    main = contexts[0] if contexts else _Context()
    found, launcher, named = _settings(startup, main)
    build = startup.figure("build")
    ollama = startup.last("ollama_version")
    launcher = "ollama" if ollama or launcher == "ollama" or startup.texts("ollama_flash") else launcher
    return Observed(
        engine="llama.cpp",
        version=f"b{int(build.value)}" if build is not None and build.value > 0 else None,
        launcher=launcher,
        model=startup.last("model") or named,
        architecture=metadata_of(startup).get("general.architecture"),  # type: ignore[arg-type]
        split=_devices(startup),
        flags=found.flags,
        whole=bool(startup.texts("command")),
        figures=_figures(startup, contexts, main),
        pools=tuple(_pools(contexts)),
        metadata=metadata_of(startup),
        gpu=next((key for text in startup.texts("gpu_text") if (key := gpu_key(text))), None),
        drafting=startup.drafting or len(contexts) > 1,
        failure=failure_of(startup, _PHASES),
        notes=tuple(_notes(startup, contexts, ollama)),
    )


def _devices(startup: StartUp) -> dict[str, int]:
    """How many devices hold a part of the model, where there are several."""
    names = {str(hit.values.get("device", "")) for hit in startup.of("model_bytes", "kv_buffer_bytes")}
    count = sum(1 for name in names if _DEVICE.fullmatch(name))
    return {"tp": count} if count > 1 else {}


def _contexts(startup: StartUp) -> list[_Context]:
    """The contexts of the last model loaded, each begun by its first parameter."""
    loads = [i for i, hit in enumerate(startup.hits) if "model" in hit.values]
    found: list[_Context] = []
    for hit in startup.hits[loads[-1] if loads and not startup.drafting else 0 :]:
        if hit.form.about != "context":
            continue
        first = hit.values.get("context_key") in ("n_seq_max", "n_ctx")
        seen = {h.values.get("context_key") for h in found[-1].hits} if found else set()
        if not found or (first and ("n_ctx" in seen or hit.values.get("context_key") in seen)):
            found.append(_Context())
        found[-1].hits.append(hit)
    return found


def _settings(startup: StartUp, main: _Context) -> tuple[Sorted, str | None, str | None]:
    """Flags of the command that Ollama prints, then what the context made of them."""
    found, launcher, named = Sorted(), None, None
    if startup.last("command"):
        launcher, named = _command(found, startup.last("command"))
    for key, flag in _CONTEXT.items():
        if main.says(key).isdigit():
            found.flags[flag] = int(main.says(key))
    if main.says("kv_unified") in ("true", "false"):
        found.flags["kv_unified"] = main.says("kv_unified") == "true"
    flash = startup.last("flash_decided") or main.says("flash_attn")
    if flash:
        found.flags["flash_attn"] = "off" if flash in ("0", "disabled", "off") else "on"
    for name in ("type_k", "type_v"):
        kept = next((str(h.values[name]) for h in main.hits if name in h.values), "")
        if kept:
            found.flags[f"cache_{name}"] = kept
    if "cache_type_k" in found.flags and any("cache_bytes" in h.values for h in main.hits):
        found.flags.setdefault("cache_type_v", found.flags["cache_type_k"])  # latents: no values are stored
    if startup.texts("swa_full"):
        found.flags["swa_full"] = True
    layers = startup.figure("gpu_layers")
    if layers is not None:
        found.flags["n_gpu_layers"] = int(layers.value)
    _ollama(startup, found)
    return found, launcher, named


def _command(found: Sorted, text: str) -> tuple[str | None, str | None]:
    try:
        read = read_command(
            text.replace("\\\\", "/").replace('\\"', '"').replace("ollama_llama_server", "llama-server")
        )
    except KvplanError:
        return ("ollama" if "ollama" in text else None), None
    found.take("llama.cpp", read.flags)
    return ("ollama" if "ollama" in text else None), read.model


def _ollama(startup: StartUp, found: Sorted) -> None:
    """Ollama's own engine prints what it was asked to load."""
    slots, cells = startup.figure("ollama_parallel"), startup.figure("ollama_kv_size")
    if slots is None or cells is None or slots.value < 1:
        return
    found.flags |= {"parallel": int(slots.value), "ctx_size": int(cells.value)}
    batch = startup.figure("ollama_batch")
    if batch is not None:
        found.flags |= {"batch_size": int(batch.value), "ubatch_size": int(batch.value)}
    kind = startup.last("ollama_cache_type")
    if kind and kind != "yes":
        found.flags |= {"cache_type_k": kind, "cache_type_v": kind}
    found.flags["flash_attn"] = "on" if startup.last("ollama_flash").lower() in ("enabled", "true") else "off"


def _figures(startup: StartUp, contexts: list[_Context], main: _Context) -> dict[str, Said]:
    found: dict[str, Said] = {}
    for name in ("cache_bytes", "k_bytes", "v_bytes", "state_bytes", "kv_device_bytes"):
        parts = [said for c in contexts if (said := c.sum_of(name)) is not None]
        if parts:
            found[name] = Said(sum(p.value for p in parts), sum(p.half for p in parts))
    for name in ("output_bytes",):
        said = main.sum_of(name)
        if said is not None:
            found[name] = said
    for name in ("compute_bytes", "kv_buffer_bytes", "rs_buffer_bytes"):
        found |= {f"{name} {device}": said for device, said in _last_of_each(main, name).items()}
    weights = {str(h.values["device"]): h.values["model_bytes"] for h in startup.of("model_bytes")}
    for device, size in weights.items():
        if isinstance(size, Said):
            found[f"model_bytes {device}"] = size
    for key in ("n_ctx", "n_ctx_seq", "n_seq_max", "n_ubatch"):
        text = main.says(key) or (main.says("n_ctx_per_seq") if key == "n_ctx_seq" else "")
        if text.isdigit():
            found[key] = Said(int(text))
    for name in ("free_before_bytes", "device_bytes", "all_layers", "projected_bytes", "projected_free_bytes",
                 "estimated_bytes", "estimated_kv_bytes", "n_ctx_slot", "mtp_context_bytes"):  # fmt: skip
        said = startup.figure(name)
        if said is not None:
            found[name] = said
    return found


def _last_of_each(context: _Context, name: str) -> dict[str, Said]:
    """What was stated last for each device: a buffer is reserved again where the first try fails."""
    found: dict[str, Said] = {}
    for hit in context.hits:
        value = hit.values.get(name)
        if isinstance(value, Said):
            found[str(hit.values.get("device", ""))] = value
    return found


def _pools(contexts: list[_Context]) -> list[Pool]:
    """The caches in order; the ones before the last context are the model's own, later ones a drafter's."""
    found = []
    for number, context in enumerate(contexts):
        named: list[str] = []
        compressors = 0
        for hit in context.hits:
            if "cache_name" in hit.values:
                named.append("base" if str(hit.values["cache_name"]).startswith("non") else "swa")
            if "compressor" in hit.values:
                compressors += 1
            if "cache_bytes" in hit.values or "state_bytes" in hit.values:
                kind = "state" if "state_bytes" in hit.values else named.pop(0) if named else "kv"
                sizes: dict[str, Any] = {n: v for n, v in hit.values.items() if isinstance(v, Said)}
                kinds: dict[str, str] = {n: str(v) for n, v in hit.values.items() if n.startswith("type_")}
                found.append(Pool(kind if number == 0 else f"draft {kind}", sizes, kinds))
    return found


def _notes(startup: StartUp, contexts: list[_Context], ollama: str) -> list[str]:
    notes = []
    if len(_contexts(startup)) > len(contexts):
        notes.append("a dry run's contexts, whose caches have 0.00 MiB, are left out")
    if ollama:
        notes.append(f"started by Ollama {ollama}, which carries its own llama.cpp")
    return notes
