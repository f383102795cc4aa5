"""`kvplan latency`: the command and its flags."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

import kvplan
from kvplan.errors import BadInput
from kvplan.faces import options, output
from kvplan.faces.engine_options import takes_engine_flags

_Later = Annotated[str, typer.Option(hidden=True)]


@takes_engine_flags
def latency(
    model: Annotated[
        str,
        typer.Argument(metavar="[MODEL]", help="an id, a path or a repo; --command names one too"),
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
    cases: Annotated[
        str,
        typer.Option(metavar="FILE", help="many cases, a JSON line each"),
    ] = "",
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
        bool, typer.Option("--check", help="exit 1 when it does not fit or misses a goal")
    ] = False,
    **engine_flags: Any,
) -> None:
    """Prefill and decode times, what binds each, and TTFT, TPOT and throughput at a load."""
    if cases:
        _cases(cases, as_json)
        return
    answer = kvplan.latency(**output.asked())
    output.draw(plot, answer, "latency")
    output.save(save, answer)
    output.show(answer, "latency", as_json, explain, {})
    if check and not met(answer):
        raise typer.Exit(1)


def met(answer: dict[str, Any]) -> bool:
    """Whether the load is served within the goals."""
    serving, goal = answer["serving"], answer["batches"]["goal"] or {}
    for name in ("ttft_seconds", "tpot_seconds"):
        wanted, found = goal.get(name.replace("_seconds", "_goal_seconds")), serving[name]
        later = name == "tpot_seconds" and answer["load"]["output_tokens"] == 1
        if wanted is not None and not later and (found is None or found > wanted):
            return False
    return serving["output_tokens_per_second"] is not None


def _cases(path: str, as_json: bool) -> None:
    """Answer every line of a file: a JSON line each, or a table."""
    others = sorted(output.asked())
    if others:
        raise BadInput(f"--{others[0].replace('_', '-')}: a line of --cases says it; drop the option")
    from kvplan.verbs.case_lines import answered

    if as_json:
        for _, found in answered(path):
            print(json.dumps(found), flush=False)
        return
    from kvplan.faces import latency_report

    latency_report.cases(answered(path))
