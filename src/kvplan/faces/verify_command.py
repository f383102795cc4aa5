"""`kvplan verify`: the command and its flags."""

from __future__ import annotations

from typing import Annotated, Any

import typer

import kvplan
from kvplan.errors import BadInput
from kvplan.faces import options, output
from kvplan.faces.engine_options import takes_engine_flags

_SOURCE = "what really runs"


@takes_engine_flags
def verify(
    model: Annotated[
        str, typer.Argument(metavar="[MODEL]", help="an id, a path or a repo; the log's own else")
    ] = "",
    log: Annotated[
        str,
        typer.Option(
            "--log",
            metavar="FILE",
            help="an engine's output since its start; - for standard input",
            rich_help_panel=_SOURCE,
            show_default=False,
        ),
    ] = "",
    gpu: options.Gpu = "",
    engine: options.Engine = "",
    engine_version: options.Version = "",
    tp: options.Tp = 1,
    pp: options.Pp = 1,
    dp: options.Dp = 1,
    ep: options.Ep = 1,
    dcp: Annotated[int, typer.Option(hidden=True)] = 1,
    attention_dp: options.AttentionDp = 1,
    dtype: options.Dtype = "auto",
    quantization: options.Quantization = "",
    kv_cache_dtype: options.Kv = "auto",
    gpu_memory: options.GpuMemory = "",
    memory_in_use: options.InUse = "",
    kv_cache_memory_bytes: options.Pool = "",
    weights_memory: options.Weights = "",
    activation_memory: options.Activation = "",
    graph_memory: options.Graphs = "",
    command: options.Command = "",
    as_json: options.Json = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="a report to paste into an issue")] = False,
    explain: options.Explain = "",
    save: options.Save = "",
    check: Annotated[bool, typer.Option("--check", help="exit 1 when a figure disagrees")] = False,
    **engine_flags: Any,
) -> None:
    """Predicted beside reported for every figure of a start-up log; what explains and what fixes the rest."""
    if markdown and (as_json or explain):
        raise BadInput("--markdown: prints a report of its own; give it without --json and --explain")
    answer = kvplan.verify(**output.asked())
    output.save(save, answer)
    if markdown:
        from kvplan.faces.verify_markdown import document

        print(document(answer))
    else:
        output.show(answer, "verify", as_json, explain, {})
    if check and not answer["agrees"]:
        raise typer.Exit(1)
