"""What a server needs of its container: image, program and words inside, mounts, devices, time to start."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvplan.engines.deployment import Deployment
from kvplan.errors import BadInput
from kvplan.facts import launching
from kvplan.verbs.launch import Launch, devices_of

_GIB = 2**30
_CONFIG = "/etc/kvplan"


@dataclass(frozen=True, slots=True)
class Container:
    """One server's container.

    `program` and `words` are what runs; `local` is the folder of weights on the host and `inside` where it
    is mounted, both empty for a model that the engine fetches into `cache`; `files` are mounted by path.
    """

    name: str
    image: str
    program: tuple[str, ...]
    words: tuple[str, ...]
    environment: Mapping[str, str]
    port: int
    health: str
    cache: str
    local: str
    inside: str
    files: Mapping[str, str]
    devices: int
    seconds: int

    @property
    def fetches(self) -> bool:
        """Whether the engine fetches the model by itself."""
        return not self.inside


def container_of(
    d: Deployment, launch: Launch, local: str | None, weight_bytes: int | None, *, alone: bool
) -> Container:
    """The container of one server; with `alone`, of one of its replicas.

    Raises BadInput where no image is known or the server needs more than one machine.
    """
    table, devices = launching.container(d.setup.engine), devices_of(d)
    _check_machine(d, devices)
    if launch.image is None:
        on = d.accelerator.name if d.accelerator else d.setup.platform
        raise BadInput(
            f"--launch-as: no image of {d.setup.engine} {d.setup.version} for {on} is known; "
            "give command, or a newer --engine-version"
        )
    folder, inside, served = _weights(d, launch, local)
    options = launch.alone() if alone else launch.options
    needs = launching.printed_by(d.setup.engine, d.setup.version).get("needs", ())
    named = {name: f"{_CONFIG}/{name}" for name in launch.files}
    words = (served, *(named.get(word, word) for word in options), *table["host_option"], *needs)
    return Container(
        name=_name(d.setup.engine, d.model.id),
        image=launch.image,
        program=tuple(table["program"]),
        words=words,
        environment=launch.environment,
        port=int(table["port"]),
        health=str(table["health"]),
        cache=str(table["cache"]),
        local=folder,
        inside=inside,
        files={named[name]: text for name, text in launch.files.items()},
        devices=devices,
        seconds=seconds_to_start(0 if inside else weight_bytes),
    )


def _check_machine(d: Deployment, devices: int) -> None:
    most = launching.accelerators_of_a_machine(d.accelerator.key if d.accelerator else None)
    if devices > most:
        raise BadInput(
            f"--launch-as: {devices} ranks of one server need more than one machine, which has {most}: not "
            "written for that; use LeaderWorkerSet or Ray, or fewer --tp and --pp"
        )


def _weights(d: Deployment, launch: Launch, local: str | None) -> tuple[str, str, str]:
    """The host's folder, where it is mounted, and what the command names inside."""
    if local is None and d.setup.engine != "llama.cpp":
        return "", "", launch.served
    if local is None:
        return "", "/models", f"/models/{launch.served}"
    path = Path(local).expanduser().resolve()
    if path.is_dir():
        return str(path), "/model", "/model"
    return str(path.parent), "/models", f"/models/{path.name}"


def _name(engine: str, model: str) -> str:
    """A name that Kubernetes and compose both take: lower-case letters, digits and dashes."""
    text = f"{engine}-{model.rstrip('/').rpartition('/')[2]}"
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:50].strip("-")


def seconds_to_start(weight_bytes: int | None) -> int:
    """How long a start may take: to fetch the weights, then to load them and warm up."""
    table = launching.allowance()
    return math.ceil(float(table["seconds"]) + (weight_bytes or 0) / float(table["bytes_per_second"]))


def storage_gib(weight_bytes: int | None) -> int:
    """Room for the weights in GiB, and a fifth more; 100 GiB where their size is not known."""
    return 100 if weight_bytes is None else math.ceil(weight_bytes * 1.2 / _GIB) + 1


def shared_memory_gib(devices: int) -> int:
    """Shared memory that several ranks exchange through; 0 where there is one."""
    return int(launching.machine()["shared_memory_gib"]) if devices > 1 else 0


def literal(text: str) -> str:
    """Text in which compose and Kubernetes find nothing to put in place of a dollar sign."""
    return text.replace("$", "$$")


def literals(words: tuple[str, ...]) -> list[Any]:
    """Words, each as it stands."""
    return [literal(word) for word in words]
