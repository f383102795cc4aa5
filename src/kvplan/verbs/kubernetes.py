"""A deployment for Kubernetes: a Deployment and a Service, and what they need beside them."""

from __future__ import annotations

import math
from typing import Any

from kvplan.engines.deployment import Deployment
from kvplan.facts import launching
from kvplan.verbs.container import Container, container_of, literal, literals, shared_memory_gib, storage_gib
from kvplan.verbs.launch import Launch, independent
from kvplan.verbs.yaml_text import yaml

_PERIOD = 10
_LABEL = "app.kubernetes.io/name"


def kubernetes(d: Deployment, launch: Launch, local: str | None, weight_bytes: int | None) -> str:
    """The manifest. Replicas that know nothing of one another are replicas of the Deployment."""
    alone = independent(d) and d.setup.dp > 1
    c = container_of(d, launch, local, weight_bytes, alone=alone)
    replicas = d.setup.dp if alone else 1
    documents = [_config(c)] if c.files else []
    if c.fetches or not c.local:
        documents.append(_claim(c, replicas, weight_bytes))
    documents += [_deployment(d, c, replicas), _service(c)]
    return "---\n".join(yaml(document) for document in documents)


def _named(c: Container, name: str | None = None) -> dict[str, Any]:
    return {"name": name or c.name, "labels": {_LABEL: c.name}}


def _config(c: Container) -> dict[str, Any]:
    """The engine's own file."""
    data = {path.rpartition("/")[2]: text for path, text in c.files.items()}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": _named(c), "data": data}


def _claim(c: Container, replicas: int, weight_bytes: int | None) -> dict[str, Any]:
    """Where the weights stay between starts; several pods share them."""
    mode = "ReadWriteOnce" if replicas == 1 else "ReadWriteMany"
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": _named(c, f"{c.name}-models"),
        "spec": {
            "accessModes": [mode],
            "resources": {"requests": {"storage": f"{storage_gib(weight_bytes)}Gi"}},
        },
    }


def _service(c: Container) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _named(c),
        "spec": {
            "selector": {_LABEL: c.name},
            "ports": [{"name": "http", "port": c.port, "targetPort": "http"}],
        },
    }


def _deployment(d: Deployment, c: Container, replicas: int) -> dict[str, Any]:
    volumes, mounts = _volumes(c)
    pod: dict[str, Any] = {
        "enableServiceLinks": False,
        "containers": [_container(d, c, mounts)],
        "volumes": volumes,
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _named(c),
        "spec": {
            "replicas": replicas,
            "strategy": {"type": "Recreate"},
            "progressDeadlineSeconds": c.seconds + 600,
            "selector": {"matchLabels": {_LABEL: c.name}},
            "template": {"metadata": {"labels": {_LABEL: c.name}}, "spec": pod},
        },
    }


def _container(d: Deployment, c: Container, mounts: list[dict[str, Any]]) -> dict[str, Any]:
    resource = launching.machine()["resource"][d.setup.platform]
    probe = {"httpGet": {"path": c.health, "port": "http"}, "periodSeconds": _PERIOD, "timeoutSeconds": 5}
    return {
        "name": "engine",
        "image": c.image,
        "command": literals(c.program),
        "args": literals(c.words),
        "env": _environment(c),
        "ports": [{"name": "http", "containerPort": c.port}],
        "resources": {"limits": {resource: c.devices}},
        "startupProbe": {**probe, "failureThreshold": math.ceil(c.seconds / _PERIOD)},
        "readinessProbe": {**probe, "failureThreshold": 3},
        "volumeMounts": mounts,
    }


def _environment(c: Container) -> list[dict[str, Any]]:
    """Variables of the launch; the token comes from a secret, if there is one."""
    found: list[dict[str, Any]] = [
        {"name": name, "value": literal(value)} for name, value in c.environment.items()
    ]
    if c.fetches:
        secret = {"name": "hf-token", "key": "token", "optional": True}
        found.append({"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": secret}})
    return found


def _volumes(c: Container) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Weights, the engine's own file, shared memory: the pod's volumes and where they are mounted."""
    volumes: list[dict[str, Any]] = []
    mounts: list[dict[str, Any]] = []
    if c.local:
        volumes.append({"name": "models", "hostPath": {"path": c.local, "type": "Directory"}})
        mounts.append({"name": "models", "mountPath": c.inside, "readOnly": True})
    else:
        volumes.append({"name": "models", "persistentVolumeClaim": {"claimName": f"{c.name}-models"}})
        mounts.append({"name": "models", "mountPath": c.cache if c.fetches else c.inside})
    for path in c.files:
        volumes.append({"name": "config", "configMap": {"name": c.name}})
        mounts.append({"name": "config", "mountPath": path.rpartition("/")[0]})
    if shared_memory_gib(c.devices):
        size = f"{shared_memory_gib(c.devices)}Gi"
        volumes.append({"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": size}})
        mounts.append({"name": "shm", "mountPath": "/dev/shm"})  # noqa: S108
    return volumes, mounts
