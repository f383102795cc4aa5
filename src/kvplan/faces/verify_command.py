"""`kvplan verify`: the command and its flags."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

import kvplan
from kvplan.errors import BadInput
from kvplan.faces import options, output
from kvplan.faces.engine_options import takes

_SOURCE = "what really runs"


def asked(name: str, help: str, metavar: str | None = None) -> Any:
    """An option of where figures come from."""
    return typer.Option(name, help=help, metavar=metavar, rich_help_panel=_SOURCE, show_default=False)


def probing(name: str, help: str, metavar: str | None = None) -> Any:
    """An option of the load that is sent."""
    panel = "a load to send, only where --probe is given"
    return typer.Option(name, help=help, metavar=metavar, rich_help_panel=panel, show_default=False)


@takes(options.deployment, options.measured)
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
    url: Annotated[str, asked("--url", "a running server, such as http://host:8000", "URL")] = "",
    prometheus: Annotated[str, asked("--prometheus", "what it keeps of one: http://host:9090", "URL")] = "",
    selector: Annotated[str, asked("--selector", 'which of its series: {job="vllm"}', "{…}")] = "",
    since: Annotated[str, asked("--since", "how far it looks back; 24h else", "TIME")] = "",
    step: Annotated[str, asked("--step", "of its steps; four scrapes or more else", "TIME")] = "",
    header: Annotated[
        list[str] | None, asked("--header", "'Name: value', or @FILE with such lines", "TEXT")
    ] = None,
    timeout: Annotated[str, asked("--timeout", "of each page; 10s else", "TIME")] = "",
    watch: Annotated[str, asked("--watch", "ask twice, so long apart: requests between only", "TIME")] = "",
    served: Annotated[str, asked("--served", "which model, where a server has several", "NAME")] = "",
    probe: Annotated[bool, probing("--probe", "send a short load to the URL, and time it")] = False,
    probe_concurrency: Annotated[
        str, probing("--probe-concurrency", "requests at once; 1,4,8 else", "N,N")
    ] = "",
    probe_requests: Annotated[int, probing("--probe-requests", "at most so many in all; 100 else")] = 0,
    probe_rate: Annotated[float, probing("--probe-rate", "at most so many a second; 20 else")] = 0.0,
    probe_seconds: Annotated[str, probing("--probe-seconds", "at most so long; 120s else", "TIME")] = "",
    prompt_tokens: Annotated[int, probing("--prompt-tokens", "tokens of each prompt; 256 else")] = 0,
    output_tokens: Annotated[int, probing("--output-tokens", "tokens of each output; 64 else")] = 0,
    engine: options.Engine = "",
    as_json: options.Json = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="a report to paste into an issue")] = False,
    explain: options.Explain = "",
    save: options.Save = "",
    check: Annotated[
        bool, typer.Option("--check", help="exit 1 when a figure disagrees, or the start failed")
    ] = False,
    **rest: Any,
) -> None:
    """Predicted beside reported for every figure of a log or a server; what explains and fixes the rest."""
    if markdown and (as_json or explain):
        raise BadInput("--markdown: prints a report of its own; give it without --json and --explain")
    answer = kvplan.verify(**output.asked(), report=_told)
    output.save(save, answer)
    if markdown:
        from kvplan.faces.verify_markdown import document

        print(document(answer))
    else:
        output.show(answer, "verify", as_json, explain, {})
    if check and (not answer["agrees"] or answer["failure"] is not None):
        raise typer.Exit(1)


def _told(what: str) -> None:
    """Say what will be sent before it is."""
    print(f"kvplan: {what}", file=sys.stderr, flush=True)
