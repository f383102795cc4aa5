"""The part of an answer that starts a deployment: command, files, expected lines, and the form asked for."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kvplan.cost.weights import weight_bytes
from kvplan.engines.deployment import Deployment
from kvplan.engines.registry import CONTEXT_DECIDES
from kvplan.figure import bare, value_of
from kvplan.verbs import fit as fitting
from kvplan.verbs.deploy import with_flags
from kvplan.verbs.expected import expected_lines, spread
from kvplan.verbs.given import ModelLike
from kvplan.verbs.launch import Launch, launch_of
from kvplan.verbs.manifests import Wanted, launch_text


@dataclass(frozen=True, slots=True)
class Start:
    """What a launch repeats as it was given: the model, its dtype, how its weights are quantised."""

    model: ModelLike | None
    dtype: str = "auto"
    quantization: str | None = None


def launch_part(
    d: Deployment, fit: Mapping[str, Any], start: Start, form: str | None, limits: Sequence[str]
) -> dict[str, Any]:
    """`launch`, `launch_files` and `expected` of a document, and `launch_text` where a form is asked for.

    `fit` has bare numbers; `limits` say what holds the deployment back. Raises BadInput for a form that
    cannot be written.
    """
    running, numbers = _running(d, fit)
    served, local = _served(d, start.model)
    launch = launch_of(running, served, start.dtype, start.quantization)
    why = limits[0] if limits else ""
    if not launch.program:
        why = f"{d.setup.flags.get('launcher') or d.setup.engine} is not started by a command of its own"
    elif not _starts(d, fit):
        launch = Launch((), served)
    if launch.program:
        launch = replace(launch, expected=tuple(expected_lines(running, numbers)))
    part: dict[str, Any] = {
        "launch": launch.command,
        "launch_files": dict(launch.files),
        "expected": list(launch.expected),
    }
    if form is None:
        return part
    size = int(value_of(weight_bytes(d.model, bare)) or 0) or None
    wanted = Wanted(_title(d), local, size, spread(running, numbers), why)
    return {**part, "launch_text": launch_text(form, running, launch, wanted)}


def _starts(d: Deployment, fit: Mapping[str, Any]) -> bool:
    """Whether there is a cache to start with, on an engine that serves the model."""
    capacity, memory = fit["capacity"], fit["memory"]
    if (memory["headroom_bytes"] or 0) < 0:
        return False
    if d.setup.engine in CONTEXT_DECIDES:  # its cache may stand on the host
        return True
    served = capacity["fits"] is not None and capacity["kv_tokens"] is not None
    return bool(memory["kv_pool_bytes"]) and served


def _running(d: Deployment, fit: Mapping[str, Any]) -> tuple[Deployment, Mapping[str, Any]]:
    """The deployment with the longest length that fits, where vLLM would refuse its own."""
    capacity = fit["capacity"]
    longest = capacity["estimated_max_model_len"]
    if capacity["fits"] is False and longest and longest < d.max_model_len and d.setup.engine == "vllm":
        shorter = with_flags(d, max_model_len=longest)
        return shorter, fitting.fit_part(shorter, None, bare)
    return d, fit


def _title(d: Deployment) -> str:
    """Model, accelerators of all replicas, engine."""
    count = d.setup.tp * d.setup.pp * d.setup.dp
    on = f" on {count} × {d.accelerator.name}" if d.accelerator else ""
    replicas = f", {d.setup.dp} replicas" if d.setup.dp > 1 else ""
    return f"{d.model.id}{on}, {d.setup.engine} {d.setup.version}{replicas}"


def _served(d: Deployment, model: ModelLike | None) -> tuple[str, str | None]:
    """What the command names, and where the weights are when they are on this machine."""
    if not isinstance(model, (str, os.PathLike)) or not Path(model).exists():
        return d.model.id, None
    if Path(model).is_dir() or str(model).endswith(".gguf"):
        return str(model), str(model)
    return "MODEL", None
