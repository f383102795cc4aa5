"""How answers look in a terminal. Human units live here and nowhere deeper."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvplan.faces import (
    compare_report,
    fit_report,
    latency_report,
    levers_report,
    measure_report,
    recommend_report,
    simulate_report,
    verify_report,
    workload_report,
)
from kvplan.faces.table import Row, console, lines
from kvplan.units import bytes_text, count_text, counted, decimal_text, seconds_text
from kvplan.verbs.answer import Answer

_BAR = 30
_MOST_INPUTS = 5


def show(verb: str, answer: Answer, asked: dict[str, Any]) -> None:
    """Print the report of one verb, ending with what it rests on."""
    out = console()
    _REPORTS[verb](out, answer, asked)
    _rests_on(out, answer)


def _rests_on(out: Console, answer: Answer) -> None:
    weakest = answer.rests_on()
    if not weakest:
        return
    label = weakest[0].source.trust.label if weakest and weakest[0].source else ""
    out.print()
    out.print(f"[bold]rests on[/bold] (weakest inputs, {label}):")
    if len(weakest) <= _MOST_INPUTS or label == "assumed":
        alike: dict[str, list[str]] = {}
        for figure in weakest:
            where = figure.source.where if figure.source else ""
            alike.setdefault(where.removeprefix(f"{figure.name}: "), []).append(figure.name)
        for where, names in alike.items():
            out.print(Text(f"  {', '.join(names)}: {where}"))
        return
    roots: dict[str, list[str]] = {}
    for figure in weakest:
        where = figure.source.where if figure.source else ""
        roots.setdefault(where.split(" ")[0].rstrip(":"), []).append(figure.name)
    for root, names in roots.items():
        more = f" and {len(names) - 4} more" if len(names) > 4 else ""
        out.print(Text(f"  {root}: {', '.join(names[:4])}{more}"))


def _size(out: Console, answer: Answer, asked: dict[str, Any]) -> None:
    model, kv = answer["model"], answer["kv"]
    out.print(Text(_headline(model), style="bold"))
    kinds = ", ".join(f"{n} {kind}" for kind, n in kv["layer_kinds"].items())
    out.print(Text(f"{model['layers']} layers: {kinds}; cache in {kv['dtype']}" + _on_rank(asked["tp"])))
    out.print()
    rows: list[Row] = [("one token", bytes_text(kv["bytes_per_token"]), _against_mha(kv))]
    if kv["window_tokens"]:
        after = f"once {count_text(kv['window_tokens'])}-token windows are full"
        rows.append(("one token later", bytes_text(kv["bytes_per_token_after_windows"]), after))
    if kv["indexer_bytes_per_token"]:
        rows.append(("index keys", bytes_text(kv["indexer_bytes_per_token"]), "per token, sparse attention"))
    if kv["state_bytes_per_sequence"]:
        rows.append(
            ("state", bytes_text(kv["state_bytes_per_sequence"]), "per sequence, whatever its length")
        )
    rows.append((counted(asked["tokens"], "token"), bytes_text(kv["bytes_per_sequence"]), "one sequence"))
    if asked["batch"] > 1:
        rows.append((f"{count_text(asked['batch'])} sequences", bytes_text(kv["bytes_total"]), "the batch"))
    rows.append(_weights(model["weight_bytes"], answer["weights"]))
    lines(out, rows)


def _weights(weight_bytes: int | None, weights: dict[str, Any] | None) -> Row:
    if weight_bytes is None:
        return ("weights", "not known", "stored in a scheme the formula does not know")
    return ("weights", bytes_text(weight_bytes), _stored(weights))


def _stored(weights: dict[str, Any] | None) -> str:
    """How the weights are stored, and how far the formula is from the files."""
    if weights is None:
        return "from shapes and the stated quantisation; no weight file read"
    kinds = ", ".join(f"{name} {bytes_text(size)}" for name, size in list(weights["by_dtype"].items())[:4])
    difference = weights["relative_difference"]
    return f"files: {kinds}" + (f"; formula {difference:+.2%}" if difference is not None else "")


def _headline(model: dict[str, Any]) -> str:
    size = decimal_text(model["parameters"], "")
    active = model["active_parameters"]
    of_them = f", {decimal_text(active, '')} active" if active != model["parameters"] else ""
    return f"{model['id']}  {size.strip()} parameters{of_them}"


def _on_rank(tp: int) -> str:
    return f"; figures are one rank's of {tp}" if tp > 1 else ""


def _against_mha(kv: dict[str, Any]) -> str:
    one, full = kv["bytes_per_token"], kv["mha_bytes_per_token"]
    return f"{full / one:.3g}× less than with a KV head per query head" if one and full > one else ""


def _timeline(out: Console, answer: Answer, asked: dict[str, Any]) -> None:
    """Steps are counted from 0, as --arrivals and the document count them."""
    steps = answer["steps"]
    ran = Counter(step["phase"] for step in steps)
    phases = ", ".join(f"{count_text(ran[p])} {p}" for p in ("prefill", "mixed", "decode", "idle") if ran[p])
    out.print(Text(f"{counted(len(steps), 'step')}: {phases}" + _on_rank(asked["tp"]), style="bold"))
    out.print()
    peak = max(step["held_bytes"] for step in steps)
    rows: list[Row] = []
    for i in _milestones(steps):
        step = steps[i]
        bar = "█" * round(_BAR * step["held_bytes"] / peak) if peak else ""
        tokens = f", {counted(step['tokens'], 'token')}" if step["tokens"] else ""
        what = f"step {i:,}  {step['phase']}{tokens}"
        rows.append((what, f"+{bytes_text(step['bytes'])}", f"{bytes_text(step['held_bytes'])} {bar}"))
    lines(out, rows)
    out.print()
    share = answer["decode_share"]
    claimed = [
        f"prefill claims {bytes_text(answer['prefill_bytes'])}",
        f"decode {bytes_text(answer['decode_bytes'])}",
    ]
    ending = f", {share:.1%} of {bytes_text(answer['total_bytes'])}" if share is not None else ""
    out.print(Text(", ".join(claimed) + ending))


def _milestones(steps: list[dict[str, Any]], most: int = 16) -> list[int]:
    """The steps worth a line: where the phase or the growth changes, and a few between."""
    turns = [
        i
        for i, step in enumerate(steps)
        if i == 0 or (step["phase"], step["bytes"]) != (steps[i - 1]["phase"], steps[i - 1]["bytes"])
    ]
    even = [round(i * (len(steps) - 1) / 6) for i in range(7)]
    return sorted({*turns[: most - 7], *even, len(steps) - 1})


def _plan(out: Console, answer: Answer, asked: dict[str, Any]) -> None:
    fit, model = answer["fit"], answer["size"]["model"]
    out.print(Text(_headline(model), style="bold"))
    engine = fit["engine"]
    out.print(
        Text(
            f"{fit_report.accelerators(engine['settings'])} × {asked['gpu']}, {engine['name']} "
            f"{engine['version']}; memory is one rank's"
        )
    )
    out.print()
    fit_report.memory(out, fit["memory"])
    out.print()
    _capacity(out, answer)
    out.print()
    _times(out, answer)
    _sentences(out, "limits", answer["limits"])
    _levers(out, answer)
    out.print()
    out.print(Text("launch", style="bold"))
    none = "none: it does not fit" if fit["capacity"]["fits"] is False else "none: there is no command for it"
    out.print(Text(f"  {answer['launch'] or none}"))
    for name, content in answer["launch_files"].items():
        out.print(Text(f"  {name}"))
        out.print(Text("".join(f"    {line}\n" for line in content.splitlines()).rstrip()))


def _capacity(out: Console, answer: Answer) -> None:
    capacity = answer["fit"]["capacity"]
    verdict = fit_report.VERDICTS[capacity["fits"]]
    tokens = capacity["kv_tokens"]
    out.print(
        Text(
            f"{verdict}: {counted(tokens, 'token')} of cache" if tokens is not None else verdict,
            style="bold",
        )
    )
    rows: list[Row] = []
    for row in answer["contexts"]:
        count = "any number" if row["sequences"] is None else counted(row["sequences"], "sequence")
        rows.append(
            (
                f"  of {counted(row['tokens'], 'token')}",
                count,
                f"{bytes_text(row['bytes_per_sequence'])} each",
            )
        )
    lines(out, rows)


def _times(out: Console, answer: Answer) -> None:
    latency, load = answer["latency"], answer["load"]
    amount = latency_report.amount_text(load)
    prompts = f"{counted(latency['load']['prompts'], 'prompt')} of {count_text(load['prompt_tokens'])}"
    out.print(Text("times (of 80 % of measurements; at best, no real step is faster)", style="bold"))
    table = latency_report.grid("left", "right", "left", "left", "left")
    for key, name, what in (("prefill", "  prefill", prompts), ("decode", "  decode step", amount)):
        part = latency[key]
        seconds = part["seconds" if key == "prefill" else "step_seconds"]
        known = latency_report.span(part["low_seconds"], part["high_seconds"])
        least = f"at best {seconds_text(part['lower_bound_seconds'])}"
        remark = f"{what}, {latency_report.bound(part, latency)}"
        table.add_row(
            name, Text(seconds_text(seconds), style="bold"), known, least, Text(remark, style="dim")
        )
    _served(table, latency["serving"], load)
    out.print(table)


def _served(table: Table, serving: dict[str, Any], load: dict[str, Any]) -> None:
    """What users see: of a batch its rate, of a steady load its waits too."""
    amount = latency_report.amount_text(load)
    what = f"{amount}, {count_text(load['output_tokens'])} tokens each, prefill included"
    shown = [("output_tokens_per_second", "  output", count_text, "tokens/s", what)]
    if "batch" not in load:
        waits = (
            ("ttft_seconds", "  TTFT", "queueing included"),
            ("tpot_seconds", "  TPOT", "others' prompts included"),
        )
        shown = [*((key, name, seconds_text, "", f"{amount}, {why}") for key, name, why in waits), *shown]
    for key, name, text, unit, remark in shown:
        value, low, high = (row[key] for row in (serving, serving["low"], serving["high"]))
        known = "" if low is None or high is None else f"{text(low)} to {text(high)}"
        if value is not None:
            table.add_row(name, Text(text(value), style="bold"), known, unit, Text(remark, style="dim"))


def _sentences(out: Console, title: str, sentences: list[str]) -> None:
    out.print()
    out.print(Text(title, style="bold"))
    for sentence in sentences:
        out.print(Text(f"  - {sentence}"))


def _levers(out: Console, answer: Answer) -> None:
    if not answer["levers"]:
        return
    now = answer["fit"]["capacity"]["max_concurrency"]
    out.print()
    out.print(
        Text(
            f"levers (now {now:.2f} sequences of the maximum length)" if now is not None else "levers",
            style="bold",
        )
    )
    table = latency_report.grid("left", "right", "right", "right", "right")
    table.add_row(*(Text(w, style="dim") for w in ("", "sequences", "TTFT", "TPOT", "tokens/s")))
    for lever in answer["levers"]:
        then, rate = lever["max_concurrency"], lever["output_tokens_per_second"]
        times = [
            "–" if lever[k] is None else seconds_text(lever[k]) for k in ("ttft_seconds", "tpot_seconds")
        ]
        table.add_row(
            f"  {lever['name']}",
            "" if then is None else f"{then:.2f}",
            *times,
            "–" if rate is None else count_text(rate),
        )
    out.print(table)
    for lever in answer["levers"]:
        if lever["note"]:
            out.print(Text(f"  {lever['name']}: {lever['note']}", style="dim"))


def show_listing(verb: str, rows: list[dict[str, Any]]) -> None:
    """Print a catalogue as a table, or in full when one row is left."""
    out = console()
    if not rows:
        out.print("none; try a shorter filter")
    elif len(rows) == 1:
        lines(out, [(k, "", _cell(k, v)) for k, v in rows[0].items()])
    elif verb == "models":
        lines(out, [(r["id"], r["model_type"] or "", r["confidence"]) for r in rows])
    else:
        lines(out, [_accelerator_row(r) for r in rows])


def _cell(key: str, value: Any) -> str:
    if isinstance(value, list):
        return "; ".join(str(item) for item in value) or "none"
    if isinstance(value, dict):
        return ", ".join(f"{k} {decimal_text(v, '')}" for k, v in value.items())
    if value is None:
        return "not known"
    return bytes_text(value) if key.endswith("_bytes") else str(value)


def _accelerator_row(row: dict[str, Any]) -> Row:
    memory = bytes_text(row["memory_bytes"]) if row["memory_bytes"] else "memory not known"
    peaks = row["peak_flops_per_second"]
    best = peaks.get("bf16") or peaks.get("fp16") or 0
    rate = decimal_text(row["bytes_per_second"], "B/s")
    return (f"{row['key']}  {row['name']}", memory, f"{rate}, {decimal_text(best, 'FLOP/s')} in 16 bit")


_REPORTS: dict[str, Callable[[Console, Answer, dict[str, Any]], None]] = {
    "size": _size,
    "timeline": _timeline,
    "fit": fit_report.fit,
    "latency": latency_report.latency,
    "plan": _plan,
    "levers": levers_report.levers,
    "simulate": simulate_report.simulate,
    "measure": measure_report.measure,
    "recommend": recommend_report.recommend,
    "compare": compare_report.compare,
    "verify": verify_report.verify,
    "workload": workload_report.workload,
}
