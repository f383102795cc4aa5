"""How a memory budget and an engine's capacity look in a terminal."""

from __future__ import annotations

import math
from typing import Any

from rich.console import Console
from rich.text import Text

from kvplan.faces.table import Row, lines
from kvplan.units import bytes_text, count_text
from kvplan.verbs.answer import Answer

_BAR = 60
_PARTS = (
    ("weight_bytes", "weights", "blue"),
    ("activation_bytes", "activations", "magenta"),
    ("graph_bytes", "graphs", "yellow"),
    ("overhead_bytes", "overhead", "red"),
    ("kv_pool_bytes", "KV cache", "green"),
)
_GLYPHS = {"weights": "█", "activations": "▓", "graphs": "▒", "overhead": "▚", "KV cache": "░"}
VERDICTS = {True: "fits", False: "does not fit", None: "not known whether it fits"}
_FIGURES = (
    ("num_blocks", "blocks", count_text),
    ("block_tokens", "tokens of a block", count_text),
    ("bytes_per_block", "one block", bytes_text),
    ("kv_tokens", "tokens of cache", count_text),
    ("max_concurrency", "maximum concurrency", "{:,.2f}×".format),
    ("max_running_requests", "most running requests", count_text),
    ("needed_kv_bytes", "one longest sequence", bytes_text),
    ("estimated_max_model_len", "longest that fits", count_text),
    ("k_bytes", "keys", bytes_text),
    ("v_bytes", "values", bytes_text),
    ("state_bytes", "recurrent state", bytes_text),
)


def fit(out: Console, answer: Answer, asked: dict[str, Any]) -> None:
    """Budget, the figures the engine will print, and the ways back where it does not fit."""
    engine, capacity = answer["engine"], answer["capacity"]
    ranks = f"{accelerators(engine['settings'])} × {asked['gpu']}, " if asked["gpu"] else ""
    out.print(Text(f"{ranks}{engine['name']} {engine['version']}; figures are one rank's", style="bold"))
    out.print()
    memory(out, answer["memory"])
    out.print()
    verdict = VERDICTS[capacity["fits"]]
    out.print(Text(f"{verdict}; {engine['name']} {engine['version']} will print", style="bold"))
    rows: list[Row] = [
        (f"  {name}", show(capacity[key]), "") for key, name, show in _FIGURES if capacity[key] is not None
    ]
    lines(out, rows)
    _groups(out, capacity["groups"])
    _placement(out, answer.get("placement", []))
    _ways(out, answer["ways_back"])
    if "against" in answer:
        _against(out, engine, answer["against"])


def accelerators(settings: dict[str, Any]) -> int:
    """How many accelerators the deployment takes in all."""
    sizes = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
    return math.prod(int(settings.get(name, 1)) for name in sizes)


def _given_pool(memory: dict[str, Any]) -> list[Row]:
    weights = memory["weight_bytes"]
    found = "not known" if weights is None else bytes_text(weights)
    rows: list[Row] = [("weights", found, "as loaded on one rank")]
    if memory["kv_pool_bytes"] is not None:
        rows.append(("KV cache", bytes_text(memory["kv_pool_bytes"]), "given"))
    return rows


def _groups(out: Console, groups: list[dict[str, Any]]) -> None:
    if not groups:
        return
    out.print()
    out.print(Text("groups", style="bold"))
    rows: list[Row] = []
    for group in groups:
        name = group.get("name", group["kind"])
        count = group.get("layers")
        what = f"  {name}, {count_text(count)} layers" if count else f"  {name}"
        held = [group[key] for key in ("k_bytes", "v_bytes") if group.get(key) is not None]
        remarks = []
        if group.get("cells") is not None:
            remarks.append(f"{count_text(group['cells'])} cells")
        if group.get("streams") is not None:
            remarks.append(f"× {count_text(group['streams'])} streams")
        if group.get("page_bytes") is not None:
            remarks.append(f"{bytes_text(group['page_bytes'])} a layer's block")
        if group.get("blocks_per_request") is not None:
            remarks.append(f"{count_text(group['blocks_per_request'])} blocks a longest request")
        rows.append((what, bytes_text(sum(held)) if held else "", ", ".join(remarks)))
    lines(out, rows)


def _placement(out: Console, placed: list[dict[str, Any]]) -> None:
    if not placed:
        return
    out.print()
    out.print(Text("placement", style="bold"))
    rows: list[Row] = []
    for p in placed:
        held = p["weight_bytes"] + p["cache_bytes"] + p["output_bytes"]
        buffer = f"{bytes_text(p['compute_low_bytes'])} to {bytes_text(p['compute_high_bytes'])}"
        cache = f"cache {bytes_text(p['cache_bytes'])}, compute buffer {buffer}"
        rows.append((f"  {p['device']}, {count_text(p['layers'])} layers", bytes_text(held), cache))
    lines(out, rows)


def _ways(out: Console, ways: list[dict[str, Any]]) -> None:
    if not ways:
        return
    out.print()
    out.print(Text("ways back, one change at a time", style="bold"))
    rows: list[Row] = [
        (f"  {way['flag']}", "none" if way["value"] is None else str(way["value"]), way["note"])
        for way in ways
    ]
    lines(out, rows)


def _against(out: Console, engine: dict[str, Any], against: dict[str, Any]) -> None:
    out.print()
    out.print(Text(f"{engine['name']} {engine['version']} against {against['version']}", style="bold"))
    if not against["changes"]:
        out.print("  no figure changes")
        return
    rows: list[Row] = []
    for change in against["changes"]:
        before, after = _plain(change["figure"], change["before"]), _plain(change["figure"], change["after"])
        rows.append((f"  {change['version']}  {change['figure']}", f"{before} → {after}", ""))
    lines(out, rows)
    rules = {rule: change["version"] for change in against["changes"] for rule in change["rules"]}
    for rule, version in rules.items():
        out.print(Text(f"  {version}: {rule}", style="dim"))


def _plain(name: str, value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "not known", True: "yes", False: "no"}[value]
    if name.endswith("_bytes") or name == "bytes_per_block":
        return bytes_text(value)
    return f"{value:,.2f}" if isinstance(value, float) else count_text(value)


def memory(out: Console, memory: dict[str, Any]) -> None:
    """The budget as a bar and a row for each part; of a device whose memory is not known, what is held."""
    if memory["accelerator_bytes"] is None:
        lines(out, _given_pool(memory))
        return
    total = max(memory["accelerator_bytes"], memory["budget_bytes"])
    bar = Text()
    for key, name, colour in _PARTS:
        bar.append(_GLYPHS[name] * round(_BAR * memory[key] / total), style=colour)
    bar.append("·" * max(0, _BAR - len(bar)), style="dim")
    out.print(bar)
    rows: list[Row] = [
        (f"{_GLYPHS[name]} {name}", bytes_text(memory[key]), _assumed(key, memory)) for key, name, _ in _PARTS
    ]
    rows.append(_left(memory))
    lines(out, rows)


def _left(memory: dict[str, Any]) -> Row:
    left, whole = memory["headroom_bytes"], f"of {bytes_text(memory['accelerator_bytes'])}"
    return ("· unused", bytes_text(left), whole) if left >= 0 else ("! missing", bytes_text(-left), whole)


def _assumed(key: str, memory: dict[str, Any]) -> str:
    if key == "kv_pool_bytes":
        low, high = bytes_text(memory["kv_pool_low_bytes"]), bytes_text(memory["kv_pool_high_bytes"])
        return f"{low} to {high} over the assumptions' ranges"
    return "assumed" if key not in ("weight_bytes",) else ""
