"""`kvplan levers`: the command and its flags."""

from __future__ import annotations

from typing import Annotated, Any

import typer

import kvplan
from kvplan.faces import options, output
from kvplan.faces.engine_options import takes_engine_flags

_Later = Annotated[str, typer.Option(hidden=True)]


def _of_levers(name: str, help: str, metavar: str | None = None) -> Any:
    return typer.Option(name, help=help, metavar=metavar, rich_help_panel="levers", show_default=False)


@takes_engine_flags
def levers(
    model: Annotated[
        str, typer.Argument(metavar="[MODEL]", help="an id, a path or a repo; --command names one too")
    ] = "",
    gpu: options.Gpu = "",
    engine: options.Engine = "vllm",
    engine_version: options.Version = "",
    tp: options.Tp = 1,
    pp: options.Pp = 1,
    dp: options.Dp = 1,
    ep: options.Ep = 1,
    dcp: Annotated[int, typer.Option(hidden=True)] = 1,
    attention_dp: options.AttentionDp = 1,
    prompt_tokens: options.Prompt = 0,
    output_tokens: options.Output = 0,
    batch: options.Batch = 0,
    concurrency: options.Concurrency = 0,
    rate: options.Rate = 0.0,
    context_depth: options.Depth = 0,
    shared_prefix_tokens: options.Shared = 0,
    speculative_tokens: options.Drafts = 0,
    acceptance: options.Acceptance = 0.0,
    ttft: options.Ttft = "",
    tpot: options.Tpot = "",
    prefix_hit_rate: Annotated[
        float, _of_levers("--prefix-hit-rate", "share of prompt tokens found in a cache; half else", "0..1")
    ] = 0.0,
    host_cache: Annotated[
        str, _of_levers("--host-cache", "host memory for caches, all ranks; twice the device's else", "SIZE")
    ] = "",
    price: Annotated[
        list[str] | None,
        _of_levers("--price", "dollars an hour of one, for each: h100=2.49; listed ones else", "GPU=RATE"),
    ] = None,
    dtype: options.Dtype = "auto",
    quantization: options.Quantization = "",
    kv_cache_dtype: options.Kv = "auto",
    gpu_memory: options.GpuMemory = "",
    memory_in_use: options.InUse = "",
    link: options.Link = "",
    kv_cache_memory_bytes: options.Pool = "",
    weights_memory: options.Weights = "",
    activation_memory: options.Activation = "",
    graph_memory: options.Graphs = "",
    command: options.Command = "",
    trace: _Later = "",
    seed: _Later = "",
    ttft_p99: _Later = "",
    tpot_p99: _Later = "",
    e2e_p99: _Later = "",
    as_json: options.Json = False,
    explain: options.Explain = "",
    plot: options.Plot = "",
    save: options.Save = "",
    check: Annotated[
        bool, typer.Option("--check", help="exit 1 when it does not fit or misses a goal as it is")
    ] = False,
    **engine_flags: Any,
) -> None:
    """Every what-if side by side: memory, times, cost against the deployment as it is, and at what price."""
    answer = kvplan.levers(**output.asked())
    output.draw(plot, answer, "levers")
    output.save(save, answer)
    output.show(answer, "levers", as_json, explain, {})
    if check and answer["binds"]["figure"] in ("fits", "goals"):
        raise typer.Exit(1)
