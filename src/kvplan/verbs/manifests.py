"""A launch as a file: a shell script, a compose file, a Kubernetes manifest, or the engine's own YAML.

Every one of them says in comments what the engine will print at start-up, so that a start can be checked.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass

from kvplan.engines.deployment import Deployment
from kvplan.errors import BadInput, shown
from kvplan.facts import launching
from kvplan.verbs.compose import compose
from kvplan.verbs.kubernetes import kubernetes
from kvplan.verbs.launch import Launch
from kvplan.verbs.yaml_text import comment

FORMS = ("command", "compose", "kubernetes", "yaml")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a manifest is made of beside the launch.

    `title` names the deployment; `local` is the path of the weights on this machine, where they have one;
    `weight_bytes` are those of the whole checkpoint, None where not known; `spread` says how far the pool
    may lie from what is predicted; `nothing` why there is nothing to start.
    """

    title: str
    local: str | None = None
    weight_bytes: int | None = None
    spread: tuple[str, ...] = ()
    nothing: str = ""


def check_form(form: str) -> str:
    """The form of that name. Raises BadInput for another."""
    wanted = str(form).strip().lower()
    found = [name for name in FORMS if name.startswith(wanted) and wanted] or (
        ["kubernetes"] if wanted in ("k8s", "kube") else ["command"] if wanted in ("sh", "shell") else []
    )
    if wanted in FORMS:
        return wanted
    if len(found) != 1:
        raise BadInput(f"--launch-as: {shown(form)} is not a form; give one of {', '.join(FORMS)}")
    return found[0]


def launch_text(form: str, d: Deployment, launch: Launch, wanted: Wanted) -> str:
    """The text of that form. Raises BadInput where nothing starts, no image is known or many machines are."""
    if not launch.command:
        raise BadInput(f"--launch-as: nothing is started: {wanted.nothing}")
    return _FORMS[form](d, launch, wanted)


def _command(d: Deployment, launch: Launch, wanted: Wanted) -> str:
    """A script: the engine's own file is written beside it, then the command."""
    parts = ["#!/bin/sh\n", comment(_head(launch, wanted, "The log will hold"))]
    for name, text in launch.files.items():
        parts.append(f"cat > {shlex.quote(name)} <<'END'\n{text}END\n")
    needs = shlex.join(launching.printed_by(d.setup.engine, d.setup.version).get("needs", ()))
    parts.append(f"{launch.command}{' ' if needs else ''}{needs}\n")
    return "".join(parts)


def _own_file(d: Deployment, launch: Launch, wanted: Wanted) -> str:
    """The file that the engine itself reads."""
    if not launch.files:
        what = "has no file of its own settings here: the command says all"
        raise BadInput(f"--launch-as: yaml: {d.setup.engine} {what}; give command, compose or kubernetes")
    head = _head(launch, wanted, f"For {launch.command}")
    return comment(head) + "".join(launch.files.values())


def _compose(d: Deployment, launch: Launch, wanted: Wanted) -> str:
    head = _head(launch, wanted, "docker compose -f THIS_FILE up; then the log of each engine will hold")
    body = compose(d, launch, wanted.local, wanted.weight_bytes)
    return comment([*head, *_image_note(d)]) + body


def _kubernetes(d: Deployment, launch: Launch, wanted: Wanted) -> str:
    head = _head(launch, wanted, "kubectl apply -f THIS_FILE; then the log of each pod will hold")
    gated = 'A gated model: kubectl create secret generic hf-token --from-literal=token="$HF_TOKEN"'
    body = kubernetes(d, launch, wanted.local, wanted.weight_bytes)
    return comment([*head, *_image_note(d), *([gated] if "hf-token" in body else [])]) + body


def _head(launch: Launch, wanted: Wanted, found: str) -> list[str]:
    """What it is, and what to look for in the log."""
    lines = [wanted.title]
    if launch.expected:
        lines += [f"{found}:", *(f"  {line}" for line in launch.expected)]
        lines += wanted.spread
    if launch.served.startswith("MODEL"):
        lines.append(f"{launch.served} stands for the weights: put their path in its place")
    return lines + [f"note: {note}" for note in launch.notes]


def _image_note(d: Deployment) -> list[str]:
    note = launching.container(d.setup.engine).get("note")
    return [str(note)] if note else []


_FORMS: dict[str, Callable[[Deployment, Launch, Wanted], str]] = {
    "command": _command,
    "compose": _compose,
    "kubernetes": _kubernetes,
    "yaml": _own_file,
}
