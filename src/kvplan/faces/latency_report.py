"""How times look in a terminal: what users see, what a step is made of, which batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvplan.faces.table import console
from kvplan.units import count_text, counted, seconds_text
from kvplan.verbs.answer import Answer

_SMALL = 0.02  # operations below that share stand together
_SERVED = (
    ("ttft_seconds", "TTFT", "first token, from submission"),
    ("tpot_seconds", "TPOT", "each further token"),
    ("e2e_seconds", "end to end", "the whole answer"),
    ("output_tokens_per_second", "output", "tokens a second, all requests"),
    ("requests_per_second", "requests", "a second"),
)
_BINDS = {"memory": "bandwidth", "compute": "compute", "link": "the link", "host": "the host"}


def latency(out: Console, answer: Answer, _asked: dict[str, Any]) -> None:
    """Means with their 80 % intervals first, then what the phases are made of, then which batch."""
    deployed, load = answer["deployment"], answer["load"]
    on = f"{deployed['accelerators']} × {deployed['accelerator']}"
    out.print(Text(f"{deployed['model']} on {on}", style="bold"), end="")
    out.print(Text(f", {deployed['engine']} {deployed['engine_version']}"))
    out.print(Text(load_text(load)))
    out.print()
    served(out, answer["serving"])
    for name in ("prefill", "decode"):
        out.print()
        _phase(out, name, answer)
    out.print()
    _batches(out, answer["batches"])
    out.print()
    for sentence in answer["basis"]:
        out.print(Text(sentence, style="dim"))


def load_text(load: dict[str, Any]) -> str:
    """The load in a line."""
    if "rate" in load:
        how = f"{load['rate']:g} requests a second"
    elif "concurrency" in load:
        how = f"{counted(load['concurrency'], 'user')} who ask again once answered"
    else:
        how = f"{counted(load['batch'], 'request')} together"
    prompt, output = count_text(load["prompt_tokens"]), count_text(load["output_tokens"])
    text = f"{how}; prompts of {prompt}, outputs of {output} tokens"
    more = (
        ("context_depth", "after {:,} of context"),
        ("shared_prefix_tokens", "{:,} of the prompt cached"),
        ("speculative_tokens", "{:,} drafted a step"),
    )
    return ", ".join([text, *(words.format(load[name]) for name, words in more if name in load)])


def amount_text(load: dict[str, Any]) -> str:
    """How much of a load there is, in short."""
    if "rate" in load:
        return f"{load['rate']:g} requests a second"
    return counted(load["concurrency"], "user") if "concurrency" in load else f"batch {load['batch']:,}"


def grid(*justify: str) -> Table:
    """A plain table whose columns stand as said."""
    table = Table.grid(padding=(0, 2), pad_edge=False)
    for side in justify:
        table.add_column(justify=side)  # type: ignore[arg-type]
    return table


def served(out: Console, serving: dict[str, Any]) -> None:
    """What users see: means and their intervals."""
    table = grid("left", "right", "left", "left")
    for key, name, remark in _SERVED:
        value = serving[key]
        if value is None:
            table.add_row(name, Text("–", style="bold"), "not known", Text(remark, style="dim"))
            continue
        table.add_row(
            name, Text(_value(key, value), style="bold"), _between(key, serving), Text(remark, style="dim")
        )
    out.print(table)


def _between(key: str, serving: dict[str, Any]) -> str:
    low, high = serving["low"].get(key), serving["high"].get(key)
    return "" if low is None or high is None else f"{_value(key, low)} to {_value(key, high)}"


def span(low: float | None, high: float | None) -> str:
    """An interval of times, or nothing where none is known."""
    return "" if low is None or high is None else f"{seconds_text(low)} to {seconds_text(high)}"


def _value(key: str, value: float) -> str:
    if key.endswith("per_second"):
        return count_text(value) if value >= 100 else f"{value:.3g}"
    return seconds_text(value)


def _phase(out: Console, name: str, answer: Answer) -> None:
    part, load = answer[name], answer["load"]
    seconds = part["seconds" if name == "prefill" else "step_seconds"]
    title = f"prefill of {counted(load['prompts'], 'prompt')}" if name == "prefill" else "decode step"
    known = span(part["low_seconds"], part["high_seconds"])
    known = f", {known}" if known else ""
    out.print(Text(f"{title}  {seconds_text(seconds)}", style="bold"), end="")
    out.print(Text(f"{known}; at least {seconds_text(part['lower_bound_seconds'])}; {bound(part, answer)}"))
    table = grid("left", "right", "right", "right", "left")
    table.add_row(*(Text(word, style="dim") for word in ("", "estimate", "at least", "share", "waits for")))
    for row in _rows(answer["operations"][name]):
        floor = seconds_text(row["lower_bound_seconds"]) if row["lower_bound_seconds"] else "–"
        table.add_row(
            f"  {row['name']}",
            seconds_text(row["seconds"]),
            floor,
            f"{row['share']:.0%}",
            _BINDS[row["bound"]],
        )
    out.print(table)


def _rows(operations: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The operations that matter, largest first, the rest summed."""
    large = sorted((r for r in operations if r["share"] >= _SMALL), key=lambda r: -r["share"])
    small = [r for r in operations if r["share"] < _SMALL]
    if len(small) < 2:
        return sorted(operations, key=lambda r: -r["share"])
    rest = {key: sum(r[key] for r in small) for key in ("seconds", "lower_bound_seconds", "share")}
    most = max(small, key=lambda r: r["seconds"])["bound"]
    return [*large, {"name": f"{len(small)} others", "bound": most, **rest}]


def bound(part: dict[str, Any], answer: dict[str, Any]) -> str:
    """What binds a phase, by its intensity against the ridge."""
    intensity, ridge = part["arithmetic_intensity"], answer["ridge_point"]
    if intensity is None or (part["bound"] == "compute") != (intensity > ridge):
        return f"{part['bound']}-bound where experts are spread; the floor reads the fewest"
    return f"{part['bound']}-bound: {intensity:,.0f} FLOP/B, ridge {ridge:,.0f}"


def _batches(out: Console, batches: dict[str, Any]) -> None:
    out.print(Text("which batch", style="bold"))
    for sentence in batch_sentences(batches):
        out.print(Text(f"  {sentence}"))
    rows = batches["curve"]
    if not rows:
        return
    table = grid("right", "right", "right", "right", "left")
    table.add_row(*(Text(word, style="dim") for word in ("  users", "TPOT", "TTFT", "tokens/s", "")))
    for row in rows:
        table.add_row(
            f"  {count_text(row['batch'])}",
            seconds_text(row["tpot_seconds"]),
            seconds_text(row["ttft_seconds"]),
            count_text(row["output_tokens_per_second"]),
            "" if row["fits"] else Text("some wait for a place", style="dim"),
        )
    out.print(table)


def batch_sentences(batches: dict[str, Any]) -> list[str]:
    """The goals' answer, what runs at once, and where bandwidth stops binding."""
    found = [goal_sentence(batches["goal"])] if batches["goal"] else []
    capacity, crossing = batches["capacity_batch"], batches["compute_bound_batch"]
    turned = batches["weights_compute_bound_batch"]
    if capacity is not None:
        found.append(f"{count_text(capacity)} run at once: the cache, or the engine's limit, takes no more")
    if crossing is not None:
        found.append(f"from batch {count_text(crossing)} on decode waits for compute")
    elif turned is not None:
        found.append(
            f"weights wait for compute from batch {count_text(turned)} on; caches keep the step memory-bound"
        )
    else:
        found.append("decode waits for bandwidth at any batch")
    return found


def goal_sentence(goal: dict[str, Any]) -> str:
    """Which batch meets the goals, and what it yields."""
    wanted = [
        f"{name} within {seconds_text(goal[key])}"
        for name, key in (("TPOT", "tpot_goal_seconds"), ("TTFT", "ttft_goal_seconds"))
        if goal[key] is not None
    ]
    asked = " and ".join(wanted)
    if goal["batch"] is None:
        least = goal[f"{goal['limit']}_seconds"] if goal["limit"] != "capacity" else None
        why = f"one request alone takes {seconds_text(least)}" if least else "not one request fits"
        return f"{asked}: not with this deployment, {why}"
    rate = count_text(goal["output_tokens_per_second"])
    stop = {"tpot": "TPOT", "ttft": "TTFT", "capacity": "the cache"}[goal["limit"]]
    return f"{asked}: up to {counted(goal['batch'], 'user')}, {rate} tokens/s; then {stop} stands in the way"


def cases(answers: Iterator[tuple[Any, dict[str, Any]]]) -> None:
    """A line for each case: what was asked and what is expected."""
    out = console()
    table = grid("right", "left", "right", "right", "right")
    table.add_row(*(Text(w, style="dim") for w in ("", "case", "TTFT", "TPOT", "tokens/s")))
    for number, (row, found) in enumerate(answers, 1):
        name = _case(row)
        if "error" in found:
            table.add_row(str(number), Text(f"{name}  {found['error']}".strip(), style="red"), "", "", "")
            continue
        s = found["serving"]
        times = ["–" if s[k] is None else seconds_text(s[k]) for k in ("ttft_seconds", "tpot_seconds")]
        table.add_row(str(number), Text(name), *times, count_text(s["output_tokens_per_second"]))
    out.print(table)


def _case(row: Any) -> str:
    if not isinstance(row, dict):
        return ""
    model = str(row.get("config") or row.get("model") or "").removesuffix(".json").split("__")[-1]
    amount = row.get("request_rate") or row.get("concurrency_or_batch") or ""
    count = row.get("tp") or row.get("n_gpus") or 1
    words = (model, f"{count} × {row.get('gpu_key') or row.get('gpu')}", row.get("mode"), amount)
    return " ".join(str(word) for word in words if word)[:80]
