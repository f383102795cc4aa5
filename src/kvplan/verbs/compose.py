"""A deployment as a compose file: one service a server, on one machine."""

from __future__ import annotations

from typing import Any

from kvplan.engines.deployment import Deployment
from kvplan.errors import BadInput
from kvplan.facts import launching
from kvplan.verbs.container import Container, container_of, literal, literals, shared_memory_gib
from kvplan.verbs.launch import Launch
from kvplan.verbs.yaml_text import yaml

_CACHE = "huggingface"


def compose(d: Deployment, launch: Launch, local: str | None, weight_bytes: int | None) -> str:
    """The compose file. Replicas that the engine does not deal to itself are services of their own."""
    own = bool(launch.dealt) or d.setup.dp == 1
    c = container_of(d, launch, local, weight_bytes, alone=not own)
    copies = 1 if own else d.setup.dp
    each = c.devices if not (own and launch.dealt) else max(c.devices, d.setup.tp * d.setup.pp * d.setup.dp)
    most = launching.accelerators_of_a_machine(d.accelerator.key if d.accelerator else None)
    if copies * each > most:
        raise BadInput(
            f"--launch-as: compose starts one machine, which has {most}, and {copies * each} are wanted; "
            "give kubernetes, or a smaller --dp"
        )
    names = [c.name] if copies == 1 else [f"{c.name}-{i}" for i in range(copies)]
    document: dict[str, Any] = {
        "services": {name: _service(d, c, i, each, copies) for i, name in enumerate(names)}
    }
    if c.files:
        document["configs"] = {_key(path): {"content": literal(text)} for path, text in c.files.items()}
    if c.fetches:
        document["volumes"] = {_CACHE: {}}
    return yaml(document)


def _service(d: Deployment, c: Container, index: int, each: int, copies: int) -> dict[str, Any]:
    """One server: `each` devices, its own port."""
    first = index * each
    devices = [str(n) for n in range(first, first + each)]
    service: dict[str, Any] = {
        "image": c.image,
        "entrypoint": literals(c.program),
        "command": literals(c.words),
    }
    environment = {name: literal(value) for name, value in c.environment.items()}
    if c.fetches:
        environment |= {"HF_TOKEN": "${HF_TOKEN:-}"}
    service |= _machine(d, devices, environment, each if copies == 1 else None)
    if environment:
        service["environment"] = environment
    service["ports"] = [f"{c.port + index}:{c.port}"]
    service["volumes"] = _mounts(c)
    if c.files:
        service["configs"] = [{"source": _key(path), "target": path} for path in c.files]
    if shared_memory_gib(each):
        service["shm_size"] = f"{shared_memory_gib(each)}gb"
    service["ulimits"] = {"memlock": -1, "stack": 67108864}
    service["healthcheck"] = _health(d, c)
    service["restart"] = "unless-stopped"
    return service


def _machine(
    d: Deployment, devices: list[str], environment: dict[str, str], count: int | None
) -> dict[str, Any]:
    """How the service reaches its accelerators; which ones, where there are several services."""
    table, platform = launching.machine(), d.setup.platform
    if platform == "cuda":
        which: dict[str, Any] = {"device_ids": devices} if count is None else {"count": count}
        request = {"driver": "nvidia", **which, "capabilities": ["gpu"]}
        return {"deploy": {"resources": {"reservations": {"devices": [request]}}}}
    name, form = table["visible"][platform]
    environment[name] = str(form).format(devices=",".join(devices))
    found: dict[str, Any] = {"devices": list(table["devices"][platform])}
    if platform == "rocm":
        found |= {"group_add": ["video"], "security_opt": ["seccomp=unconfined"]}
    return found


def _mounts(c: Container) -> list[Any]:
    if c.fetches:
        return [f"{_CACHE}:{c.cache}"]
    source = literal(c.local) if c.local else "./models"
    return [{"type": "bind", "source": source, "target": c.inside, "read_only": True}]


def _health(d: Deployment, c: Container) -> dict[str, Any]:
    """The engine's own health page, asked for from inside."""
    url = f"http://localhost:{c.port}{c.health}"
    ask = ["curl", "-fsS", url]
    if launching.container(d.setup.engine)["probe"] == "python":
        ask = ["python3", "-c", f"import urllib.request; urllib.request.urlopen({url!r})"]
    return {
        "test": ["CMD", *ask],
        "interval": "10s",
        "timeout": "5s",
        "retries": 6,
        "start_period": f"{c.seconds}s",
    }


def _key(path: str) -> str:
    """The name of a mounted file among the document's configs."""
    return path.rpartition("/")[2].replace(".", "-")
