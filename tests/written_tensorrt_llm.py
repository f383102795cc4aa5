"""Whole start-up logs of TensorRT-LLM written around published figures, in the lines of its two backends."""

from __future__ import annotations

from typing import Any

from written_logs import GIB, MIB, Written


class TensorrtLlmLog:
    """A start-up of either backend, by which lines the record quotes."""

    def __init__(self, row: dict[str, Any], **settings: Any) -> None:
        self.row, self.said, self.out, self.settings = row, row["reported"], Written(), settings

    def write(self) -> Written:
        version = (self.row.get("version") or "1.2.0").split("-")[0].split(" ")[0]
        self.out.add(f"[TensorRT-LLM] TensorRT LLM version: {version if version[0].isdigit() else '1.2.0'}")
        self._arguments()
        self._engine()
        self._dry_run()
        self._pool()
        self._say("LLM Args:")
        self.out.add(self.arguments)
        self.out.add("INFO:     Application startup complete.")
        return self.out

    def _say(self, text: str, level: str = "I") -> None:
        self.out.add(f"[03/04/2026-10:00:{len(self.out.lines):02}] [TRT-LLM] [RANK 0] [{level}] {text}")

    def _cpp(self, text: str, level: str = "INFO") -> None:
        self.out.add(f"[TensorRT-LLM][{level}] {text}")

    def _value(self, *keys: str, figure: str = "", scale: float = GIB) -> Any:
        name = next((key for key in keys if key in self.said), None)
        if name is None:
            return None
        self.out.written.add(name)
        if figure:
            self.out.figures[figure] = self.said[name] * scale
        return self.said[name]

    def _arguments(self) -> None:
        config = {"tokens_per_block": self.row.get("tokens_per_block") or 32}
        share = self.said.get("free_gpu_memory_fraction") or self.said.get("fraction")
        if share is not None:
            config["free_gpu_memory_fraction"] = share
            self.out.written.add("free_gpu_memory_fraction")
        words = ", ".join(
            f"{name}={value!r}" for name, value in {**config, **self.settings.pop("cache", {})}.items()
        )
        given = {"model": self.row["model"], "tensor_parallel_size": self.row.get("tp") or 1, **self.settings}
        args = " ".join(f"{name}={value!r}" for name, value in given.items())
        self.arguments = f"{args} kv_cache_config=KvCacheConfig({words})"
        limits = [
            self._value(k) for k in ("max_seq_len", "max_num_requests", "max_num_tokens", "max_batch_size")
        ]
        length, requests, tokens, batch = (given if given is not None else 2048 for given in limits)
        self._say(
            f"max_seq_len={length}, max_num_requests={requests}, max_num_tokens={tokens}, "
            f"max_batch_size={batch}"
        )

    def _engine(self) -> None:
        """The TensorRT backend: its engine's file, context and buffers."""
        size = self._value("engine_size_MiB", figure="engine_file_bytes", scale=MIB)
        if size is not None:
            self._say(f"Total engine size per GPU is {size} MiB.")
        context = self._value("execution_context_MiB", figure="execution_context_bytes", scale=MIB)
        if context is not None:
            self._cpp(f"Allocated {context} MiB for execution context memory.")
        held = self._value(
            "trt_context_gpu_MiB", "after_context_malloc_MiB", figure="engine_context_bytes", scale=MIB
        )
        if held is not None:
            self.out.add(
                "[TensorRT-LLM][INFO] [MemUsageChange] TensorRT-managed allocation in IExecutionContext "
                "creation: "
                f"CPU +0, GPU +0, now: CPU 0, GPU {held} (MiB)"
            )
        for name, what in (("runtime_buffers", "runtime buffers"), ("decoder", "decoder")):
            for unit, scale in (("MB", MIB), ("GB", GIB)):
                figure = "runtime_buffer_bytes" if name == "runtime_buffers" else "decoder_bytes"
                used = self._value(f"{name}_{unit}", figure=figure, scale=scale)
                if used is not None:
                    self._cpp(f"[MemUsageChange] Allocated {used} {unit} GPU memory for {what}.")
        total = self._value("total_GiB", figure="accelerator_bytes")
        free = self._value("available_GiB", figure="available_bytes")
        if total is not None:
            free = 1.0 if free is None else free
            self._cpp(
                f"Memory usage when calculating max tokens in paged kv cache: total: {total} GiB, "
                f"available: {free} GiB"
            )

    def _dry_run(self) -> None:
        """The PyTorch backend: the small cache first, then what the dry run found."""
        first = self._value("first_pass_tokens", "max_tokens_first_pass")
        if "first_pass_GiB" in self.said:
            size = self._value("first_pass_GiB")
            self._value("first_pass_blocks")
            self._cpp(f"[MemUsageChange] Allocated {size} GiB for max tokens in paged KV cache ({first}).")
        if "peak_profiling_GiB" not in self.said:
            if "first_pass_GiB" in self.said:
                self._peak({"peak": 20.0, "pool": 59.5, "share": 0.9, "each": 1, "total": 139.8})
            return
        reserved = self._value("mm_encoder_cache_reserved_GiB", figure="encoder_bytes")
        if reserved is not None:
            self._say(f"Reserving {reserved} GiB for the multimodal encoder cache")
        self._peak(
            {
                "peak": self._value("peak_profiling_GiB", figure="peak_bytes"),
                "pool": self._value("available_kv_GiB", figure="kv_pool_bytes"),
                "share": self._value("fraction"),
                "each": self._value(
                    "kv_bytes_per_token", "kv_size_per_token_bytes", figure="kv_bytes_per_token", scale=1
                ),
                "total": self._value("device_total_GiB", figure="accelerator_bytes"),
                "first": self._value("temporary_kv_during_profiling_GiB", figure="temporary_bytes"),
            }
        )

    def _peak(self, said: dict[str, Any]) -> None:
        first = said.get("first")
        small = "" if first is None else f", temporary kv cache memory during profiling {first} GiB"
        self._say(
            f"Peak memory during memory usage profiling (torch + non-torch): {said['peak']} GiB, available "
            "KV cache "
            f"memory when calculating max tokens: {said['pool']} GiB, fraction is set {said['share']}, kv "
            "size is "
            f"{said['each']}. device total memory {said['total']} GiB{small}"
        )

    def _pool(self) -> None:
        blocks = self._value(
            "primary_blocks", "final_primary_blocks", "final_blocks", figure="num_blocks", scale=1
        )
        second = self._value("secondary_blocks", figure="secondary_blocks", scale=1)
        each = self._value(
            "max_blocks_per_sequence",
            "max_pages_per_sequence",
            "blocks_per_sequence",
            figure="blocks_per_sequence",
            scale=1,
        )
        window = self._value("window_size")
        size = self.row.get("tokens_per_block") or 32
        if window is not None:
            self._cpp(
                f"Max KV cache blocks per sequence: {each} [window size={window}], tokens per block={size}, "
                "primary "
                f"blocks={blocks}, secondary blocks={second}"
            )
        elif each is not None:
            self._cpp(f"Max KV cache pages per sequence: {each}")
        if blocks is not None and window is None:
            self._cpp(f"Number of blocks in KV cache primary pool: {blocks}")
        if second is not None and window is None:
            self._cpp(f"Number of blocks in KV cache secondary pool: {second}")
        self._allocated()
        shorter = self._value(
            "max_seq_len_reduced_to", "max_seq_len_adjusted_to", figure="adjusted_seq_len", scale=1
        )
        if shorter is not None:
            self._cpp(
                "maxSequenceLen is reduced by maxTokens in the KV cache: maxSequenceLen was 131072, "
                f"reduced to {shorter}",
                "WARNING",
            )

    def _allocated(self) -> None:
        for size_key, tokens_key in (
            ("kv_allocated_GiB", "kv_tokens"), ("self_kv_allocated_GiB", "self_kv_tokens"), ("final_GiB", ""),
            ("triton_kv_bytes", "triton_kv_tokens"), ("", "kv_tokens"),
        ):  # fmt: skip
            if (size_key and size_key not in self.said) or (
                not size_key and self.out.figures.get("kv_tokens")
            ):
                continue
            size = self._value(size_key) if size_key else 5.0
            tokens = self._value(tokens_key, figure="kv_tokens", scale=1) if tokens_key else 6931712
            if tokens is None:
                continue
            gib = round(size / GIB, 2) if size_key.endswith("bytes") else size
            if gib and size_key:
                self.out.figures["kv_allocated_bytes"] = gib * GIB
            self._cpp(f"[MemUsageChange] Allocated {gib} GiB for max tokens in paged KV cache ({tokens}).")
            return


def tensorrt_llm_log(row: dict[str, Any], **settings: Any) -> Written:
    """A whole log of TensorRT-LLM around a record, with further arguments."""
    return TensorrtLlmLog(row, **settings).write()
