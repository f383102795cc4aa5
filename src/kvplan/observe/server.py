"""A running server, asked for everything it says of itself: metrics, models, version, settings."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from kvplan.errors import Unreachable, shown
from kvplan.facts import store
from kvplan.observe.exposition import number
from kvplan.observe.http import Client, Page
from kvplan.observe.metrics import FACTS, Reading, readings_of

_BUILD = re.compile(r"b0*[1-9][0-9]{0,8}")
MOST_ENTRIES = 1000
MOST_JSON = 4 * 2**20  # of a document, which takes a multiple of it in memory


@dataclass(frozen=True, slots=True)
class Server:
    """What a server says: its engine and version, the models it serves, its metrics and its own settings.

    `settings` is the document of /get_server_info (SGLang), /props (llama.cpp) or the last iteration's
    statistics (TensorRT-LLM); `models` the entries of /v1/models.
    """

    url: str
    engine: str
    version: str | None = None
    models: tuple[dict[str, Any], ...] = ()
    reading: Reading | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def read_server(client: Client, engine: str | None = None, model: str | None = None) -> Server:
    """Ask a server's pages. `engine` and `model` choose where it serves several.

    Raises Unreachable, in one line, where it cannot be reached, or is none of a known engine.
    """
    first = client.get("/metrics")
    _refuse(client, first)
    notes: list[str] = []
    found = readings_of(first.text)[0] if first.ok else []
    if first.ok and not found and not first.is_html:
        notes += _no_names(first)
    kind = engine or (found[0].engine if found else _engine_of(client, first))
    if kind is None:
        raise _unknown(client, first)
    if kind == "tensorrt-llm" and not found:
        found = _other_pages(client, kind)
    reading = _chosen(client, [r for r in found if r.engine == kind], model)
    if reading is None:
        notes.append(f"no metrics: {_how(kind)}")
    return _of_engine(client, Server(client.address.base, kind, reading=reading, notes=tuple(notes)), first)


def scrape(client: Client, server: Server) -> Reading | None:
    """The server's metrics once more."""
    for path in _pages(server.engine):
        page = client.get(path)
        found = [r for r in readings_of(page.text)[0] if r.engine == server.engine] if page.ok else []
        named = server.reading.model if server.reading else None
        alike = [r for r in found if r.model == named] or found
        if alike:
            return alike[0]
    return None


def watch(client: Client, server: Server, seconds: float) -> tuple[Reading | None, float]:
    """What was counted in so many seconds, and how many they were."""
    begun, before = time.monotonic(), server.reading
    time.sleep(seconds)
    after = scrape(client, server)
    if before is None or after is None:
        return None, 0.0
    return after.since(before), time.monotonic() - begun


def _pages(engine: str) -> list[str]:
    return list(store.toml(FACTS)[engine]["pages"])


def _refuse(client: Client, page: Page) -> None:
    """Raise where the server wants to know who asks."""
    if page.status in (401, 403):
        raise client.unreachable(
            page.url, f"refuses ({page.status})", "give --header 'Authorization: Bearer …', or @FILE with it"
        )
    if page.status >= 500 and page.status != 501:
        raise client.unreachable(page.url, f"answers {page.status}", "is the engine still starting, or gone?")


def _no_names(page: Page) -> list[str]:
    return [f"{page.url} has no name that an engine gives its metrics"]


def _engine_of(client: Client, metrics: Page) -> str | None:
    """The engine of a server without metrics, by the pages that only one of them has."""
    if _statistics(metrics):
        return "tensorrt-llm"
    if "model_path" in (_document(client, "/get_server_info") or _document(client, "/server_info")):
        return "sglang"
    if "total_slots" in _document(client, "/props"):
        return "llama.cpp"
    return "vllm" if "version" in _document(client, "/version") else None


def _unknown(client: Client, page: Page) -> Unreachable:
    what = f"answers {page.status}" if not page.ok else "has no metrics of an engine"
    if page.is_html:
        what = "answers with a page for people, no metrics"
    advice = "give the port of vLLM, SGLang, TensorRT-LLM or llama-server (started with --metrics)"
    return client.unreachable(page.url, what, advice)


def _other_pages(client: Client, engine: str) -> list[Reading]:
    for path in _pages(engine):
        page = client.get(path)
        found = readings_of(page.text)[0] if page.ok else []
        if found:
            return found
    return []


def _how(engine: str) -> str:
    return {
        "sglang": "start SGLang with --enable-metrics",
        "llama.cpp": "start llama-server with --metrics",
        "tensorrt-llm": "start trtllm-serve with enable_iter_perf_stats and return_perf_metrics",
    }.get(engine, "the page is empty so far")


def _chosen(client: Client, found: list[Reading], model: str | None) -> Reading | None:
    """The one model's reading; of several the one that is named."""
    alike = [r for r in found if model is None or r.model == model]
    if len(alike) == 1 or not found:
        return alike[0] if alike else None
    names = ", ".join(shown(client.secrets.masked(r.model or "")) for r in found[:4])
    raise client.unreachable(
        client.address.page("/metrics"), f"has metrics of {len(found)} models ({names})", "--served names one"
    )


def _document(client: Client, path: str) -> dict[str, Any]:
    """A page's JSON object; empty where there is none."""
    try:
        page = client.get(path, most_bytes=MOST_JSON)
    except Unreachable:
        return {}
    found = page.json() if page.ok else None
    return found if isinstance(found, dict) else {}


def _of_engine(client: Client, server: Server, metrics: Page) -> Server:
    data = _document(client, "/v1/models").get("data")
    entries = tuple(e for e in data[:MOST_ENTRIES] if isinstance(e, dict)) if isinstance(data, list) else ()
    server = replace(server, models=entries)
    if server.engine == "sglang":
        info = _document(client, "/get_server_info") or _document(client, "/server_info")
        return replace(server, settings=info, version=_text(info.get("version")))
    if server.engine == "llama.cpp":
        props = _document(client, "/props")
        slots = _slots(client)
        busy = float(sum(slot.get("is_processing") is True for slot in slots))
        reading = server.reading or (Reading(server.engine, gauges={"running": busy}) if slots else None)
        return replace(server, settings=props, version=_build(props), reading=reading)
    version = _text(_document(client, "/version").get("version"))
    if server.engine == "tensorrt-llm":
        return replace(server, version=version, settings=_last_iteration(metrics))
    return replace(server, version=version)


def _slots(client: Client) -> tuple[dict[str, Any], ...]:
    try:
        page = client.get("/slots", most_bytes=MOST_JSON)
    except Unreachable:
        return ()
    found = page.json() if page.ok else None
    return tuple(s for s in found[:MOST_ENTRIES] if isinstance(s, dict)) if isinstance(found, list) else ()


def _build(props: dict[str, Any]) -> str | None:
    """llama.cpp's build, b1234, where it states one."""
    text = str(props.get("build_info", ""))[:100].partition("-")[0]
    return text if _BUILD.fullmatch(text) else None


def _last_iteration(metrics: Page) -> dict[str, Any]:
    """TensorRT-LLM's statistics of its last iteration: a list under /metrics, emptied when it is read."""
    rows = _statistics(metrics)
    return rows[-1] if rows else {}


def _statistics(page: Page) -> list[dict[str, Any]]:
    """The rows of a page that is a list of documents."""
    found = page.json() if page.ok and len(page.text) <= MOST_JSON else None
    return [row for row in found if isinstance(row, dict)] if isinstance(found, list) else []


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and 0 < len(value) <= 100 and value.isprintable() else None


def whole(value: Any) -> int | None:
    """A number as a page has it, as text or not, where it is a whole one; `None` and the like are none."""
    found = number(value)
    return int(found) if found is not None and found == int(found) else None


def walked(document: Any, name: str, depth: int = 4) -> Iterator[Any]:
    """Every value of that name in a document, the outermost first."""
    if depth < 0:
        return
    if isinstance(document, dict):
        if name in document:
            yield document[name]
        for value in document.values():
            yield from walked(value, name, depth - 1)
    elif isinstance(document, list):
        for value in document[:64]:
            yield from walked(value, name, depth - 1)
