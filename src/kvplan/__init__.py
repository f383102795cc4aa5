"""kvplan: what an LLM's KV cache costs, what fits, and how fast it can go, before renting a GPU.

Each verb is a function that returns the document its command prints with `--json`.
"""

from kvplan.errors import KvplanError
from kvplan.verbs.fit import fit
from kvplan.verbs.listing import accelerators, engines, models
from kvplan.verbs.plan import plan
from kvplan.verbs.size import size
from kvplan.verbs.timeline import timeline

__version__ = "0.1.0"
__all__ = ["KvplanError", "accelerators", "engines", "fit", "models", "plan", "size", "timeline"]
