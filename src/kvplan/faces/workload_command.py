"""`kvplan workload`: the command and its flags."""

from __future__ import annotations

from typing import Annotated, Any

import kvplan
from kvplan.faces import options, output
from kvplan.faces.load_options import option

_FROM, _INTO = "learn from", "write"


def _from(name: str, help: str, metavar: str | None = None) -> Any:
    return option(name, help, _FROM, metavar)


def _into(name: str, help: str, metavar: str | None = None) -> Any:
    return option(name, help, _INTO, metavar)


Prometheus = Annotated[str, _from("--prometheus", "a Prometheus, such as http://host:9090", "URL")]
Selector = Annotated[str, _from("--selector", 'which series: {job="vllm", model_name="x"}', "{…}")]
Since = Annotated[str, _from("--since", "how far back; 24h else", "TIME")]
Step = Annotated[str, _from("--step", "of the curve; four scrapes or more else", "TIME")]
Header = Annotated[list[str] | None, _from("--header", "'Name: value', or @FILE with such lines", "TEXT")]
Timeout = Annotated[str, _from("--timeout", "of each page; 10s else", "TIME")]


def workload(
    prometheus: Prometheus = "",
    trace: Annotated[str, _from("--trace", "a trace instead: CSV, JSONL or Parquet", "FILE")] = "",
    prefix_block_tokens: Annotated[int, _from("--prefix-block-tokens", "of one of the trace's hashes")] = 512,
    selector: Selector = "",
    since: Since = "",
    step: Step = "",
    busiest: Annotated[str, _from("--busiest", "only the part of so long with most requests", "TIME")] = "",
    engine: Annotated[str, _from("--engine", "where several are kept")] = "",
    header: Header = None,
    timeout: Timeout = "",
    out: Annotated[str, _into("--out", "a trace: .jsonl, .csv or .parquet", "FILE")] = "",
    histograms: Annotated[
        str, _into("--histograms", "lengths, for histogram(FILE), into a folder", "FOLDER")
    ] = "",
    seed: Annotated[int, _into("--seed", "the same seed draws the same")] = 0,
    as_json: options.Json = False,
    save: options.Save = "",
) -> None:
    """What requests are like, from a Prometheus or a trace: rates, lengths, hits; written to be simulated."""
    answer = kvplan.workload(**output.asked())
    output.save(save, answer)
    output.show(answer, "workload", as_json, "", {})
