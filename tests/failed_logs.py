"""Start-ups that failed, one for each form: in the lines that the engines print."""
# ruff: noqa: E501  lines of logs

from __future__ import annotations

from typing import Any, NamedTuple


class Failed(NamedTuple):
    """A log, what it is verified with, and what must be said: kind, phase, sizes in GiB, a flag, its value."""

    text: str
    words: dict[str, Any]
    kind: str
    phase: str
    needed: float | None
    available: float | None
    flag: str = ""
    value: Any = None


def vllm(size: str = "8B", tp: int = 1, more: str = "", version: str = "0.11.0") -> str:
    name = f"meta-llama/Llama-3.1-{size}-Instruct"
    return f"""(APIServer pid=1) INFO 03-04 10:00:00 [api_server.py:1896] vLLM API server version {version}
(APIServer pid=1) INFO 03-04 10:00:00 [utils.py:328] non-default args: {{'model': '{name}', 'tensor_parallel_size': {tp}{more}}}
(EngineCore_DP0 pid=77) INFO 03-04 10:00:10 [core.py:77] Initializing a V1 LLM engine (v{version}) with config: model='{name}', speculative_config=None, dtype=torch.bfloat16, max_seq_len=131072, tensor_parallel_size={tp}, quantization=None, kv_cache_dtype=auto, device_config=cuda
"""


ERROR = "(EngineCore_DP0 pid=77) ERROR 03-04 10:02:00 [core.py:708] "
INFO = "(EngineCore_DP0 pid=77) INFO 03-04 10:01:30 [gpu_worker.py:298] "
LOADED = f"{INFO}Model loading took 14.99 GiB and 3.2 seconds\n"
MADE = f"{LOADED}{INFO}Available KV cache memory: 58.61 GiB\n{INFO}GPU KV cache size: 480,128 tokens\n"
DEVICE = (
    "GPU 0 has a total capacity of 79.11 GiB of which 507.88 MiB is free. Including non-PyTorch memory, this "
    "process has 78.60 GiB memory in use."
)

SGLANG = """[2026-03-04 10:00:00] server_args=ServerArgs(model_path='Qwen/Qwen3-32B', tp_size=1, mem_fraction_static={share}, device='cuda')
[2026-03-04 10:00:09] Init torch distributed ends. mem usage=0.30 GB
[2026-03-04 10:00:10] Load weight begin. avail mem=78.60 GB
[2026-03-04 10:00:40] Load weight end. type=Qwen3ForCausalLM, dtype=torch.bfloat16, avail mem=16.90 GB, mem usage=61.70 GB.
"""
HIT = "[2026-03-04 10:00:50] Scheduler hit an exception: "

TENSORRT = """[TensorRT-LLM] TensorRT LLM version: 1.2.0
[03/04/2026-10:00:01] [TRT-LLM] [I] Use 14.99 GB for model weights.
[03/04/2026-10:00:02] [TRT-LLM] [I] max_seq_len=8193, max_num_requests=64, max_num_tokens=8192, max_batch_size=64
[03/04/2026-10:00:05] [TRT-LLM] [I] Memory used after loading model weights (inside torch) in memory usage profiling: 15.10 GiB
"""

LLAMA_HEAD = """build: 6800 (5266f24da) with cc (Ubuntu 13.3.0) for x86_64-linux-gnu
llama_model_load_from_file_impl: using device CUDA0 (NVIDIA GeForce RTX 4090) (0000:01:00.0) - 22994 MiB free
llama_model_loader: loaded meta data with 40 key-value pairs and 399 tensors from models/llama-3.1-8b.gguf (version GGUF V3 (latest))
llama_model_loader: - kv   0:                       general.architecture str              = llama
llama_model_loader: - kv   2:                          llama.block_count u32              = 32
llama_model_loader: - kv   3:                       llama.context_length u32              = 131072
llama_model_loader: - kv   4:                     llama.embedding_length u32              = 4096
llama_model_loader: - kv   5:                  llama.feed_forward_length u32              = 14336
llama_model_loader: - kv   6:                 llama.attention.head_count u32              = 32
llama_model_loader: - kv   7:              llama.attention.head_count_kv u32              = 8
llama_model_loader: - kv   8:                           llama.vocab_size u32              = 128256
"""
LLAMA = f"""{LLAMA_HEAD}load_tensors: offloaded 33/33 layers to GPU
load_tensors:   CPU_Mapped model buffer size =   532.31 MiB
load_tensors:        CUDA0 model buffer size =  7605.33 MiB
llama_context: n_seq_max     = 1
llama_context: n_ctx         = 131072
llama_context: n_ctx_seq     = 131072
llama_context: n_batch       = 2048
llama_context: n_ubatch      = 512
llama_context: flash_attn    = auto
llama_context: kv_unified    = false
"""
OLLAMA = (
    'time=2026-03-04T10:00:00.000Z level=INFO source=routes.go:1297 msg="Listening on 127.0.0.1:11434 '
    '(version 0.11.0)"\n'
)


def cuda(size: str) -> str:
    return f"CUDA out of memory. Tried to allocate {size}. {DEVICE}\n"


def allocating(size: float) -> str:
    line = f"allocating {size:.2f} MiB on device 0: cudaMalloc failed: out of memory"
    return f"ggml_backend_cuda_buffer_type_alloc_buffer: {line}\n"


CARD = {"gpu": "h100"}
CASES = {
    "vllm: less is free than it asks for": Failed(
        f"{vllm()}{ERROR}ValueError: Free memory on device (60.11/79.11 GiB) on startup is less than desired GPU "
        "memory utilization (0.9, 71.2 GiB). Decrease GPU memory utilization or reduce GPU memory used by other "
        "processes.\n",
        CARD, "not_enough_free", "checking what is free", 71.2, 60.11, "--gpu-memory-utilization", 0.75,
    ),
    "vllm: nothing is left": Failed(
        f"{vllm('70B', 2)}{INFO}Model loading took 65.73 GiB and 3.2 seconds\n{INFO}Available KV cache memory: "
        f"-1.44 GiB\n{ERROR}ValueError: No available memory for the cache blocks. Try increasing "
        "`gpu_memory_utilization` when initializing the engine.\n",
        CARD, "no_cache_memory", "making the cache", 20, -1.44, "--tp", 4,
    ),
    "vllm: one sequence is too long": Failed(
        f"{vllm()}{LOADED}{INFO}Available KV cache memory: 4.61 GiB\n{ERROR}ValueError: To serve at least one "
        "request with the models's max seq len (131072), (16.00 GiB KV cache is needed, which is larger than the "
        "available KV cache memory (4.61 GiB). Based on the available memory, the estimated maximum model length "
        "is 37760. Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the "
        "engine.\n",
        {"gpu": "rtx4090"}, "one_request_too_long", "making the cache", 16, 4.61, "--max-model-len", 37760,
    ),
    "vllm V0: more tokens than the cache holds": Failed(
        f"{vllm(version='0.6.6').replace('V1 ', '')}{INFO}# GPU blocks: 2356, # CPU blocks: 2048\n{ERROR}ValueError: "
        "The model's max seq len (131072) is larger than the maximum number of tokens that can be stored in KV "
        "cache (37696). Try increasing `gpu_memory_utilization` or decreasing `max_model_len`.\n",
        {"gpu": "l4"}, "one_request_too_long", "making the cache", 16, 37696 / 8192, "--tp", 2,
    ),
    "vllm: the weights are too large": Failed(
        f"{vllm('70B', 1)}{ERROR}torch.OutOfMemoryError: {cuda('896.00 MiB')}",
        CARD, "out_of_memory", "loading the weights", 0.875, 507.88 / 1024, "--tp", 4,
    ),
    "vllm: a step is too large": Failed(
        vllm(more=", 'max_num_batched_tokens': 131072") + LOADED + f"{ERROR}torch.OutOfMemoryError: CUDA out of "
        "memory. Tried to allocate 7.00 GiB. GPU 0 has a total capacity of 23.52 GiB of which 1.20 GiB is free. "
        "Including non-PyTorch memory, this process has 22.30 GiB memory in use.\n",
        {"gpu": "rtx4090"}, "out_of_memory", "profiling a full step", 7, 1.2,
        "--max-num-batched-tokens 32768 --max-model-len", 20320,
    ),
    "vllm: the sampler's warm-up": Failed(
        vllm(more=", 'max_num_seqs': 1024, 'gpu_memory_utilization': 0.98") + MADE + f"{ERROR}RuntimeError: CUDA "
        "out of memory occurred when warming up sampler with 1024 dummy requests. Please try lowering "
        "`max_num_seqs` or `gpu_memory_utilization` when initializing the engine.\n",
        CARD, "warm_up", "warming up the sampler", None, None, "--max-num-seqs", 512,
    ),
    "vllm: graphs": Failed(
        vllm(more=", 'gpu_memory_utilization': 0.98") + MADE + f"{ERROR}torch.OutOfMemoryError: {cuda('1.96 GiB')}",
        CARD, "out_of_memory", "capturing graphs and warming up", 1.96, 507.88 / 1024,
        "--gpu-memory-utilization", 0.95,
    ),
    "sglang: the static share": Failed(
        f"{SGLANG.format(share=0.75)}{HIT}RuntimeError: Not enough memory. Please try to increase "
        "--mem-fraction-static.\n",
        CARD, "static_share_too_small", "making the pools", 10, 16.9 - 78.6 * 0.25, "--mem-fraction-static", 0.92,
    ),
    "sglang: the state cache": Failed(
        f"{SGLANG.format(share=0.8)}{HIT}RuntimeError: Not enough memory for the state cache: "
        "total_rest_memory=-3.05 GB. Please try to increase --mem-fraction-static.\n",
        CARD, "static_share_too_small", "making the pools", 10, 16.9 - 78.6 * 0.2, "--mem-fraction-static", 0.92,
    ),
    "sglang: graphs": Failed(
        f"{SGLANG.format(share=0.95)}[2026-03-04 10:00:41] KV Cache is allocated. #tokens: 51200, K size: 6.25 GB, V "
        "size: 6.25 GB\n[2026-03-04 10:00:41] Memory pool end. avail mem=3.90 GB\n"
        f"{HIT}Exception: Capture cuda graph failed: {cuda('4.00 GiB')}",
        CARD, "graphs", "capturing graphs", 4, 3.9, "--mem-fraction-static", 0.93,
    ),
    "tensorrt-llm: the executor": Failed(
        f"{TENSORRT}[03/04/2026-10:00:08] [TRT-LLM] [E] Executor creation failed due to insufficient GPU memory.\n\n"
        "The following component could not be created: Additional executor resources for estimating KV cache "
        "size\nTotal GPU memory (GiB): 23.52\nFree GPU memory before component creation attempt (GiB): 1.30\n",
        {"model": "meta-llama/Llama-3.1-8B-Instruct", "gpu": "l4"},
        "executor_memory", "the dry run", None, 1.3, "--max-num-tokens", 4096,
    ),
    "tensorrt-llm: the C++ runtime": Failed(
        f"{TENSORRT}[TensorRT-LLM][ERROR] CUDA runtime error in ::cudaMallocAsync(ptr, n, mCudaStream->get()): out of "
        "memory\n",
        {"model": "meta-llama/Llama-3.1-8B-Instruct", "gpu": "l4"},
        "out_of_memory", "the dry run", None, None, "--tp", 2,
    ),
    "llama.cpp: the caches": Failed(
        f"{LLAMA}{allocating(16384)}alloc_tensor_range: failed to allocate CUDA0 buffer of size 17179869184\n"
        "llama_init_from_model: failed to initialize the context: failed to allocate buffer for kv cache\n",
        {}, "cache_allocation", "making the context", 16, (22994 - 7605.33) / 1024, "--ctx-size", 114944,
    ),
    "llama.cpp: the weights": Failed(
        f"{LLAMA_HEAD}{allocating(40184)}llama_model_load: error loading model: unable to allocate CUDA0 buffer\n"
        "llama_model_load_from_file_impl: failed to load model\n",
        {}, "weights_allocation", "loading the weights", 40184 / 1024, 22994 / 1024, "--n-gpu-layers", 17,
    ),
    "llama.cpp: the compute buffers": Failed(
        f"{LLAMA}{allocating(9000)}ggml_gallocr_reserve_n: failed to allocate CUDA0 buffer of size 9437184000\n"
        "llama_init_from_model: failed to initialize the context: failed to allocate compute pp buffers\n",
        {}, "compute_allocation", "making the context", 9000 / 1024, (22994 - 7605.33) / 1024, "--ctx-size", 67840,
    ),
    "llama.cpp: Vulkan": Failed(
        f"{LLAMA}ggml_vulkan: Device memory allocation of size 17179869184 failed.\n",
        {}, "allocation", "making the context", 16, (22994 - 7605.33) / 1024, "--ctx-size", 71168,
    ),
    "ollama: the host": Failed(
        f"{OLLAMA}{LLAMA}time=2026-03-04T10:00:00.000Z level=INFO source=sched.go:448 msg=\"Load failed\" error=\"model "
        "requires more system memory (21.3 GiB) than is available (15.2 GiB)\"\n",
        {}, "host_memory", "making the context", 21.3, 15.2, "--ctx-size", None,
    ),
}  # fmt: skip

GIVEN = {"model": "meta-llama/Llama-3.1-8B-Instruct", "gpu": "l4"}
SEVERAL = (
    "CUDA out of memory. Tried to allocate 112.00 MiB. GPU 0 has a total capacity of 79.11 GiB of which 90.88 MiB is "
    "free. Process 2741 has 70.20 GiB memory in use. Process 3000 has 8.80 GiB memory in use. Of the allocated memory "
    "8.31 GiB is allocated by PyTorch, and 21.2 MiB is reserved by PyTorch but unallocated.\n"
)
# What engines print where memory is short, in words of their own: no flag need be named.
MORE = {
    "tensorrt-llm: one sequence is too long": Failed(
        "[TensorRT-LLM] TensorRT-LLM version: 0.12.0\n[TensorRT-LLM][INFO] Memory usage when calculating max tokens in "
        "paged kv cache: total: 22.06 GiB, available: 0.72 GiB\n[TensorRT-LLM][ERROR] Encountered an error when "
        "initializing: Assertion failed: maxTokensInPagedKvCache (5184) must be large enough to process at least 1 "
        "sequence to completion (i.e. must be larger than beam_width (1) * tokensPerBlock (64) * maxBlocksPerSeq "
        "(128))\n",
        GIVEN, "one_request_too_long", "making the cache", 1, 5184 / 8192, "--max-seq-len", 5184,
    ),
    "llama.cpp: the driver": Failed(
        f"{LLAMA}CUDA error: out of memory\n  current device: 0, in function alloc at ggml-cuda.cu:503\n"
        "  cuMemCreate(&handle, reserve_size, &prop, 0)\nggml-cuda.cu:88: CUDA error\n",
        {}, "out_of_memory", "making the context", None, None,
    ),
    "llama.cpp: Metal": Failed(
        f"{LLAMA.replace('CUDA0', 'Metal')}ggml_backend_metal_buffer_type_alloc_buffer: error: failed to allocate "
        "buffer, size = 16384.00 MiB\nllama_init_from_model: failed to initialize the context: failed to allocate "
        "buffer for kv cache\n",
        {}, "cache_allocation", "making the context", 16, (22994 - 7605.33) / 1024, "--ctx-size", 114944,
    ),
    "llama.cpp: the host": Failed(
        f"{LLAMA}ggml_backend_cpu_buffer_type_alloc_buffer: failed to allocate buffer of size 17179869184\n"
        "llama_init_from_model: failed to initialize the context: failed to allocate buffer for kv cache\n",
        {}, "cache_allocation", "making the context", 16, None,
    ),
    "ollama: the layout": Failed(
        f"{OLLAMA}{LLAMA}time=2026-03-04T10:00:00.000Z level=INFO source=sched.go:448 msg=\"Load failed\" "
        "error=\"memory layout cannot be allocated with num_gpu = 33\"\n",
        {}, "layout_allocation", "making the context", None, 22994 / 1024,
    ),
    "vllm: the driver": Failed(
        f"{vllm()}{LOADED}{ERROR}RuntimeError: CUDA driver error: out of memory\n",
        {"gpu": "rtx4090"}, "out_of_memory", "profiling a full step", None, None,
    ),
    "vllm: NCCL": Failed(
        f"{vllm(tp=2)}{ERROR}torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:317, unhandled cuda "
        "error, NCCL version 2.21.5\nncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure "
        "2 'out of memory'\n",
        CARD, "out_of_memory", "loading the weights", None, None,
    ),
    "vllm: another process freed memory": Failed(
        f"{vllm()}{LOADED}{ERROR}AssertionError: Error in memory profiling. Initial free memory 14.03 GiB, current free "
        "memory 20.1 GiB. This happens when other processes sharing the same container release GPU memory while vLLM "
        "is profiling during initialization.\n",
        {"gpu": "rtx4090"}, "freed_meanwhile", "profiling a full step", None, None,
    ),
    "sglang: devices unlike each other": Failed(
        f"{SGLANG.splitlines()[0].format(share=0.9)}\n{HIT}ValueError: The memory capacity is unbalanced. Some GPUs may "
        "be occupied by other processes. pre_model_load_memory=30.21, local_gpu_memory=78.60, local_gpu_memory * "
        "0.9=70.74\n",
        CARD, "unbalanced", "checking what is free", 70.74, 30.21,
    ),
    "vllm: several processes": Failed(
        f"{vllm()}{ERROR}torch.OutOfMemoryError: {SEVERAL}",
        CARD, "out_of_memory", "loading the weights", 112 / 1024, 90.88 / 1024,
    ),
    "vllm: in words that no form knows": Failed(
        f"{vllm()}{ERROR}SomeError: the accelerator ran out of memory in the middle of it\n",
        CARD, "out_of_memory", "loading the weights", None, None,
    ),
    "tensorrt-llm: in words that no form knows": Failed(
        f"{TENSORRT}[03/04/2026-10:00:08] [TRT-LLM] [E] Allocation of workspace failed: Out of memory.\n",
        GIVEN, "out_of_memory", "the dry run", None, None,
    ),
}  # fmt: skip
