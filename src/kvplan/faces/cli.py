"""The command line: flags in, a report or one JSON document out."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer

import kvplan
from kvplan.errors import BadInput, KvplanError, shown
from kvplan.faces import (
    drill_command,
    latency_command,
    launch_file,
    levers_command,
    measure_command,
    options,
    output,
    recommend_command,
    simulate_command,
    usage,
    verify_command,
    workload_command,
)
from kvplan.faces.engine_options import takes

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="What an LLM's KV cache costs, what fits, and how fast it can go, before renting a GPU.",
    epilog="Sizes: 80GB is 80 × 10^9 bytes, 74.5GiB is 74.5 × 2^30. Times: 0.5s, 30ms.",
)


@app.callback(invoke_without_command=True)
def _top(version: Annotated[bool, typer.Option("--version", help="print the version")] = False) -> None:
    if version:
        typer.echo(f"kvplan {kvplan.__version__}")
        raise typer.Exit


@app.command()
def size(
    model: options.Model,
    tokens: Annotated[int, typer.Option(help="tokens of one sequence")] = 1,
    batch: Annotated[int, typer.Option(help="sequences")] = 1,
    tp: options.Tp = 1,
    kv_cache_dtype: options.Kv = "auto",
    dtype: options.Dtype = "auto",
    quantization: options.Quantization = "",
    image_tokens: Annotated[int, typer.Option(help="image tokens that cross-attention keeps")] = 0,
    encoder_tokens: Annotated[int, typer.Option(help="encoder positions that cross-attention keeps")] = 0,
    as_json: options.Json = False,
    explain: options.Explain = "",
    plot: options.Plot = "",
    save: options.Save = "",
) -> None:
    """What one token, one sequence and one batch cost in cache; no hardware needed."""
    answer = kvplan.size(
        model,
        tokens=tokens,
        batch=batch,
        tp=tp,
        kv_cache_dtype=kv_cache_dtype,
        dtype=dtype,
        quantization=quantization or None,
        image_tokens=image_tokens,
        encoder_tokens=encoder_tokens,
    )
    asked = {"tokens": tokens, "batch": batch, "tp": tp}
    output.draw(plot, answer, "size")
    output.save(save, answer)
    output.show(answer, "size", as_json, explain, asked)


@app.command()
def timeline(
    model: options.Model,
    prompt_tokens: Annotated[int, typer.Option(help="tokens of one prompt")] = 2048,
    output_tokens: Annotated[int, typer.Option(help="tokens of one output")] = 128,
    batch: Annotated[int, typer.Option(help="sequences that start together")] = 1,
    arrivals: Annotated[
        str, typer.Option(metavar="STEPS", help="the steps in which requests arrive: 0,3,5")
    ] = "",
    chunked_prefill_size: Annotated[
        int,
        typer.Option(
            "--chunked-prefill-size",
            "--max-num-batched-tokens",
            help="tokens of one step; prompts are cut to fit",
        ),
    ] = 0,
    block_size: Annotated[int, typer.Option(help="round every sequence up to whole blocks of tokens")] = 1,
    tp: options.Tp = 1,
    kv_cache_dtype: options.Kv = "auto",
    dtype: options.Dtype = "auto",
    as_json: options.Json = False,
    explain: options.Explain = "",
    plot: options.Plot = "",
    save: options.Save = "",
) -> None:
    """When a request claims its cache: the jump at prefill, or its chunks, and the trickle of decode."""
    answer = kvplan.timeline(
        model,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        batch=batch,
        tp=tp,
        kv_cache_dtype=kv_cache_dtype,
        dtype=dtype,
        chunk_tokens=chunked_prefill_size if "chunked_prefill_size" in output.given() else None,
        block_size=block_size,
        arrivals=_steps(arrivals) if arrivals else None,
    )
    asked = {"prompt_tokens": prompt_tokens, "output_tokens": output_tokens, "tp": tp}
    output.draw(plot, answer, "timeline")
    output.save(save, answer)
    output.show(answer, "timeline", as_json, explain, asked)


def _steps(text: str) -> list[int]:
    words = text.split(",")
    if not all(word.strip().isascii() and word.strip().isdigit() and len(word) < 12 for word in words):
        raise BadInput(f"--arrivals: {shown(text)} is not a list of steps; write numbers, such as 0,3,5")
    return [int(word) for word in words]


@app.command()
@takes(options.deployment, options.measured)
def fit(
    model: options.MaybeModel = "",
    dcp: Annotated[int, typer.Option(help="decode context-parallel ranks")] = 1,
    attention_dp: Annotated[int, typer.Option(help="ranks that each serve their own requests")] = 1,
    batch: Annotated[int, typer.Option(help="so many of the longest must fit", show_default=False)] = 0,
    against: Annotated[
        str, typer.Option(metavar="VERSION", help="what changes in another version, and the rule that did")
    ] = "",
    as_json: options.Json = False,
    explain: options.Explain = "",
    plot: options.Plot = "",
    save: options.Save = "",
    check: options.Check = False,
    **rest: Any,
) -> None:
    """The memory budget of one rank, and the capacity as the named engine and version will print it."""
    answer = kvplan.fit(**output.asked())
    asked = {"tp": rest["tp"], "gpu": rest["gpu"]}
    output.draw(plot, answer, "fit")
    output.save(save, answer)
    output.show(answer, "fit", as_json, explain, asked)
    if check and not answer["capacity"]["fits"]:
        raise typer.Exit(1)


app.command()(latency_command.latency)
app.command()(simulate_command.simulate)
app.command()(levers_command.levers)
app.command()(measure_command.measure)
app.command()(recommend_command.recommend)
app.command()(drill_command.drill)
app.command()(verify_command.verify)
app.command()(workload_command.workload)


@app.command()
@takes(options.deployment, options.links, options.load)
def plan(
    model: options.MaybeModel = "",
    as_json: options.Json = False,
    explain: options.Explain = "",
    plot: options.Plot = "",
    save: options.Save = "",
    launch: options.LaunchFile = "",
    launch_as: options.LaunchAs = "",
    check: Annotated[
        bool, typer.Option("--check", help="exit 1 when it does not fit or misses a goal")
    ] = False,
    **rest: Any,
) -> None:
    """The one-page answer: memory, capacity, times at a load, limits, levers, launch."""
    answer = kvplan.plan(**{**output.asked(), **launch_file.form_of(launch, launch_as)})
    asked = {"gpu": rest["gpu"], "tp": rest["tp"], **answer["load"]}
    output.draw(plot, answer, "plan")
    output.save(save, answer)
    launch_file.write(launch, answer)
    if launch_as and not (launch or as_json or explain):
        launch_file.show(answer)
    else:
        output.show(answer, "plan", as_json, explain, asked)
    if check and not (answer["fit"]["capacity"]["fits"] and latency_command.met(answer["latency"])):
        raise typer.Exit(1)


@app.command()
def compare(
    a: Annotated[str, typer.Argument(metavar="A", help="a kept answer: what --save or --json wrote")],
    b: Annotated[str, typer.Argument(metavar="B", help="another of the same verb")],
    as_json: options.Json = False,
) -> None:
    """Two kept answers side by side: what was asked, what came out."""
    output.show(kvplan.compare(a, b), "compare", as_json, "", {})


@app.command()
def models(
    filter: Annotated[
        str, typer.Argument(metavar="[FILTER]", help="part of an id, a family or a model type")
    ] = "",
    as_json: options.Json = False,
) -> None:
    """The built-in models, with where each config was seen and how far it can be trusted."""
    _listing(kvplan.models(filter), "models", as_json)


@app.command()
def accelerators(
    filter: Annotated[str, typer.Argument(metavar="[FILTER]", help="part of a name or a vendor")] = "",
    as_json: options.Json = False,
) -> None:
    """The built-in accelerators: memory, bandwidth, dense peaks, with their sources."""
    _listing(kvplan.accelerators(filter), "accelerators", as_json)


@app.command()
def engines(
    filter: Annotated[str, typer.Argument(metavar="[FILTER]", help="part of an engine's name")] = "",
    as_json: options.Json = False,
) -> None:
    """The engines and their versions whose rules are known."""
    _listing(kvplan.engines(filter), "engines", as_json)


def _listing(rows: list[dict[str, Any]], verb: str, as_json: bool) -> None:
    if as_json:
        print(json.dumps(rows, indent=1))
    else:
        from kvplan.faces import text as face

        face.show_listing(verb, rows)


def main(arguments: list[str] | None = None) -> None:
    """Run one command; every error is one line on standard error and exit status 2."""
    words = usage.with_optional_name(sys.argv[1:] if arguments is None else arguments)
    try:
        status = app(words, prog_name="kvplan", standalone_mode=False)
    except KvplanError as error:
        _fail(str(error))
    except typer.TyperException as error:
        if not words:
            raise SystemExit(2) from None  # the help is on the screen already
        _fail(usage.one_line(error, words))
    except typer.Abort:
        _fail("stopped", 130)
    except BrokenPipeError:
        sys.stderr.close()  # the reader has gone: nothing more to say
        raise SystemExit(0) from None
    else:
        raise SystemExit(status if isinstance(status, int) else 0)


def _fail(message: str, status: int = 2) -> None:
    print(f"kvplan: error: {' '.join(message.split())}", file=sys.stderr)
    raise SystemExit(status)
