"""Whole start-up logs written around published figures, in the lines that each engine really prints.

A record (data/engine-logs) holds what somebody quoted of a log: numbers, seldom the lines around them. Here
they are put back into the engine's own lines, with its timestamps, process names and the noise between.
`Written` says which figure of the parsed log each number must come back as.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

GIB, MIB = 2**30, 2**20


@dataclass
class Written:
    """A log's text, and what must be read from it: figure → value in bytes or counts, with half a digit."""

    lines: list[str] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)
    failure: dict[str, float] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    written: set[str] = field(default_factory=set)
    invented: set[str] = field(default_factory=set)  # rows of `verify` that rest on what no record states

    @property
    def text(self) -> str:
        return "\n".join(self.lines) + "\n"

    def add(self, line: str) -> None:
        self.lines.append(line)


def number(value: float) -> str:
    """A figure as a log prints it."""
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


class VllmLog:
    """A start-up of vLLM: V0 below 0.8, then V1 with its wording by version; unstated versions as 0.11."""

    def __init__(self, row: dict[str, Any]) -> None:
        self.row, self.said, self.out = row, row["reported"], Written()
        numbers = [int(part) for part in (row.get("version") or "0.11.0").split(".")[:3] if part.isdigit()]
        self.version = tuple(numbers) if len(numbers) > 1 else (0, 11, 0)
        self.clock = 0

    def write(self) -> Written:
        self._head()
        if self.version < (0, 8):
            self._v0()
        else:
            self._v1()
        return self.out

    def _say(self, text: str, where: str, process: str = "") -> None:
        self.clock += 1
        who = f"{process} " if process and self.version >= (0, 10, 2) else ""
        stamp = f"{self.clock // 60 % 60:02}:{self.clock % 60:02}"
        self.out.add(f"{who}INFO 03-04 10:{stamp} [{where}] {text}")

    def _core(self, text: str, where: str = "gpu_worker.py:298") -> None:
        tp = self.row.get("tp") or 1
        name = "(Worker_TP0 pid=812)" if tp > 1 else "(EngineCore_DP0 pid=77)"
        self._say(text, where, name)

    def _took(self, key: str, figure: str, scale: float = GIB) -> Any:
        value = self.said[key]
        self.out.figures[figure] = value * scale
        self.out.written.add(key)
        return value

    def _has(self, *keys: str) -> bool:
        return all(self.said.get(key) is not None for key in keys)

    def _arguments(self) -> dict[str, Any]:
        row = self.row
        names = {
            "max_model_len": "max_model_len",
            "max_num_seqs": "max_num_seqs",
            "max_num_batched_tokens": "max_num_batched_tokens",
            "gpu_memory_utilization": "gpu_memory_utilization",
            "block_size": "block_size",
            "kv_cache_dtype": "kv_cache_dtype",
            "tp": "tensor_parallel_size",
            "pp": "pipeline_parallel_size",
            "dp": "data_parallel_size",
        }
        given = {theirs: row[ours] for ours, theirs in names.items() if row.get(ours) is not None}
        given |= row.get("flags") or {}
        self.out.settings = dict(given)
        if row.get("enforce_eager"):
            given["enforce_eager"] = True
        return {"model": row["model"], **given}

    def _head(self) -> None:
        version = ".".join(map(str, self.version))
        arguments = self._arguments()
        self._say(f"vLLM API server version {version}", "api_server.py:1896", "(APIServer pid=1)")
        self._say(f"non-default args: {arguments}", "utils.py:328", "(APIServer pid=1)")
        self._say(f"Resolved architecture: {'LlamaForCausalLM'}", "model.py:547", "(APIServer pid=1)")
        config = (
            f"model='{self.row['model']}', speculative_config=None, tokenizer='{self.row['model']}', "
            "tokenizer_mode=auto, revision=None, trust_remote_code=False, dtype=torch.bfloat16, "
            f"max_seq_len={arguments.get('max_model_len', 8192)}, download_dir=None, load_format=auto, "
            f"tensor_parallel_size={arguments.get('tensor_parallel_size', 1)}, pipeline_parallel_size=1, "
            "quantization=None, enforce_eager=False, kv_cache_dtype=auto, device_config=cuda, seed=0, "
            f"served_model_name={self.row['model']}"
        )
        v1 = "" if self.version < (0, 8) else "V1 "
        self._core(f"Initializing a {v1}LLM engine (v{version}) with config: {config}", "core.py:77")

    def _v0(self) -> None:
        if self._has("weights_gib"):
            self._core(f"Loading model weights took {self._took('weights_gib', 'weight_bytes')} GB")
        if self._has("num_gpu_blocks"):
            blocks = self._took("num_gpu_blocks", "num_blocks", 1)
            self._core(f"# GPU blocks: {blocks}, # CPU blocks: 2048", "gpu_executor.py:122")
        if self._has("non_torch_gib", "available_kv_gib"):
            self._profiled_v0()
        self._rest()

    def _profiled_v0(self) -> None:
        """What V0 printed of its profiling: in one line before 0.6.5, in words after."""
        total = self._took("gpu_total_gib", "accelerator_bytes")
        outside = self._took("non_torch_gib", "non_torch_bytes")
        pool = self._took("available_kv_gib", "kv_pool_bytes")
        share = self.row.get("gpu_memory_utilization") or 0.9
        weights = self.said.get("weights_gib") or 0.0
        if not self._has("activation_peak_gib"):
            self._core(
                f"Memory profiling results: total_gpu_memory={total}GiB initial_memory_usage={weights}GiB "
                f"peak_torch_memory={weights + 2:.2f}GiB memory_usage_post_profile={weights + 1:.2f}Gib "
                f"non_torch_memory={outside}GiB kv_cache_size={pool}GiB gpu_memory_utilization={share}",
                "worker.py:232",
            )
            return
        peak = self._took("activation_peak_gib", "activation_bytes")
        self._core("Memory profiling takes 3.56 seconds", "worker.py:267")
        self.out.add(
            f"the current vLLM instance can use total_gpu_memory ({total}GiB) x gpu_memory_utilization "
            f"({share}) = "
            f"{total * share:.2f}GiB"
        )
        self.out.add(
            f"model weights take {weights}GiB; non_torch_memory takes {outside}GiB; PyTorch activation peak "
            "memory "
            f"takes {peak}GiB; the rest of the memory reserved for KV Cache is {pool}GiB."
        )

    def _v1(self) -> None:
        if self._has("weights_gib"):
            weights = self._took("weights_gib", "weight_bytes")
            self._core(f"Model loading took {weights} GiB and 12.345678 seconds", "gpu_model_runner.py:2653")
        self._parts()
        if self._has("needed_kv_gib"):
            self._refused()
            return
        if self._has("available_kv_gib"):
            pool = self._took("available_kv_gib", "kv_pool_bytes")
            self._core(f"Available KV cache memory: {pool} GiB")
        if self._has("num_gpu_blocks"):
            blocks = self._took("num_gpu_blocks", "num_blocks", 1)
            self._core(
                f"vllm cache_config_info with initialization after num_gpu_blocks is: {blocks}",
                "loggers.py:127",
            )
        self._rest()

    def _parts(self) -> None:
        """The debug line of profiling, from which the parts of published budgets were copied."""
        keys = ("activation_peak_gib", "non_torch_gib")
        if not any(self._has(key) for key in keys):
            return
        peak = self._took(keys[0], "activation_bytes") if self._has(keys[0]) else 1.0
        outside = self._took(keys[1], "non_torch_bytes") if self._has(keys[1]) else 0.0
        weights = self.said.get("weights_gib") or 1.0
        self._core(
            f"Total non KV cache memory: {peak + outside + weights:.2f}GiB; torch peak memory increase: "
            f"{peak}GiB; non-torch forward increase memory: {outside}GiB; weights memory: {weights}GiB."
        )

    def _refused(self) -> None:
        length = self.row.get("max_model_len") or self.said.get("max_concurrency_tokens") or 131072
        free = self.said.get("available_kv_gib")
        pool = 1.0 if free is None else free
        needed = self.said["needed_kv_gib"]
        self.out.failure = {"needed_kv_bytes": needed * GIB, "max_model_len": length}
        self.out.written |= {"needed_kv_gib", "available_kv_gib", "est_max_len"}
        longest = ""
        if self._has("est_max_len"):
            self.out.failure["estimated_max_model_len"] = self.said["est_max_len"]
            most = self.said["est_max_len"]
            longest = f"Based on the available memory, the estimated maximum model length is {most}. "
        if free is not None:
            self.out.failure["kv_checked_bytes"] = free * GIB
        self.out.add("(EngineCore_DP0 pid=77) ERROR 03-04 10:02:00 [core.py:708] EngineCore failed to start.")
        self.out.add(
            "(EngineCore_DP0 pid=77) ERROR 03-04 10:02:00 [core.py:708] ValueError: To serve at least one "
            "request with "
            f"the models's max seq len ({length}), ({needed} GiB KV cache is needed, which is larger than "
            "the "
            f"available KV cache memory ({pool} GiB). {longest}Try increasing `gpu_memory_utilization` or "
            "decreasing `max_model_len` when initializing the engine."
        )

    def _rest(self) -> None:
        tokens = f"{self._took('kv_tokens', 'kv_tokens', 1):,}" if self._has("kv_tokens") else ""
        times = ""
        if self._has("max_concurrency_x"):
            length = self.said.get("max_concurrency_tokens") or self.row.get("max_model_len") or 8192
            if self._has("max_concurrency_tokens"):
                self._took("max_concurrency_tokens", "concurrency_length", 1)
            at_once = self._took("max_concurrency_x", "max_concurrency", 1)
            times = f"Maximum concurrency for {length:,} tokens per request: {at_once:.2f}x"
        if self.version >= (0, 28) and tokens and times:
            self._core(f"GPU KV cache size: {tokens} tokens, {times}", "kv_cache_utils.py:1087")
        else:
            if tokens:
                self._core(f"GPU KV cache size: {tokens} tokens", "kv_cache_utils.py:1087")
            if times:
                self._core(times, "kv_cache_utils.py:1091")
        if self._has("cudagraph_gib"):
            graphs = self._took("cudagraph_gib", "graph_bytes")
            self._core(
                f"Graph capturing finished in 20 secs, took {graphs:.2f} GiB", "gpu_model_runner.py:3480"
            )
        if self._has("gpu_total_gib") and self.version >= (0, 8):
            self._budget()
        if self.version < (0, 8) and (self.said.get("max_concurrency_x") or 1) < 1:
            self._refused_v0()
        else:
            self.out.add("(APIServer pid=1) INFO:     Application startup complete.")

    def _refused_v0(self) -> None:
        length = self.said["max_concurrency_tokens"]
        held = self.said["num_gpu_blocks"] * 16
        self.out.add(
            f"ValueError: The model's max seq len ({length}) is larger than the maximum number of tokens "
            "that can be "
            f"stored in KV cache ({held}). Try increasing `gpu_memory_utilization` or decreasing "
            "`max_model_len` when "
            "initializing the engine."
        )

    def _budget(self) -> None:
        total = self._took("gpu_total_gib", "accelerator_bytes")
        share = self.row.get("gpu_memory_utilization") or 0.9
        self._core(
            f"Free memory on device ({total - 0.5:.2f}/{total} GiB) on startup. Desired GPU memory "
            "utilization is "
            f"({share}, {total * share:.2f} GiB)."
        )


def vllm_log(row: dict[str, Any]) -> Written:
    """A whole log of vLLM around a record."""
    return VllmLog(row).write()
