"""A line of a log as the engine wrote it: without what docker, Kubernetes, journald and terminals add.

What stands in front of the engine's words stays, since ranks are named there; patterns search, they do not
match from the line's start.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_KEYS = ("log", "message", "MESSAGE", "msg", "body", "text", "textPayload")
_CRI = re.compile(r"^\d{4}-\d\d-\d\dT\S+ (?:stdout|stderr) [FP] ")
_SERVICE = re.compile(
    r"^(?:\[pod/(?P<pod>[^\]\s]{1,200})\] "
    r"|(?P<compose>[A-Za-z0-9][\w.-]{0,100}?)\s+\| "
    r"|\w{3} [ \d]\d \d\d:\d\d:\d\d \S{1,100} (?P<unit>[\w.@-]{1,100})(?:\[\d+\])?: )"
)
_MOST_JSON = 1 << 17
_ONE_EACH = re.compile(r"EngineCore(?:_(?:DP)?\d{1,5})?|APIServer")  # of a server
_MOST_ROLES = 64
_MOST_PIDS = 16


@dataclass(frozen=True, slots=True)
class Rank:
    """Which process wrote a line, as far as it says so: ranks by number, else its process id."""

    dp: int | None = None
    pp: int | None = None
    tp: int | None = None
    pid: str = ""


NO_RANK = Rank()
# vLLM: (Worker_DP0_TP1_EP1 pid=7), (VllmWorker rank=1 pid=7), (EngineCore_DP1 pid=7), (EngineCore_0 pid=7),
# (RayWorkerWrapper pid=7, ip=…); SGLang: [2025-03-25 16:37:06 DP0 TP1]; TensorRT-LLM: [RANK 1], [1,0]<stdout>
_VLLM = re.compile(r"\((?P<name>[A-Za-z]\w{0,60})(?: rank=(?P<rank>\d{1,5}))?(?: pid=(?P<pid>\d{1,10}))")
_SGLANG = re.compile(r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)?(?P<ranks>(?: [A-Z]{2,4}\d{1,5})+)\]")
_NUMBERED = re.compile(r"\[(?:RANK |rank ?)(?P<rank>\d{1,5})\]|\[\d+,(?P<mpi>\d{1,5})\]<std")
_PART = re.compile(r"(?:^|[_ ])(DP|PP|TP)(\d{1,5})")


def plain(raw: bytes) -> tuple[str, str]:
    """The service that a line belongs to (empty where none is named) and the line's text, secrets and all."""
    text = raw.decode("utf-8", "replace").rstrip("\r\n")
    if text.lstrip().startswith("{"):
        text = _unpacked(text)
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    service = _SERVICE.match(text)
    name = next((found for found in service.groups() if found), "") if service else ""
    text = _CRI.sub("", text[service.end() :] if service else text)
    return name, text


def _unpacked(text: str) -> str:
    """The message of a line that is a JSON record, as docker's json-file driver and others write them."""
    if len(text) > _MOST_JSON or not any(f'"{key}"' in text for key in _KEYS):
        return text
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return text
    found = next((record[key] for key in _KEYS if key in record), text) if isinstance(record, dict) else text
    if isinstance(found, list) and found and all(isinstance(b, int) and 0 <= b < 256 for b in found):
        return bytes(found).decode("utf-8", "replace")  # how journald writes what is not plain text
    return found.rstrip("\r\n") if isinstance(found, str) else text


def rank_of(before: str) -> Rank:
    """The rank named last in what stands before the engine's words."""
    found = _last(_VLLM, before)
    if found is not None:
        parts = {name.lower(): int(number) for name, number in _PART.findall(found["name"])}
        if "dp" not in parts and re.fullmatch(r"EngineCore_\d+", found["name"]):
            parts["dp"] = int(found["name"].rpartition("_")[2])
        if found["rank"]:
            parts["tp"] = int(found["rank"])
        own = "" if parts or not found["name"].startswith(("Ray", "Worker", "Vllm")) else found["pid"]
        return Rank(parts.get("dp"), parts.get("pp"), parts.get("tp"), own)
    found = _last(_SGLANG, before)
    if found is not None:
        parts = {name.lower(): int(number) for name, number in _PART.findall(found["ranks"])}
        return Rank(parts.get("dp"), parts.get("pp"), parts.get("tp"))
    found = _last(_NUMBERED, before)
    if found is not None:
        return Rank(tp=int(found["rank"] or found["mpi"]))
    return NO_RANK


def process_of(before: str) -> tuple[str, str]:
    """The role and the id of the process that a prefix of vLLM's names; empty where there is none."""
    found = _last(_VLLM, before)
    if found is None:
        return "", ""
    return found["name"] + (f" rank={found['rank']}" if found["rank"] else ""), found["pid"]


@dataclass(slots=True)
class Processes:
    """Who wrote the lines of one start-up: the process ids of each role, in the order in which they were met.

    `mixed`: roles that one server has once, of which an earlier process came back after another.
    """

    roles: dict[str, list[str]] = field(default_factory=dict)
    mixed: dict[str, tuple[str, str]] = field(default_factory=dict)
    _last: dict[str, str] = field(default_factory=dict)

    def see(self, role: str, pid: str) -> None:
        """Take in who wrote a line."""
        last = self._last.get(role)
        if last == pid or (last is None and len(self.roles) >= _MOST_ROLES):
            return
        pids = self.roles.setdefault(role, [])
        if last is not None and pid in pids and _ONE_EACH.fullmatch(role):
            self.mixed.setdefault(role, (pid, last))
        if pid not in pids and len(pids) < _MOST_PIDS:
            pids.append(pid)
        self._last[role] = pid

    def said(self) -> str:
        """Which processes took turns, the engine's before the API server's, and who else is there twice."""
        role = max(self.mixed, key=lambda name: name.startswith("EngineCore"))
        first, second = self.mixed[role]
        others = [
            f"{name} pid={' and '.join(pids)}"
            for name, pids in self.roles.items()
            if name != role and len(pids) > 1
        ]
        also = f" (so do {', '.join(others[:4])})" if others else ""
        return f"({role} pid={first}) and ({role} pid={second}) take turns{also}"

    def one(self) -> str:
        """A process id of one of the servers."""
        role = max(self.mixed, key=lambda name: name.startswith("EngineCore"))
        return self.mixed[role][0]


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    found = None
    for found in pattern.finditer(text[-600:]):  # noqa: B007  the last one is wanted
        pass
    return found
