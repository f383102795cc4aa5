"""Whole logs of llama.cpp and Ollama written around published figures, in the lines that they print."""

from __future__ import annotations

from typing import Any

from written_logs import GIB, MIB, Written

_RESTS_ON = {
    "mib": ("k_bytes", "v_bytes"),
    "cells": ("cells", "k_bytes", "v_bytes"),
    "layers": ("layers",),
    "streams": ("streams",),
}


class LlamaCppLog:
    """A load of a model and its context."""

    def __init__(self, row: dict[str, Any]) -> None:
        self.row, self.said, self.out = row, row["reported"], Written()

    def write(self) -> Written:
        row = self.row
        build = "".join(c for c in str(row.get("version") or "").split(" ")[0] if c.isdigit()) or "10809"
        self.build = int(build)
        self.out.add(f"build: {build} (5266f24da) with cc (Ubuntu 13.3.0) for x86_64-linux-gnu")
        name = str(row["model"]).replace(" ", "-").split("/")[-1]
        self._estimate()
        path = f"models/{name}.gguf"
        self.out.add(
            f"llama_model_loader: loaded meta data with 40 key-value pairs and 399 tensors from {path} "
            "(version GGUF V3 (latest))"
        )
        for number, (key, value) in enumerate((row.get("gguf") or {}).items()):
            self.out.add(
                f"llama_model_loader: - kv {number:3}: {key:>40} {_kind(value):<16} = {_text(value)}"
            )
        self._geometry()
        self._weights()
        self._context()
        self._caches()
        self._buffers()
        self._end()
        return self.out

    def _value(self, *keys: str, figure: str = "", scale: float = MIB) -> Any:
        name = next((k for k in keys if k in self.said and not isinstance(self.said[k], (dict, list))), None)
        if name is None:
            return None
        self.out.written.add(name)
        if figure:
            self.out.figures[figure] = self.said[name] * scale
        return self.said[name]

    def _estimate(self) -> None:
        """Ollama's line on what it thinks the model takes."""
        full = self._value(
            "mem_required_full_GiB", "a_mem_required_full_GiB", figure="estimated_bytes", scale=GIB
        )
        if full is None:
            self._value("layers_offload")
            return
        cache = self._value(
            "mem_required_kv_GiB", "a_mem_required_kv_GiB", figure="estimated_kv_bytes", scale=GIB
        )
        size = f"{cache or 1.0} GiB"
        small = self._value("mem_required_kv_MiB", figure="estimated_kv_bytes")
        size = size if small is None else f"{small} MiB"
        layers = str(self._value("layers_model") or 41)
        put = str(self._value("layers_offload", "a_layers_offload") or 0).split("/")[0]
        self.out.add(
            "time=2026-03-04T10:00:00.000Z level=INFO source=server.go:138 msg=offload library=cuda "
            f'layers.requested=-1 layers.model={layers} layers.offload={put} layers.split="" '
            'memory.available="[22.0 GiB]" '
            f'memory.gpu_overhead="0 B" memory.required.full="{full} GiB" memory.required.partial="20.0 GiB" '
            f'memory.required.kv="{size}" memory.required.allocations="[20.0 GiB]"'
        )

    def _geometry(self) -> None:
        for key in ("n_layer", "n_head", "n_head_kv", "n_embd_head_k", "n_embd_head_v", "n_swa"):
            value = self._value(key)
            if value is not None:
                self.out.add(f"print_info: {key:<16} = {value}")
        for key in ("block_count", "head_count_kv", "key_length", "full_attention_interval"):
            value = self._value(key)
            if value is not None:
                self.out.add(
                    f"llama_model_loader: - kv  90: qwen35.{'attention.' if '_' in key else ''}{key} u32 = "
                    f"{value}"
                )

    def _weights(self) -> None:
        offloaded = (
            self._value("offloaded") or (self.row.get("flags") or {})
            if isinstance(self.row.get("flags"), dict)
            else self._value("offloaded")
        )
        offloaded = offloaded.get("offloaded") if isinstance(offloaded, dict) else offloaded
        if offloaded:
            self.out.add(f"load_tensors: offloaded {offloaded} layers to GPU")
        for device, size in self._devices(
            "model_buffer_MiB_by_device_summed", "model_MiB", "model_repack_MiB"
        ):
            self._buffer("load_tensors", device, "model buffer size", size, "model_bytes")
        for key, device in (
            ("model_CPU_MiB", "CPU"), ("model_CUDA0_MiB", "CUDA0"), ("model_CPU_Mapped_MiB", "CPU_Mapped"),
            ("model_cpu_MiB", "CPU"), ("model_mapped_MiB", "CPU_Mapped"), ("model_repack_MiB", "CPU_REPACK"),
        ):  # fmt: skip
            size = self._value(key)
            if size is not None:
                self._buffer("load_tensors", device, "model buffer size", size, "model_bytes")

    def _devices(self, *keys: str) -> list[tuple[str, float]]:
        found = []
        for key in keys:
            value = self.said.get(key)
            if isinstance(value, dict):
                self.out.written.add(key)
                found += list(value.items())
            elif value is not None and key == "model_MiB":
                self.out.written.add(key)
                found.append(("CUDA0", value))
        return found

    def _buffer(self, who: str, device: str, what: str, size: float, figure: str) -> None:
        self.out.add(f"{who}: {device:>10} {what} = {size:8.2f} MiB")
        self.out.figures[f"{figure} {device}"] = size * MIB

    def _context(self) -> None:
        row = self.row
        flags = row["flags"] if isinstance(row.get("flags"), dict) else {}
        slots = flags.get("parallel", row.get("n_parallel")) or 4
        unified = flags.get("kv_unified", not flags.get("parallel", row.get("n_parallel")))
        streams = 1 if unified else slots
        asked = flags.get("ctx_size", row.get("context_len")) or 4096
        padded = -(-(asked // streams) // 256) * 256 if self.build >= 6700 else asked // streams
        own = self.said.get("n_ctx_seq") or padded
        given = {
            "n_seq_max": slots,
            "n_ctx": own * streams,
            "n_batch": flags.get("batch_size", row.get("n_batch")) or 2048,
            "n_ubatch": flags.get("ubatch_size", row.get("n_ubatch")) or 512,
            "flash_attn": {"on": "enabled", "1": "enabled", "0": "disabled", "off": "disabled"}.get(
                str(flags.get("flash_attn", "")), "auto"
            ),
        }
        for key, value in given.items():
            self.out.add(f"llama_context: {key:<13} = {value}")
            if key == "n_ctx":
                self.out.written.add("n_ctx_seq")
                self.out.add(f"llama_context: n_ctx_seq     = {own}")
        self.out.add(f"llama_context: kv_unified    = {'true' if unified else 'false'}")
        if flags.get("swa_full"):
            self.out.add("llama_kv_cache_iswa: using full-size SWA cache (ref: https://example.org)")

    def _kinds(self) -> tuple[str, str]:
        row = self.row
        flags = row["flags"] if isinstance(row.get("flags"), dict) else {}
        stated = row.get("kv_cache_dtype") or {}
        keys = flags.get("cache_type_k") or stated.get("k") or "f16"
        values = flags.get("cache_type_v") or stated.get("v") or "f16"
        return str(keys), "f16" if "none" in str(values) else str(values).split(" ")[0]

    def _caches(self) -> None:
        for device, size in self._devices("kv_buffer_MiB_by_device", "kv_by_device_MiB"):
            self._buffer("llama_kv_cache", device, "KV buffer size", size, "kv_buffer_bytes")
        size = self._value("kv_CUDA0_MiB")
        if size is not None:
            self._buffer("llama_kv_cache", "CUDA0", "KV buffer size", size, "kv_buffer_bytes")
        for device, size in self._devices("rs_by_device_MiB"):
            self._buffer("llama_memory_recurrent", device, "RS buffer size", size, "rs_buffer_bytes")
        groups = self.said.get("groups") or self._windows()
        if groups:
            self.out.written |= {"groups", "kv_mib", "kv_MiB", "k_mib", "v_mib"}
            for name, group in groups.items():
                self._cache(name, group)
        else:
            self._whole()
        self._states()

    def _windows(self) -> dict[str, dict[str, Any]]:
        """Caches of a record with one for windows, or one whose cells are known."""
        found: dict[str, dict[str, Any]] = {}
        for prefix, name in (("nonswa", "base"), ("swa", "swa"), ("kv", "kv"), ("a", "kv")):
            size = (
                self._value(f"{prefix}_kv_MiB", "swa_kv_after_MiB" if prefix == "swa" else "")
                if prefix != "kv"
                else None
            )
            cells = self._value(f"{prefix}_cells", "swa_cells_after" if prefix == "swa" else "")
            if prefix == "kv" and cells is not None:
                size = self._value("kv_MiB")
                self.out.written |= {"k_MiB", "v_MiB"} & set(self.said)
            layers = self._value(f"{prefix}_layers")
            if size is None and cells is None:
                continue
            known = {"mib": size, "cells": cells, "layers": layers}
            found[name] = {key: value for key, value in known.items() if value is not None}
        self.out.written |= {"a_k_q8_0_MiB", "a_v_q8_0_MiB"} & set(self.said)
        return found

    def _cache(self, name: str, group: dict[str, Any]) -> None:
        keys, values = self._kinds()
        if "mib" not in group and name == "kv" and "kv_mib" in self.said:
            group = {**group, "mib": self.said["kv_mib"]}
        for key, rows in _RESTS_ON.items():
            if key not in group:
                self.out.invented |= {f"{name}.{row}" for row in rows} | (
                    {"kv_bytes"} if key == "mib" else set()
                )
        one = name == "kv" and "k_mib" in self.said and "v_mib" in self.said
        self.out.invented |= set() if one else {"k_bytes", "v_bytes"}
        size, layers, streams = group.get("mib", 1.0), group.get("layers", 1), group.get("streams", 1)
        cells = group.get("cells") or self.row.get("context_len") or 4096
        halves = (self.said["k_mib"], self.said["v_mib"]) if one else (size / 2, size / 2)
        if name in ("base", "swa"):
            word = "non-SWA" if name == "base" else "    SWA"
            self.out.add(f"llama_kv_cache_iswa: creating {word} KV cache, size = {cells} cells")
        self.out.add(
            f"llama_kv_cache: size = {size:7.2f} MiB ({cells:6d} cells, {layers:3d} layers, "
            f"{streams:2d}/{streams} seqs), "
            f"K ({keys}): {halves[0]:7.2f} MiB, V ({values}): {halves[1]:7.2f} MiB"
        )

    def _whole(self) -> None:
        """One line on the cache, as builds before b5427 and the fork print it."""
        keys, values = self._kinds()
        size = self._value("kv_MiB", "kv_mib", "kv_total_MiB", "kv_total_mib", figure="cache_bytes")
        if size is None:
            return
        k = self._value("k_MiB", "k_mib", "ckv_MiB", figure="k_bytes")
        v = self._value("v_MiB", "v_mib", figure="v_bytes")
        latent = "ckv_MiB" in self.said or (v is None and k is not None)
        if latent:
            self.out.written.add("ckv_MiB")
            self.out.add(
                f"llama_new_context_with_model: KV self size  = {size:.2f} MiB, c^KV ({keys}): {k:.2f} MiB, "
                "kv^T: not used"
            )
            return
        self.out.invented |= (
            set() if k is not None and v is not None else {"k_bytes", "v_bytes", "kv.k_bytes", "kv.v_bytes"}
        )
        k, v = (size / 2 if part is None else part for part in (k, v))
        self.out.add(
            f"llama_kv_cache_init: KV self size  = {size:.2f} MiB, K ({keys}): {k:.2f} MiB, V ({values}): "
            f"{v:.2f} MiB"
        )

    def _states(self) -> None:
        size = self._value("rs_MiB", "rs_3seq_MiB", "rs_np4_MiB", "state_mib", figure="state_bytes")
        if size is None:
            return
        r, s = self._value("rs_R_MiB", "rs_3seq_R_MiB"), self._value("rs_S_MiB", "rs_3seq_S_MiB")
        r, s = (size / 2 if part is None else part for part in (r, s))
        self.out.add(
            f"llama_memory_recurrent: size = {size:8.2f} MiB (     1 cells,  64 layers,  1 seqs), R (f32): "
            f"{r:7.2f} MiB, "
            f"S (f32): {s:7.2f} MiB"
        )

    def _buffers(self) -> None:
        for device, size in self._devices("compute_buffer_MiB_by_device"):
            self._buffer("sched_reserve", device, "compute buffer size", size, "compute_bytes")
        for key, device in (
            ("compute_MiB", "CUDA0"), ("compute_host_MiB", "CUDA_Host"), ("compute_cpu_MiB", "CPU"),
            ("compute_CUDA0_MiB", "CUDA0"), ("compute_MiB_each", "HTP0"),
        ):  # fmt: skip
            size = self._value(key)
            if size is not None:
                self._buffer("sched_reserve", device, "compute buffer size", size, "compute_bytes")
        output = self._value("output_host_MiB", "output_MiB", figure="output_bytes")
        if output is not None:
            self.out.add(f"llama_context:  CUDA_Host  output buffer size = {output:8.2f} MiB")

    def _end(self) -> None:
        second = self._value("second_kv_MiB", "mtp_kv_MiB")
        if second is not None:
            if "cache_bytes" in self.out.figures:
                self.out.figures["cache_bytes"] += second * MIB
            self.out.add("srv    load_model: loading draft model 'draft.gguf'")
            self.out.add("llama_context: n_seq_max     = 1")
            self.out.add("llama_context: n_ctx         = 4096")
            self.out.add(
                f"llama_kv_cache: size = {second:7.2f} MiB (  4096 cells,   1 layers,  1/1 seqs), K (f16): "
                f"{second / 2:7.2f} MiB, V (f16): {second / 2:7.2f} MiB"
            )
        mtp = self._value("mtp_context_estimate_MiB", figure="mtp_context_bytes")
        if mtp is not None:
            self.out.add(f"srv    load_model: memory usage of MTP context is {mtp} MiB")
        projected, free = self._value("projected_MiB", figure="projected_bytes"), self._value("free_MiB")
        if projected is not None:
            self.out.add(
                f"llama_params_fit_impl: projected to use {projected} MiB of device memory vs. {free} MiB "
                "of free device memory"
            )
        slot = self._value("n_ctx_slot", figure="n_ctx_slot", scale=1)
        if slot is not None:
            self.out.add(
                f"srv          init: initializing, n_slots = 1, n_ctx_slot = {slot}, kv_unified = 'true'"
            )
        self._failed()

    def _failed(self) -> None:
        tried = self._value("failed_compute_alloc_MiB", "failed_compute_alloc_CUDA1_MiB")
        self._value("failed_alloc_bytes")
        if tried is None:
            self.out.add("main: server is listening on http://127.0.0.1:8080 - starting the main loop")
            return
        self.out.failure["tried_bytes"] = tried * MIB
        self.out.add(
            f"ggml_backend_cuda_buffer_type_alloc_buffer: allocating {tried:.2f} MiB on device 1: "
            "cudaMalloc failed: out of memory"
        )
        self.out.add(f"ggml_gallocr_reserve_n: failed to allocate CUDA1 buffer of size {round(tried * MIB)}")
        self.out.add(
            "llama_init_from_model: failed to initialize the context: failed to allocate compute pp buffers"
        )


def _kind(value: Any) -> str:
    if isinstance(value, list):
        return f"arr[i32,{len(value)}]"
    return (
        "str"
        if isinstance(value, str)
        else "bool"
        if isinstance(value, bool)
        else "f32"
        if isinstance(value, float)
        else "u32"
    )


def _text(value: Any) -> str:
    return (
        f"[{', '.join(map(str, value))}]"
        if isinstance(value, list)
        else str(value).lower()
        if isinstance(value, bool)
        else str(value)
    )


def llama_cpp_log(row: dict[str, Any]) -> Written:
    """A whole log of llama.cpp around a record."""
    return LlamaCppLog(row).write()
