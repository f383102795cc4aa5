"""Whole start-up logs of SGLang written around published figures, in its own lines."""

from __future__ import annotations

from typing import Any

from written_logs import GIB, Written

_CLOSE = ("_tp0", "_tp1", "_tp3", "_dp0", "_dp1")


class SglangLog:
    """One start-up, or as many as a record holds."""

    def __init__(self, row: dict[str, Any], **settings: Any) -> None:
        self.row, self.said, self.out = row, dict(row["reported"]), Written()
        self.settings = settings
        self.seconds = 0

    def write(self) -> Written:
        for tokens in self.said.get("replica_kv_tokens", [None]):
            if tokens is not None:
                self.said["kv_tokens"] = tokens
                self.out.written.add("replica_kv_tokens")
            self._start()
        return self.out

    def _say(self, text: str, rank: str = "TP0") -> None:
        self.seconds += 1
        at = f"2026-03-04 10:{self.seconds // 60:02}:{self.seconds % 60:02}"
        several = (self.row.get("tp") or len(self.said.get("kv_tokens_per_rank", [])) or 1) > 1
        self.out.add(f"[{at} {rank}] {text}" if several and rank else f"[{at}] {text}")

    def _value(self, key: str, figure: str = "", scale: float = GIB) -> Any:
        """A figure of the record under its key, or the key with a rank at its end; None where it has none."""
        name = next((k for k in (key, *(f"{key}{end}" for end in _CLOSE)) if k in self.said), None)
        if name is None or isinstance(self.said[name], dict):
            return None
        self.out.written.add(name)
        value = self.said[name]
        value = value[0] if isinstance(value, list) else value
        if figure:
            self.out.figures[figure] = value * scale
        return value

    def _start(self) -> None:
        self._arguments()
        init = self._value("init_dist_mem_GB", "init_bytes")
        self._say("Init torch distributed begin.")
        self._say(f"Init torch distributed ends. mem usage={0.3 if init is None else init} GB")
        self._weights("", "ModelForCausalLM")
        failed = [k for k in self.said if k.startswith("fail_fraction")]
        for key in failed:
            self._failed(key)
        self._states()
        self._pools()
        self._weights("draft_", "ModelForCausalLMEagle")
        self._pool("draft_", "draft_kv_tokens")
        self._after()

    def _failed(self, key: str) -> None:
        self.out.written.add(key)
        rest = self.said[key]
        self._say(
            "Scheduler hit an exception: RuntimeError: Not enough memory for mamba_pool: "
            f"total_rest_memory={rest} GB. "
            "Please try to increase --mem-fraction-static.",
            "",
        )
        self._arguments()
        self._weights("", "ModelForCausalLM")

    def _arguments(self) -> None:
        given = {"model_path": self.row["model"], "tp_size": self.row.get("tp") or 1, **self.settings}
        if self.row.get("dp"):
            given |= {"dp_size": self.row["dp"], "enable_dp_attention": True}
        share = self._value("mem_fraction_static")
        if share is not None:
            given["mem_fraction_static"] = share
        total = self._value("max_total_tokens")
        if total is not None:
            given["max_total_tokens"] = total
        words = ", ".join(f"{name}={value!r}" for name, value in given.items())
        self._say(f"server_args=ServerArgs({words}, device='cuda', random_seed=42, log_level='info')", "")

    def _weights(self, who: str, architecture: str) -> None:
        target = not who
        stem = "load_weight" if target else "draft_load"
        before = self._value(f"{stem}_begin_avail_GB", "free_before_bytes" if target else "")
        after = self._value(f"{stem}_end_avail_GB", "free_after_bytes" if target else "")
        used = self._value("weight_mem_usage_GB", "weight_bytes") if target else None
        if not target:
            used = self._value("draft_weight_mem_usage_GB") or self._value("draft_mem_usage_GB")
        if before is not None:
            self._say(f"Load weight begin. avail mem={before} GB")
        if after is not None:
            usage = "" if used is None else f", mem usage={used} GB"
            self._say(
                f"Load weight end. type={architecture}, dtype=torch.bfloat16, avail mem={after} GB{usage}."
            )

    def _states(self) -> None:
        if "ssm_state_GB" not in self.said:
            return
        count = self._value("max_mamba_cache_size", "max_mamba_cache_size", 1)
        conv, ssm = (
            self._value("conv_state_GB", "conv_state_bytes"),
            self._value("ssm_state_GB", "ssm_state_bytes"),
        )
        draft = self._value("intermediate_ssm_state_cache_GB", "draft_ssm_state_bytes")
        window = self._value("conv_window_GB", "draft_conv_state_bytes")
        self._say(
            f"Mamba Cache is allocated. max_mamba_cache_size: {count}, conv_state size: {conv}GB, ssm_state "
            "size: "
            f"{ssm}GB intermediate_ssm_state_cache size: {draft}GB intermediate_conv_window_cache size: "
            f"{window}GB "
        )

    def _pools(self) -> None:
        full, swa = self._value("full_layer_tokens", "full_layer_tokens", 1), None
        if full is not None:
            swa = self._value("swa_layer_tokens", "swa_layer_tokens", 1)
            self._say(f"Use sliding window memory pool. full_layer_tokens={full}, swa_layer_tokens={swa}")
        for prefix, tokens in (
            ("swa_pool_", "swa_pool_kv_tokens"),
            ("swa_", "swa_size"),
            ("full_", "full_size"),
        ):
            self._pool(prefix, tokens)
        if "swakvpool_mem_GB" in self.said:
            used = self._value("swakvpool_mem_GB", "swa_pools_bytes")
            sizes = self.said["swa_size"], self.said["full_size"]
            self._say(f"SWAKVPool mem usage: {used} GB, swa size: {sizes[0]}, full size: {sizes[1]}")
        for rank, tokens in enumerate(self.said.get("kv_tokens_per_rank", [])):
            self.out.written.add("kv_tokens_per_rank")
            self._say(
                f"KV Cache is allocated. #tokens: {tokens}, K size: 1.00 GB, V size: 1.00 GB", f"TP{rank}"
            )
        if "full_k_size_GB" not in self.said:
            self._pool("", "kv_tokens")
        else:
            self._value("kv_tokens", "kv_tokens", 1)
        after = self._value("memory_pool_end_avail_GB", "free_after_pool_bytes")
        if after is not None:
            self._say(f"Memory pool end. avail mem={after} GB")
        for key in [k for k in self.said if k.startswith("memory_pool_end_avail_GB_")]:
            self.out.written.add(key)

    def _pool(self, prefix: str, tokens_key: str) -> None:
        keys, values = self._value(f"{prefix}k_size_GB"), self._value(f"{prefix}v_size_GB")
        count = self._value(tokens_key)
        if count is None and keys is None:
            return
        if count is None:
            names = ("swa_layer_tokens",) if prefix == "swa_pool_" else ("kv_tokens", "max_total_num_tokens")
            count = next((self.said[name] for name in names if name in self.said), 4096)
        if tokens_key == "kv_tokens":
            self.out.figures["kv_tokens"] = count
        dtype = " dtype: torch.bfloat16," if self.row.get("kv_cache_dtype") == "bfloat16" else ""
        if prefix == "" and "kv_size_GB" in self.said:
            both = self._value("kv_size_GB")
            self._say(f"KV Cache is allocated.{dtype} #tokens: {count}, KV size: {both} GB")
            return
        keys, values = (1.0 if size is None else size for size in (keys, values))
        self._say(f"KV Cache is allocated.{dtype} #tokens: {count}, K size: {keys} GB, V size: {values} GB")

    def _after(self) -> None:
        for key in [k for k in self.said if k.startswith("draft_memory_pool_end_avail_GB")]:
            self.out.written.add(key)
            self._say(f"Memory pool end. avail mem={self.said[key]} GB")
            self.out.figures.pop("free_after_pool_bytes", None)
        begin = self._value("cuda_graph_begin_avail_GB")
        if begin is not None:
            self._say(f"Capture cuda graph begin. This can take up to several minutes. avail mem={begin} GB")
        used = self._value("cuda_graph_mem_usage_GB", "graph_bytes")
        used = self._value("graph_mem_usage_GB", "graph_bytes") if used is None else used
        end = self._value("cuda_graph_end_avail_GB") or self._value("graph_end_avail_GB")
        if used is not None:
            self._say(
                f"Capture cuda graph end. Time elapsed: 5.22 s. mem usage={used} GB. avail mem={end or 1.0} "
                "GB."
            )
        tokens = self._value("max_total_num_tokens", "kv_tokens", 1)
        left = self._value("available_gpu_mem_GB", "free_at_end_bytes")
        if tokens is not None:
            end = "" if left is None else f", available_gpu_mem={left} GB"
            self._say(f"max_total_num_tokens={tokens}{self._limits()}{end}")
        self._say("The server is fired up and ready to roll!", "")

    def _limits(self) -> str:
        """The rest of the line, where the record quotes it."""
        names = ("chunked_prefill_size", "max_prefill_tokens", "max_running_requests", "context_len")
        return "".join(f", {name}={self.said[name]}" for name in names if name in self.said)


def sglang_log(row: dict[str, Any], **settings: Any) -> Written:
    """A whole log of SGLang around a record, with further arguments of its start."""
    return SglangLog(row, **settings).write()
