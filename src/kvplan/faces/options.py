"""Options that several commands have: their types, names and help."""

from __future__ import annotations

from typing import Annotated, Any

import typer

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="a built-in id or short name, a config.json, a folder, a .gguf file or a Hub repo",
    ),
]
MaybeModel = Annotated[
    str, typer.Argument(metavar="[MODEL]", help="an id, a path or a repo; --command names one too")
]
Json = Annotated[bool, typer.Option("--json", help="one JSON document, nothing else")]
Explain = Annotated[
    str,
    typer.Option(
        "--explain",
        metavar="[NAME]",
        help="formula, numbers put in, result and sources of one figure, or of all",
    ),
]
Tp = Annotated[int, typer.Option("--tp", help="tensor-parallel ranks; figures are one rank's")]
Kv = Annotated[str, typer.Option("--kv-cache-dtype", help="auto, bfloat16, fp8, fp8_ds_mla, nvfp4, q8_0, …")]


def can_draw(name: str) -> str:
    """Refuse, before any work, a picture that cannot be drawn or written."""
    if name:
        from kvplan.faces import picture

        picture.check_plot(name)
    return name


Plot = Annotated[
    str,
    typer.Option("--plot", metavar="FILE", help="draw to FILE.svg, FILE.png or FILE.html", callback=can_draw),
]
Save = Annotated[
    str,
    typer.Option("--save", metavar="FILE", help="keep the answer, for kvplan compare", show_default=False),
]


def launch_form(name: str) -> str:
    """Refuse, before any work, a launch file that cannot be written."""
    if name:
        from kvplan.faces import launch_file

        launch_file.check(name)
    return name


LaunchFile = Annotated[
    str,
    typer.Option(
        "--launch",
        metavar="FILE",
        help="write what starts it: *compose*.yaml for Docker, another .yaml for Kubernetes, .sh else",
        show_default=False,
        callback=launch_form,
    ),
]
LaunchAs = Annotated[
    str,
    typer.Option(
        "--launch-as",
        metavar="FORM",
        help="print only that, or --launch FILE in that form: command, compose, kubernetes, yaml "
        "(TensorRT-LLM's own file)",
        show_default=False,
    ),
]
Dtype = Annotated[str, typer.Option("--dtype", help="auto (the config's), bfloat16, float16, float32")]
Quantization = Annotated[
    str,
    typer.Option(
        "--quantization", help="the checkpoint's own when not given; none, fp8, awq, gptq, nvfp4, …"
    ),
]
Gpu = Annotated[str, typer.Option("--gpu", help="h100, H100-SXM-80GB, rtx4090, … (kvplan accelerators)")]
GpuMemory = Annotated[
    str, typer.Option("--gpu-memory", metavar="SIZE", help="instead of the catalogue's memory; a MIG slice")
]
Link = Annotated[
    str,
    typer.Option(
        "--link",
        metavar="RATE",
        help="what an all-reduce reaches between ranks one way (nccl-tests' busbw), such as 16GB/s; "
        "timed ones else",
    ),
]
Engine = Annotated[str, typer.Option("--engine", help="vllm, sglang, tensorrt-llm, llama.cpp, transformers")]
Version = Annotated[
    str, typer.Option("--engine-version", metavar="X", help="0.19 is the newest 0.19 known; the newest else")
]
Pp = Annotated[int, typer.Option("--pp", help="pipeline stages")]
Dp = Annotated[int, typer.Option(help="data-parallel replicas")]
Ep = Annotated[int, typer.Option(help="expert-parallel ranks")]
AttentionDp = Annotated[int, typer.Option(help="ranks that each attend to their own requests")]
InUse = Annotated[str, typer.Option(metavar="SIZE", help="held by others on the device")]
Command = Annotated[
    str, typer.Option(metavar="LINE", help="a launch command as you would paste it: vllm serve …")
]
Check = Annotated[bool, typer.Option("--check", help="exit 1 when it does not fit")]
_MEASURED = "figures you measured"
Pool = Annotated[
    str,
    typer.Option(
        "--kv-cache-memory-bytes",
        metavar="SIZE",
        help="one rank's cache; no --gpu needed",
        rich_help_panel=_MEASURED,
    ),
]
Weights = Annotated[
    str,
    typer.Option(
        "--weights-memory", metavar="SIZE", help="as the engine printed it", rich_help_panel=_MEASURED
    ),
]
Activation = Annotated[
    str,
    typer.Option("--activation-memory", metavar="SIZE", help="the profiled peak", rich_help_panel=_MEASURED),
]
Graphs = Annotated[
    str, typer.Option("--graph-memory", metavar="SIZE", help="CUDA graphs", rich_help_panel=_MEASURED)
]


def _load(help: str) -> Any:
    panel = "load: one of batch, concurrency and rate"
    return typer.Option(help=help, rich_help_panel=panel, show_default=False)


Prompt = Annotated[int, _load("tokens of one prompt; 2,048 else")]
Output = Annotated[int, _load("tokens of one output; 256 else")]
Batch = Annotated[int, _load("requests that start together; as many as fit, at most 32, else")]
Concurrency = Annotated[int, _load("users who ask again once answered")]
Rate = Annotated[float, _load("requests a second that arrive at random")]
Depth = Annotated[int, _load("tokens cached before the prompt")]
Shared = Annotated[int, _load("of the prompt, found in the cache")]
Drafts = Annotated[int, _load("tokens drafted a step")]
Acceptance = Annotated[float, _load("share of drafted tokens that stand; 0.7 else")]


def _goal(name: str, help: str) -> Any:
    return typer.Option(name, metavar="TIME", help=help, rich_help_panel="goals")


Ttft = Annotated[str, _goal("--ttft", "mean time to the first token to stay within")]
Tpot = Annotated[str, _goal("--tpot", "mean time of a token to stay within")]


_Hidden = Annotated[int, typer.Option(hidden=True)]
_Later = Annotated[str, typer.Option(hidden=True)]


# Groups for `engine_options.takes`.
def deployment(
    gpu: Gpu = "",
    engine: Engine = "vllm",
    engine_version: Version = "",
    tp: Tp = 1,
    pp: Pp = 1,
    dp: Dp = 1,
    ep: Ep = 1,
    dcp: _Hidden = 1,
    attention_dp: AttentionDp = 1,
    dtype: Dtype = "auto",
    quantization: Quantization = "",
    kv_cache_dtype: Kv = "auto",
    gpu_memory: GpuMemory = "",
    memory_in_use: InUse = "",
    command: Command = "",
) -> None:
    """What runs, on what, and how it is divided."""


def measured(
    kv_cache_memory_bytes: Pool = "",
    weights_memory: Weights = "",
    activation_memory: Activation = "",
    graph_memory: Graphs = "",
) -> None:
    """Figures that were measured, in place of predicted ones."""


def links(link: Link = "") -> None:
    """What ranks reach between them."""


def load(
    prompt_tokens: Prompt = 0,
    output_tokens: Output = 0,
    batch: Batch = 0,
    concurrency: Concurrency = 0,
    rate: Rate = 0.0,
    context_depth: Depth = 0,
    shared_prefix_tokens: Shared = 0,
    speculative_tokens: Drafts = 0,
    acceptance: Acceptance = 0.0,
    ttft: Ttft = "",
    tpot: Tpot = "",
) -> None:
    """A load in steady state, and goals of its means."""


def later(
    trace: _Later = "", seed: _Later = "", ttft_p99: _Later = "", tpot_p99: _Later = "", e2e_p99: _Later = ""
) -> None:
    """What only `simulate` and `recommend` answer: taken, to be refused with a word on where to ask."""
