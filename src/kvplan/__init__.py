"""kvplan: what an LLM's KV cache costs, what fits, and how fast it can go, before renting a GPU.

Each verb is a function that returns the document its command prints with `--json`. A verb's modules are
loaded when it is first asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import kvplan.engines  # noqa: F401  the package first: the verb of that name takes its place
from kvplan.errors import KvplanError
from kvplan.verbs.listing import accelerators, engines, models

if TYPE_CHECKING:
    from kvplan.verbs.compare import compare
    from kvplan.verbs.drill import drill
    from kvplan.verbs.fit import fit
    from kvplan.verbs.latency import latency
    from kvplan.verbs.levers import levers
    from kvplan.verbs.measure import measure
    from kvplan.verbs.plan import plan
    from kvplan.verbs.recommend import recommend
    from kvplan.verbs.simulate import simulate
    from kvplan.verbs.size import size
    from kvplan.verbs.timeline import timeline
    from kvplan.verbs.verify import verify
    from kvplan.verbs.workload import workload

__version__ = "0.1.0"
__all__ = [
    "KvplanError",
    "accelerators",
    "compare",
    "drill",
    "engines",
    "fit",
    "latency",
    "levers",
    "measure",
    "models",
    "plan",
    "recommend",
    "simulate",
    "size",
    "timeline",
    "verify",
    "workload",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'kvplan' has no attribute {name!r}")
    found = getattr(importlib.import_module(f"kvplan.verbs.{name}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
